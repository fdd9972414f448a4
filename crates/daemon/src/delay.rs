// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Delays a change of users or groups that would kill at once. Whoever sets a limit can be asked whether that is meant;
//! here nobody can, so the users concerned are notified and have some seconds. A change that failed is tried again, for
//! nothing else would: its news has been heard.

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
/// A change that failed is tried again after so long, then after twice as long each time, up to …
const RETRY: Duration = Duration::from_secs(3);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// A change that waits, if any does.
#[derive(Debug)]
pub(crate) struct Delay {
    timer: Timer,
    waiting: Option<Waiting>,
    failed: Option<Failed>,
}

#[derive(Debug)]
struct Waiting {
    why: &'static str,
    told: BTreeSet<AccountId>,
    due: Instant,
    latest: Instant,
}

/// A change that could not be put in force.
#[derive(Debug)]
struct Failed {
    why: &'static str,
    error: String,
    pause: Duration,
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
            failed: None,
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
            self.stop_waiting();
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
            self.stop_waiting();
            return Verdict::Now;
        }
        waiting.told.extend(&fresh);
        Verdict::Later(fresh, left)
    }

    /// A change could not be put in force: it has its time again later.
    pub(crate) fn try_again(&mut self, why: &'static str, error: String) {
        let longer = |it: &Failed| it.pause.saturating_mul(2).min(LONGEST_RETRY);
        let pause = self.failed.as_ref().map_or(RETRY, longer);
        if let Err(error) = self.timer.set(pause, Duration::ZERO) {
            tracing::error!(%error, "a change that failed is tried again at the next one only");
        }
        self.failed = Some(Failed { why, error, pause });
    }

    /// What is not in force yet, and why.
    pub(crate) fn failure(&self) -> Option<String> {
        let Failed { why, error, .. } = self.failed.as_ref()?;
        Some(format!(
            "{why}, and that is not in force yet: {error}; tried again within a minute"
        ))
    }

    /// What waited has its time; why it was.
    pub(crate) fn take_due(&self) -> Option<&'static str> {
        let _ = self.timer.take_expiry();
        let waiting = self.waiting.as_ref().map(|it| it.why);
        waiting.or_else(|| self.failed.as_ref().map(|it| it.why))
    }

    /// Whatever waited holds, or other limits do.
    pub(crate) fn clear(&mut self) {
        self.stop_waiting();
        self.failed = None;
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

    #[test]
    fn what_failed_is_tried_again_at_growing_intervals_until_it_holds() {
        let mut delay = Delay::new().unwrap();
        let pause = |delay: &Delay| delay.failed.as_ref().map(|it| it.pause);
        for expected in [3, 6, 12, 24, 48, 60, 60] {
            // Nobody is over: it would hold at once, and fails.
            assert_eq!(
                delay.judge("a", accounts(&[]), Instant::now()),
                Verdict::Now
            );
            delay.try_again("a", "no room".to_owned());
            assert_eq!(delay.take_due(), Some("a"));
            assert_eq!(pause(&delay), Some(Duration::from_secs(expected)));
        }
        assert!(delay.failure().unwrap().contains("no room"));
        // Who would be killed has his time, and what failed stays known meanwhile.
        let later = delay.judge("b", accounts(&[1]), Instant::now());
        assert!(matches!(later, Verdict::Later(..)), "{later:?}");
        assert_eq!(delay.take_due(), Some("b"));
        assert!(delay.failure().is_some());
        delay.clear();
        assert_eq!((delay.take_due(), delay.failure()), (None, None));
    }
}
