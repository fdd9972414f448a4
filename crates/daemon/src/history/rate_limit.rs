// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much of the files an account may fill. An event beyond that waits, and the last of those that
//! wait is written for all of them, with their number: who is killed again and again all day neither
//! pushes out what others did nor goes unrecorded.

use std::collections::HashMap;

use bursar_model::{Event, EventKind, Nanos};

/// Events of one account and kind that are written as they come,
const AT_ONCE: u32 = 300;
/// and one more after each of these.
const PAUSE: Nanos = Nanos::new(60_000_000_000);
/// How often it is looked who waited long enough.
const BETWEEN_LOOKS: Nanos = Nanos::new(1_000_000_000);
/// Accounts and kinds known at once. An event of another one is written: that takes a thousand users.
const KNOWN: usize = 8192;

#[derive(Debug, Default)]
pub(super) struct RateLimit {
    allowances: HashMap<(String, EventKind), Allowance>,
    looked: Option<Nanos>,
    /// Events that wait, and those that each of them counts.
    count: u64,
}

/// What is written with it.
fn all_of(event: &Event) -> u64 {
    event.more.unwrap_or(0).saturating_add(1)
}

#[derive(Debug)]
struct Allowance {
    left: u32,
    /// Since when the next one is being earned.
    since: Nanos,
    /// The last of those that wait; `more` are those before it.
    waiting: Option<Box<Event>>,
}

impl Allowance {
    fn earn(&mut self, now: Nanos) {
        let pauses = now.get().saturating_sub(self.since.get()) / PAUSE.get();
        let earned = u32::try_from(pauses).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(earned).min(AT_ONCE);
        let spent = pauses.saturating_mul(PAUSE.get());
        self.since = Nanos::new(self.since.get().saturating_add(spent));
    }

    fn spend(&mut self, now: Nanos) -> bool {
        if self.left == AT_ONCE {
            self.since = now;
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }

    fn wait(&mut self, mut event: Event) {
        if let Some(before) = self.waiting.take() {
            event.more = Some(before.more.unwrap_or(0).saturating_add(1));
            // A refusal counts those before it that were not told of: the one left out, too.
            if let (Some(all), Some(others)) = (&mut event.refusals, before.refusals) {
                *all = all.saturating_add(others);
            }
        }
        self.waiting = Some(Box::new(event));
    }
}

impl RateLimit {
    /// Takes an event in; what is to be written now, oldest first.
    pub(super) fn admit(&mut self, event: Event, now: Nanos) -> Vec<Event> {
        let mut due = self.due(now);
        let account = event.account.clone();
        let Some(account) = account.filter(|_| is_a_user_s_doing(event.event)) else {
            due.push(event);
            return due;
        };
        let key = (account, event.event);
        if self.allowances.len() >= KNOWN && !self.allowances.contains_key(&key) {
            due.push(event);
            return due;
        }
        let allowance = self.allowances.entry(key).or_insert(Allowance {
            left: AT_ONCE,
            since: now,
            waiting: None,
        });
        if allowance.waiting.is_none() && allowance.spend(now) {
            due.push(event);
        } else {
            allowance.wait(event);
            self.count = self.count.saturating_add(1);
        }
        due
    }

    /// Those that have waited long enough.
    fn due(&mut self, now: Nanos) -> Vec<Event> {
        let is_soon = |looked: Nanos| now.get().saturating_sub(looked.get()) < BETWEEN_LOOKS.get();
        if self.looked.is_some_and(is_soon) {
            return Vec::new();
        }
        self.looked = Some(now);
        let mut due = Vec::new();
        self.allowances.retain(|_, it| {
            it.earn(now);
            if it.waiting.is_some() && it.spend(now) {
                due.extend(it.waiting.take().map(|event| *event));
            }
            it.waiting.is_some() || it.left < AT_ONCE
        });
        let written = due.iter().map(all_of).sum();
        self.count = self.count.saturating_sub(written);
        due.sort_by(|one, other| one.time.cmp(&other.time));
        due
    }

