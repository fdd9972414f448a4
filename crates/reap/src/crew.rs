// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The threads that reap: one or two reapers, a ticker for each and a pacer one priority above them, a clerk.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use bursar_host::sched::{self, Changed, Class};
use bursar_host::{HostError, Proc, clock};
use bursar_model::{Nanos, Pid};

use crate::barred::{Asker, Barred};
use crate::beats::Beats;
use crate::bell::Bell;
use crate::clerk::{Clerk, Scribe};
use crate::job::{Errand, Job, Victim};
use crate::lead::{Lead, PATIENCE_NS};
use crate::look::Looker;
use crate::mate::Mate;
use crate::overseer::{Hired, Overseer};
use crate::pacer::{Awaited, Pacer};
use crate::post::Vigil;
use crate::report::{Fate, News};
use crate::seat::Seat;

/// Jobs that wait. The victims of one that finds no room are only watched.
const WAITING: usize = 256;

/// Reapers' real-time priority, the pacer's is one more: above every ordinary program, below the
/// machine's own real-time threads (interrupt threads have 50).
const HIGH: u8 = 10;

/// How a crew may compete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Real-time, in slices.
    RealTime,
    /// Nice −20: no CAP_SYS_NICE for more, or a group without real-time runtime.
    Nice,
    /// Like everybody else.
    Ordinary,
}

