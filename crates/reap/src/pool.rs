// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The threads that reap: one or two reapers, a preempter for each and a controller one priority above them, a reporter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use bursar_host::sched::{self, Changed, Class};
use bursar_host::{HostError, Proc, clock};
use bursar_model::{Nanos, Pid};

use crate::cpu_slot::CpuSlot;
use crate::helper::Helper;
use crate::interval::IntervalTimer;
use crate::job::{Errand, Job, Victim};
use crate::observer::Observer;
use crate::priority::{Awaited, PriorityController};
use crate::report::{Fate, News};
use crate::reporter::{Reporter, ReporterThread};
use crate::supervisor::{Running, Supervisor};
use crate::waker::Waker;
use crate::worker::{PATIENCE_NS, Worker};
use bursar_watchdog::Monitor;
use bursar_watchdog::{Blocklist, Guard};

/// Jobs that wait. The victims of one that finds no room are only watched.
const WAITING: usize = 256;

/// Reapers' real-time priority, the controller's is one more: above every ordinary program, below the
/// machine's own real-time threads (interrupt threads have 50).
const HIGH: u8 = 10;

/// How a pool may compete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Real-time, in slices.
    RealTime,
    /// Nice −20: no CAP_SYS_NICE for more, or a group without real-time runtime.
    Nice,
    /// Like everybody else.
    Ordinary,
}

/// Why there is no pool.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// /proc cannot be opened.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A thread or a descriptor could not be had.
    #[error("cannot start the reapers: {0}")]
    Start(#[from] std::io::Error),
}

/// Reapers, waiting. They end with the process.
#[derive(Debug)]
pub struct Pool {
    jobs: SyncSender<Job>,
    parts: Arc<Parts>,
}

/// What a pool is made of, and made again of when threads are lost.
pub(crate) struct Parts {
    pub(crate) observer: Arc<Observer>,
    pub(crate) controller: Arc<PriorityController>,
    pub(crate) reporter: Reporter,
    pub(crate) blocklist: Arc<Blocklist>,
    pub(crate) has_helper: bool,
    helper: Arc<Mutex<Option<Arc<Helper>>>>,
    inbox: Arc<Mutex<Receiver<Job>>>,
    priority: Priority,
    turned_away: AtomicU64,
}

impl Pool {
    /// Starts them. What happens to each victim is told to `outbox`, from a thread of the pool: it must not
    /// block.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn start(outbox: impl Fn(News) + Send + Sync + 'static) -> Result<Self, PoolError> {
        let observer = Arc::new(Observer::new()?);
        let priority = possible_priority()?;
        let high = (priority == Priority::RealTime).then_some(HIGH);
        let waker = Waker::new().map_err(std::io::Error::from)?;
        let (jobs, inbox) = sync_channel(WAITING);
        let parts = Arc::new(Parts {
            has_helper: observer.cpus > 1,
            observer,
            controller: Arc::new(PriorityController::new(high, waker.clone())),
            reporter: Reporter::new(Arc::new(outbox), waker),
            blocklist: Arc::default(),
            helper: Arc::default(),
            inbox: Arc::new(Mutex::new(inbox)),
            priority,
            turned_away: AtomicU64::new(0),
        });
        let helper = parts.has_helper.then(|| parts.start_helper()).transpose()?;
        let worker = parts.start_worker(None).map_err(|(error, _)| error)?;
        let mut supervisor = Supervisor {
            proc: Proc::host()?,
            worker: Some(worker),
            left: None,
            helper,
            reporter_thread: Some(parts.start_reporter()?),
            parts: Arc::clone(&parts),
        };
        let (controller, reporter) = (Arc::clone(&parts.controller), parts.reporter.clone());
        start("reap-priority", priority, 1, move || {
            controller.run(&reporter, &mut supervisor);
        })?;
        Ok(Self { jobs, parts })
    }

    /// Has a job done. Jobs are done one after the other; the victims of one for which there is no room, because the
    /// reapers are behind, are watched until they have ended, and that is counted.
    pub fn hand(&self, job: Job) {
        // The threads end only with us.
        if let Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) =
            self.jobs.try_send(job)
        {
            self.parts.turn_away(job);
        }
    }

    /// Another handle of the same pool.
    #[must_use]
    pub fn another(&self) -> Self {
        Self {
            jobs: self.jobs.clone(),
            parts: Arc::clone(&self.parts),
        }
    }

    /// How it may compete here.
    pub fn priority(&self) -> Priority {
        self.parts.priority
    }

    /// Processes that nobody is to ask for memory: for others who would.
    pub fn blocklist(&self) -> &Arc<Blocklist> {
        &self.parts.blocklist
    }

    /// Victims for whom there was no room among the jobs that wait.
    pub fn turned_away(&self) -> u64 {
        self.parts.turned_away.load(Ordering::Relaxed)
    }
}

impl Parts {
    /// Starts a first reaper, which begins with `left`.
    pub(crate) fn start_worker(
        &self,
        left: Option<Job>,
    ) -> Result<Running<Worker>, (std::io::Error, Option<Job>)> {
        let worker = Arc::new(Worker {
            observer: Arc::clone(&self.observer),
            controller: Arc::clone(&self.controller),
            helper: Arc::clone(&self.helper),
            reporter: self.reporter.clone(),
            cpu_slot: Arc::default(),
            guard: Guard::new(Arc::clone(&self.blocklist)),
            left: Mutex::new(left),
            progress: Mutex::default(),
        });
        let (own, jobs) = (Arc::clone(&worker), Arc::clone(&self.inbox));
        let names = ["reaper-1", "reap-preempt-1"];
        match self.cpu_slot(names, &worker.cpu_slot, move || own.run(&jobs)) {
            Ok(thread) => Ok(Running {
                monitor: Monitor::of(thread, &worker.guard),
                thread_state: worker,
            }),
            Err(error) => Err((error, worker.take_left())),
        }
    }

