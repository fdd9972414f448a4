// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How reapers and raised victims compete with everybody else: from elapsed time to the priority that they
//! have.
//!
//! What was measured on the way here stands in docs/design/11-reapers-among-neighbours.md.

use bursar_model::Nanos;

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

/// A victim is raised for so long at most: one that a debugger or a device holds would be for ever.
pub const RAISED_AT_MOST: Nanos = Nanos::new(5_000_000_000);
/// A reaper or a victim is above everybody for so long at most before everybody else has a turn.
pub const SLICE: Nanos = Nanos::new(100_000);
/// So long is that turn, in which it has a fair share: a quarter of each core is a reaper's at least,
/// and whoever wakes up waits a third longer than without it, and a slice.
pub const TURN: Nanos = Nanos::new(300_000);
/// So long a start is above everybody, as far as the [`DutyCycle`] allows that: a calm reaper has to be in the
/// kernel before its victim has let go of its memory, and whoever is told of the signal would come first.
const RUN_UP: Nanos = Nanos::new(100_000);
/// An urgent one has this nice value: six sevenths of a core against one who always wants it too.
pub const SHARE_NICE: i8 = -8;
/// The reapers' session has this nice value among all sessions while one of them is urgent, where the kernel shares
/// CPUs by sessions: two reapers have half of each CPU beside busy loops in sessions of their own, and whoever wakes up
/// among one session's loops has his turn after 0.25 ms. With −8 that was 1 ms; and whoever woke up beside a calm
/// reaper waited for the tick, since neither being below everybody counts beyond one's session. Hence 0 at rest
/// (decision 11).
pub const URGENT_AUTOGROUP_NICE: i8 = -3;
/// So long after a change it is given back at the earliest: the kernel refuses another one within a tenth of a second.
pub const AUTOGROUP_STAYS: Nanos = Nanos::new(150_000_000);
/// So often the kernel is made to choose anew who runs on an urgent one's CPU, and to give pages back in smaller
/// batches. Where the tick is all that does, whoever is not chosen at his wake-up waits for it, 4 ms and more; half
/// as long costs a fifth of the speed (decision 11).
pub const PREEMPT_INTERVAL: Nanos = Nanos::new(150_000);

/// How a reaper competes at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Above everybody, to get going, as far as the [`DutyCycle`] allows that; so long.
    InitialSlice(Nanos),
    /// Below everybody; so long.
    Below(Nanos),
    /// Among everybody at [`SHARE_NICE`]; so long, then ask again.
    Among(Nanos),
    /// By the [`DutyCycle`]: above everybody in slices, among everybody in turns.
    Cycling,
}

/// Either starts above everybody where that matters; then a calm reaper is below everybody, an urgent one among
/// everybody. Either is raised when it takes longer than it should: it may sit on the memory's lock, unable to go
/// on, and the victim behind it. `since_start` counts from the beginning of the job.
///
/// What else was measured, slices throughout among it, stands in decision 11.
pub fn phase(pace: Pace, expected: Nanos, since_start: Nanos) -> Phase {
    let elapsed = since_start.get();
    let patience = expected.get().saturating_mul(3) / 2;
    let until = |end: u64| Nanos::new(end.saturating_sub(elapsed));
    match pace {
        Pace::Calm | Pace::Pressing if elapsed < RUN_UP.get() => {
            Phase::InitialSlice(until(RUN_UP.get()))
        }
        Pace::Calm if elapsed < patience => Phase::Below(until(patience)),
        Pace::Urgent | Pace::Pressing if elapsed < expected.get() => {
            Phase::Among(until(expected.get()))
        }
        Pace::Calm | Pace::Urgent | Pace::Pressing => Phase::Cycling,
    }
}

/// Slices of [`SLICE`] above everybody, with turns of [`TURN`] in between: one duty_cycle for all reapers and
/// raised victims of the machine, so that everybody else's turns are real.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DutyCycle {
    is_slice: bool,
    until: u64,
    /// Since when nobody wants to be raised.
    resting_since: Option<u64>,
}

impl DutyCycle {
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

    #[test]
    fn a_calm_reaper_makes_way_and_does_not_stay_calm_for_ever() {
        let expected = Nanos::new(20_000_000);
        let calm = |at: u64| phase(Pace::Calm, expected, Nanos::new(at));
        assert_eq!(calm(0), Phase::InitialSlice(RUN_UP));
        assert_eq!(calm(1_000_000), Phase::Below(Nanos::new(29_000_000)));
        assert_eq!(calm(30_000_000), Phase::Cycling);
    }

    #[test]
    fn an_urgent_reaper_is_among_the_others_until_it_is_late() {
        let expected = Nanos::new(20_000_000);
        let urgent = |at: u64| phase(Pace::Urgent, expected, Nanos::new(at));
        assert_eq!(urgent(0), Phase::Among(expected));
        assert_eq!(urgent(1_000_000), Phase::Among(Nanos::new(19_000_000)));
        let pressing = |at: u64| phase(Pace::Pressing, expected, Nanos::new(at));
        assert_eq!(pressing(0), Phase::InitialSlice(RUN_UP));
        assert_eq!(pressing(1_000_000), Phase::Among(Nanos::new(19_000_000)));
        assert_eq!(urgent(19_999_999), Phase::Among(Nanos::new(1)));
        assert_eq!(urgent(20_000_000), Phase::Cycling);
    }

    proptest! {
        /// The promise to everybody else, however jobs begin and end.
        #[test]
        fn nobody_is_raised_for_longer_than_a_slice_without_a_turn(
            gaps in prop::collection::vec((0u64..1_000_000, any::<bool>()), 1..60),
        ) {
            let mut duty_cycle = DutyCycle::default();
            let mut now = 10_000_000;
            let mut raised_for = 0;
            let mut lowered_for = 0;
            for (gap, is_job) in gaps {
                let (mut is_raised, mut until) = duty_cycle.at(Nanos::new(now));
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
                        (is_raised, until) = duty_cycle.at(Nanos::new(now));
                    }
                }
                if is_job {
                    duty_cycle.rest(Nanos::new(now));
                }
            }
        }
    }
}
