// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a killed process's memory is taken back (S2): from facts about the victim to a plan, and from each
//! step's outcome to the next step.
//!
//! What it comes to stands in docs/REAP.md.

use bursar_model::{Bytes, Nanos, Pid};

use crate::pace::Pace;

/// What a victim's first thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Runs, sleeps: a signal finds it at once.
    Usual,
    /// Stopped by a signal or a debugger; SIGKILL sets it free.
    Stopped,
    /// Waits for a device, a file system, or in a freezer of cgroup version 1.
    Uninterruptible,
    /// Ended. With other threads alive it is only the process's first one that has.
    Ended,
}

/// How the victim's threads are scheduled: the first one's class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// At a nice value of 0 or better, or real-time.
    Fair,
    /// Behind others: nice 1 to 19, batch.
    Low,
    /// SCHED_IDLE.
    Last,
}

/// What is known of a victim before anything is done to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VictimFacts {
    /// What its first thread does.
    pub doing: Doing,
    /// Its threads.
    pub threads: u32,
    /// Memory that comes back with it: anonymous and swapped.
    pub private: Bytes,
    /// Shared memory that it maps: this is its file's and stays.
    pub shared: Bytes,
    /// Locked by mlock.
    pub locked: Bytes,
    /// How its threads are scheduled.
    pub standing: Standing,
    /// On how many CPUs it may run.
    pub cpus: u32,
    /// Its cgroups' CPU quota, in thousandths of one CPU.
    pub quota_permille: Option<u64>,
    /// It stands still in a freezer.
    pub freezer: Option<Freezer>,
    /// Who traces it.
    pub tracer: Option<Pid>,
    /// Somebody else has killed it before.
    pub is_dying: bool,
}

/// What it takes to leave a freezer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freezer {
    /// cgroup version 2: SIGKILL suffices.
    ThawsByKill,
    /// cgroup version 1: somebody has to move it out.
    HoldsTheDying,
}

/// The machine at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineFacts {
    /// CPUs that reapers may use.
    pub cpus: u32,
    /// Threads that want to run, the asking one aside.
    pub runnable: u32,
}

impl MachineFacts {
    /// Whether somebody would have to wait for a reaper, or a reaper for somebody.
    pub const fn is_busy(&self) -> bool {
        self.runnable >= self.cpus
    }
}

/// Something about a victim that an administrator should read in its event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peculiarity {
    /// Its first thread had ended while others lived.
    DeadLeader,
    /// All of it had ended; its parent has not asked for its end yet.
    Zombie,
    /// It had been killed before and was still there; its memory may be back already.
    Dying,
    /// Stopped by a signal.
    Stopped,
    /// Traced by a debugger.
    Traced,
    /// In a freezer.
    Frozen,
    /// In uninterruptible sleep.
    Uninterruptible,
    /// Held back by a CPU quota.
    Throttled,
    /// Scheduled behind others.
    Starved,
    /// Confined to fewer CPUs than there are.
    Confined,
    /// Holds locked memory; it comes back like any other.
    Locked,
    /// Holds shared memory; that does not come back with it.
    Shared,
    /// A living process has the same memory.
    MmShared,
}

impl Peculiarity {
    /// The word in `found` of an event.
    pub const fn word(self) -> &'static str {
        match self {
            Self::DeadLeader => "dead_leader",
            Self::Zombie => "zombie",
            Self::Dying => "dying_already",
            Self::Stopped => "stopped",
            Self::Traced => "traced",
            Self::Frozen => "frozen",
            Self::Uninterruptible => "uninterruptible",
            Self::Throttled => "throttled",
            Self::Starved => "starved",
            Self::Confined => "confined",
            Self::Locked => "mlocked",
            Self::Shared => "shared_memory",
            Self::MmShared => "memory_shared_with_living",
        }
    }
}

