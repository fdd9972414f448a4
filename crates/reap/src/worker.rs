// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Observes victims and takes their memory: all that a process can hold up. A worker that hangs in an order is
//! abandoned, and another one goes on.

use std::sync::Arc;
use std::time::Duration;

use bursar_host::{Controller, Release, clock};
use bursar_model::{Bytes, Nanos, Pid};
use bursar_policy::{Attempt, Doing, NextStep, ReapPlan, next_step, reap_plan};
use bursar_watchdog::{Abandoned, Guard};

use crate::case::Case;
use crate::job::{Job, Victim};
use crate::observer::{Observer, Seen, unseen};
use crate::report::Fate;
use crate::{shared_mm, unblock};

/// What a worker does.
#[derive(Debug, Clone)]
pub(crate) enum Order {
    /// Observe all victims of a job, before they are signalled.
    Prepare(Arc<Job>),
    /// Observe one that was signalled.
    Observe(u64, Victim),
    /// Take one's memory.
    Take(u64, Taking),
}

/// A victim whose memory is to be taken.
#[derive(Debug, Clone)]
pub(crate) struct Taking {
    victim: Victim,
    plan: ReapPlan,
    mm_sharer: Option<Pid>,
    has_memory: bool,
    private: Option<Bytes>,
}

/// What came of an order.
#[derive(Debug)]
pub(crate) enum Answer {
    Prepared(Vec<Observed>),
    Observed(Observed),
    Taken(Taken),
}

/// What was seen of a victim, and what follows.
#[derive(Debug)]
pub(crate) struct Observed {
    /// `None`: it was gone, or nobody is to ask for its memory.
    pub(crate) seen: Option<Seen>,
    pub(crate) plan: ReapPlan,
    /// A living process with the same memory.
    pub(crate) mm_sharer: Option<Pid>,
    /// It was said to be dying, and is not.
    pub(crate) is_alive: bool,
}

/// How taking a victim's memory went.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) at: Nanos,
    pub(crate) was_raised: bool,
    pub(crate) outcome: Outcome,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    /// Its memory is back, so much of it.
    Done(Fate, Option<Bytes>),
    /// It has to exit by itself.
    MustExit,
    /// Nobody asks for its memory: a thread of ours hangs at a process of its owner's, perhaps at this very one.
    Blocked { is_at_it: bool },
}

impl Order {
    /// Whether it is about this very process.
    pub(crate) fn is_about(&self, pid: Pid) -> bool {
        match self {
            Self::Prepare(job) => job.victims.iter().any(|it| it.pidfd.pid() == pid),
            Self::Observe(_, victim) => victim.pidfd.pid() == pid,
            Self::Take(_, taking) => taking.victim.pidfd.pid() == pid,
        }
    }
}

impl Taking {
    pub(crate) fn of(case: &Case) -> Self {
        Self {
            victim: case.victim.clone(),
            plan: case.plan.clone(),
            mm_sharer: case.mm_sharer,
            has_memory: case.seen.as_ref().is_some_and(|it| it.has_memory),
            private: case.private(),
        }
    }
}

/// Carries out an order.
///
/// # Errors
/// [`Abandoned`].
pub(crate) fn carry_out(
    observer: &Observer,
    order: Order,
    guard: &Guard,
) -> Result<Answer, Abandoned> {
    Ok(match order {
        Order::Prepare(job) => {
            let mut all = Vec::with_capacity(job.victims.len());
            for victim in &job.victims {
                let mut observed = observe(observer, victim, guard)?;
                // Afterwards it is too late to ask: a victim that leaves its memory to another is gone in no time.
                observed.mm_sharer = shared_mm::find(&observer.proc, victim, guard)?;
                all.push(observed);
            }
            Answer::Prepared(all)
        }
        Order::Observe(_, victim) => {
            let mut observed = observe(observer, &victim, guard)?;
            if let Some(seen) = &mut observed.seen {
                let is_dying = seen.facts.is_dying || seen.facts.doing == Doing::Ended;
                observed.is_alive = victim.is_unverified && !is_dying;
                // By us.
                seen.facts.is_dying = false;
                observed.plan = reap_plan(&seen.facts, observer.machine());
            }
            Answer::Observed(observed)
        }
        Order::Take(_, taking) => Answer::Taken(take(observer, &taking, guard)?),
    })
}

