// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Delays a change of users or groups that would kill at once. Whoever sets a limit can be asked whether that is meant;
//! here nobody can, so the users concerned are notified and have some seconds.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bursar_host::Timer;
use bursar_model::AccountId;

/// From the notification of an account until the change takes effect.
const GRACE: Duration = Duration::from_secs(10);
/// However many accounts come to be over meanwhile, one after the other.
const LONGEST: Duration = Duration::from_secs(30);

/// A change that waits, if any does.
#[derive(Debug)]
pub(crate) struct Delay {
    timer: Timer,
    waiting: Option<Waiting>,
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
    /// It holds from now on.
    Now,
    /// It waits for so long, and these are to be told.
    Later(BTreeSet<AccountId>, Duration),
}

impl Delay {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            timer: Timer::polled().context("make a timer")?,
            waiting: None,
        })
    }

    /// `over`: who would be above his limit at once.
    pub(crate) fn judge(
        &mut self,
        why: &'static str,
        over: BTreeSet<AccountId>,
        now: Instant,
    ) -> Verdict {
        if over.is_empty() {
            self.clear();
            return Verdict::Now;
        }
        let waiting = self.waiting.get_or_insert_with(|| Waiting {
            why,
            told: BTreeSet::new(),
            due: now,
            latest: now + LONGEST,
        });
        let fresh: BTreeSet<AccountId> = over.difference(&waiting.told).copied().collect();
        if !fresh.is_empty() && now < waiting.latest {
            waiting.due = waiting.latest.min(now + GRACE);
        }
        let left = waiting.due.saturating_duration_since(now);
        if left.is_zero() || self.timer.set(left, Duration::ZERO).is_err() {
            self.clear();
            return Verdict::Now;
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

    #[test]
    fn who_would_be_killed_is_told_once_and_has_his_time() {
        let mut delay = Delay::new().unwrap();
        let begun = Instant::now();
        assert_eq!(delay.judge("a", accounts(&[]), begun), Verdict::Now);
        let mut judge = |uids: &[u32], seconds| {
            delay.judge("a", accounts(uids), begun + Duration::from_secs(seconds))
        };
        let later = |uids: &[u32], left| Verdict::Later(accounts(uids), Duration::from_secs(left));
        assert_eq!(judge(&[1], 0), later(&[1], 10));
        assert_eq!(judge(&[1], 5), later(&[], 5));
        // Somebody else has his time, too.
        assert_eq!(judge(&[1, 2], 8), later(&[2], 10));
        assert_eq!(judge(&[1, 2], 17), later(&[], 1));
        assert_eq!(judge(&[2], 18), Verdict::Now);
        // It is over: the next one begins anew.
        assert_eq!(judge(&[2], 19), later(&[2], 10));
        assert_eq!(judge(&[], 20), Verdict::Now);
    }

    #[test]
    fn one_after_the_other_does_not_put_it_off_for_ever() {
        let mut delay = Delay::new().unwrap();
        let begun = Instant::now();
        let mut last = None;
        for number in 0..60_u32 {
            let now = begun + Duration::from_secs(number.into());
            if delay.judge("a", accounts(&[number]), now) == Verdict::Now {
                last = Some(now);
                break;
            }
        }
        assert_eq!(last, Some(begun + LONGEST));
    }
}