/// When the victim's own threads are raised above everybody else's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raise {
    /// As soon as it is dying: others of it have to die before the memory is free, and they would wait
    /// for each other. KERNEL.md: 2,847 ms without, 35 ms with.
    AtOnce,
    /// When its memory cannot be taken from outside. A raised victim and its reaper fight over one
    /// memory: on a free core that is slower than doing nothing (KERNEL.md).
    WhenNeeded,
}

/// What is to be done about one victim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReapPlan {
    /// How many reapers take its memory at the same time.
    pub reapers: u32,
    /// How urgently.
    pub pace: Pace,
    /// When its threads are raised.
    pub raise: Raise,
    /// How urgently they are raised where it has to exit by itself: not at all for a while if nothing holds
    /// it back.
    pub help: Pace,
    /// Move it out of its freezer.
    pub thaw: bool,
    /// Move it out of the cgroup whose CPU quota holds it back, if it has to run at all.
    pub unthrottle: bool,
    /// Keep it off the reaper's CPU, so that it gives its memory back on another one meanwhile.
    pub part: bool,
    /// How long taking the memory should take.
    pub expected: Nanos,
    /// What is worth knowing about it.
    pub found: Vec<Peculiarity>,
}

/// A second reaper buys nothing below this: waking it costs more than it saves.
const WORTH_TWO: Bytes = Bytes::from_mib(4);
/// What one reaper takes at least on the slowest machine worth the name, bytes a second; sets only when
/// a calm reaper becomes urgent.
const SLOW_RATE: u64 = 4 << 30;
/// Chooses.
pub fn reap_plan(victim: &VictimFacts, machine: MachineFacts) -> ReapPlan {
    let found = peculiarities(victim, machine);
    let has = |it| found.contains(&it);
    let has_to_wait = has(Peculiarity::Throttled)
        || has(Peculiarity::Starved)
        || has(Peculiarity::Confined)
        || machine.is_busy();
    let is_held_back = has_to_wait || has(Peculiarity::Frozen);
    let is_many = victim.threads > 1;
    ReapPlan {
        // One beside a victim that can exit by itself: two leave no CPU to whoever wakes up.
        reapers: if victim.private >= WORTH_TWO && machine.cpus > 1 && is_held_back {
            2
        } else {
            1
        },
        pace: if machine.is_busy() {
            Pace::Urgent
        } else {
            Pace::Calm
        },
        raise: if is_many && has_to_wait {
            Raise::AtOnce
        } else {
            Raise::WhenNeeded
        },
        help: if has_to_wait {
            Pace::Urgent
        } else {
            Pace::Calm
        },
        thaw: victim.freezer == Some(Freezer::HoldsTheDying),
        unthrottle: has(Peculiarity::Throttled),
        part: machine.cpus > 1 && !is_held_back,
        expected: expected(victim.private),
        found,
    }
}

/// How long taking so much should take on a slow machine.
pub fn expected(private: Bytes) -> Nanos {
    let nanos = private.scaled(1_000_000_000, SLOW_RATE).get();
    Nanos::new(nanos.saturating_add(1_000_000))
}

fn peculiarities(victim: &VictimFacts, machine: MachineFacts) -> Vec<Peculiarity> {
    let mut found = Vec::new();
    match victim.doing {
        Doing::Ended if victim.threads > 1 => found.push(Peculiarity::DeadLeader),
        Doing::Ended => found.push(Peculiarity::Zombie),
        Doing::Stopped if victim.tracer.is_none() => found.push(Peculiarity::Stopped),
        Doing::Uninterruptible if victim.freezer.is_none() => {
            found.push(Peculiarity::Uninterruptible);
        }
        Doing::Usual | Doing::Stopped | Doing::Uninterruptible => {}
    }
    let has_ended = victim.doing == Doing::Ended;
    let facts = [
        (Peculiarity::Dying, victim.is_dying && !has_ended),
        (Peculiarity::Traced, victim.tracer.is_some()),
        (Peculiarity::Frozen, victim.freezer.is_some()),
        (
            Peculiarity::Throttled,
            victim.quota_permille.is_some_and(|quota| quota < 1000),
        ),
        (Peculiarity::Starved, victim.standing != Standing::Fair),
        (Peculiarity::Confined, victim.cpus < machine.cpus),
        (Peculiarity::Locked, victim.locked > Bytes::ZERO),
        (Peculiarity::Shared, victim.shared > Bytes::ZERO),
    ];
    found.extend(facts.iter().filter(|(_, holds)| *holds).map(|(it, _)| *it));
    found
}

