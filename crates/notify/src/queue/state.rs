// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is waiting and what was counted, as it follows from the entries of the journal, one after the other.

use std::collections::BTreeMap;

use bursar_model::Event;
use serde::{Deserialize, Serialize};

use crate::delivery::{Delivery, DeliveryId, Recipient, Seconds};

/// How long a message counts against a rule's `at_most_per_day`.
pub(crate) const DAY: Seconds = 86_400;

/// Reasons of one rule that are told apart.
const MOST_REASONS: usize = 32;

/// Up to where events were read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cursor {
    /// The event's number.
    pub(crate) number: u64,
    /// Its time, RFC 3339; empty where it was not seen.
    pub(crate) time: String,
}

/// One entry of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Entry {
    /// The first: what was so before.
    Start(Box<Start>),
    /// One that waits; after the first.
    Waits(Box<Delivery>),
    /// An event was read. With what it begins or joins, and which rules had no room for it.
    Taken {
        event: Box<Event>,
        at: Seconds,
        into: Vec<Into>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        no_room: Vec<String>,
    },
    /// Events before this one are not kept by bursard any more.
    Missed { cursor: Cursor, count: u64 },
    /// An attempt begins.
    Begun {
        id: DeliveryId,
        at: Seconds,
        /// Whether it counts against the rule's `at_most_per_day`: rules without one keep no record of the day.
        #[serde(default)]
        is_bounded: bool,
    },
    /// It has to be tried again.
    Later {
        id: DeliveryId,
        due: Seconds,
        at: Seconds,
        /// The attempt may have come through.
        #[serde(default)]
        is_unsure: bool,
    },
    /// We ended during the attempt: it is to be made again.
    Unknown { id: DeliveryId },
    /// It is told.
    Delivered { id: DeliveryId },
    /// It will not be told.
    Dropped { id: DeliveryId, reason: String },
}

/// What an event begins, or joins where it is there already.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Into {
    pub(crate) id: DeliveryId,
    pub(crate) rule: String,
    pub(crate) to: Recipient,
    pub(crate) due: Seconds,
}

/// What a journal begins with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Names this queue: with the number of a delivery it is unique everywhere.
    pub(crate) instance: String,
    pub(crate) next: DeliveryId,
    /// Absent: nothing was read yet.
    pub(crate) cursor: Option<Cursor>,
    pub(crate) counts: Counts,
    pub(crate) sent: Vec<Sent>,
}

/// A message that counts against a rule's `at_most_per_day`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sent {
    pub(crate) rule: String,
    pub(crate) to: Recipient,
    pub(crate) at: Seconds,
}

/// Events counted since the queue was begun.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Not kept by bursard any more when they were asked for.
    pub(crate) missed: u64,
    /// How often the disk failed in the middle of something, and the queue was written anew.
    #[serde(default)]
    pub(crate) repaired: u64,
    pub(crate) rules: BTreeMap<String, RuleCounts>,
}

/// Of one rule. What is matched is delivered, dropped or waits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RuleCounts {
    /// Events that the rule is to tell.
    pub(crate) matched: u64,
    pub(crate) delivered: u64,
    /// Attempts that failed and are made again.
    #[serde(default)]
    pub(crate) failed: u64,
    /// By reason.
    pub(crate) dropped: BTreeMap<String, u64>,
    /// Of those delivered or waiting: perhaps told twice, with the same id.
    pub(crate) repeated: u64,
    /// Deliveries that came through.
    pub(crate) messages: u64,
}

impl Counts {
    pub(crate) fn of(&mut self, rule: &str) -> &mut RuleCounts {
        self.rules.entry(rule.to_owned()).or_default()
    }
}

impl RuleCounts {
    fn drop(&mut self, reason: &str, count: u64) {
        // Servers choose words of reasons.
        let is_known = self.dropped.contains_key(reason) || self.dropped.len() < MOST_REASONS;
        let reason = if is_known { reason } else { "other reasons" };
        add(self.dropped.entry(reason.to_owned()).or_default(), count);
    }
}

pub(crate) fn add(sum: &mut u64, count: u64) {
    *sum = sum.saturating_add(count);
}

/// What follows from a journal.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct State {
    pub(crate) instance: String,
    pub(crate) next: DeliveryId,
    pub(crate) cursor: Option<Cursor>,
    pub(crate) counts: Counts,
    pub(crate) waiting: BTreeMap<DeliveryId, Delivery>,
    /// Of the last day, by rule and recipient.
    pub(crate) sent: BTreeMap<(String, Recipient), Vec<Seconds>>,
}

