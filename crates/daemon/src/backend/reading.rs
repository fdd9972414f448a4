// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How an account stands.

use bursar_model::{AccountId, Bounds, Bytes, Correction};

/// An account at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) id: AccountId,
    pub(crate) is_default: bool,
    /// Pages that several of its processes map once, where that is known.
    pub(crate) held: Bytes,
    /// What was taken off for that.
    pub(crate) correction: Option<Correction>,
    pub(crate) dying: Bytes,
    /// Of held: of processes already killed that give nothing back.
    pub(crate) unkillable: Bytes,
    /// Where the gate measures it.
    pub(crate) committed: Option<Bytes>,
    /// Of held: in files beyond what processes map; and of those, what no kill would free.
    pub(crate) unmapped: Bytes,
    pub(crate) stuck: Bytes,
    pub(crate) reserved: Bytes,
    pub(crate) maxheld: Bytes,
    pub(crate) processes: u32,
    pub(crate) bounds: Bounds,
    pub(crate) failcnt: u64,
    pub(crate) kills: u64,
    pub(crate) notices: u64,
}

impl Reading {
    /// Of an account that nothing has run in yet.
    pub(crate) const fn untouched(id: AccountId, bounds: Bounds) -> Self {
        Self {
            id,
            is_default: true,
            held: Bytes::ZERO,
            correction: None,
            dying: Bytes::ZERO,
            unkillable: Bytes::ZERO,
            committed: None,
            unmapped: Bytes::ZERO,
            stuck: Bytes::ZERO,
            reserved: Bytes::ZERO,
            maxheld: Bytes::ZERO,
            processes: 0,
            bounds,
            failcnt: 0,
            kills: 0,
            notices: 0,
        }
    }

    /// As the kernel half has it, which tells of the page that reaches it and of none after that.
    pub(crate) fn has_reached_notice(&self) -> bool {
        let notice = self.bounds.notice();
        notice.is_some_and(|notice| self.held >= notice)
    }

    /// Not so far below that the kernel half would tell again (by a sixteenth, `resum.bpf.h`).
    pub(crate) fn is_noticed_still(&self) -> bool {
        let below = |notice: Bytes| Bytes::new(notice.get() - notice.get() / 16);
        let notice = self.bounds.notice();
        notice.is_some_and(|notice| self.held >= below(notice))
    }

    pub(crate) fn is_over_notice(&self) -> bool {
        let notice = self.bounds.notice();
        notice.is_some_and(|notice| self.held > notice)
    }

    /// What its processes are ranked by: its limit, or its notice where that is all that any of them is killed for.
    pub(crate) fn ranked_by(&self) -> Bytes {
        let bounds = self.bounds;
        bounds.limit().or(bounds.notice()).unwrap_or_default()
    }

    /// Over its limit, and not for its processes.
    pub(crate) fn is_stuck(&self) -> bool {
        self.bounds
            .limit()
            .is_some_and(|limit| self.held > limit && self.held.saturating_sub(self.stuck) <= limit)
    }
}
