// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rlimit gate's arithmetic: who may grow by how much until the next look, and when that is. Values in,
//! values out; all amounts are bytes.

use std::time::Duration;

/// The kernel compares whole pages, so the lowest bits of a limit are free to say whose it is: a limit
/// that ends so is an rlimit gate's, set or inherited, and none that somebody typed.
const TAG: u64 = 0xb55;
const TAGGED: u64 = 0xfff;
/// An address space up to here is granted as long as the account is below its limit: a shell at the
/// barrier can still run `kill`.
pub(super) const SMALL: u64 = 2 << 20;
/// Near the barrier.
const OFTEN: Duration = Duration::from_millis(5);
/// Near it while nothing grows.
const NEAR: Duration = Duration::from_millis(50);
/// Far from it.
const SELDOM: Duration = Duration::from_millis(250);
/// Half of what was mapped and not touched is taken for not wanted after this long.
const FORGIVING: Duration = Duration::from_secs(2);

/// What a process did since the last look; who does more gets a larger share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activity {
    /// Its memory did not change.
    Still,
    /// It changed.
    Busy,
    /// It mapped more.
    Growing,
}

impl Activity {
    const fn weight(self) -> u64 {
        match self {
            Self::Still => 1,
            Self::Busy => 4,
            Self::Growing => 8,
        }
    }
}

/// `headroom` among the processes: never more than `headroom` together, all of it for one alone. Nobody who
/// was still is left with nothing, since what he starts inherits his share.
pub(super) fn shares(headroom: u64, all: &[Activity]) -> Vec<u64> {
    let total: u64 = all.iter().map(|it| it.weight()).sum();
    all.iter()
        .map(|it| {
            let part = u128::from(headroom) * u128::from(it.weight()) / u128::from(total.max(1));
            u64::try_from(part).unwrap_or(headroom)
        })
        .collect()
}

/// The soft limit of a process that has mapped `data` and may grow by `share`. Never above what it set
/// for itself, and never 0, which the kernel takes for no limit of ours.
pub(super) fn soft(data: u64, share: u64, own: Option<u64>, below_limit: bool) -> u64 {
    let floor = if below_limit { SMALL } else { 0 };
    let up_to = data.saturating_add(share).max(floor);
    let steered = (up_to.min(u64::MAX - TAGGED - 1) & !TAGGED) | TAG;
    own.map_or(steered, |own| own.min(steered))
}

/// Whether a limit found at a process is an rlimit gate's.
pub(super) fn is_steered(soft: Option<u64>) -> bool {
    soft.is_some_and(|soft| soft & TAGGED == TAG)
}

/// What a process mapped lately and has not touched yet: taken for held, or it would be granted again
/// at each look until somebody touches it all.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Untouched {
    /// Of what is untouched: mapped so long ago that it is taken for never wanted.
    forgiven: u64,
}

impl Untouched {
    /// What of `untouched` still counts, `elapsed` after the last look.
    pub(super) fn after(&mut self, untouched: u64, elapsed: Duration) -> u64 {
        self.forgiven = self.forgiven.min(untouched);
        let counted = untouched - self.forgiven;
        // Linear within one look; over several about a half each FORGIVING.
        let passed = elapsed.min(FORGIVING).as_micros();
        let gone = u128::from(counted / 2) * passed / FORGIVING.as_micros();
        self.forgiven += u64::try_from(gone).unwrap_or(counted);
        untouched - self.forgiven
    }
}

