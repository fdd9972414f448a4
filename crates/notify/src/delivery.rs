// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one rule tells one recipient: one event, or a digest of several.

use std::collections::BTreeMap;

use bursar_model::{Event, EventKind, Uid};
use bursar_text::event::kind;
use serde::{Deserialize, Serialize};

/// Events of a digest that are kept in full; of more it says how many of which kind there were.
pub(crate) const MOST_IN_FULL: usize = 20;

/// Bytes that an event that waits costs besides its own.
pub(crate) const OVERHEAD: u64 = 128;

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
    /// In the order of their numbers, at most [`MOST_IN_FULL`].
    pub(crate) events: Vec<Event>,
    /// All events by kind, those above too.
    pub(crate) kinds: BTreeMap<String, u64>,
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
        if self.has_room() {
            self.events.push(event.clone());
        }
    }

    /// Whether it is to be tried now. A clock that was set back keeps nobody waiting.
    pub(crate) const fn is_due(&self, now: Seconds) -> bool {
        !self.is_begun && (self.due <= now || now < self.said_at)
    }

    /// Bytes that it takes in the queue, about.
    pub(crate) fn size(&self) -> u64 {
        let events = self.events.iter();
        let bytes = events.map(|event| serde_json::to_vec(event).map_or(0, |it| it.len() as u64));
        bytes.fold(0, |sum: u64, it| {
            sum.saturating_add(it).saturating_add(OVERHEAD)
        })
    }
}

/// What came of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Delivered,
    /// Nobody could be asked: no connection, or a program that cannot be started. The next delivery would fare alike.
    Unreached(String),
    /// Worth another attempt.
    Later(String),
    /// No attempt will do.
    Refused(String),
}
