// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a killed process's memory is taken back (S2): from facts about the victim to a plan, from each
//! step's outcome to the next step, and from elapsed time to the priority that reapers have.
//!
//! What was measured on the way here stands in docs/REAP.md.

use bursar_model::{Bytes, Nanos, Pid};

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
    Twin,
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
            Self::Twin => "memory_shared_with_living",
        }
    }
}

/// A victim is raised for so long at most: one that a debugger or a device holds would be for ever.
pub const RAISED_AT_MOST: Nanos = Nanos::new(5_000_000_000);

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
    /// Let it run on every CPU.
    pub widen: bool,
    /// How long taking the memory should take.
    pub expected: Nanos,
    /// What is worth knowing about it.
    pub found: Vec<Peculiarity>,
}

/// How reapers compete with everybody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// There is a CPU to spare: take what nobody wants, and make way at once for whoever comes.
    Calm,
    /// There is none: a larger share than anybody's; then, should a crowd make that share small, real-time
    /// priority in short slices.
    Urgent,
    /// It is dying already, its account may be growing, or the machine be out of memory: the same, and a
    /// slice at the start. What a reaper has taken off a memory's page tables and not given back is
    /// nobody's; who is out of memory looks for the next victim meanwhile.
    Pressing,
}

/// A second reaper buys nothing below this: waking it costs more than it saves.
const WORTH_TWO: Bytes = Bytes::from_mib(4);
/// What one reaper takes at least on the slowest machine worth the name, bytes a second; sets only when
/// a calm reaper becomes urgent.
const SLOW_RATE: u64 = 4 << 30;
/// A reaper or a victim is above everybody for so long at most before everybody else has a turn.
pub const SLICE: Nanos = Nanos::new(100_000);
/// So long is that turn, in which it has a fair share: a quarter of each core is a reaper's at least,
/// and whoever wakes up waits a third longer than without it, and a slice.
pub const TURN: Nanos = Nanos::new(300_000);
/// A start is different for so long. A calm reaper starts among everybody: the kernel takes a CPU on which
/// only somebody below everybody runs for idle, and would wake the victim there.
const RUN_UP: Nanos = Nanos::new(100_000);
/// An urgent one has this nice value then: two thirds of a core against one who always wants it too.
pub const SHARE_NICE: i8 = -3;
/// The pacer wakes so often meanwhile, if only to have the kernel choose anew who runs: where the tick is
/// all that does, whoever is not chosen at his wake-up waits for it, 4 ms and more (docs/REAP.md).
const BEAT: Nanos = Nanos::new(100_000);

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
        widen: has(Peculiarity::Confined),
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
    FindTwin,
    /// Only the victim itself can: raise it, take it out of everything that holds it back, and watch it
    /// go.
    HelpItExit,
}

/// Tries while the memory is being changed. With the pauses below: 128 ms in all.
const TRIES: u32 = 64;
const PAUSE: Nanos = Nanos::new(2_000_000);
/// Looking for a twin asks about every process of the machine.
const TWIN_TRIES: u32 = 8;

/// What follows the `tries`-th attempt, counted from 1.
pub fn next_step(attempt: Attempt, tries: u32) -> NextStep {
    match attempt {
        Attempt::Freed => NextStep::Done,
        Attempt::Busy if tries < TRIES => NextStep::Again {
            after: PAUSE,
            raise: tries >= 2,
        },
        Attempt::NotDying if tries < TWIN_TRIES => NextStep::FindTwin,
        Attempt::Busy
        | Attempt::NotDying
        | Attempt::Gone
        | Attempt::Unsupported
        | Attempt::Denied => NextStep::HelpItExit,
    }
}

/// How a reaper competes at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// Above everybody, to get going, as far as the [`Rhythm`] allows that; so long.
    RunUp(Nanos),
    /// Below everybody; so long.
    Below(Nanos),
    /// Among everybody at [`SHARE_NICE`]; so long, then ask again.
    Among(Nanos),
    /// By the [`Rhythm`]: above everybody in slices, among everybody in turns.
    Rhythmic,
}

/// A calm reaper is below everybody once it runs, an urgent one among everybody. Either is raised when it
/// takes longer than it should: it may sit on the memory's lock, unable to go on, and the victim behind
/// it. `since_start` counts from the beginning of the job.
///
/// Real-time slices from the beginning were measured: neighbours woke up late by whole turns (docs/REAP.md).
pub fn mood(pace: Pace, expected: Nanos, since_start: Nanos) -> Mood {
    let elapsed = since_start.get();
    let patience = expected.get().saturating_mul(3) / 2;
    let until = |end: u64| Nanos::new(end.saturating_sub(elapsed));
    match pace {
        Pace::Pressing if elapsed < RUN_UP.get() => Mood::RunUp(until(RUN_UP.get())),
        Pace::Calm if elapsed < RUN_UP.get() => Mood::Among(until(RUN_UP.get())),
        Pace::Calm if elapsed < patience => Mood::Below(until(patience)),
        Pace::Urgent | Pace::Pressing if elapsed < expected.get() => {
            Mood::Among(until(expected.get()).min(BEAT))
        }
        Pace::Calm | Pace::Urgent | Pace::Pressing => Mood::Rhythmic,
    }
}

