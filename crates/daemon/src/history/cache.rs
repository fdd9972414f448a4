// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The newest events in memory, divided so that nobody's many push out another's few.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};

use bursar_model::{Event, EventKind, Pid};

/// Events kept; with eight candidates and their command lines up to two kilobytes each.
const ROOM: usize = 2048;

/// Events in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Cache {
    events: BTreeMap<u64, Event>,
    /// By account; what is about none has a share, too.
    shares: HashMap<Option<String>, Share>,
    next: u64,
    /// The latest moment of all that was forgotten, and the highest number.
    forgotten: Option<String>,
    forgotten_number: Option<u64>,
    lacks_kills: bool,
}

/// What is remembered of one account.
#[derive(Debug, Default)]
struct Share {
    /// Oldest first.
    numbers: VecDeque<u64>,
    /// The last kill, whose it was, and how that ended.
    kill: Option<u64>,
    victim: Option<Pid>,
    end: Option<u64>,
}

impl Share {
    fn take(&mut self, number: u64, event: &Event) {
        self.numbers.push_back(number);
        if is_kill(event) {
            (self.kill, self.victim, self.end) = (Some(number), event.pid, None);
        } else if event.event == EventKind::Reaped
            && self.kill.is_some()
            && self.victim == event.pid
            && self.end.is_none()
        {
            self.end = Some(number);
        }
    }

    /// The oldest but the last kill and its end.
    fn least_missed(&self) -> Option<u64> {
        let is_kept = |number: u64| self.kill == Some(number) || self.end == Some(number);
        self.numbers.iter().copied().find(|it| !is_kept(*it))
    }
}

impl Cache {
    pub(super) fn take(&mut self, event: Event) {
        let number = self.next;
        self.next = self.next.saturating_add(1);
        let share = self.shares.entry(event.account.clone()).or_default();
        share.take(number, &event);
        self.events.insert(number, event);
        if self.events.len() > ROOM {
            self.forget_one();
        }
    }

    /// Of whoever has most besides a last kill, so that all have the same where there is not enough for all. A last kill
    /// goes only where there is nothing else.
    fn forget_one(&mut self) {
        let spare = |share: &Share| Some((share.numbers.len(), Reverse(share.least_missed()?)));
        let largest = self.shares.values().filter_map(spare).max();
        let oldest = || self.events.keys().next().copied();
        let number = largest.map(|(_, number)| number.0).or_else(oldest);
        let Some((number, event)) = number.and_then(|it| self.events.remove_entry(&it)) else {
            return;
        };
        self.lacks_kills |= is_kill(&event) && !self.has_later_kill(&event);
        if let Some(share) = self.shares.get_mut(&event.account) {
            if let Ok(at) = share.numbers.binary_search(&number) {
                share.numbers.remove(at);
            }
            if share.numbers.is_empty() {
                self.shares.remove(&event.account);
            }
        }
        self.forgotten = self.forgotten.take().max(Some(event.time));
        self.forgotten_number = self.forgotten_number.max(event.number);
    }

    /// Whether whoever may see a kill that was forgotten sees a later one.
    fn has_later_kill(&self, forgotten: &Event) -> bool {
        let share = self.shares.get(&forgotten.account);
        let last = share.and_then(|it| self.events.get(&it.kill?));
        last.is_some_and(|it| it.uid == forgotten.uid)
    }

    /// Whether somebody's last kill may be one that was forgotten.
    pub(super) const fn lacks_kills(&self) -> bool {
        self.lacks_kills
    }

    /// Whether nothing of what happened since then was forgotten.
    pub(super) fn reaches_back_to(&self, since: &str) -> bool {
        self.forgotten.as_deref().is_none_or(|it| it < since)
    }

    /// Whether no event after a number was forgotten.
    pub(super) fn has_all_after(&self, number: u64) -> bool {
        self.forgotten_number.is_none_or(|it| it <= number)
    }

    /// Oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Event> {
        self.events.values()
    }
}

