// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the ledger knows of an address space and of an account.

use crate::rules::{Dying, Patience};
use crate::world::SpaceId;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Record {
    pub(crate) is_known: bool,
    pub(crate) is_dying: bool,
    pub(crate) dying: Dying,
    pub(crate) held: i64,
    pub(crate) credit: i64,
    /// As of the PSS scan that the correction in force is from.
    pub(crate) duplicate: Option<i64>,
    /// And of its pages so many are mapped elsewhere, too.
    pub(crate) shared: i64,
    pub(crate) lost: i64,
    /// As far as it is less than what it was forked with: a PSS scan found so.
    pub(crate) inherited: Option<i64>,
    /// It is in no PSS scan, but was there when the last one ended.
    pub(crate) is_born: bool,
    /// The last PSS scan could not look at it: what it gives up may be in what was found of others.
    pub(crate) is_unseen: bool,
    /// Former rules: when it last had less, and what.
    pub(crate) less_ms: u32,
    pub(crate) less_pages: i64,
}

impl Record {
    /// What it gave up of what the PSS scan found shared in it.
    pub(super) fn lose(&mut self, pages: i64) -> i64 {
        let shared = match self.duplicate {
            Some(_) => self.shared,
            // Not looked at: half of it may be counted in what was found of others.
            None if self.is_born || self.is_unseen => return (pages + 1) / 2,
            None => 0,
        };
        let lost = pages.min(shared - self.lost).max(0);
        self.lost += lost;
        lost
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Account {
    pub(crate) patience: Patience,
    pub(crate) files_pages: i64,
    pub(crate) sure_pages: i64,
    pub(crate) files_credit: i64,
    pub(crate) files_credit_ms: u32,
    pub(crate) files_kill_ms: u32,
    pub(crate) is_counted_since_kill: bool,
    pub(crate) correction: i64,
    pub(crate) correction_until_ms: u32,
    pub(crate) asked_ms: u32,
    pub(crate) no_scan_before_ms: u32,
    pub(crate) over_ms: u32,
    pub(crate) unmapped: i64,
    pub(crate) asked_pages: i64,
    pub(crate) grown: i64,
    /// How often that was set back, for it was within its limit.
    pub(crate) resets: u32,
    /// Of who has lost its processor while it leaves: in the sum still.
    pub(crate) stalled: i64,
    pub(crate) forked: i64,
    /// Taken off the correction in force because processes left.
    pub(crate) ended: i64,
    pub(crate) scan_ms: u32,
    /// What its next PSS scan takes, for reasons of its user's.
    pub(crate) dear_ms: u32,
    pub(crate) kills: u32,
}

/// What a leaver that has lost its processor has not taken off its account's growth yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Late {
    pub(super) account: usize,
    pub(super) pages: i64,
    /// Of the account, when the sum sank.
    pub(super) resets: u32,
}

/// A PSS scan under way: of whom, of which address spaces, until when.
#[derive(Debug, Clone)]
pub(super) struct PssScan {
    pub(super) account: usize,
    pub(super) spaces: Vec<SpaceId>,
    pub(super) until_ms: u32,
}
