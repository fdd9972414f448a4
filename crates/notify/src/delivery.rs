// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one rule tells one recipient: one event, or a digest of several.

use std::collections::{BTreeMap, BTreeSet};

use bursar_model::{Event, EventKind, Uid};
use bursar_text::event::kind;
use serde::{Deserialize, Serialize};

/// Events of a digest that are kept in full; of more it says how many of which kind there were.
pub(crate) const MOST_IN_FULL: usize = 20;

/// Bytes that an event that waits costs besides its own.
pub(crate) const OVERHEAD: u64 = 128;

/// Accounts that are told apart to count them.
const MOST_ACCOUNTS: usize = 10_000;
/// Bytes that one of them takes, about.
const ACCOUNT: u64 = 11;

/// Seconds since 1970.
pub(crate) type Seconds = i64;

/// Who is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Recipient {
    /// Whom the event is about.
    User(Uid),
    /// Those who see to the machine.
    Administrators,
}

/// Names a delivery, once and for all on this machine.
pub(crate) type DeliveryId = u64;

/// What one rule tells one recipient.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Delivery {
    pub(crate) id: DeliveryId,
    /// Its rule's name.
    pub(crate) rule: String,
    pub(crate) to: Recipient,
    /// In the order of their numbers, at most [`MOST_IN_FULL`]: the first, of as many accounts as there are.
    pub(crate) events: Vec<Event>,
    /// All events by kind, those above too.
    pub(crate) kinds: BTreeMap<String, u64>,
    /// Checksums of the names of all accounts that are in it.
    #[serde(default)]
    seen: BTreeSet<u32>,
    /// When it is to be tried next, and when that was said.
    pub(crate) due: Seconds,
    pub(crate) said_at: Seconds,
    /// Tried so often, first at this time; from then on no event joins it.
    pub(crate) attempts: u32,
    pub(crate) first_attempt: Option<Seconds>,
    /// An attempt is under way, or what came of it is not known.
    pub(crate) is_begun: bool,
    /// An attempt before may have come through, and nobody knows.
    pub(crate) may_repeat: bool,
}

impl Delivery {
    pub(crate) fn new(
        id: DeliveryId,
        rule: &str,
        to: Recipient,
        due: Seconds,
        now: Seconds,
    ) -> Self {
        Self {
            id,
            rule: rule.to_owned(),
            to,
            events: Vec::new(),
            kinds: BTreeMap::new(),
            seen: BTreeSet::new(),
            due,
            said_at: now,
            attempts: 0,
            first_attempt: None,
            is_begun: false,
            may_repeat: false,
        }
    }

    /// How many events it tells.
    pub(crate) fn count(&self) -> u64 {
        self.kinds
            .values()
            .fold(0, |sum: u64, count| sum.saturating_add(*count))
    }

    /// Events that it only counts.
    pub(crate) fn beyond(&self) -> u64 {
        self.count().saturating_sub(self.events.len() as u64)
    }

    pub(crate) fn count_of(&self, of: EventKind) -> u64 {
        self.kinds.get(kind(of)).copied().unwrap_or(0)
    }

    /// Whether another event would be kept in full.
    pub(crate) fn has_room(&self) -> bool {
        self.events.len() < MOST_IN_FULL
    }

    pub(crate) fn add(&mut self, event: &Event) {
        let count = self.kinds.entry(kind(event.event).to_owned()).or_default();
        *count = count.saturating_add(1);
        if let Some(account) = &event.account
            && self.seen.len() < MOST_ACCOUNTS
        {
            self.seen.insert(crc32fast::hash(account.as_bytes()));
        }
        if self.has_room() || self.give_way(event) {
            self.events.push(event.clone());
        }
    }

    /// Whether one that is kept goes for this one: of the account that has most of them the last, where this one's
    /// has fewer. What is no user's doing goes for what is, and never the other way round.
    fn give_way(&mut self, event: &Event) -> bool {
        let is_users = |it: &&Event| !is_nobodys_doing(it.event);
        let mut by_account: BTreeMap<Option<&str>, usize> = BTreeMap::new();
        for it in self.events.iter().filter(is_users) {
            let count = by_account.entry(it.account.as_deref()).or_default();
            *count = count.saturating_add(1);
        }
        let own = by_account.get(&event.account.as_deref()).copied();
        let most = by_account.iter().max_by_key(|(_, count)| **count);
        let Some((&account, &count)) = most else {
            return false;
        };
        let is_fair = is_nobodys_doing(event.event) || own.unwrap_or(0).saturating_add(1) < count;
        let is_last = |it: &Event| is_users(&it) && it.account.as_deref() == account;
        match self.events.iter().rposition(is_last) {
            Some(at) if is_fair => {
                self.events.remove(at);
                true
            }
            _ => false,
        }
    }