/// How a reaper's attempt ended (process_mrelease(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// Its memory is back.
    Freed,
    /// ESRCH: it has no memory any more, or nobody may look at it: it is exiting.
    Gone,
    /// EINVAL: not dying, or a living process has the same memory.
    NotDying,
    /// EAGAIN: its memory was being changed.
    Busy,
    /// ENOSYS: not on this kernel.
    Unsupported,
    /// EPERM: not for us.
    Denied,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// It is done.
    Done,
    /// Try again after so long. Whoever changes the memory has to run for that, hence `raise`.
    Again {
        /// So long.
        after: Nanos,
        /// Raise the victim's threads first.
        raise: bool,
    },
    /// Who has the same memory? If somebody who lives, it is reported and not waited for; else try
    /// again.
    FindMmSharer,
    /// Only the victim itself can: raise it, take it out of everything that holds it back, and watch it
    /// go.
    HelpItExit,
}

/// Tries while the memory is being changed. With the pauses below: 128 ms in all.
const TRIES: u32 = 64;
const PAUSE: Nanos = Nanos::new(2_000_000);
/// Looking for a twin asks about every process of the machine.
const MM_SHARER_TRIES: u32 = 8;

/// What follows the `tries`-th attempt, counted from 1.
pub fn next_step(attempt: Attempt, tries: u32) -> NextStep {
    match attempt {
        Attempt::Freed => NextStep::Done,
        Attempt::Busy if tries < TRIES => NextStep::Again {
            after: PAUSE,
            raise: tries >= 2,
        },
        Attempt::NotDying if tries < MM_SHARER_TRIES => NextStep::FindMmSharer,
        Attempt::Busy
        | Attempt::NotDying
        | Attempt::Gone
        | Attempt::Unsupported
        | Attempt::Denied => NextStep::HelpItExit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: MachineFacts = MachineFacts {
        cpus: 2,
        runnable: 0,
    };
    const BUSY: MachineFacts = MachineFacts {
        cpus: 2,
        runnable: 3,
    };

    fn usual() -> VictimFacts {
        VictimFacts {
            doing: Doing::Usual,
            threads: 1,
            private: Bytes::from_mib(512),
            shared: Bytes::ZERO,
            locked: Bytes::ZERO,
            standing: Standing::Fair,
            cpus: 2,
            quota_permille: None,
            freezer: None,
            tracer: None,
            is_dying: false,
        }
    }

    #[test]
    fn each_state_has_its_plan() {
        type Change = fn(&mut VictimFacts);
        type Row = (&'static str, Change, MachineFacts, Pace, Raise, [bool; 3]);
        let (calm, urgent) = (Pace::Calm, Pace::Urgent);
        let (once, needed) = (Raise::AtOnce, Raise::WhenNeeded);
        // thaw, unthrottle, part
        const PART: [bool; 3] = [false, false, true];
        let table: [Row; 13] = [
            ("", |_| {}, CALM, calm, needed, PART),
            ("", |_| {}, BUSY, urgent, needed, [false; 3]),
            ("", |it| it.threads = 8, CALM, calm, needed, PART),
            ("", |it| it.threads = 8, BUSY, urgent, once, [false; 3]),
            (
                "starved",
                |it| it.standing = Standing::Last,
                BUSY,
                urgent,
                needed,
                [false; 3],
            ),
            (
                "throttled",
                |it| it.quota_permille = Some(50),
                CALM,
                calm,
                needed,
                [false, true, false],
            ),
            (
                "",
                |it| it.quota_permille = Some(4000),
                CALM,
                calm,
                needed,
                PART,
            ),
            (
                "confined",
                |it| it.cpus = 1,
                BUSY,
                urgent,
                needed,
                [false; 3],
            ),
            (
                "frozen",
                |it| it.freezer = Some(Freezer::HoldsTheDying),
                CALM,
                calm,
                needed,
                [true, false, false],
            ),
            (
                "frozen",
                |it| it.freezer = Some(Freezer::ThawsByKill),
                CALM,
                calm,
                needed,
                [false; 3],
            ),
            (
                "stopped",
                |it| it.doing = Doing::Stopped,
                CALM,
                calm,
                needed,
                PART,
            ),
            (
                "dying_already",
                |it| it.is_dying = true,
                CALM,
                calm,
                needed,
                PART,
            ),
            (
                "zombie",
                |it| it.doing = Doing::Ended,
                CALM,
                calm,
                needed,
                PART,
            ),
        ];
        for (found, change, machine, pace, raise, [thaw, unthrottle, part]) in table {
            let mut victim = usual();
            change(&mut victim);
            let plan = reap_plan(&victim, machine);
            let words: Vec<_> = plan.found.iter().map(|it| it.word()).collect();
            assert_eq!(words.join(" "), found);
            assert_eq!((plan.pace, plan.raise), (pace, raise), "{victim:?}");
            assert_eq!(
                (plan.thaw, plan.unthrottle, plan.part),
                (thaw, unthrottle, part),
                "{victim:?}"
            );
        }
    }

    #[test]
    fn two_reapers_are_for_large_victims_that_cannot_exit_by_themselves_and_two_cpus() {
        let alone = MachineFacts {
            cpus: 1,
            runnable: 0,
        };
        assert_eq!(reap_plan(&usual(), alone).reapers, 1);
        let small = VictimFacts {
            private: Bytes::from_mib(1),
            ..usual()
        };
        assert_eq!(reap_plan(&small, CALM).reapers, 1);
        assert_eq!(reap_plan(&usual(), CALM).reapers, 1);
        assert_eq!(reap_plan(&usual(), BUSY).reapers, 2);
        let frozen = VictimFacts {
            freezer: Some(Freezer::HoldsTheDying),
            ..usual()
        };
        assert_eq!(reap_plan(&frozen, CALM).reapers, 2);
        assert_eq!(reap_plan(&frozen, alone).reapers, 1);
    }

    #[test]
    fn what_cannot_be_taken_is_helped_out() {
        for attempt in [Attempt::Gone, Attempt::Unsupported, Attempt::Denied] {
            assert_eq!(next_step(attempt, 1), NextStep::HelpItExit);
        }
        assert_eq!(next_step(Attempt::Freed, 1), NextStep::Done);
        assert_eq!(next_step(Attempt::NotDying, 1), NextStep::FindMmSharer);
        assert_eq!(
            next_step(Attempt::Busy, 1),
            NextStep::Again {
                after: PAUSE,
                raise: false
            }
        );
    }

    #[test]
    fn nobody_tries_for_ever() {
        for attempt in [Attempt::Busy, Attempt::NotDying] {
            assert_eq!(next_step(attempt, TRIES), NextStep::HelpItExit);
        }
    }

    #[test]
    fn a_victim_that_nothing_holds_back_is_left_as_it_is() {
        assert_eq!(reap_plan(&usual(), CALM).help, Pace::Calm);
        assert_eq!(reap_plan(&usual(), BUSY).help, Pace::Urgent);
        let last = VictimFacts {
            standing: Standing::Last,
            ..usual()
        };
        assert_eq!(reap_plan(&last, CALM).help, Pace::Urgent);
    }
}
