// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What could not be put in force is tried again at growing intervals, for nothing else would: its news has been heard.
//! One timer for all of it. A failure is news when it begins and when its reason changes, not at each try.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bursar_host::Timer;

/// What failed is tried again after so long, then after twice as long each time, up to …
const FIRST: Duration = Duration::from_secs(3);
const LONGEST: Duration = Duration::from_secs(60);

/// What may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Task {
    /// Limits of which names, or the moment, say something else now.
    Limits,
    ExemptCgroups,
    /// Accounts of members of large groups who have come.
    Arrivals,
}

#[derive(Debug)]
struct Failed {
    why: &'static str,
    error: String,
    pause: Duration,
    /// None: it has its time now.
    due: Option<Instant>,
}

/// What is not in force yet.
#[derive(Debug)]
pub(crate) struct Retries {
    timer: Timer,
    failed: BTreeMap<Task, Failed>,
}

impl Retries {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            timer: Timer::polled().context("make a timer")?,
            failed: BTreeMap::new(),
        })
    }

    /// It has its time again later. Returns whether it failed in another way before, or not at all. `why`: what has
    /// happened that asks for it.
    pub(crate) fn note(
        &mut self,
        task: Task,
        why: &'static str,
        error: &anyhow::Error,
        now: Instant,
    ) -> bool {
        let error = format!("{error:#}");
        let before = self.failed.get(&task);
        let is_news = before.is_none_or(|it| (it.why, &it.error) != (why, &error));
        let pause = before.map_or(FIRST, |it| it.pause.saturating_mul(2).min(LONGEST));
        let failed = Failed {
            why,
            error,
            pause,
            due: now.checked_add(pause),
        };
        self.failed.insert(task, failed);
        self.wind(now);
        is_news
    }

    /// It is in force, or nobody wants it any more.
    pub(crate) fn done(&mut self, task: Task) {
        self.failed.remove(&task);
    }

    /// What has its time, and why it was asked for.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<(Task, &'static str)> {
        let _ = self.timer.take_expiry();
        let mut due = Vec::new();
        for (task, failed) in &mut self.failed {
            if failed.due.take_if(|it| *it <= now).is_some() {
                due.push((*task, failed.why));
            }
        }
        self.wind(now);
        due
    }

    /// What is not in force yet, and why.
    pub(crate) fn remarks(&self) -> impl Iterator<Item = String> + '_ {
        self.failed.values().map(|Failed { why, error, .. }| {
            format!("{why}, and that is not in force yet: {error}; tried again within a minute")
        })
    }

    fn wind(&self, now: Instant) {
        let next = self.failed.values().filter_map(|it| it.due).min();
        // A timer that is set to nothing stops.
        let left = next.map_or(Duration::ZERO, |it| {
            it.saturating_duration_since(now)
                .max(Duration::from_nanos(1))
        });
        if let Err(error) = self.timer.set(left, Duration::ZERO) {
            tracing::error!(%error, "a change that failed is tried again at the next one only");
        }
    }
}

impl AsFd for Retries {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn what_failed_is_tried_again_at_growing_intervals_until_it_holds() {
        let mut retries = Retries::new().unwrap();
        let mut now = Instant::now();
        for expected in [3, 6, 12, 24, 48, 60, 60] {
            retries.note(Task::Limits, "a", &anyhow!("no room"), now);
            now += Duration::from_secs(expected);
            let early = now.checked_sub(Duration::from_millis(1)).unwrap();
            assert_eq!(retries.take_due(early), []);
            assert_eq!(retries.take_due(now), [(Task::Limits, "a")]);
            // It is under way, and known all the same.
            assert_eq!(retries.take_due(now), []);
            assert!(retries.remarks().all(|it| it.contains("no room")));
        }
        retries.done(Task::Limits);
        assert_eq!(retries.remarks().count(), 0);
        retries.note(Task::Limits, "a", &anyhow!("no room"), now);
        assert_eq!(retries.take_due(now + FIRST), [(Task::Limits, "a")]);
    }

    #[test]
    fn a_failure_is_news_when_it_begins_and_when_it_changes() {
        let mut retries = Retries::new().unwrap();
        let now = Instant::now();
        let tries = [
            (Task::Limits, "a", "no room", true),
            (Task::Limits, "a", "no room", false),
            (Task::Limits, "a", "no memory", true),
            (Task::Limits, "b", "no memory", true),
            (Task::ExemptCgroups, "b", "no memory", true),
            (Task::Limits, "b", "no memory", false),
        ];
        for (task, why, error, is_news) in tries {
            assert_eq!(retries.note(task, why, &anyhow!(error), now), is_news);
        }
        assert_eq!(retries.remarks().count(), 2);
    }

    #[test]
    fn each_has_its_own_time() {
        let mut retries = Retries::new().unwrap();
        let begun = Instant::now();
        retries.note(Task::Limits, "a", &anyhow!("x"), begun);
        retries.note(Task::Limits, "a", &anyhow!("x"), begun);
        retries.note(Task::ExemptCgroups, "b", &anyhow!("x"), begun);
        let first = retries.take_due(begun + FIRST);
        assert_eq!(first, [(Task::ExemptCgroups, "b")]);
        let second = retries.take_due(begun + FIRST * 2);
        assert_eq!(second, [(Task::Limits, "a")]);
    }
}
