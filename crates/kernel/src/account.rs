// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An account as the kernel half has it.

use bursar_model::{AccountId, Measure, Mode, Nanos, Pages};

use crate::abi::{self, account, account_flag, account_history, measure};

/// Where an account lies in the kernel half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub(crate) u32);

impl Slot {
    /// What accounts of `default` are made from.
    pub const TEMPLATE: Self = Self(0);

    /// Its number, the same for as long as the account is there.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Bounds in whole pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageBounds {
    /// Above this the user is told.
    pub notice: Option<Pages>,
    /// Above this new requests are refused.
    pub barrier: Option<Pages>,
    /// Above this a process is killed.
    pub limit: Option<Pages>,
    /// Of what is committed alone: above this new requests are refused (the row privvmpages).
    pub private: Option<Pages>,
    /// Whether that is enforced.
    pub private_mode: Mode,
    /// What the gate compares with the others.
    pub measure: Measure,
    /// Whether they are enforced.
    pub mode: Mode,
}

/// What an account remembers beyond its processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct History {
    /// The most ever held.
    pub maxheld: Pages,
    /// Charges refused: requests denied and breaches answered by a kill.
    pub failcnt: u64,
    /// Processes killed because of it.
    pub kills: u64,
    /// Notices given.
    pub notices: u64,
}

impl History {
    pub(crate) fn new(raw: &account_history) -> Self {
        Self {
            maxheld: abi::count(raw.maxheld_pages),
            failcnt: raw.failcnt,
            kills: raw.kills,
            notices: raw.notices,
        }
    }

    pub(crate) fn to_raw(self) -> account_history {
        account_history {
            maxheld_pages: i64::try_from(self.maxheld.get()).unwrap_or(i64::MAX),
            failcnt: self.failcnt,
            kills: self.kills,
            notices: self.notices,
        }
    }
}

/// An account at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountReading {
    /// Where it lies.
    pub slot: Slot,
    /// Whose it is.
    pub id: AccountId,
    /// Whether somebody may pay into it; otherwise it only waits for its last processes.
    pub is_open: bool,
    /// Whether the kernel half made it from the template.
    pub is_default: bool,
    /// Held by living processes; pages that several of them map once, where that is known.
    pub held: Pages,
    /// What has been taken off for that.
    pub corrected: Option<Corrected>,
    /// Held by processes already killed.
    pub dying: Pages,
    /// Of `held`: by processes already killed that give nothing back.
    pub unkillable: Pages,
    /// What could come to be held without asking again; kept where that is the measure, or has a bound of its own.
    pub committed: Pages,
    /// The most of it that was granted.
    pub most_committed: Pages,
    /// Requests refused for its own bound.
    pub commitments_refused: u64,
    /// Of `held`: in files of its users beyond what their processes map (docs/explanation/accounting.md).
    pub unmapped: Pages,
    /// Of those: what no kill would free.
    pub stuck: Pages,
    /// Granted in advance (S1 section 5.2).
    pub reserved: Pages,
    /// Address spaces charged to it, as of the last re-sum.
    pub processes: u32,
    /// Its bounds.
    pub bounds: PageBounds,
    /// What it remembers.
    pub history: History,
}

impl AccountReading {
    pub(crate) fn new(slot: u32, raw: &account) -> Self {
        let has = |flag: account_flag| raw.flags & flag.0 != 0;
        let corrected = Corrected::new(raw, now());
        let correction = corrected.map_or(0, |_| raw.correction_pages.max(0));
        Self {
            slot: Slot(slot),
            id: AccountId::new(raw.id),
            is_open: has(account_flag::ACCOUNT_USED),
            is_default: has(account_flag::ACCOUNT_DEFAULT),
            // Files, and processes without a record of their own, are counted apart.
            held: abi::count(
                raw.held_pages
                    .saturating_add(raw.walked_pages.saturating_sub(raw.late_pages).max(0))
                    .saturating_add(raw.sure_pages)
                    .saturating_sub(correction),
            ),
            corrected,
            dying: abi::count(raw.dying_pages),
            unkillable: abi::count(raw.unkillable_pages.min(raw.held_pages)),
            committed: abi::count(raw.committed_pages),
            most_committed: abi::count(raw.private_maxheld_pages),
            commitments_refused: raw.private_failcnt,
            unmapped: abi::count(raw.sure_pages),
            stuck: abi::count(raw.stuck_pages),
            reserved: abi::count(raw.reserved_pages),
            processes: raw.processes.saturating_add(raw.unrecorded_processes),
            bounds: PageBounds {
                notice: abi::bound_from_pages(raw.notice_pages),
                barrier: abi::bound_from_pages(raw.barrier_pages),
                limit: abi::bound_from_pages(raw.limit_pages),
                private: abi::bound_from_pages(raw.private_barrier_pages),
                private_mode: match raw.private_observed {
                    0 => Mode::Enforce,
                    _ => Mode::Observe,
                },
                measure: if raw.measure == measure::MEASURE_COMMITTED.0 {
                    Measure::Committed
                } else {
                    Measure::Resident
                },
                mode: match has(account_flag::ACCOUNT_OBSERVED) {
                    true => Mode::Observe,
                    false => Mode::Enforce,
                },
            },
            history: History::new(&raw.history),
        }
    }
}

/// What the sum of an account's resident sets is corrected by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrected {
    /// Counted more than once.
    pub pages: Pages,
    /// When that was found, CLOCK_MONOTONIC.
    pub at: Nanos,
    /// Until when it is good if nobody looks again.
    pub until: Nanos,
}

impl Corrected {
    fn new(raw: &account, now: Nanos) -> Option<Self> {
        let is_in_force = raw.corrected_ns != 0 && now.get() < raw.correction_until_ns;
        is_in_force.then(|| Self {
            pages: abi::count(raw.correction_pages),
            at: Nanos::new(raw.corrected_ns),
            until: Nanos::new(raw.correction_until_ns),
        })
    }
}

fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    Nanos::new(
        part(time.tv_sec)
            .saturating_mul(1_000_000_000)
            .saturating_add(part(time.tv_nsec)),
    )
}