/// Slices of [`SLICE`] above everybody, with turns of [`TURN`] in between: one rhythm for all reapers and
/// raised victims of the machine, so that everybody else's turns are real.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rhythm {
    is_slice: bool,
    until: u64,
    /// Since when nobody wants to be raised.
    resting_since: Option<u64>,
}

impl Rhythm {
    /// Whether raised ones may be raised at `now` (any clock that does not go back), and until when
    /// that holds; to be asked again at that moment at the latest. Jobs that follow each other closely
    /// share a slice; a pause of a turn's length begins a new one.
    pub fn at(&mut self, now: Nanos) -> (bool, Nanos) {
        let now = now.get();
        let rest = self
            .resting_since
            .take()
            .map_or(0, |since| now.saturating_sub(since));
        if rest >= TURN.get() || (!self.is_slice && now >= self.until) {
            self.is_slice = true;
            self.until = now.saturating_add(SLICE.get());
        } else if self.is_slice && now >= self.until {
            self.is_slice = false;
            self.until = now.saturating_add(TURN.get());
        }
        (self.is_slice, Nanos::new(self.until))
    }

    /// From now on nobody wants to be raised; said again, nothing changes.
    pub fn rest(&mut self, now: Nanos) {
        self.resting_since.get_or_insert(now.get());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        // thaw, unthrottle, widen
        let table: [Row; 13] = [
            ("", |_| {}, CALM, calm, needed, [false; 3]),
            ("", |_| {}, BUSY, urgent, needed, [false; 3]),
            ("", |it| it.threads = 8, CALM, calm, needed, [false; 3]),
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
                [false; 3],
            ),
            (
                "confined",
                |it| it.cpus = 1,
                BUSY,
                urgent,
                needed,
                [false, false, true],
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
                [false; 3],
            ),
            (
                "dying_already",
                |it| it.is_dying = true,
                CALM,
                calm,
                needed,
                [false; 3],
            ),
            (
                "zombie",
                |it| it.doing = Doing::Ended,
                CALM,
                calm,
                needed,
                [false; 3],
            ),
        ];
        for (found, change, machine, pace, raise, [thaw, unthrottle, widen]) in table {
            let mut victim = usual();
            change(&mut victim);
            let plan = reap_plan(&victim, machine);
            let words: Vec<_> = plan.found.iter().map(|it| it.word()).collect();
            assert_eq!(words.join(" "), found);
            assert_eq!((plan.pace, plan.raise), (pace, raise), "{victim:?}");
            assert_eq!(
                (plan.thaw, plan.unthrottle, plan.widen),
                (thaw, unthrottle, widen),
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
        assert_eq!(next_step(Attempt::NotDying, 1), NextStep::FindTwin);
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
    fn a_calm_reaper_makes_way_and_does_not_stay_calm_for_ever() {
        let expected = Nanos::new(20_000_000);
        let calm = |at: u64| mood(Pace::Calm, expected, Nanos::new(at));
        assert_eq!(calm(0), Mood::Among(RUN_UP));
        assert_eq!(calm(1_000_000), Mood::Below(Nanos::new(29_000_000)));
        assert_eq!(calm(30_000_000), Mood::Rhythmic);
    }

    #[test]
    fn an_urgent_reaper_is_among_the_others_until_it_is_late() {
        let expected = Nanos::new(20_000_000);
        let urgent = |at: u64| mood(Pace::Urgent, expected, Nanos::new(at));
        assert_eq!(urgent(0), Mood::Among(BEAT));
        assert_eq!(urgent(1_000_000), Mood::Among(BEAT));
        let pressing = |at: u64| mood(Pace::Pressing, expected, Nanos::new(at));
        assert_eq!(pressing(0), Mood::RunUp(RUN_UP));
        assert_eq!(pressing(1_000_000), Mood::Among(BEAT));
        assert_eq!(urgent(19_999_999), Mood::Among(Nanos::new(1)));
        assert_eq!(urgent(20_000_000), Mood::Rhythmic);
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

    proptest! {
        /// The promise to everybody else, however jobs begin and end.
        #[test]
        fn nobody_is_raised_for_longer_than_a_slice_without_a_turn(
            gaps in prop::collection::vec((0u64..1_000_000, any::<bool>()), 1..60),
        ) {
            let mut rhythm = Rhythm::default();
            let mut now = 10_000_000;
            let mut raised_for = 0;
            let mut lowered_for = 0;
            for (gap, is_job) in gaps {
                let (mut is_raised, mut until) = rhythm.at(Nanos::new(now));
                let end = now + gap;
                while now < end {
                    let next = end.min(until.get()).max(now + 1);
                    if is_job && is_raised {
                        if lowered_for >= TURN.get() {
                            raised_for = 0;
                        }
                        raised_for += next - now;
                        lowered_for = 0;
                        prop_assert!(raised_for <= SLICE.get() + 1, "{raised_for}");
                    } else {
                        lowered_for += next - now;
                    }
                    now = next;
                    if is_job {
                        (is_raised, until) = rhythm.at(Nanos::new(now));
                    }
                }
                if is_job {
                    rhythm.rest(Nanos::new(now));
                }
            }
        }
    }
}
