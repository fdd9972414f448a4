// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A fact, as a backend tells it: not yet named, timed for people, or written down.

use std::num::NonZeroU64;

use bursar_model::{
    AccountId, Bytes, Measure, Nanos, PageSize, Pid, Request, RowRefusal, Trigger, Uid,
};

use crate::executioner::{Chosen, Execution};

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fact {
    /// An account rose over its notice level.
    Notice(Level),
    /// A victim was sent SIGKILL.
    Killed(Victim),
    /// A victim was chosen; it is for us to send the signal.
    KillAsked(Victim),
    /// The same, and that was seen to already.
    Executed(Victim, Execution),
    /// An account is over its limit and has nothing that may be killed.
    NoVictim(Victim),
    /// An account is over its limit by files, so much of which no kill would free.
    Files(Level, Bytes),
    /// A killed process's memory is back, so long after the signal.
    Freed(Victim, Nanos),
    /// A request was refused at the barrier; one a second and account is told.
    Refused(Level, Refused),
    /// A beancounter refused a request; one a second, account and row is told.
    RowRefused(Level, Box<RefusedRow>),
    /// So many events of a kernel half that was replaced are of another version.
    Unreadable(u64),
    /// Processes' oom_score_adj are not what the last defence wants.
    Undefended,
}

/// How an account stood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Level {
    /// CLOCK_MONOTONIC.
    pub(crate) at: Nanos,
    pub(crate) account: AccountId,
    pub(crate) trigger: Trigger,
    /// By living processes, the victim included.
    pub(crate) held: Bytes,
    pub(crate) limit: Option<Bytes>,
}

/// A request refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) pid: Pid,
    pub(crate) uid: Uid,
    /// Bytes that its user chose.
    pub(crate) comm: Vec<u8>,
    pub(crate) request: Request,
    pub(crate) size: Bytes,
    pub(crate) barrier: Option<Bytes>,
    /// What counted against the barrier.
    pub(crate) level: Bytes,
    /// This one and those that were not told before it.
    pub(crate) count: u64,
}

/// A request that a beancounter refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusedRow {
    pub(crate) pid: Pid,
    pub(crate) uid: Uid,
    /// Bytes that its user chose.
    pub(crate) comm: Vec<u8>,
    pub(crate) row: RowRefusal,
    /// This one and those that were not told before it.
    pub(crate) count: u64,
}

/// A process chosen, and how its account stood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) level: Level,
    pub(crate) pid: Pid,
    pub(crate) uid: Uid,
    /// Bytes that its user chose.
    pub(crate) comm: Vec<u8>,
    /// When it began, CLOCK_BOOTTIME, where somebody could look.
    pub(crate) started: Option<Nanos>,
    /// Its number in pidfs, where there are such.
    pub(crate) number: Option<NonZeroU64>,
    pub(crate) held: Bytes,
    /// From the trigger to the signal.
    pub(crate) latency: Nanos,
    pub(crate) candidates_met: u32,
    /// Largest first: process, comm, bytes.
    pub(crate) candidates: Vec<(Pid, Vec<u8>, Bytes)>,
}

impl Victim {
    /// Which process it is.
    pub(crate) const fn process(&self) -> Chosen {
        Chosen {
            pid: self.pid,
            started: self.started,
            number: self.number,
        }
    }
}

impl Fact {
    /// A fact of the kernel half; none where it asks the backend for something.
    pub(crate) fn from_entry(entry: bursar_kernel::Entry, page: PageSize) -> Option<Self> {
        use bursar_kernel::EntryKind;

        let level = Level {
            at: entry.at,
            account: entry.account,
            trigger: entry.trigger,
            held: entry.held.to_bytes(page),
            limit: entry.limit.map(|pages| pages.to_bytes(page)),
        };
        if let Some(refusal) = entry.refusal {
            let level_pages = match refusal.measure {
                Measure::Resident => entry.held,
                Measure::Committed => entry.held.max(refusal.committed),
            };
            let refused = Refused {
                pid: entry.pid,
                uid: entry.uid,
                comm: entry.comm,
                request: refusal.request,
                size: refusal.pages.to_bytes(page),
                barrier: refusal.barrier.map(|pages| pages.to_bytes(page)),
                level: level_pages
                    .to_bytes(page)
                    .saturating_add(refusal.reserved.to_bytes(page)),
                count: refusal.count,
            };
            return Some(Self::Refused(level, refused));
        }
        if let Some(bill) = entry.bill {
            let refused = RefusedRow {
                pid: entry.pid,
                uid: entry.uid,
                comm: entry.comm,
                row: RowRefusal {
                    resource: bill.resource,
                    held: bill.held,
                    asked: bill.asked,
                    barrier: bill.barrier,
                },
                count: bill.count,
            };
            return Some(Self::RowRefused(level, Box::new(refused)));
        }
        let victim = |level| Victim {
            level,
            pid: entry.pid,
            uid: entry.uid,
            comm: entry.comm,
            started: Some(entry.started),
            number: entry.number,
            held: entry.victim.to_bytes(page),
            latency: entry.latency,
            candidates_met: entry.candidates_met,
            candidates: entry
                .candidates
                .into_iter()
                .map(|it| (it.pid, it.comm, it.pages.to_bytes(page)))
                .collect(),
        };
        Some(match entry.kind {
            EntryKind::Notice => Self::Notice(level),
            EntryKind::Kill => Self::Killed(victim(level)),
            EntryKind::KillAsked => Self::KillAsked(victim(level)),
            EntryKind::NoVictim => Self::NoVictim(victim(level)),
            EntryKind::Freed => {
                let victim = victim(level);
                let duration = victim.latency;
                Self::Freed(victim, duration)
            }
            EntryKind::Undefended => Self::Undefended,
            EntryKind::Files => Self::Files(level, entry.victim.to_bytes(page)),
            EntryKind::Refused
            | EntryKind::Bill
            | EntryKind::Unrecorded
            | EntryKind::CountFiles
            | EntryKind::Survey => return None,
        })
    }
    /// What a kernel half that is gone had told.
    pub(crate) fn from_last_words(
        words: bursar_kernel::LastWords,
        page: PageSize,
    ) -> impl Iterator<Item = Self> {
        let told = words.entries.into_iter();
        let unreadable = (words.unreadable > 0).then_some(Self::Unreadable(words.unreadable));
        told.filter_map(move |entry| Self::from_entry(entry, page))
            .chain(unreadable)
    }
}