impl State {
    pub(crate) fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Start(start) => self.start(start),
            Entry::Waits(delivery) => {
                self.waiting.insert(delivery.id, (**delivery).clone());
            }
            Entry::Taken {
                event,
                at,
                into,
                no_room,
            } => self.take(event, *at, into, no_room),
            Entry::Missed { cursor, count } => {
                self.cursor = Some(cursor.clone());
                add(&mut self.counts.missed, *count);
            }
            Entry::Begun { id, at, is_bounded } => self.begin(*id, *at, *is_bounded),
            Entry::Later {
                id,
                due,
                at,
                is_unsure,
            } => {
                if *is_unsure {
                    self.doubt(*id);
                }
                if let Some(delivery) = self.waiting.get_mut(id) {
                    add(&mut self.counts.of(&delivery.rule).failed, 1);
                    (delivery.due, delivery.said_at, delivery.is_begun) = (*due, *at, false);
                }
            }
            Entry::Unknown { id } => {
                self.doubt(*id);
                if let Some(delivery) = self.waiting.get_mut(id) {
                    delivery.is_begun = false;
                    delivery.due = delivery.said_at;
                }
            }
            Entry::Delivered { id } => {
                if let Some(delivery) = self.waiting.remove(id) {
                    let counts = self.counts.of(&delivery.rule);
                    add(&mut counts.delivered, delivery.count());
                    add(&mut counts.messages, 1);
                }
            }
            Entry::Dropped { id, reason } => {
                if let Some(delivery) = self.waiting.remove(id) {
                    let count = delivery.count();
                    self.counts.of(&delivery.rule).drop(reason, count);
                }
            }
        }
    }

    fn start(&mut self, start: &Start) {
        *self = Self {
            instance: start.instance.clone(),
            next: start.next,
            cursor: start.cursor.clone(),
            counts: start.counts.clone(),
            ..Self::default()
        };
        for sent in &start.sent {
            let key = (sent.rule.clone(), sent.to);
            self.sent.entry(key).or_default().push(sent.at);
        }
    }

    fn take(&mut self, event: &Event, at: Seconds, into: &[Into], no_room: &[String]) {
        self.cursor = Some(Cursor {
            number: event.number.unwrap_or(0),
            time: event.time.clone(),
        });
        for rule in no_room {
            let counts = self.counts.of(rule);
            add(&mut counts.matched, 1);
            counts.drop(NO_ROOM, 1);
        }
        for it in into {
            self.next = self.next.max(it.id.saturating_add(1));
            let delivery = self.waiting.entry(it.id);
            let fresh = || Delivery::new(it.id, &it.rule, it.to, it.due, at);
            delivery.or_insert_with(fresh).add(event);
            add(&mut self.counts.of(&it.rule).matched, 1);
        }
    }

    fn begin(&mut self, id: DeliveryId, at: Seconds, is_bounded: bool) {
        let Some(delivery) = self.waiting.get_mut(&id) else {
            return;
        };
        delivery.is_begun = true;
        delivery.attempts = delivery.attempts.saturating_add(1);
        if delivery.first_attempt.is_some() {
            return;
        }
        delivery.first_attempt = Some(at);
        if !is_bounded {
            return;
        }
        let sent = self.sent.entry((delivery.rule.clone(), delivery.to));
        sent.or_default().push(at);
        let since = at.saturating_sub(DAY);
        self.sent.retain(|_, times| {
            times.retain(|&time| since < time && time <= at);
            !times.is_empty()
        });
    }

    /// An attempt may have come through. Events count once as repeated, however often that is so.
    fn doubt(&mut self, id: DeliveryId) {
        if let Some(delivery) = self.waiting.get_mut(&id)
            && !delivery.may_repeat
        {
            delivery.may_repeat = true;
            let count = delivery.count();
            add(&mut self.counts.of(&delivery.rule).repeated, count);
        }
    }

    /// The entries that say the same.
    pub(crate) fn snapshot(&self) -> Vec<Entry> {
        let sent = self.sent.iter().flat_map(|((rule, to), times)| {
            times.iter().map(|&at| Sent {
                rule: rule.clone(),
                to: *to,
                at,
            })
        });
        let start = Entry::Start(Box::new(Start {
            instance: self.instance.clone(),
            next: self.next,
            cursor: self.cursor.clone(),
            counts: self.counts.clone(),
            sent: sent.collect(),
        }));
        let waiting = self.waiting.values();
        let waiting = waiting.map(|it| Entry::Waits(Box::new(it.clone())));
        std::iter::once(start).chain(waiting).collect()
    }

    /// What waits goes, for that reason.
    pub(crate) fn drop_all(&mut self, reason: &str) {
        for delivery in std::mem::take(&mut self.waiting).into_values() {
            let count = delivery.count();
            self.counts.of(&delivery.rule).drop(reason, count);
        }
    }
}

/// Why an event is dropped at once.
pub(crate) const NO_ROOM: &str = "the queue was full";
