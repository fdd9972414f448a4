// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The reaper as those who hand it jobs have it: three threads that end with its last handle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use bursar_host::{HostError, Waker, thread};
use bursar_watchdog::{Blocklist, Supervisor, Work};

use crate::job::{Job, JobKind};
use crate::observer::Observer;
use crate::priority::Priority;
use crate::report::Outbox;
use crate::report::{Fate, ReapEvent, Report};
use crate::watcher::Watcher;
use crate::{shared_mm, worker};

/// Jobs that the watcher has not taken yet; it takes them at once.
const WAITING: usize = 256;
/// A thread that sleeps so long in the kernel, in one call and without a moment of work, hangs: 2 GiB come back in
/// 0.2 s, and whoever takes more works.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Why there is no reaper.
#[derive(Debug, thiserror::Error)]
pub enum ReapError {
    /// /proc cannot be opened.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A thread or a descriptor could not be had.
    #[error("cannot start the reaper: {0}")]
    Start(#[from] std::io::Error),
}

#[derive(Clone)]
struct WakeOnDrop(Waker);

/// A handle; clones are of the same reaper.
#[derive(Clone)]
pub struct Reaper {
    jobs: SyncSender<Job>,
    /// Dropped after `jobs`: the watcher looks then whether this was the last handle.
    waker: WakeOnDrop,
    outbox: Outbox,
    blocklist: Arc<Blocklist>,
    priority: Priority,
    turned_away: Arc<AtomicU64>,
}

impl Reaper {
    /// Starts the threads. What happens to each victim is told to `outbox`, from one of them: it must not block.
    ///
    /// # Errors
    /// [`ReapError`].
    pub fn start(outbox: impl Fn(ReapEvent) + Send + Sync + 'static) -> Result<Self, ReapError> {
        let observer = Arc::new(Observer::new()?);
        let priority = Priority::possible()?;
        let waker = Waker::new()?;
        let blocklist = Arc::<Blocklist>::default();
        let outbox: Outbox = Arc::new(outbox);
        let (jobs, inbox) = sync_channel(WAITING);
        let turned_away = Arc::<AtomicU64>::default();
        let notify = || {
            let waker = waker.clone();
            Arc::new(move || waker.wake())
        };
        let own = Arc::clone(&observer);
        let worker = Supervisor::start(
            Work {
                name: "reap-worker",
                timeout: TIMEOUT,
                begin: Arc::new(move || priority.take_as_worker()),
                carry_out: Arc::new(move |order, guard| worker::carry_out(&own, order, guard)),
                notify: notify(),
            },
            Arc::clone(&blocklist),
        )?;
        let own = Arc::clone(&observer);
        let reporter = Supervisor::start(
            Work {
                name: "reap-reporter",
                timeout: TIMEOUT,
                begin: Arc::new(|| {}),
                carry_out: Arc::new(move |order, guard| {
                    shared_mm::complete(&own.proc, order, guard)
                }),
                notify: notify(),
            },
            Arc::clone(&blocklist),
        )?;
        let mut watcher = Watcher {
            inbox,
            waker: waker.clone(),
            outbox: Arc::clone(&outbox),
            observer,
            worker,
            reporter,
            turned_away: Arc::clone(&turned_away),
            cases: Vec::new(),
            next_id: 0,
        };
        thread::spawn("reap-watcher", move || {
            priority.take();
            watcher.run();
        })?;
        Ok(Self {
            jobs,
            waker: WakeOnDrop(waker),
            outbox,
            blocklist,
            priority,
            turned_away,
        })
    }

    /// Hands over a job. Without room for it a kill is refused and a reap reported as stuck; both are counted.
    pub fn submit(&self, job: Job) {
        match self.jobs.try_send(job) {
            Ok(()) => self.waker.0.wake(),
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => self.turn_away(&job),
        }
    }

    /// What this process may use.
    pub const fn priority(&self) -> Priority {
        self.priority
    }

    /// Processes that nobody is to call: for others that would.
    pub const fn blocklist(&self) -> &Arc<Blocklist> {
        &self.blocklist
    }

    /// Victims for which there was no room.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    fn turn_away(&self, job: &Job) {
        for victim in &job.victims {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            let why = "the reapers are behind".to_owned();
            let fate = match job.kind {
                JobKind::Kill => Fate::NotKilled(why),
                JobKind::Reap => Fate::Stuck(why),
            };
            let report: Report = victim.report(fate);
            (self.outbox)(ReapEvent::Settled(Box::new(report)));
        }
    }
}

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl std::fmt::Debug for Reaper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reaper")
            .field("priority", &self.priority)
            .field("blocklist", &self.blocklist)
            .finish_non_exhaustive()
    }
}