/// Why there is no crew.
#[derive(Debug, thiserror::Error)]
pub enum CrewError {
    /// /proc cannot be opened.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A thread or a descriptor could not be had.
    #[error("cannot start the reapers: {0}")]
    Start(#[from] std::io::Error),
}

/// Reapers, waiting. They end with the process.
#[derive(Debug)]
pub struct Crew {
    jobs: SyncSender<Job>,
    parts: Arc<Parts>,
}

/// What a crew is made of, and made again of when threads are lost.
pub(crate) struct Parts {
    pub(crate) looker: Arc<Looker>,
    pub(crate) pacer: Arc<Pacer>,
    pub(crate) clerk: Clerk,
    pub(crate) barred: Arc<Barred>,
    pub(crate) has_mate: bool,
    mate: Arc<Mutex<Option<Arc<Mate>>>>,
    inbox: Arc<Mutex<Receiver<Job>>>,
    priority: Priority,
    turned_away: AtomicU64,
}

impl Crew {
    /// Starts them. What happens to each victim is told to `outbox`, from a thread of the crew: it must not
    /// block.
    ///
    /// # Errors
    /// [`CrewError`].
    pub fn start(outbox: impl Fn(News) + Send + Sync + 'static) -> Result<Self, CrewError> {
        let looker = Arc::new(Looker::new()?);
        let priority = possible_priority()?;
        let high = (priority == Priority::RealTime).then_some(HIGH);
        let bell = Bell::new().map_err(std::io::Error::from)?;
        let (jobs, inbox) = sync_channel(WAITING);
        let parts = Arc::new(Parts {
            has_mate: looker.cpus > 1,
            looker,
            pacer: Arc::new(Pacer::new(high, bell.clone())),
            clerk: Clerk::new(Arc::new(outbox), bell),
            barred: Arc::default(),
            mate: Arc::default(),
            inbox: Arc::new(Mutex::new(inbox)),
            priority,
            turned_away: AtomicU64::new(0),
        });
        let mate = parts.has_mate.then(|| parts.hire_mate()).transpose()?;
        let lead = parts.hire_lead(None).map_err(|(error, _)| error)?;
        let mut overseer = Overseer {
            proc: Proc::host()?,
            lead: Some(lead),
            left: None,
            mate,
            scribe: Some(parts.hire_scribe()?),
            parts: Arc::clone(&parts),
        };
        let (pacer, clerk) = (Arc::clone(&parts.pacer), parts.clerk.clone());
        start("reap-pacer", priority, 1, move || {
            pacer.run(&clerk, &mut overseer);
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

    /// Another hand for the same crew.
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

    /// Whom nobody is to ask for his memory: for others who would.
    pub fn barred(&self) -> &Arc<Barred> {
        &self.parts.barred
    }

    /// Victims for whom there was no room among the jobs that wait.
    pub fn turned_away(&self) -> u64 {
        self.parts.turned_away.load(Ordering::Relaxed)
    }
}

impl Parts {
    /// Starts a first reaper, which begins with `left`.
    pub(crate) fn hire_lead(
        &self,
        left: Option<Job>,
    ) -> Result<Hired<Lead>, (std::io::Error, Option<Job>)> {
        let lead = Arc::new(Lead {
            looker: Arc::clone(&self.looker),
            pacer: Arc::clone(&self.pacer),
            mate: Arc::clone(&self.mate),
            clerk: self.clerk.clone(),
            seat: Arc::default(),
            asker: Asker::new(Arc::clone(&self.barred)),
            left: Mutex::new(left),
            docket: Mutex::default(),
        });
        let (own, jobs) = (Arc::clone(&lead), Arc::clone(&self.inbox));
        let names = ["reaper-1", "reap-tick-1"];
        match self.seat(names, &lead.seat, move || own.run(&jobs)) {
            Ok(thread) => Ok(Hired {
                worker: lead,
                vigil: Vigil::over(thread),
            }),
            Err(error) => Err((error, lead.take_left())),
        }
    }

    /// Starts a second reaper, for the next job that wants one.
    pub(crate) fn hire_mate(&self) -> std::io::Result<Hired<Mate>> {
        let mate = Arc::new(Mate::new(Asker::new(Arc::clone(&self.barred))));
        let (own, looker, pacer) = (
            Arc::clone(&mate),
            Arc::clone(&self.looker),
            Arc::clone(&self.pacer),
        );
        let names = ["reaper-2", "reap-tick-2"];
        let thread = self.seat(names, &mate.seat, move || own.run(&looker.proc, &pacer))?;
        *self.mate.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&mate));
        Ok(Hired {
            worker: mate,
            vigil: Vigil::over(thread),
        })
    }

    pub(crate) fn hire_scribe(&self) -> std::io::Result<Hired<Scribe>> {
        let (worker, thread) = self.clerk.seat(&self.barred)?;
        Ok(Hired {
            worker,
            vigil: Vigil::over(thread),
        })
    }

    /// Starts a reaper with its ticker.
    fn seat(
        &self,
        [reaper, ticker]: [&str; 2],
        seat: &Arc<Seat>,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Pid> {
        let ticking = start_ticker(ticker, self.priority, seat)?;
        let own = Arc::clone(seat);
        let started = start(reaper, self.priority, 0, move || {
            own.give(sched::own_thread(), ticking);
            work();
        });
        if started.is_err() {
            seat.ticker.end();
        }
        started
    }

    /// A reaper is lost at `pid`.
    pub(crate) fn dismiss(&self, asker: &Asker, seat: &Arc<Seat>, pid: Pid, proc: &Proc) {
        self.barred.bar(proc, asker.post(), pid);
        self.pacer.end(seat);
        seat.ticker.end();
    }

    fn turn_away(&self, job: Job) {
        for victim in job.victims {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            match job.errand {
                Errand::Kill => {
                    let fate = Fate::Spared("the reapers are behind".to_owned());
                    self.clerk.file(victim.report(fate), None);
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
        self.pacer.watch(awaited, &self.clerk);
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Parts");
        shown.field("priority", &self.priority);
        shown.field("barred", &self.barred).finish_non_exhaustive()
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
    /// to the crew and sleeps again.
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

fn start_ticker(name: &str, priority: Priority, seat: &Arc<Seat>) -> Result<Pid, std::io::Error> {
    let seat = Arc::clone(seat);
    let beats = Beats::new()?;
    start(name, priority, 1, move || seat.ticker.run(beats))
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
