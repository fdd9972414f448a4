// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's reaper (bursar-reap): what it reports arrives here.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_host::{HostError, Pidfd, Waker};
use bursar_model::{Bytes, Nanos, Pid, ReapStatus, Uid};
use bursar_reap::{Fate, Job, JobKind, Priority, ReapEvent, Reaper, Report, Victim};
use bursar_watchdog::{Blocklist, Owner, TimedQuery};

/// How long the main thread or the ring reader waits for one process.
const SHORT: Duration = Duration::from_millis(100);

/// The reaper and its reports.
#[derive(Debug)]
pub(crate) struct VictimReaper {
    handle: ReapHandle,
    reports: Receiver<Report>,
    waker: Waker,
}

/// A process that was sent SIGKILL.
#[derive(Debug)]
pub(crate) struct Dying {
    pub(crate) pid: Pid,
    /// Who pays for it.
    pub(crate) uid: Uid,
    /// The hold on it, if it was there to be held.
    pub(crate) pidfd: Option<Pidfd>,
    /// When it was signalled, CLOCK_MONOTONIC.
    pub(crate) signalled: Nanos,
    /// What it had of its own then, as far as known.
    pub(crate) private: Option<Bytes>,
    /// Whoever has this number now: whether it is dying is looked at before anything is done.
    pub(crate) is_unverified: bool,
}

/// Hands victims over, from any thread.
#[derive(Debug)]
pub(crate) struct ReapHandle {
    reaper: Reaper,
    outbox: Sender<Report>,
    waker: Waker,
}

/// Which victim a report is about: its number. A pid cannot come round while its report is open: the
/// reaper holds the process by a pidfd, and a zombie keeps its number until its report is out, or it has
/// ended and the report follows at once.
const fn tag_of(pid: Pid) -> u64 {
    pid.get() as u64
}

impl VictimReaper {
    pub(crate) fn start() -> Result<Self> {
        let waker = Waker::new().context("make an eventfd")?;
        // Without a bound, for the main thread, which alone takes reports, hands over victims as well and would wait
        // for itself. There are no more than victims, and the ring reader, from whom those come, waits for the main thread.
        let (outbox, reports) = channel();
        let (waker_of_thread, sender) = (waker.clone(), outbox.clone());
        let reaper = Reaper::start(move |event| {
            // We send the signals ourselves: the other event says nothing new.
            if let ReapEvent::Settled(report) = event {
                // The main thread ends last.
                let _ = sender.send(*report);
                waker_of_thread.wake();
            }
        })
        .context("start the reapers")?;
        let handle = ReapHandle {
            reaper,
            outbox,
            waker: waker.clone(),
        };
        Ok(Self {
            handle,
            reports,
            waker,
        })
    }

    /// For another thread.
    pub(crate) fn handle(&self) -> ReapHandle {
        ReapHandle {
            reaper: self.handle.reaper.clone(),
            outbox: self.handle.outbox.clone(),
            waker: self.waker.clone(),
        }
    }

    pub(crate) fn priority(&self) -> Priority {
        self.handle.reaper.priority()
    }

    /// Processes that must not be called: a thread of ours hangs at each.
    pub(crate) fn blocklist(&self) -> &Arc<Blocklist> {
        self.handle.blocklist()
    }

    /// Asks for the main thread, which everybody waits for.
    pub(crate) fn timed_query(&self) -> Result<TimedQuery> {
        self.handle.timed_query("query").context("open /proc")
    }

    /// What hostile processes have cost us.
    pub(crate) fn note_losses(&self, status: &mut ReapStatus) {
        let reaper = &self.handle.reaper;
        status.threads_away = reaper.blocklist().hanging();
        status.threads_lost = reaper.blocklist().abandoned();
        status.left_alone = reaper.blocklist().refused();
        status.turned_away = reaper.turned_away();
    }

    /// See [`ReapHandle::reap`].
    pub(crate) fn reap(&self, dying: Dying) {
        self.handle.reap(dying);
    }

    /// What has been told since the last call.
    pub(crate) fn drain(&self) -> Vec<Report> {
        self.waker.clear();
        let mut reports = Vec::new();
        loop {
            match self.reports.try_recv() {
                Ok(one) => reports.push(one),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return reports,
            }
        }
    }
}

impl ReapHandle {
    /// Asks for a thread that others wait for. `name` is the worker's.
    pub(crate) fn timed_query(&self, name: &'static str) -> Result<TimedQuery, HostError> {
        let query = TimedQuery::new(name, Arc::clone(self.blocklist()))?;
        Ok(query.within(SHORT))
    }

    /// Takes the memory of a process; without a hold on it there is nothing to take, and that is the
    /// report.
    pub(crate) fn reap(&self, dying: Dying) {
        let Dying {
            pid,
            uid,
            pidfd,
            signalled,
            private,
            is_unverified,
        } = dying;
        match pidfd {
            Some(pidfd) => {
                let tag = tag_of(pidfd.pid());
                let mut victim = Victim::new(pidfd, signalled, tag);
                victim.owner = Some(Owner::User(uid));
                victim.private = private;
                victim.is_unverified = is_unverified;
                self.reaper.submit(Job {
                    kind: JobKind::Reap,
                    victims: vec![victim],
                });
            }
            None => {
                let report = Report {
                    tag: tag_of(pid),
                    pid,
                    fate: Fate::Exited,
                    signalled,
                    took: Nanos::new(
                        bursar_host::clock::monotonic()
                            .get()
                            .saturating_sub(signalled.get()),
                    ),
                    freed: private,
                    stays: None,
                    found: Vec::new(),
                };
                let _ = self.outbox.send(report);
                self.waker.wake();
            }
        }
    }

    pub(crate) fn priority(&self) -> Priority {
        self.reaper.priority()
    }

    /// Processes that must not be called: a thread of ours hangs at each.
    pub(crate) fn blocklist(&self) -> &Arc<Blocklist> {
        self.reaper.blocklist()
    }
}

impl AsFd for VictimReaper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
