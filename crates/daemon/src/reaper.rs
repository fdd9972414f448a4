// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes a killed process's memory back from a thread of its own (S2): the victim may sit throttled
//! or starved somewhere, and the rest of the daemon must not wait for it either way.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_host::{Pidfd, Release};
use bursar_model::Pid;
use rustix::event::{EventfdFlags, eventfd};

/// process_mrelease answers "busy" while the victim changes its own memory; that passes.
const TRIES: u32 = 50;
const BETWEEN_TRIES: Duration = Duration::from_millis(2);

/// How a victim's memory came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// We took it.
    Released,
    /// It went by itself, or was gone before we came.
    Exit,
}

/// What the reaper did.
#[derive(Debug)]
pub(crate) struct Reaped {
    pub(crate) pid: Pid,
    pub(crate) method: Method,
}

/// The reaping thread.
#[derive(Debug)]
pub(crate) struct Reaper {
    jobs: Sender<Pidfd>,
    done: Receiver<Reaped>,
    bell: OwnedFd,
}

impl Reaper {
    pub(crate) fn start() -> Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .context("make an eventfd")?;
        let ringer = bell.try_clone().context("share an eventfd")?;
        let (jobs, inbox) = channel::<Pidfd>();
        let (outbox, done) = channel();
        std::thread::Builder::new()
            .name("reaper".to_owned())
            .spawn(move || {
                for pidfd in inbox {
                    let reaped = Reaped {
                        pid: pidfd.pid(),
                        method: reap(&pidfd),
                    };
                    if outbox.send(reaped).is_err() {
                        return;
                    }
                    // A full counter is a bell already ringing.
                    let _ = rustix::io::write(&ringer, &1u64.to_ne_bytes());
                }
            })
            .context("start the reaper")?;
        Ok(Self { jobs, done, bell })
    }

    /// Reaps the process behind `pidfd`, which was sent SIGKILL.
    pub(crate) fn reap(&self, pidfd: Pidfd) {
        // The thread ends only with us.
        let _ = self.jobs.send(pidfd);
    }

    /// What has been done since the last call.
    pub(crate) fn drain(&self) -> Vec<Reaped> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        let mut reaped = Vec::new();
        loop {
            match self.done.try_recv() {
                Ok(one) => reaped.push(one),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return reaped,
            }
        }
    }
}

impl AsFd for Reaper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

fn reap(pidfd: &Pidfd) -> Method {
    for _ in 0..TRIES {
        match pidfd.release_memory() {
            Ok(Release::Freed) => return Method::Released,
            Ok(Release::Busy) => std::thread::sleep(BETWEEN_TRIES),
            Ok(Release::Gone | Release::NotDying | Release::Unsupported | Release::Denied) => {
                return Method::Exit;
            }
            Err(error) => {
                tracing::warn!(pid = pidfd.pid().get(), %error, "a killed process's memory could not be taken back early");
                return Method::Exit;
            }
        }
    }
    Method::Exit
}
