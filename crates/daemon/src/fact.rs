// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A fact, as a governor tells it: not yet named, timed for people, or written down.

use bursar_model::{AccountId, Bytes, Nanos, PageSize, Pid, Trigger, Uid};

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fact {
    /// An account rose over its notice level.
    Notice(Level),
    /// A victim was sent SIGKILL.
    Killed(Victim),
    /// A victim was chosen; it is for us to send the signal.
    KillAsked(Victim),
    /// An account is over its limit and has nothing that may be killed.
    NoVictim(Victim),
    /// A killed process's memory is back, so long after the signal.
    Freed(Victim, Nanos),
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

/// A process chosen, and how its account stood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) level: Level,
    pub(crate) pid: Pid,
    pub(crate) uid: Uid,
    /// Bytes that its user chose.
    pub(crate) comm: Vec<u8>,
    /// When it began, CLOCK_BOOTTIME.
    pub(crate) started: Nanos,
    pub(crate) held: Bytes,
    /// From the trigger to the signal.
    pub(crate) latency: Nanos,
    pub(crate) candidates_met: u32,
    /// Largest first: process, comm, bytes.
    pub(crate) candidates: Vec<(Pid, Vec<u8>, Bytes)>,
}

impl Fact {
    /// A fact of the kernel half.
    pub(crate) fn from_entry(entry: bursar_kernel::Entry, page: PageSize) -> Self {
        use bursar_kernel::EntryKind;

        let level = Level {
            at: entry.at,
            account: entry.account,
            trigger: entry.trigger,
            held: entry.held.to_bytes(page),
            limit: entry.limit.map(|pages| pages.to_bytes(page)),
        };
        let victim = |level| Victim {
            level,
            pid: entry.pid,
            uid: entry.uid,
            comm: entry.comm,
            started: entry.started,
            held: entry.victim.to_bytes(page),
            latency: entry.latency,
            candidates_met: entry.candidates_met,
            candidates: entry
                .candidates
                .into_iter()
                .map(|it| (it.pid, it.comm, it.pages.to_bytes(page)))
                .collect(),
        };
        match entry.kind {
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
        }
    }
}