/// When to look again: before what grew by `grown` during `last` can use up a quarter of `headroom`, and
/// less and less often while nothing grows.
pub(super) fn pause(headroom: u64, barrier: u64, grown: u64, last: Duration) -> Duration {
    let is_far = headroom >= barrier / 4;
    let calm = if is_far { SELDOM } else { NEAR };
    if grown == 0 {
        return (last * 2).clamp(OFTEN, calm);
    }
    let micros = last.as_micros() * u128::from(headroom / 4) / u128::from(grown);
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)).clamp(OFTEN, calm)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn one_alone_gets_the_whole_room() {
        for activity in [Activity::Still, Activity::Busy, Activity::Growing] {
            assert_eq!(shares(100 * MIB, &[activity]), [100 * MIB]);
        }
        assert!(shares(100, &[]).is_empty());
    }

    #[test]
    fn who_grows_gets_more_and_who_is_still_something() {
        let two = shares(90 * MIB, &[Activity::Growing, Activity::Still]);
        assert_eq!(two, [80 * MIB, 10 * MIB]);
        let equal = shares(90 * MIB, &[Activity::Growing, Activity::Growing]);
        assert_eq!(equal, [45 * MIB, 45 * MIB]);
    }

    #[test]
    fn a_limit_is_above_what_is_mapped_by_the_share_in_whole_pages() {
        let limit = soft(10 * MIB, 5 * MIB + 5000, None, false);
        assert_eq!(limit >> 12, (15 * MIB + 4096) >> 12);
        assert!(is_steered(Some(limit)));
    }

    #[test]
    fn what_a_process_set_for_itself_is_never_raised() {
        assert_eq!(soft(10 * MIB, 50 * MIB, Some(MIB), true), MIB);
        assert_eq!(
            soft(0, 5 * MIB, Some(8 * MIB), true),
            soft(0, 5 * MIB, None, true)
        );
    }

    #[test]
    fn a_small_program_starts_at_the_barrier_and_not_at_the_limit() {
        assert_eq!(soft(0, 0, None, true) >> 12, SMALL >> 12);
        let none = soft(0, 0, None, false);
        assert_eq!(none >> 12, 0);
        assert_ne!(none, 0, "the kernel would take it for no limit");
    }

    #[test]
    fn typed_limits_are_nobody_elses() {
        for soft in [Some(0), Some(MIB), Some(1_000_000 * 1024), None] {
            assert!(!is_steered(soft));
        }
    }

    #[test]
    fn untouched_memory_is_forgiven_with_time_and_new_memory_is_not() {
        let mut untouched = Untouched::default();
        assert_eq!(untouched.after(100 * MIB, Duration::ZERO), 100 * MIB);
        assert_eq!(untouched.after(100 * MIB, FORGIVING), 50 * MIB);
        assert_eq!(untouched.after(140 * MIB, Duration::ZERO), 90 * MIB);
        // Touched or unmapped: nothing is untouched, and what comes later counts in full.
        assert_eq!(untouched.after(0, Duration::ZERO), 0);
        assert_eq!(untouched.after(7 * MIB, Duration::ZERO), 7 * MIB);
    }

    #[test]
    fn looks_are_seldom_far_away_and_often_where_it_matters() {
        let (barrier, second) = (1000 * MIB, Duration::from_secs(1));
        assert_eq!(pause(900 * MIB, barrier, 0, SELDOM), SELDOM);
        assert_eq!(pause(100 * MIB, barrier, 0, SELDOM), NEAR);
        assert_eq!(pause(900 * MIB, barrier, MIB, SELDOM), SELDOM);
        // 100 MiB a second: a quarter of 8 MiB is gone in 20 ms.
        assert_eq!(
            pause(8 * MIB, barrier, 100 * MIB, second),
            Duration::from_millis(20)
        );
        assert_eq!(pause(0, barrier, MIB, NEAR), OFTEN);
    }

    proptest! {
        #[test]
        fn nobody_gets_more_than_there_is(headroom: u64, kinds in proptest::collection::vec(0..3u8, 0..50)) {
            let all: Vec<_> = kinds
                .iter()
                .map(|kind| match kind {
                    0 => Activity::Still,
                    1 => Activity::Busy,
                    _ => Activity::Growing,
                })
                .collect();
            let given: u128 = shares(headroom, &all).into_iter().map(u128::from).sum();
            prop_assert!(given <= u128::from(headroom));
        }

        #[test]
        fn a_limit_is_never_unlimited_nor_raised(data: u64, share: u64, own: Option<u64>, below: bool) {
            let limit = soft(data, share, own, below);
            prop_assert!(limit < u64::MAX);
            prop_assert!(own.is_none_or(|own| limit <= own));
        }

        #[test]
        fn what_counts_is_never_more_than_what_is_untouched(steps in proptest::collection::vec((any::<u64>(), 0..5000u64), 0..20)) {
            let mut untouched = Untouched::default();
            for (now, ms) in steps {
                prop_assert!(untouched.after(now, Duration::from_millis(ms)) <= now);
            }
        }
    }
}