fn observe(observer: &Observer, victim: &Victim, guard: &Guard) -> Result<Observed, Abandoned> {
    let pid = victim.pidfd.pid();
    let look = || observer.observe(pid);
    let seen = guard.call(&observer.proc, pid, victim.owner, look)?;
    let seen = seen.flatten();
    let facts = seen.as_ref().map(|it| it.facts.clone());
    let facts = facts.unwrap_or_else(|| unseen(observer.cpus, victim.private));
    Ok(Observed {
        plan: reap_plan(&facts, observer.machine()),
        seen,
        mm_sharer: None,
        is_alive: false,
    })
}

fn take(observer: &Observer, taking: &Taking, guard: &Guard) -> Result<Taken, Abandoned> {
    let pidfd = &taking.victim.pidfd;
    let mut was_raised = taking.plan.raise_first && raise(observer, taking);
    let mut outcome = take_memory(observer, taking, guard, &mut was_raised)?;
    let at = clock::monotonic();
    if let (Outcome::MustExit, Some(mm_sharer)) = (&outcome, taking.mm_sharer) {
        let lives = || shared_mm::lives(&observer.proc, mm_sharer);
        if guard.call(&observer.proc, mm_sharer, None, lives)? == Some(true) {
            outcome = Outcome::Done(Fate::MmShared(mm_sharer), None);
        }
    }
    // Taken or not, its shell has to leave; and it may have begun to exit before it lost its CPU, with up to 40 MiB
    // taken off its page tables and not given back yet (mmu_gather): seen as 736 ms of SCHED_IDLE.
    if !was_raised && !pidfd.has_ended().unwrap_or(true) {
        was_raised = raise(observer, taking);
    }
    if taking.plan.thaw {
        let _ = unblock::move_out(observer, pidfd, Controller::Freezer);
    }
    Ok(Taken {
        at,
        was_raised,
        outcome,
    })
}

/// A group with a quota usually has no real-time runtime either: out of it first.
fn raise(observer: &Observer, taking: &Taking) -> bool {
    let pidfd = &taking.victim.pidfd;
    if taking.plan.unthrottle {
        let _ = unblock::move_out(observer, pidfd, Controller::Cpu);
    }
    unblock::raise(observer, pidfd)
}

fn take_memory(
    observer: &Observer,
    taking: &Taking,
    guard: &Guard,
    was_raised: &mut bool,
) -> Result<Outcome, Abandoned> {
    let victim = &taking.victim;
    let pid = victim.pidfd.pid();
    for tries in 1u32.. {
        // Asked before: a signal may free the thread that hangs there, and the victim stays all the same.
        let is_at_it = guard.blocklist().has(pid);
        let release = || victim.pidfd.release_memory();
        let Some(released) = guard.call(&observer.proc, pid, victim.owner, release)? else {
            return Ok(Outcome::Blocked { is_at_it });
        };
        let attempt = match released {
            Ok(Release::Freed) => Attempt::Freed,
            Ok(Release::Gone) => Attempt::Gone,
            Ok(Release::NotDying) => Attempt::NotDying,
            Ok(Release::Busy) => Attempt::Busy,
            Ok(Release::Unsupported) => Attempt::Unsupported,
            Ok(Release::Denied) | Err(_) => Attempt::Denied,
        };
        match next_step(attempt, tries) {
            NextStep::Done => {
                let held = taking.private.filter(|_| taking.has_memory);
                let freed = held.map(|held| held.saturating_sub(left(observer, pid)));
                return Ok(Outcome::Done(Fate::Released, freed));
            }
            NextStep::HelpItExit => return Ok(Outcome::MustExit),
            NextStep::Again { after, raise: late } => {
                if late && !*was_raised {
                    *was_raised = raise(observer, taking);
                }
                std::thread::sleep(Duration::from_nanos(after.get()));
            }
            NextStep::FindMmSharer => {
                let living = shared_mm::find(&observer.proc, victim, guard)?;
                if let Some(living) = living.filter(|_| !victim.pidfd.has_ended().unwrap_or(true)) {
                    return Ok(Outcome::Done(Fate::MmShared(living), None));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    Ok(Outcome::MustExit)
}

/// What a victim whose memory was taken still holds of it.
fn left(observer: &Observer, pid: Pid) -> Bytes {
    let status = observer.proc.status(pid).ok().flatten();
    status
        .and_then(|it| it.memory)
        .map_or(Bytes::ZERO, |it| it.rss_anon.saturating_add(it.swap))
}