    /// How many accounts are in it.
    pub(crate) fn accounts(&self) -> usize {
        self.seen.len()
    }

    /// Whether it tells administrators what no user brings about: no user's events hold that back.
    pub(crate) fn is_alarm(&self) -> bool {
        self.to == Recipient::Administrators
            && NOBODYS_DOING.iter().any(|kind| self.count_of(*kind) > 0)
    }

    /// Whether it is to be tried now. A clock that was set back keeps nobody waiting.
    pub(crate) const fn is_due(&self, now: Seconds) -> bool {
        !self.is_begun && (self.due <= now || now < self.said_at)
    }

    /// Bytes that it takes in the queue, about.
    pub(crate) fn size(&self) -> u64 {
        let events = self.events.iter();
        let bytes = events.map(|event| serde_json::to_vec(event).map_or(0, |it| it.len() as u64));
        bytes
            .fold(0, |sum: u64, it| {
                sum.saturating_add(it).saturating_add(OVERHEAD)
            })
            .saturating_add((self.seen.len() as u64).saturating_mul(ACCOUNT))
    }
}

/// What is no user's doing.
const NOBODYS_DOING: [EventKind; 5] = [
    EventKind::Released,
    EventKind::Lost,
    EventKind::KillFailed,
    EventKind::Attached,
    EventKind::Reloaded,
];

fn is_nobodys_doing(kind: EventKind) -> bool {
    NOBODYS_DOING.contains(&kind)
}

/// What came of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Delivered,
    /// Nobody could be asked: no connection, or a program that cannot be started. The next delivery would fare alike.
    Unreached(String),
    /// Worth another attempt. `is_unsure`: this one may have come through.
    Later {
        why: String,
        is_unsure: bool,
    },
    /// No attempt will do.
    Refused(String),
}

impl Outcome {
    /// It was not taken, and is worth another attempt.
    pub(crate) const fn later(why: String) -> Self {
        let is_unsure = false;
        Self::Later { why, is_unsure }
    }

    /// It is worth another attempt, and may have come through.
    pub(crate) const fn unsure(why: String) -> Self {
        let is_unsure = true;
        Self::Later { why, is_unsure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, account: &str, number: u64) -> Event {
        let mut event = Event::new(kind);
        event.account = (!account.is_empty()).then(|| account.to_owned());
        event.number = Some(number);
        event
    }

    #[test]
    fn who_has_many_events_gives_way_to_who_has_few_and_all_are_counted() {
        let mut digest = Delivery::new(1, "admins", Recipient::Administrators, 0, 0);
        for number in 0..100 {
            digest.add(&event(EventKind::Kill, "mallory", number));
        }
        for number in 0..3 {
            digest.add(&event(EventKind::Kill, "alice", 100 + number));
        }
        digest.add(&event(EventKind::Lost, "", 103));
        digest.add(&event(EventKind::KillFailed, "mallory", 104));
        for user in 0..200 {
            digest.add(&event(EventKind::Kill, &format!("user{user}"), 105 + user));
        }
        let has = |kind, account: Option<&str>| {
            let its = digest.events.iter();
            its.filter(|it| it.event == kind && it.account.as_deref() == account)
                .count()
        };
        assert_eq!((digest.events.len(), digest.count()), (MOST_IN_FULL, 305));
        assert!(has(EventKind::Kill, Some("alice")) > 0);
        assert!(has(EventKind::Kill, Some("mallory")) < 3);
        assert_eq!(has(EventKind::Lost, None), 1);
        assert_eq!(has(EventKind::KillFailed, Some("mallory")), 1);
        assert_eq!(digest.accounts(), 202);
        assert!(digest.events.is_sorted_by_key(|it| it.number));
    }
}
