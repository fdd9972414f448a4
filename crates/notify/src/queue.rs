// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What waits to be told, on disk: an event and the place up to which events were read are one entry, so that a crash
//! at any moment leaves each event read and waiting, or not read yet.

pub(crate) mod journal;
pub(crate) mod state;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use bursar_model::{Bytes, Event, Uid};

use self::journal::Journal;
use self::state::{Cursor, DAY, Entry, Into, State, add};
use crate::config::{Rule, Who};
use crate::delivery::{Delivery, DeliveryId, OVERHEAD, Outcome, Recipient, Seconds};

/// A file that has so much more than it needs is written anew, bytes.
const SLACK: u64 = 1 << 20;
/// The first pause after a failed attempt, and the longest.
const FIRST_PAUSE: Seconds = 10;
const LONGEST_PAUSE: Seconds = 900;
/// Events read and wanted by no rule after which the place is written.
const UNWRITTEN: u64 = 256;
/// Deliveries of one event each that wait for one account in a rule, about; more events join the newest.
const MOST_OF_ONE: usize = 20;
/// Bytes of a delivery with as many events as are kept in full, about.
const FULL: u64 = 20 << 10;
/// Why what waited is gone.
const DAMAGED: &str = "the queue was damaged";
const NO_RULE: &str = "its rule was removed";

/// The queue.
#[derive(Debug)]
pub(crate) struct Queue {
    journal: Journal,
    state: State,
    most_bytes: u64,
    /// Bytes that wait, by rule: each has its share, and what fills one takes nothing from the others.
    sizes: BTreeMap<String, u64>,
    /// What came of attempts and could not be written yet.
    unwritten: Vec<Entry>,
    /// The event read last, wanted or not.
    read: Option<Cursor>,
}

impl Queue {
    /// Opens the queue in `directory`, or begins one. A damaged one is put aside, and what waited in it counted as
    /// dropped: what of it was told is not known any more, and nothing is told twice for that.
    pub(crate) fn open(directory: &Path, most: Bytes) -> Result<Self> {
        let path = directory.join("queue");
        let (mut journal, read) = Journal::open(&path)?;
        let mut state = read.state;
        if read.damaged > 0 {
            let aside = journal
                .keep_aside()
                .context("put the damaged queue aside")?;
            let count = state.waiting.len();
            state.drop_all(DAMAGED);
            tracing::error!(
                "{} lines of the queue are damaged: it is {} now, {count} deliveries that waited are dropped and \
                 counted, a new queue is begun",
                read.damaged,
                aside.display()
            );
        }
        let is_new = state.instance.is_empty();
        if is_new {
            state.instance = instance().context("name the queue")?;
        }
        if is_new || read.damaged > 0 {
            journal
                .replace(&state.snapshot())
                .with_context(|| format!("begin {path:?}; see to the disk"))?;
        }
        let mut sizes = BTreeMap::new();
        for delivery in state.waiting.values() {
            add(
                sizes.entry(delivery.rule.clone()).or_default(),
                delivery.size(),
            );
        }
        let mut queue = Self {
            journal,
            state,
            most_bytes: most.get(),
            sizes,
            unwritten: Vec::new(),
            read: None,
        };
        queue.doubt()?;
        Ok(queue)
    }

    /// We ended in the middle of attempts.
    fn doubt(&mut self) -> Result<()> {
        let begun = self.state.waiting.values().filter(|it| it.is_begun);
        for id in begun.map(|it| it.id).collect::<Vec<_>>() {
            self.write(Entry::Unknown { id })
                .context("write to the queue; see to the disk")?;
        }
        Ok(())
    }

    pub(crate) const fn state(&self) -> &State {
        &self.state
    }

    /// After the disk has failed in the middle of something nothing is written before all is written anew: what the
    /// file has is not known, and what we have is right.
    fn mend(&mut self) -> io::Result<()> {
        if !self.journal.is_broken() {
            return Ok(());
        }
        let mut state = self.state.clone();
        add(&mut state.counts.repaired, 1);
        self.journal.replace(&state.snapshot())?;
        self.state.counts.repaired = state.counts.repaired;
        tracing::warn!("the disk had failed in the middle of something: the queue is written anew");
        Ok(())
    }

    /// Writes an entry; only then it holds.
    fn write(&mut self, entry: Entry) -> io::Result<()> {
        self.mend()?;
        self.journal.append(&entry)?;
        let concerned: Vec<DeliveryId> = match &entry {
            Entry::Delivered { id } | Entry::Dropped { id, .. } => vec![*id],
            Entry::Taken { into, .. } => into.iter().map(|it| it.id).collect(),
            _ => Vec::new(),
        };
        for id in &concerned {
            self.weigh(*id, u64::saturating_sub);
        }
        self.state.apply(&entry);
        for id in &concerned {
            self.weigh(*id, u64::saturating_add);
        }
        Ok(())
    }

