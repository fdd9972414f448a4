// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The threads that reap: one or two reapers, a ticker for each and a pacer one priority above them, a clerk.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use bursar_host::HostError;
use bursar_host::sched::{self, Changed, Class};
use bursar_model::Pid;

use crate::beats::Beats;
use crate::clerk::Clerk;
use crate::job::Job;
use crate::lead::Lead;
use crate::look::Looker;
use crate::mate::Mate;
use crate::pacer::Pacer;
use crate::report::News;
use crate::seat::Seat;

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
    jobs: Sender<Job>,
    priority: Priority,
}

impl Crew {
    /// Starts them. What happens to each victim is told to `outbox`, from a thread of the crew: it must not
    /// block.
    ///
    /// # Errors
    /// [`CrewError`].
    pub fn start(outbox: impl Fn(News) + Send + Sync + 'static) -> Result<Self, CrewError> {
        let looker = Looker::new()?;
        let priority = possible_priority()?;
        let high = (priority == Priority::RealTime).then_some(HIGH);
        let clerk = Clerk::start(Arc::new(outbox))?;
        let pacer = Pacer::new(high).map_err(std::io::Error::from)?;
        let pacer = Arc::new(pacer);
        let (own, its_clerk) = (Arc::clone(&pacer), clerk.clone());
        start("reap-pacer", priority, 1, move || own.run(&its_clerk))?;
        let mate = if looker.cpus > 1 {
            let mate = Arc::new(Mate::default());
            let (own, its_pacer) = (Arc::clone(&mate), Arc::clone(&pacer));
            let seat = Arc::clone(&mate.seat);
            let reaper = start("reaper-2", priority, 0, move || own.run(&its_pacer))?;
            seat.give(reaper, start_ticker("reap-tick-2", priority, &seat)?);
            Some(mate)
        } else {
            None
        };
        let (jobs, inbox) = channel();
        let seat = Arc::new(Seat::default());
        let lead = Lead {
            looker,
            pacer,
            mate,
            clerk,
            seat: Arc::clone(&seat),
        };
        let reaper = start("reaper-1", priority, 0, move || lead.run(&inbox))?;
        seat.give(reaper, start_ticker("reap-tick-1", priority, &seat)?);
        Ok(Self { jobs, priority })
    }

    /// Has a job done. Jobs are done one after the other.
    pub fn hand(&self, job: Job) {
        // The threads end only with us.
        let _ = self.jobs.send(job);
    }

    /// Another hand for the same crew.
    #[must_use]
    pub fn another(&self) -> Self {
        Self {
            jobs: self.jobs.clone(),
            priority: self.priority,
        }
    }

    /// How it may compete here.
    pub const fn priority(&self) -> Priority {
        self.priority
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
