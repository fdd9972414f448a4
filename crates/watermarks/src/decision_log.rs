// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was decided, why, and what came of it: the last [`KEPT`] decisions. Decisions that repeat the
//! last one are counted in it, so that an hour of quiet is one line.

use std::collections::VecDeque;

use bursar_host::machine::page_size;
use bursar_model::{Nanos, Pages};
use bursar_policy::watermarks::{Reason, Verdict, sentence};

/// Decisions that are kept.
pub(crate) const KEPT: usize = 256;
/// What came of a decision is looked at so much later.
const OUTCOME_AFTER_NS: u64 = 60_000_000_000;

/// What became of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// There was nothing to do.
    Nothing,
    /// It was done.
    Done,
    /// It would have been done, but only observing was asked for.
    Withheld,
    /// The kernel refused, with this errno.
    Refused(i32),
}

/// Counters at a moment, to say later what happened since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StallCounters {
    /// Stalls since boot.
    pub stalls: u64,
    /// Time in stalls, nanoseconds; 0 where nobody measures it.
    pub stall_ns: u64,
}

/// A decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Record {
    /// When it was made first, CLOCK_MONOTONIC.
    pub at: Nanos,
    /// When it was made last.
    pub until: Nanos,
    /// How many times in a row.
    pub times: u64,
    /// The factor before.
    pub scale_before: u32,
    /// The verdict, the last one of several.
    pub verdict: Verdict,
    /// What became of it.
    pub act: Act,
    /// Counters when it was made.
    pub before: StallCounters,
    /// What happened in the minute after it; `None` while that is not over.
    pub outcome: Option<StallCounters>,
}

impl Record {
    /// For people.
    pub(crate) fn words(&self) -> String {
        let page = Pages::new(1).to_bytes(page_size());
        sentence(&self.verdict, self.scale_before, page.get())
    }
}

/// The decisions.
#[derive(Debug)]
pub struct DecisionLog {
    records: VecDeque<Record>,
    /// Decisions that made room for newer ones.
    dropped: u64,
}

impl DecisionLog {
    /// An empty one, with all the room it will ever have.
    pub fn new() -> Self {
        Self {
            records: VecDeque::with_capacity(KEPT),
            dropped: 0,
        }
    }

    /// The decisions, oldest first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &Record> + ExactSizeIterator {
        self.records.iter()
    }

    /// Decisions that are not kept any more.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Notes a decision; `true` when it differs from the last one. Allocates nothing.
    pub(crate) fn note(&mut self, record: Record) -> bool {
        self.settle(record.at, record.before);
        if let Some(last) = self.records.back_mut() {
            let repeats = record.act == Act::Nothing
                && last.act == Act::Nothing
                && last.verdict.reason == record.verdict.reason;
            let withheld_again = record.act == Act::Withheld
                && last.act == Act::Withheld
                && last.verdict.scale == record.verdict.scale
                && last.verdict.compact == record.verdict.compact;
            if repeats || withheld_again {
                last.until = record.at;
                last.times = last.times.saturating_add(1);
                last.verdict = record.verdict;
                return false;
            }
        }
        if self.records.len() >= KEPT {
            self.records.pop_front();
            self.dropped = self.dropped.saturating_add(1);
        }
        self.records.push_back(record);
        true
    }

    /// Writes beside decisions a minute old what happened since.
    fn settle(&mut self, now: Nanos, counters: StallCounters) {
        for record in self.records.iter_mut().rev() {
            if record.outcome.is_some() {
                break;
            }
            if now.get().saturating_sub(record.at.get()) >= OUTCOME_AFTER_NS {
                record.outcome = Some(StallCounters {
                    stalls: counters.stalls.saturating_sub(record.before.stalls),
                    stall_ns: counters.stall_ns.saturating_sub(record.before.stall_ns),
                });
            }
        }
    }
}

impl Default for DecisionLog {
    fn default() -> Self {
        Self::new()
    }
}

impl Act {
    /// Whether a verdict wants anything at all.
    pub const fn is_wanted(verdict: &Verdict) -> bool {
        verdict.scale.is_some() || verdict.compact.is_some()
    }
}

/// Whether a reason is worth a line in the log when it first shows.
pub(crate) const fn is_news(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Stalled | Reason::AtBound | Reason::Overload | Reason::Fragmented
    )
}