    /// Takes a delivery's bytes off its rule's, or puts them there.
    fn weigh(&mut self, id: DeliveryId, change: fn(u64, u64) -> u64) {
        if let Some(delivery) = self.state.waiting.get(&id) {
            let size = self.sizes.entry(delivery.rule.clone()).or_default();
            *size = change(*size, delivery.size());
        }
    }

    /// Begins to read after this number.
    pub(crate) fn begin_at(&mut self, number: u64) -> io::Result<()> {
        self.miss(number, 0)
    }

    /// Events up to this number are not to be had.
    pub(crate) fn miss(&mut self, number: u64, count: u64) -> io::Result<()> {
        let cursor = Cursor {
            number,
            time: String::new(),
        };
        self.write(Entry::Missed { cursor, count })
    }

    /// Takes an event in for all rules that want it. `missed`: those right before it that are not to be had. That one
    /// was read which no rule wants is written now and then: it would be read, and not wanted, again.
    pub(crate) fn take(
        &mut self,
        event: &Event,
        rules: &[Rule],
        missed: u64,
        now: Seconds,
    ) -> io::Result<()> {
        if missed > 0 {
            let before = event.number.unwrap_or(0).saturating_sub(1);
            self.miss(before, missed)?;
        }
        let mut into = Vec::new();
        let mut no_room = Vec::new();
        let bytes = (serde_json::to_vec(event)?.len() as u64).saturating_add(OVERHEAD);
        let share = self.most_bytes / (rules.len() as u64).max(1);
        let mut next = self.state.next.max(1);
        for rule in rules.iter().filter(|it| it.kinds.contains(&event.event)) {
            let Some(to) = recipient(rule, event) else {
                continue;
            };
            let open = self.joined(rule, to, event, share);
            let size = self.sizes.get(&rule.name).copied().unwrap_or(0);
            if open.is_none_or(Delivery::has_room) && size.saturating_add(bytes) > share {
                no_room.push(rule.name.clone());
                continue;
            }
            let (id, due) = match open {
                Some(open) => (open.id, open.due),
                None => {
                    next = next.saturating_add(1);
                    (next.saturating_sub(1), now.saturating_add(rule.gather))
                }
            };
            let rule = rule.name.clone();
            into.push(Into { id, rule, to, due });
        }
        let written = self.state.cursor.as_ref().map_or(0, |it| it.number);
        let cursor = Cursor {
            number: event.number.unwrap_or(0),
            time: event.time.clone(),
        };
        if into.is_empty() && no_room.is_empty() {
            let is_far = cursor.number.abs_diff(written) >= UNWRITTEN;
            self.read = Some(cursor);
            return if is_far { self.write_place() } else { Ok(()) };
        }
        self.read = None;
        self.write(Entry::Taken {
            event: Box::new(event.clone()),
            at: now,
            into,
            no_room,
        })
    }

    /// What an event joins: what is being gathered for its recipient. Where each event is told by itself, the newest
    /// of its account's once many of these wait.
    fn joined(&self, rule: &Rule, to: Recipient, event: &Event, share: u64) -> Option<&Delivery> {
        let its = self.state.waiting.values();
        let its = its.filter(|it| it.rule == rule.name && it.to == to);
        if rule.gather > 0 {
            let mut its = its;
            return its.find(|it| it.first_attempt.is_none());
        }
        let of_one: Vec<&Delivery> = its
            .filter(|it| it.events.first().map(whose) == Some(whose(event)))
            .collect();
        let mut newest = of_one.iter().rev();
        let newest = newest.find(|it| it.first_attempt.is_none())?;
        let has_many = of_one.len() >= MOST_OF_ONE;
        // Its events are only counted when half of the rule's share may be one account's.
        let has_most = (of_one.len() as u64).saturating_mul(FULL) >= share / 2;
        (has_many && (newest.has_room() || has_most)).then_some(*newest)
    }

    pub(crate) const fn is_place_unwritten(&self) -> bool {
        self.read.is_some()
    }

    /// Writes up to where events were read that no rule wants.
    pub(crate) fn write_place(&mut self) -> io::Result<()> {
        if let Some(cursor) = self.read.clone() {
            self.write(Entry::Missed { cursor, count: 0 })?;
            self.read = None;
        }
        Ok(())
    }

