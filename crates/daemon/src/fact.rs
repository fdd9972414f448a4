// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A fact, as a backend tells it: not yet named, timed for people, or written down.

use std::num::NonZeroU64;

use bursar_host::Pidfd;
use bursar_model::{
    AccountId, Bytes, Measure, Nanos, PageSize, Pid, Request, RowRefusal, Trigger, Uid,
};

use crate::killer::{Chosen, KillOutcome};

/// What happened.
#[derive(Debug)]
pub(crate) enum Fact {
    /// An account rose over its notice level.
    Notice(Level),
    /// A victim was sent SIGKILL.
    Killed(Victim),
    /// A victim was chosen in an account that is only observed.
    WouldKill(Victim),
    /// A victim was chosen and is held; it is for us to send the signal.
    KillAsked(Victim, Pidfd),
    /// The kernel half had asked for it, and that was seen to already.
    KillTried(Victim, KillOutcome),
    /// It had asked a bursard that was killed itself. The process is gone; whether by that signal is unknown.
    KillUnknown(Victim),
    /// An account is over its limit and has nothing that may be killed.
    NoVictim(Victim),
    /// An account is over its limit by files, so much of which no kill would free.
    Files(Level, Bytes),
    /// A process is dying that we have not killed, and is being helped.
    Dying(Victim),
    /// A killed process's memory is back, so long after the signal.
    Freed(Victim, Nanos),
    /// A request was refused at the barrier; one a second and account is told.
    Refused(Level, Refused),
    /// A beancounter refused a request; one a second, account and row is told.
    RowRefused(Level, Box<RefusedRow>),
    /// So many events of a kernel half that was replaced are of another version.
    Unreadable(u64),
    /// So many events at most were in the hands of a bursard that was killed.
    Unrecorded(u64),
    /// So many events more did not fit the ring buffer.
    Lost(u64),
    /// An account may be at a level that somebody waits for.
    WatchReached(Level),
    /// Processes' oom_score_adj are not what the limits want.
    OomScoreDue,
    /// The machine may be short of memory.
    Shortage,
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
    /// Whether nothing follows from it but an event.
    pub(crate) is_observed: bool,
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
    /// Its number in its own PID namespace, where the kernel half has said so.
    pub(crate) namespace_pid: Option<Pid>,
    /// Whose memory it shares, for which that one was chosen.
    pub(crate) shares_with: Option<Pid>,
    pub(crate) held: Bytes,
    /// From the trigger to the signal.
    pub(crate) latency: Nanos,
    pub(crate) candidates_met: u32,
    /// Largest first.
    pub(crate) candidates: Vec<Considered>,
}

/// A process that could have been chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Considered {
    pub(crate) pid: Pid,
    /// Bytes that its user chose.
    pub(crate) comm: Vec<u8>,
    pub(crate) held: Bytes,
    /// It goes after others, for the program that it runs.
    pub(crate) is_spared: bool,
}

impl Victim {
    /// Which process it is.
    pub(crate) const fn process(&self) -> Chosen {
        Chosen {
            pid: self.pid,
            uid: self.uid,
            started: self.started,
            number: self.number,
        }
    }
}

impl Fact {
    /// How an account stood, where it is about one.
    pub(crate) const fn level(&self) -> Option<&Level> {
        match self {
            Self::Notice(level)
            | Self::Files(level, _)
            | Self::Refused(level, _)
            | Self::RowRefused(level, _)
            | Self::WatchReached(level) => Some(level),
            Self::Killed(victim)
            | Self::WouldKill(victim)
            | Self::KillAsked(victim, _)
            | Self::KillTried(victim, _)
            | Self::KillUnknown(victim)
            | Self::NoVictim(victim) => Some(&victim.level),
            Self::Dying(_)
            | Self::Freed(..)
            | Self::Unreadable(_)
            | Self::Unrecorded(_)
            | Self::Lost(_)
            | Self::OomScoreDue
            | Self::Shortage => None,
        }
    }

