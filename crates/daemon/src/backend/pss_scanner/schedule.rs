// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When each account is scanned. What a scan costs is its account's affair: a dear one is made again later, and no
//! other account's turn comes later for it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bursar_kernel::Slot;

/// Renewals of all accounts together take at most one part in so many of a core's time …
pub(super) const RENEWAL_SHARE: u32 = 20;
/// … but those of an account come no more often than this, and where they are cheap no more seldom than that.
const OFTEN: Duration = Duration::from_millis(50);
const SELDOM: Duration = Duration::from_secs(1);
/// A large account's renewals take at most one part in so many.
const LARGE_SHARE: u32 = 4;
/// Requests for one account are answered as often as they come, but after a scan that cost so much nobody looks at it
/// for so many times as long, or this long.
const ANSWER_SHARE: u32 = 2;
const LONGEST_REST: Duration = Duration::from_millis(300);
/// A scan is dear where it takes more than this, and more than its pages explain: then it rests for
/// [`RENEWAL_SHARE`] times as long.
const LONG: Duration = Duration::from_millis(100);
/// What a page may take, several times what it does on slow machines.
const LONG_PER_PAGE: Duration = Duration::from_micros(1);
/// So many scans in a row that slept for long, on locks that a user can hold, are no accident.
const ALWAYS: u32 = 3;
/// What could not be done is tried again after this.
const AGAIN: Duration = Duration::from_millis(100);
/// A correction is in force until the account's own next scan, or this long where none comes: it ages by what is
/// copied and unmapped.
const LIFETIME: Duration = Duration::from_secs(10);

/// What a scan took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// Of a processor.
    pub(super) work: Duration,
    /// In all.
    pub(super) wall: Duration,
}

/// What came of a scan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finished {
    pub(super) cost: Cost,
    /// That were looked at.
    pub(super) pages: u64,
    /// Whether it has cost us a reader.
    pub(super) has_lost: bool,
    /// Whether the account is near a bound and corrected: then it is to be renewed.
    pub(super) shares: bool,
}

impl Finished {
    /// There is no such account any more.
    pub(super) const fn nothing() -> Self {
        Self {
            cost: Cost {
                work: Duration::ZERO,
                wall: Duration::ZERO,
            },
            pages: 0,
            has_lost: false,
            shares: false,
        }
    }
}

/// How long a correction found by such a scan may stay in force.
pub(super) fn lifetime(cost: Cost) -> Duration {
    LIFETIME.max((LARGE_SHARE + 2) * cost.wall)
}

/// An account that is near a bound, or was lately.
#[derive(Debug, Clone, Copy)]
struct Round {
    due: Option<Instant>,
    /// Before this not even on a request.
    not_before: Instant,
    cost: Cost,
    is_dear: bool,
    /// Scans in a row that slept for long.
    sleeps: u32,
    shares: bool,
    is_under_way: bool,
}

/// When each account is scanned next.
#[derive(Debug, Default)]
pub(super) struct Schedule(BTreeMap<Slot, Round>);

impl Schedule {
    /// The kernel half waits for a scan of it.
    pub(super) fn ask(&mut self, slot: Slot, now: Instant) {
        let round = self.0.entry(slot).or_insert(Round {
            due: None,
            not_before: now,
            cost: Cost::default(),
            is_dear: false,
            sleeps: 0,
            shares: false,
            is_under_way: false,
        });
        let soonest = round.not_before.max(now);
        round.due = Some(round.due.map_or(soonest, |due| due.min(soonest)));
    }

