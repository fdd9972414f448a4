// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's pool of reapers (bursar-reap): what they tell arrives here.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_host::Pidfd;
use bursar_model::{Bytes, Nanos, Pid, ReapStatus, Uid};
use bursar_reap::{Errand, Fate, Job, News, Pool, Priority, Report, Victim};
use bursar_watchdog::{Blocklist, Owner, TimedQuery};
use rustix::event::{EventfdFlags, eventfd};

/// How long the main thread waits for one process.
const SHORT: Duration = Duration::from_millis(100);

/// The pool and its news.
#[derive(Debug)]
pub(crate) struct Reaper {
    hand: Hand,
    reports: Receiver<Report>,
    waker: Arc<OwnedFd>,
}

/// A process that was sent SIGKILL.
#[derive(Debug)]
pub(crate) struct Dying {
    pub(crate) pid: Pid,
    /// Who pays for it.
    pub(crate) uid: Uid,
    /// The hold on it, if it was there to be held.
    pub(crate) pidfd: Option<Pidfd>,
    /// When, CLOCK_MONOTONIC.
    pub(crate) signalled: Nanos,
    /// What it had of its own then, as far as known.
    pub(crate) private: Option<Bytes>,
}

/// Gives the pool something to do; from any thread.
#[derive(Debug)]
pub(crate) struct Hand {
    pool: Pool,
    outbox: Sender<Report>,
    waker: Arc<OwnedFd>,
}

/// Which victim a report is about: its number. A pid cannot come round while its report is open: the
/// pool holds the process by a pidfd, and a zombie keeps its number until its report is out, or it has
/// ended and the report follows at once.
const fn tag_of(pid: Pid) -> u64 {
    pid.get() as u64
}

impl Reaper {
    pub(crate) fn start() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let waker = Arc::new(eventfd(0, flags).context("make an eventfd")?);
        // Without a bound, for the main thread, which alone takes reports, hands over victims as well and would wait
        // for itself. There are no more than victims, and the ring reader, from whom those come, waits for the main thread.
        let (outbox, reports) = channel();
        let (waker_of_thread, sender) = (Arc::clone(&waker), outbox.clone());
        let pool = Pool::start(move |news| {
            // We send the signals ourselves: the other news is none.
            if let News::Settled(report) = news {
                // The main thread ends last.
                let _ = sender.send(*report);
                ring(&waker_of_thread);
            }
        })
        .context("start the reapers")?;
        let hand = Hand {
            pool,
            outbox,
            waker: Arc::clone(&waker),
        };
        Ok(Self {
            hand,
            reports,
            waker,
        })
    }

    /// For another thread.
    pub(crate) fn hand(&self) -> Hand {
        Hand {
            pool: self.hand.pool.another(),
            outbox: self.hand.outbox.clone(),
            waker: Arc::clone(&self.waker),
        }
    }

    pub(crate) fn priority(&self) -> Priority {
        self.hand.pool.priority()
    }

    /// Whom nobody is to ask for his memory.
    pub(crate) fn blocklist(&self) -> &Arc<Blocklist> {
        self.hand.blocklist()
    }

    /// Asks for the main thread, which everybody waits for.
    pub(crate) fn timed_query(&self) -> Result<TimedQuery> {
        let query = TimedQuery::new("query", Arc::clone(self.blocklist())).context("open /proc")?;
        Ok(query.within(SHORT))
    }

    /// What hostile processes have cost us.
    pub(crate) fn note_losses(&self, status: &mut ReapStatus) {
        let pool = &self.hand.pool;
        status.threads_away = pool.blocklist().hanging();
        status.threads_lost = pool.blocklist().abandoned();
        status.left_alone = pool.blocklist().refused();
        status.turned_away = pool.turned_away();
    }

    /// See [`Hand::reap`].
    pub(crate) fn reap(&self, dying: Dying) {
        self.hand.reap(dying);
    }

    /// What has been told since the last call.
    pub(crate) fn drain(&self) -> Vec<Report> {
        let _ = rustix::io::read(&self.waker, &mut [0; 8]);
        let mut reports = Vec::new();
        loop {
            match self.reports.try_recv() {
                Ok(one) => reports.push(one),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return reports,
            }
        }
    }
}

impl Hand {
    /// Takes the memory of a process; without a hold on it there is nothing to take, and that is the
    /// report.
    pub(crate) fn reap(&self, dying: Dying) {
        let Dying {
            pid,
            uid,
            pidfd,
            signalled,
            private,
        } = dying;
        match pidfd {
            Some(pidfd) => {
                let tag = tag_of(pidfd.pid());
                let mut victim = Victim::new(pidfd, signalled, tag);
                victim.owner = Some(Owner::User(uid));
                victim.private = private;
                self.pool.hand(Job {
                    errand: Errand::Reap,
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
                ring(&self.waker);
            }
        }
    }

    pub(crate) fn priority(&self) -> Priority {
        self.pool.priority()
    }

    /// Whom nobody is to ask for his memory.
    pub(crate) fn blocklist(&self) -> &Arc<Blocklist> {
        self.pool.blocklist()
    }
}

fn ring(waker: &OwnedFd) {
    // A full counter is a waker already ringing.
    let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
}

impl AsFd for Reaper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