    /// Whether it is what an event tells that is to be recorded ([`bursar_kernel::KernelEventKind::is_recorded`]).
    pub(crate) const fn is_recorded(&self) -> bool {
        match self {
            Self::Notice(_)
            | Self::Files(..)
            | Self::Refused(..)
            | Self::RowRefused(..)
            | Self::Killed(_)
            | Self::WouldKill(_)
            | Self::KillAsked(..)
            | Self::KillTried(..)
            | Self::KillUnknown(_)
            | Self::NoVictim(_)
            | Self::Freed(..) => true,
            Self::WatchReached(_)
            | Self::Dying(_)
            | Self::Unreadable(_)
            | Self::Unrecorded(_)
            | Self::Lost(_)
            | Self::OomScoreDue
            | Self::Shortage => false,
        }
    }

    /// A fact of the kernel half; none where it asks the backend for something.
    pub(crate) fn from_kernel_event(
        event: bursar_kernel::KernelEvent,
        page: PageSize,
    ) -> Option<Self> {
        use bursar_kernel::KernelEventKind;

        let level = Level {
            at: event.at,
            account: event.account,
            trigger: event.trigger,
            held: event.held.to_bytes(page),
            limit: event.limit.map(|pages| pages.to_bytes(page)),
            is_observed: event.is_observed,
        };
        if let Some(refusal) = event.refusal {
            let level_pages = match refusal.measure {
                Measure::Resident => event.held,
                Measure::Committed => event.held.max(refusal.committed),
            };
            let refused = Refused {
                pid: event.pid,
                uid: event.uid,
                comm: event.comm,
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
        if let Some(bill) = event.bill {
            let refused = RefusedRow {
                pid: event.pid,
                uid: event.uid,
                comm: event.comm,
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
            pid: event.pid,
            uid: event.uid,
            comm: event.comm,
            started: Some(event.started),
            number: event.number,
            namespace_pid: event.namespace_pid,
            shares_with: event.shares_with,
            held: event.victim.to_bytes(page),
            latency: event.latency,
            candidates_met: event.candidates_met,
            candidates: event
                .candidates
                .into_iter()
                .map(|it| Considered {
                    pid: it.pid,
                    comm: it.comm,
                    held: it.pages.to_bytes(page),
                    is_spared: it.is_spared,
                })
                .collect(),
        };
        Some(match event.kind {
            KernelEventKind::Notice => Self::Notice(level),
            KernelEventKind::WatchReached => Self::WatchReached(level),
            KernelEventKind::Kill => Self::Killed(victim(level)),
            KernelEventKind::WouldKill => Self::WouldKill(victim(level)),
            KernelEventKind::KillAsked => Self::KillUnknown(victim(level)),
            KernelEventKind::NoVictim => Self::NoVictim(victim(level)),
            KernelEventKind::Dying => Self::Dying(victim(level)),
            KernelEventKind::Freed => {
                let victim = victim(level);
                let duration = victim.latency;
                Self::Freed(victim, duration)
            }
            KernelEventKind::OomScoreDue => Self::OomScoreDue,
            KernelEventKind::Shortage => Self::Shortage,
            KernelEventKind::Files => Self::Files(level, event.victim.to_bytes(page)),
            KernelEventKind::Refused
            | KernelEventKind::RowRefused
            | KernelEventKind::Unrecorded
            | KernelEventKind::CountFiles
            | KernelEventKind::RunKiller
            | KernelEventKind::PssScan => return None,
        })
    }

    /// What a kernel half that is gone had told.
    pub(crate) fn from_undelivered(
        words: bursar_kernel::Undelivered,
        page: PageSize,
    ) -> impl Iterator<Item = Self> {
        let count = |of: fn(u64) -> Self, count| (count > 0).then(|| of(count));
        let unrecorded = count(Self::Unrecorded, words.unrecorded);
        let unreadable = count(Self::Unreadable, words.unreadable);
        let lost = count(Self::Lost, words.lost);
        let told = words.events.into_iter();
        let told = told.filter_map(move |event| Self::from_kernel_event(event, page));
        let all = unrecorded.into_iter().chain(told);
        all.chain(lost).chain(unreadable)
    }
}