/// What `bursar why` tells of.
pub(crate) fn is_kill(event: &Event) -> bool {
    match event.event {
        EventKind::Kill | EventKind::KillFailed | EventKind::WouldKill => true,
        EventKind::NoVictim => event.files_bytes.is_some(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::Uid;

    use super::*;

    fn event(kind: EventKind, account: &str, number: u32) -> Event {
        let mut event = Event::new(kind);
        event.time = format!("2026-11-21T00:00:00.{number:06}Z");
        event.account = Some(account.to_owned());
        event.pid = Some(Pid::new(number));
        event
    }

    fn kinds_of(cache: &Cache, account: &str) -> Vec<EventKind> {
        let its = cache
            .iter()
            .filter(|it| it.account.as_deref() == Some(account));
        its.map(|it| it.event).collect()
    }

    #[test]
    fn one_account_s_flood_pushes_out_nobody_else_s_events() {
        let mut cache = Cache::default();
        cache.take(Event::new(EventKind::Attached));
        let of_alice = [EventKind::Notice, EventKind::Kill, EventKind::Reaped];
        for kind in of_alice {
            cache.take(event(kind, "alice", 1));
        }
        for number in 2..10_000 {
            cache.take(event(EventKind::Kill, "mallory", number));
            cache.take(event(EventKind::Reaped, "mallory", number));
        }
        assert_eq!(kinds_of(&cache, "alice"), of_alice);
        assert_eq!(cache.iter().count(), ROOM);
        assert_eq!(kinds_of(&cache, "mallory").len(), ROOM - 4);
        let newest = cache.iter().next_back().unwrap();
        assert_eq!(newest.pid, Some(Pid::new(9_999)));
    }

    #[test]
    fn the_last_kill_and_its_end_outlive_what_the_account_did_since() {
        let mut cache = Cache::default();
        for kind in [EventKind::Kill, EventKind::Reaped] {
            cache.take(event(kind, "alice", 1));
        }
        (2..10_000).for_each(|it| cache.take(event(EventKind::Notice, "alice", it)));
        let kept = kinds_of(&cache, "alice");
        assert_eq!(
            kept[..3],
            [EventKind::Kill, EventKind::Reaped, EventKind::Notice]
        );
        assert_eq!(kept.len(), ROOM);
    }

    #[test]
    fn a_last_kill_outlives_what_nobody_would_miss_although_no_account_has_much() {
        let mut cache = Cache::default();
        cache.take(event(EventKind::Kill, "alice", 1));
        for number in 2..902 {
            let account = format!("user{number}");
            cache.take(event(EventKind::Kill, &account, number));
            cache.take(event(EventKind::Reaped, &account, number));
        }
        for number in 1_000..1_300 {
            cache.take(event(EventKind::Notice, &format!("user{number}"), number));
        }
        assert_eq!(kinds_of(&cache, "alice"), [EventKind::Kill]);
        let kills = cache.iter().filter(|it| is_kill(it)).count();
        assert_eq!((cache.iter().count(), kills), (ROOM, 901));
        assert!(!cache.lacks_kills());
    }

    #[test]
    fn a_last_kill_that_was_forgotten_is_known_to_be_missing() {
        let mut cache = Cache::default();
        for number in 0..3_000 {
            cache.take(event(EventKind::Kill, "mallory", number));
        }
        assert!(!cache.lacks_kills());
        // Of a shared account the last kill is one user's, and another one's last is forgotten.
        let mut cache = Cache::default();
        for number in 0..3_000 {
            let mut event = event(EventKind::Kill, "=lab", number);
            event.uid = Some(Uid::new(60_000 + u32::from(number > 0)));
            cache.take(event);
        }
        assert!(cache.lacks_kills());
    }

    #[test]
    fn more_accounts_than_room_cost_the_oldest() {
        let mut cache = Cache::default();
        for number in 0..5_000 {
            cache.take(event(EventKind::Kill, &format!("user{number}"), number));
        }
        assert_eq!(cache.iter().count(), ROOM);
        assert_eq!(cache.shares.len(), ROOM);
        assert_eq!(
            cache.iter().next().unwrap().pid,
            Some(Pid::new(5_000 - 2048))
        );
        assert!(cache.lacks_kills());
    }

    #[test]
    fn how_far_back_it_reaches_is_known_by_what_was_forgotten() {
        let mut cache = Cache::default();
        cache.take(event(EventKind::Kill, "alice", 1));
        assert!(cache.reaches_back_to(""));
        (10..2_059).for_each(|it| cache.take(event(EventKind::Notice, "mallory", it)));
        let time = |number| event(EventKind::Kill, "", number).time;
        // Two of mallory's are gone; alice's, which is older, is not.
        assert!(!cache.reaches_back_to(&time(1)));
        assert!(!cache.reaches_back_to(&time(11)));
        assert!(cache.reaches_back_to(&time(12)));
    }
}
