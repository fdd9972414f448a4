// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Delays a change of users or groups that would kill at once. Whoever sets a limit can be asked whether that is meant;
//! here nobody can, so the users concerned are notified and have some seconds. They have them once: where the change
//! could not be put in force then, it is tried again without another warning.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bursar_host::Timer;
use bursar_model::{AccountId, Bytes};

/// From the notification of an account until the change takes effect.
const GRACE: Duration = Duration::from_secs(10);
/// However many accounts come to be over meanwhile, one after the other.
const LONGEST: Duration = Duration::from_secs(30);

/// A change that waits, if any does.
#[derive(Debug)]
pub(crate) struct Delay {
    timer: Timer,
    waiting: Option<Waiting>,
    /// Who has had his time before a limit that is not in force yet, and which.
    had_time: BTreeMap<AccountId, Bytes>,
}

#[derive(Debug)]
struct Waiting {
    why: &'static str,
    told: BTreeSet<AccountId>,
    due: Instant,
    latest: Instant,
}

/// What to do about a change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It holds from now on, and these are to be told.
    Now(BTreeSet<AccountId>),
    /// It waits for so long, and these are to be told.
    Later(BTreeSet<AccountId>, Duration),
}

impl Delay {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            timer: Timer::polled().context("make a timer")?,
            waiting: None,
            had_time: BTreeMap::new(),
        })
    }

    /// `over`: who would be above which limit at once.
    pub(crate) fn judge(
        &mut self,
        why: &'static str,
        over: &BTreeMap<AccountId, Bytes>,
        now: Instant,
    ) -> Verdict {
        self.had_time
            .retain(|id, limit| over.get(id) == Some(&*limit));
        let new = over.keys().filter(|id| !self.had_time.contains_key(id));
        let new: BTreeSet<AccountId> = new.copied().collect();
        if new.is_empty() {
            self.stop_waiting();
            return Verdict::Now(new);
        }
        let waiting = self.waiting.get_or_insert_with(|| Waiting {
            why,
            told: BTreeSet::new(),
            due: now,
            latest: now + LONGEST,
        });
        let fresh: BTreeSet<AccountId> = new.difference(&waiting.told).copied().collect();
        if !fresh.is_empty() && now < waiting.latest {
            waiting.due = waiting.latest.min(now + GRACE);
        }
        let left = waiting.due.saturating_duration_since(now);
        if left.is_zero() || self.timer.set(left, Duration::ZERO).is_err() {
            self.stop_waiting();
            self.had_time.clone_from(over);
            return Verdict::Now(new);
        }
        waiting.told.extend(&fresh);
        Verdict::Later(fresh, left)
    }

    /// What waited has its time; why it was.
    pub(crate) fn take_due(&self) -> Option<&'static str> {
        let _ = self.timer.take_expiry();
        self.waiting.as_ref().map(|it| it.why)
    }

    /// Whatever waited holds, or other limits do.
    pub(crate) fn clear(&mut self) {
        self.stop_waiting();
        self.had_time.clear();
    }

    fn stop_waiting(&mut self) {
        let _ = self.timer.set(Duration::ZERO, Duration::ZERO);
        self.waiting = None;
    }
}

impl AsFd for Delay {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::Uid;

    use super::*;

    fn accounts(uids: &[u32]) -> BTreeSet<AccountId> {
        uids.iter()
            .map(|&uid| AccountId::of(Uid::new(uid)))
            .collect()
    }

    /// What becomes of a change after so many seconds, of which these would be above a limit of so many MiB.
    fn judge(delay: &mut Delay, begun: Instant, seconds: u64, uids: &[u32], limit: u64) -> Verdict {
        let over = accounts(uids).into_iter();
        let over = over.map(|id| (id, Bytes::from_mib(limit))).collect();
        delay.judge("a", &over, begun + Duration::from_secs(seconds))
    }

    fn later(uids: &[u32], left: u64) -> Verdict {
        Verdict::Later(accounts(uids), Duration::from_secs(left))
    }

    fn at_once(uids: &[u32]) -> Verdict {
        Verdict::Now(accounts(uids))
    }

    #[test]
    fn who_would_be_killed_is_told_once_and_has_his_time() {
        let mut delay = Delay::new().unwrap();
        let begun = Instant::now();
        let next = |delay: &mut Delay, seconds, uids: &[u32]| judge(delay, begun, seconds, uids, 1);
        assert_eq!(next(&mut delay, 0, &[]), at_once(&[]));
        assert_eq!(next(&mut delay, 0, &[1]), later(&[1], 10));
        assert_eq!(next(&mut delay, 5, &[1]), later(&[], 5));
        // Somebody else has his time, too.
        assert_eq!(next(&mut delay, 8, &[1, 2]), later(&[2], 10));
        assert_eq!(next(&mut delay, 17, &[1, 2]), later(&[], 1));
        assert_eq!(next(&mut delay, 18, &[2]), at_once(&[2]));
        // It is in force: the next one begins anew.
        delay.clear();
        assert_eq!(next(&mut delay, 19, &[2]), later(&[2], 10));
        assert_eq!(next(&mut delay, 20, &[]), at_once(&[]));
    }

    #[test]
    fn who_has_had_his_time_is_not_told_again_because_the_change_failed() {
        let mut delay = Delay::new().unwrap();
        let begun = Instant::now();
        let mut judge =
            |seconds, uids: &[u32], limit| judge(&mut delay, begun, seconds, uids, limit);
        assert_eq!(judge(0, &[1], 64), later(&[1], 10));
        assert_eq!(judge(10, &[1], 64), at_once(&[1]));
        assert_eq!(judge(13, &[1], 64), at_once(&[]));
        // Another user, a lower limit, or the same user later has his time.
        assert_eq!(judge(20, &[1, 2], 64), later(&[2], 10));
        assert_eq!(judge(30, &[1, 2], 64), at_once(&[2]));
        assert_eq!(judge(40, &[1, 2], 32), later(&[1, 2], 10));
        assert_eq!(judge(50, &[1, 2], 32), at_once(&[1, 2]));
        assert_eq!(judge(60, &[2], 32), at_once(&[]));
        assert_eq!(judge(70, &[1, 2], 32), later(&[1], 10));
    }

    #[test]
    fn one_after_the_other_does_not_put_it_off_for_ever() {
        let mut delay = Delay::new().unwrap();
        let begun = Instant::now();
        let last = (0..60_u32).find(|&number| {
            let verdict = judge(&mut delay, begun, number.into(), &[number], 1);
            verdict == at_once(&[number])
        });
        assert_eq!(last.map(u64::from), Some(LONGEST.as_secs()));
    }
}