    /// Starts a second reaper, for the next job that wants one.
    pub(crate) fn start_helper(&self) -> std::io::Result<Running<Helper>> {
        let helper = Arc::new(Helper::new(Guard::new(Arc::clone(&self.blocklist))));
        let (own, observer, controller) = (
            Arc::clone(&helper),
            Arc::clone(&self.observer),
            Arc::clone(&self.controller),
        );
        let names = ["reaper-2", "reap-preempt-2"];
        let thread = self.cpu_slot(names, &helper.cpu_slot, move || {
            own.run(&observer.proc, &controller)
        })?;
        *self.helper.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&helper));
        Ok(Running {
            monitor: Monitor::of(thread, &helper.guard),
            thread_state: helper,
        })
    }

    pub(crate) fn start_reporter(&self) -> std::io::Result<Running<ReporterThread>> {
        let (thread_state, thread) = self.reporter.cpu_slot(&self.blocklist)?;
        Ok(Running {
            monitor: Monitor::of(thread, &thread_state.guard),
            thread_state,
        })
    }

    /// Starts a reaper with its preempter.
    fn cpu_slot(
        &self,
        [reaper, preempter]: [&str; 2],
        cpu_slot: &Arc<CpuSlot>,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Pid> {
        let preempting = start_preempter(preempter, self.priority, cpu_slot)?;
        let own = Arc::clone(cpu_slot);
        let started = start(reaper, self.priority, 0, move || {
            own.give(sched::own_thread(), preempting);
            work();
        });
        if started.is_err() {
            cpu_slot.preempter.end();
        }
        started
    }

    /// A reaper was abandoned.
    pub(crate) fn dismiss(&self, cpu_slot: &Arc<CpuSlot>) {
        self.controller.end(cpu_slot);
        cpu_slot.preempter.end();
    }

    fn turn_away(&self, job: Job) {
        for victim in job.victims {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            match job.errand {
                Errand::Kill => {
                    let fate = Fate::Spared("the reapers are behind".to_owned());
                    self.reporter.file(victim.report(fate), None);
                }
                Errand::Reap => {
                    let why = "the reapers are behind, and it is still exiting";
                    self.watch(victim, why, PATIENCE_NS);
                }
            }
        }
    }

    /// Has a victim that nobody reaps watched until it has ended, or for so long: then `why` is said.
    pub(crate) fn watch(&self, victim: Victim, why: &'static str, patience: u64) {
        let now = clock::monotonic();
        let awaited = Awaited {
            report: victim.report(Fate::Exited),
            pidfd: victim.pidfd,
            shared: None,
            was_raised: false,
            why,
            deadline: Nanos::new(now.get().saturating_add(patience)),
        };
        self.controller.watch(awaited, &self.reporter);
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Parts");
        shown.field("priority", &self.priority);
        shown
            .field("blocked", &self.blocklist)
            .finish_non_exhaustive()
    }
}

impl Priority {
    /// The word in `status --json`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::RealTime => "real_time",
            Self::Nice => "nice",
            Self::Ordinary => "ordinary",
        }
    }

    /// Gives the calling thread the place of a reaper at rest: for a thread that only wakes, hands jobs
    /// to the pool and sleeps again.
    pub fn take(self) {
        if let Some(class) = self.class(0) {
            let _ = sched::set_class(sched::own_thread(), class);
        }
    }

    fn class(self, above: u8) -> Option<Class> {
        match self {
            Self::RealTime => Some(Class::RealTime(HIGH.saturating_add(above))),
            Self::Nice => Some(Class::Fair(-20)),
            Self::Ordinary => None,
        }
    }
}

/// Tries it on a thread of our own.
fn possible_priority() -> Result<Priority, std::io::Error> {
    let try_them = || {
        let own = sched::own_thread();
        let has = |class| sched::set_class(own, class) == Changed::Done;
        if has(Class::RealTime(HIGH)) {
            Priority::RealTime
        } else if has(Class::Fair(-20)) {
            Priority::Nice
        } else {
            Priority::Ordinary
        }
    };
    let thread = std::thread::Builder::new()
        .name("reap-try".to_owned())
        .spawn(try_them)?;
    Ok(thread.join().unwrap_or(Priority::Ordinary))
}

fn start_preempter(
    name: &str,
    priority: Priority,
    cpu_slot: &Arc<CpuSlot>,
) -> Result<Pid, std::io::Error> {
    let cpu_slot = Arc::clone(cpu_slot);
    let interval = IntervalTimer::new()?;
    start(name, priority, 1, move || cpu_slot.preempter.run(interval))
}

/// Starts a thread; its number.
fn start(
    name: &str,
    priority: Priority,
    above: u8,
    work: impl FnOnce() + Send + 'static,
) -> Result<Pid, std::io::Error> {
    let class = priority.class(above);
    let (number, its_number) = channel();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let own = sched::own_thread();
            let _ = sched::allow_all_cpus(own);
            if let Some(class) = class {
                let _ = sched::set_class(own, class);
            }
            let _ = number.send(own);
            work();
        })?;
    its_number.recv().map_err(std::io::Error::other)
}