    /// How many events wait, with those that each of them counts.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// The same, which do not wait any more.
    pub(super) fn take_waiting(&mut self) -> Vec<Event> {
        self.count = 0;
        let all = self.allowances.values_mut();
        all.filter_map(|it| it.waiting.take().map(|event| *event))
            .collect()
    }

    /// Those that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Event> {
        self.allowances
            .values()
            .filter_map(|it| it.waiting.as_deref())
    }
}

/// Whether a user can make as many of them as he likes. Whoever changes limits may.
const fn is_a_user_s_doing(kind: EventKind) -> bool {
    match kind {
        EventKind::Notice
        | EventKind::Refused
        | EventKind::Kill
        | EventKind::WouldNotice
        | EventKind::WouldRefuse
        | EventKind::WouldKill
        | EventKind::Reaped
        | EventKind::Asked
        | EventKind::NoVictim
        | EventKind::KillFailed => true,
        EventKind::LimitChanged
        | EventKind::Attached
        | EventKind::Released
        | EventKind::Reloaded
        | EventKind::Lost => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Nanos {
        Nanos::new(count * 1_000_000_000)
    }

    fn event(kind: EventKind, account: &str) -> Event {
        let mut event = Event::new(kind);
        event.account = Some(account.to_owned());
        event
    }

    #[test]
    fn what_is_beyond_is_counted_in_the_next_that_is_written() {
        let mut rate_limit = RateLimit::default();
        let mut written = Vec::new();
        // Ten a second for two minutes, then one.
        for tenth in 0..1_200 {
            let kill = event(EventKind::Kill, "mallory");
            written.extend(rate_limit.admit(kill, Nanos::new(tenth * 100_000_000)));
        }
        assert!(written.len() <= AT_ONCE as usize + 3, "{}", written.len());
        written.extend(rate_limit.admit(event(EventKind::Attached, "x"), seconds(600)));
        assert_eq!(written.pop().unwrap().event, EventKind::Attached);
        let sum: u64 = written.iter().map(all_of).sum();
        assert_eq!((sum, rate_limit.waiting().count()), (1_200, 0));
        assert_eq!(rate_limit.count(), 0);
    }

    #[test]
    fn who_is_killed_now_and_then_is_written_of_each_time() {
        let mut rate_limit = RateLimit::default();
        for minute in 0..200 {
            let due = rate_limit.admit(event(EventKind::Kill, "alice"), seconds(61 * minute));
            assert_eq!(due.len(), 1);
            assert_eq!(due[0].more, None);
        }
        assert_eq!(rate_limit.allowances.len(), 1);
        rate_limit.admit(event(EventKind::Attached, "x"), seconds(1_000_000));
        assert!(rate_limit.allowances.is_empty());
    }

    #[test]
    fn each_account_and_kind_has_its_own_and_changes_of_limits_are_always_written() {
        let mut rate_limit = RateLimit::default();
        for _ in 0..=AT_ONCE {
            rate_limit.admit(event(EventKind::Kill, "mallory"), seconds(1));
        }
        for (kind, account) in [(EventKind::Kill, "alice"), (EventKind::Reaped, "mallory")] {
            assert_eq!(rate_limit.admit(event(kind, account), seconds(1)).len(), 1);
        }
        for _ in 0..100 {
            let change = event(EventKind::LimitChanged, "mallory");
            assert_eq!(rate_limit.admit(change, seconds(1)).len(), 1);
        }
    }

    #[test]
    fn refusals_of_what_was_left_out_are_added_up() {
        let mut rate_limit = RateLimit::default();
        for _ in 0..AT_ONCE + 3 {
            let mut refused = event(EventKind::Refused, "alice");
            refused.refusals = Some(5);
            rate_limit.admit(refused, seconds(1));
        }
        let waiting = rate_limit.waiting().next().unwrap();
        assert_eq!((waiting.refusals, waiting.more), (Some(15), Some(2)));
        assert_eq!(rate_limit.count(), all_of(waiting));
    }
}