    /// At the end.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        self.write_place()?;
        self.mend()?;
        self.journal.sync()
    }

    /// What is due of a rule: first what was never tried, and of each the longest due. Who cannot be told keeps nobody
    /// else waiting.
    pub(crate) fn due_of(&self, rule: &Rule, now: Seconds) -> Option<DeliveryId> {
        let its = self.state.waiting.values();
        its.filter(|it| it.rule == rule.name && it.is_due(now))
            .filter(|it| self.allowed_at(rule, it, now) <= now)
            .min_by_key(|it| (it.attempts > 0, it.due, it.id))
            .map(|it| it.id)
    }

    /// When the next thing is due of a rule.
    pub(crate) fn next_due(&self, rule: &Rule, now: Seconds) -> Option<Seconds> {
        let its = self.state.waiting.values();
        its.filter(|it| it.rule == rule.name && !it.is_begun)
            .map(|it| it.due.max(self.allowed_at(rule, it, now)))
            .min()
    }

    /// When a recipient may be told again, if not now. Alarms wait for nothing.
    fn allowed_at(&self, rule: &Rule, delivery: &Delivery, now: Seconds) -> Seconds {
        let most = rule.at_most_per_day as usize;
        if most == 0 || delivery.is_alarm() || delivery.first_attempt.is_some() {
            return now;
        }
        let key = (rule.name.clone(), delivery.to);
        let sent = self.state.sent.get(&key).map_or(&[][..], Vec::as_slice);
        let last: Vec<Seconds> = sent
            .iter()
            .copied()
            .filter(|&at| now.saturating_sub(DAY) < at && at <= now)
            .collect();
        let oldest = last.len().checked_sub(most).and_then(|it| last.get(it));
        oldest.map_or(now, |at| at.saturating_add(DAY))
    }

    /// An attempt begins. An error: there may be no room to write what comes of it.
    pub(crate) fn begin(
        &mut self,
        id: DeliveryId,
        rule: &Rule,
        now: Seconds,
    ) -> io::Result<Option<Delivery>> {
        self.journal.keep_room()?;
        self.write(Entry::Begun {
            id,
            at: now,
            is_bounded: rule.at_most_per_day > 0,
        })?;
        if let Err(error) = self.journal.sync() {
            // It has not begun.
            self.unwritten.push(Entry::Later {
                id,
                due: now,
                at: now,
                is_unsure: false,
            });
            return Err(error);
        }
        Ok(self.state.waiting.get(&id).cloned())
    }

    /// What came of an attempt. It is written as soon as that is possible.
    pub(crate) fn settle(&mut self, id: DeliveryId, outcome: Outcome, rule: &Rule, now: Seconds) {
        let Some(delivery) = self.state.waiting.get(&id) else {
            return;
        };
        let since = delivery.first_attempt.unwrap_or(now);
        let entry = match outcome {
            Outcome::Delivered => Entry::Delivered { id },
            Outcome::Refused(reason) => Entry::Dropped { id, reason },
            Outcome::Unreached(why) | Outcome::Later { why, .. }
                if now.saturating_sub(since) >= rule.give_up_after =>
            {
                let reason = format!("given up: {why}");
                Entry::Dropped { id, reason }
            }
            other => Entry::Later {
                id,
                is_unsure: matches!(
                    &other,
                    Outcome::Later {
                        is_unsure: true,
                        ..
                    }
                ),
                due: now.saturating_add(pause_after(delivery.attempts)),
                at: now,
            },
        };
        self.unwritten.push(entry);
        self.write_outcomes();
    }

    /// Whether everything that came of attempts is written.
    pub(crate) fn write_outcomes(&mut self) -> bool {
        while let Some(entry) = self.unwritten.first().cloned() {
            if let Err(error) = self.write(entry) {
                tracing::error!("what came of a delivery cannot be written: {error}; tried again");
                return false;
            }
            self.unwritten.remove(0);
        }
        true
    }

    /// Rules that are not there any more tell nothing.
    pub(crate) fn drop_others(&mut self, rules: &[Rule]) -> io::Result<()> {
        let is_there = |name: &str| rules.iter().any(|rule| rule.name == name);
        let others = self.state.waiting.values().filter(|it| !is_there(&it.rule));
        for id in others.map(|it| it.id).collect::<Vec<_>>() {
            let reason = NO_RULE.to_owned();
            self.write(Entry::Dropped { id, reason })?;
        }
        Ok(())
    }

    /// Writes the file anew when most of it was written since it was written anew.
    pub(crate) fn tidy(&mut self) -> io::Result<()> {
        self.mend()?;
        let needed = self.journal.began_with();
        let needed = needed.saturating_mul(2).saturating_add(SLACK);
        if self.journal.length() > needed {
            self.journal.replace(&self.state.snapshot())?;
        }
        self.journal.sync()
    }
}

/// Whom a rule tells of an event; `None`: it is about no user.
fn recipient(rule: &Rule, event: &Event) -> Option<Recipient> {
    match rule.who {
        Who::User => event.uid.map(Recipient::User),
        Who::Administrators => Some(Recipient::Administrators),
    }
}

/// Whose an event is: its account's; without one its user's.
fn whose(event: &Event) -> (Option<&str>, Option<Uid>) {
    match event.account.as_deref() {
        Some(account) => (Some(account), None),
        None => (None, event.uid),
    }
}

fn pause_after(attempts: u32) -> Seconds {
    let doublings = attempts.saturating_sub(1).min(16);
    FIRST_PAUSE
        .saturating_mul(1 << doublings)
        .min(LONGEST_PAUSE)
}

/// Twelve digits that nobody else has.
fn instance() -> io::Result<String> {
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    Ok(uuid
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(12)
        .collect())
}

#[cfg(test)]
mod tests;
