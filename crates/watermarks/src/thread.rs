// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine in a thread of its own: it looks ten times a second in a storm and must neither wait for
//! bursard's other work nor hold it up.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use bursar_host::clock::{monotonic, thread_cpu_time};
use bursar_host::thread::spawn;
use bursar_protocol::{RestoreReport, WatermarksReport};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;

use crate::engine::{AccountFacts, Engine, Pause};
use crate::report::{report, restored};
use crate::saved::Restored;

/// An answer takes a tick at most; longer means that the thread hangs in the kernel.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A look older than this is done again before it is told, nanoseconds.
const FRESH_NS: u64 = 1_000_000_000;

enum Request {
    Report(SyncSender<WatermarksReport>),
    Restore(SyncSender<RestoreReport>),
}

/// The running thread.
#[derive(Debug)]
pub struct EngineThread {
    asks: Option<Sender<Request>>,
    bell: Arc<OwnedFd>,
    account_facts: Arc<AccountFacts>,
    thread: Option<JoinHandle<Vec<Restored>>>,
}

impl EngineThread {
    /// Gives the engine its thread. `proc`: where reports look for pressure.
    ///
    /// # Errors
    /// When there is no room for another thread or descriptor.
    pub fn start(engine: Engine, proc: PathBuf) -> std::io::Result<Self> {
        let (asks, inbox) = channel();
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let rung = bell.clone();
        let account_facts = engine.account_facts();
        let thread = spawn("watermarks", move || work(engine, &inbox, &rung, &proc))?;
        Ok(Self {
            asks: Some(asks),
            bell,
            account_facts,
            thread: Some(thread),
        })
    }

    /// What is known; `None` when the thread does not answer.
    pub fn report(&self) -> Option<WatermarksReport> {
        self.ask(Request::Report)
    }

    /// Where to write what it is to know of accounts, from the next look on.
    pub fn account_facts(&self) -> &AccountFacts {
        &self.account_facts
    }

    /// Puts everything back and from now on only observes; `None` when the thread does not answer.
    pub fn restore(&self) -> Option<RestoreReport> {
        self.ask(Request::Restore)
    }

    fn ask<T>(&self, question: impl FnOnce(SyncSender<T>) -> Request) -> Option<T> {
        let (reply, answer) = sync_channel(1);
        self.asks.as_ref()?.send(question(reply)).ok()?;
        self.ring();
        answer.recv_timeout(TIMEOUT).ok()
    }

    /// A full counter has been rung already.
    fn ring(&self) {
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
    }

    /// Ends: everything is put back.
    pub fn finish(mut self) -> Vec<Restored> {
        self.end()
    }

    fn end(&mut self) -> Vec<Restored> {
        self.asks = None;
        self.ring();
        let joined = self.thread.take().map(JoinHandle::join);
        joined.and_then(Result::ok).unwrap_or_default()
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.end();
    }
}

fn work(
    mut engine: Engine,
    inbox: &Receiver<Request>,
    bell: &OwnedFd,
    proc: &std::path::Path,
) -> Vec<Restored> {
    loop {
        let pause = engine.tick(monotonic());
        let until = match pause {
            Pause::For(pause) => {
                let pause = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
                Some(monotonic().get().saturating_add(pause))
            }
            Pause::UntilKnock => None,
        };
        loop {
            match inbox.try_recv() {
                Ok(Request::Report(reply)) => {
                    if monotonic().get().saturating_sub(engine.looked_at().get()) > FRESH_NS {
                        engine.tick(monotonic());
                    }
                    // Who asked may have gone; then nobody needs it.
                    let _ = reply.try_send(report(&engine, proc, monotonic(), thread_cpu_time()));
                }
                Ok(Request::Restore(reply)) => {
                    let _ = reply.try_send(restored(&engine.put_back()));
                }
                Err(TryRecvError::Disconnected) => return engine.finish(),
                Err(TryRecvError::Empty) => match wait(&engine, bell, until) {
                    Woken::Bell => {}
                    Woken::Time => break,
                },
            }
        }
    }
}

enum Woken {
    /// Somebody asks.
    Bell,
    /// It is time to look.
    Time,
}

/// Sleeps until somebody asks, until `until`, or, without that, until the kernel half wakes it.
fn wait(engine: &Engine, bell: &OwnedFd, until: Option<u64>) -> Woken {
    let left = until.map(|until| {
        let left = until.saturating_sub(monotonic().get());
        Timespec {
            tv_sec: i64::try_from(left / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(left % 1_000_000_000).unwrap_or(0),
        }
    });
    let wakeup = engine.wakeup().filter(|_| until.is_none());
    let mut fds = [
        PollFd::new(bell, PollFlags::IN),
        match &wakeup {
            Some(wakeup) => PollFd::new(wakeup, PollFlags::IN),
            None => PollFd::new(bell, PollFlags::empty()),
        },
    ];
    match poll(&mut fds, left.as_ref()) {
        Err(_) => Woken::Bell,
        Ok(0) => Woken::Time,
        Ok(_) => {
            let [asked, woken] = &fds;
            if asked.revents().contains(PollFlags::IN) {
                let mut count = [0; 8];
                let _ = rustix::io::read(bell, &mut count);
                Woken::Bell
            } else if woken.revents().is_empty() {
                Woken::Bell
            } else {
                Woken::Time
            }
        }
    }
}