    /// When the next scan is due that is not under way.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let waiting = self.0.values().filter(|it| !it.is_under_way);
        waiting.filter_map(|it| it.due).min()
    }

    /// One that is due now, the cheapest first; it is under way from now on.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Slot> {
        let waiting = self.0.iter_mut().filter(|(_, it)| !it.is_under_way);
        let due = waiting.filter(|(_, it)| it.due.is_some_and(|due| due <= now));
        let (&slot, round) = due.min_by_key(|(_, it)| it.cost.work)?;
        round.due = None;
        round.is_under_way = true;
        Some(slot)
    }

    /// Whether a scan of it is due, or under way.
    pub(super) fn is_asked_of(&self, slot: Slot) -> bool {
        let round = self.0.get(&slot);
        round.is_some_and(|it| it.due.is_some() || it.is_under_way)
    }

    /// Accounts that are.
    pub(super) fn sharing(&self) -> usize {
        self.0.values().filter(|it| it.shares).count()
    }

    /// A scan has ended.
    pub(super) fn finished(&mut self, slot: Slot, now: Instant, what: &Finished) {
        let last = self.0.get(&slot).copied();
        let allowed = LONG_PER_PAGE.saturating_mul(u32::try_from(what.pages).unwrap_or(u32::MAX));
        let is_dear = what.cost.work > LONG.max(allowed);
        let sleeps = if what.has_lost {
            ALWAYS
        } else if what.cost.wall > LONG.max(2 * what.cost.work) {
            last.map_or(0, |it| it.sleeps).saturating_add(1)
        } else {
            0
        };
        let not_before = now + rest(what.cost, is_dear, sleeps);
        let mut round = Round {
            due: None,
            not_before,
            cost: what.cost,
            is_dear,
            sleeps,
            shares: what.shares,
            is_under_way: false,
        };
        if what.shares {
            // Whoever costs us readers is looked at no more often than it may ask.
            let soonest = if what.has_lost || is_dear {
                not_before
            } else {
                now + self.interval(what.cost)
            };
            let asked = last.and_then(|it| it.due).map(|due| due.max(not_before));
            round.due = Some(asked.map_or(soonest, |asked| asked.min(soonest)));
        } else {
            // Where there is nothing to renew the kernel half asks when that may have changed.
            round.due = last.and_then(|it| it.due).map(|due| due.max(not_before));
        }
        self.0.insert(slot, round);
        self.0
            .retain(|_, it| it.due.is_some() || it.is_under_way || it.not_before > now);
    }

    /// A scan could not be made.
    pub(super) fn failed(&mut self, slot: Slot, now: Instant) {
        if let Some(round) = self.0.get_mut(&slot) {
            round.is_under_way = false;
            round.due = Some(now + AGAIN);
        }
    }

    /// Between two scans of an account of such a cost.
    fn interval(&self, cost: Cost) -> Duration {
        let cheap = self.0.values().filter(|it| it.shares && !it.is_dear);
        let all: Duration = cheap.map(|it| it.cost.work).sum();
        (RENEWAL_SHARE * all)
            .clamp(OFTEN, SELDOM)
            .max(LARGE_SHARE * cost.work)
    }
}

/// After this scan, the `sleeps`th in a row that slept for long.
fn rest(cost: Cost, is_dear: bool, sleeps: u32) -> Duration {
    if is_dear {
        RENEWAL_SHARE * cost.work
    } else if sleeps >= ALWAYS {
        RENEWAL_SHARE * cost.wall
    } else {
        (ANSWER_SHARE * cost.work).min(LONGEST_REST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Slot = Slot::TEMPLATE;

    fn finished(work_ms: u64, wall_ms: u64, pages: u64) -> Finished {
        Finished {
            cost: Cost {
                work: Duration::from_millis(work_ms),
                wall: Duration::from_millis(wall_ms),
            },
            pages,
            has_lost: false,
            shares: true,
        }
    }

    fn due_after(what: &Finished) -> Duration {
        let mut schedule = Schedule::default();
        let now = Instant::now();
        schedule.ask(ONE, now);
        assert_eq!(schedule.take_due(now), Some(ONE));
        assert_eq!(schedule.take_due(now), None);
        schedule.finished(ONE, now, what);
        schedule.next_due().unwrap().duration_since(now)
    }

    #[test]
    fn a_cheap_account_is_renewed_often_and_a_large_one_in_proportion() {
        assert_eq!(due_after(&finished(1, 1, 1000)), Duration::from_millis(50));
        assert_eq!(
            due_after(&finished(2000, 2100, 40_000_000)),
            Duration::from_secs(8)
        );
    }

    #[test]
    fn what_its_pages_do_not_explain_is_dear_and_rests_for_long() {
        assert_eq!(due_after(&finished(300, 300, 8000)), Duration::from_secs(6));
        // On request no sooner.
        let mut schedule = Schedule::default();
        let now = Instant::now();
        schedule.ask(ONE, now);
        schedule.take_due(now);
        schedule.finished(ONE, now, &finished(300, 300, 8000));
        schedule.ask(ONE, now);
        assert_eq!(schedule.next_due(), Some(now + Duration::from_secs(6)));
    }

    #[test]
    fn who_slept_on_a_lock_now_and_then_is_answered_and_who_always_does_is_not() {
        let cost = finished(3, 150, 1000).cost;
        assert_eq!(rest(cost, false, 1), Duration::from_millis(6));
        assert_eq!(rest(cost, false, 2), Duration::from_millis(6));
        assert_eq!(rest(cost, false, 3), Duration::from_secs(3));
    }

    #[test]
    fn a_request_during_a_scan_is_not_forgotten() {
        let mut schedule = Schedule::default();
        let now = Instant::now();
        schedule.ask(ONE, now);
        schedule.take_due(now);
        schedule.ask(ONE, now);
        let nothing = Finished {
            shares: false,
            ..finished(1, 1, 1000)
        };
        schedule.finished(ONE, now, &nothing);
        assert_eq!(schedule.next_due(), Some(now + Duration::from_millis(2)));
    }
}
