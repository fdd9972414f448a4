// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of an account's growth ends with who leaves: drafts of rules, and what could go wrong with them.

use super::record::Late;
use super::{Leavers, Ledger, Rules};
use crate::adversary::ADVERSARY;

impl<R: Rules> Ledger<R> {
    /// `pages` leave, of which `most` may be somebody else's, too.
    pub(super) fn leave_growth(&mut self, account: usize, pages: i64, has_forked: bool, most: i64) {
        let resets = self.accounts[account].resets;
        let is_late = account == ADVERSARY && std::mem::take(&mut self.is_stalling);
        let own = match (R::LEAVERS, has_forked) {
            (Leavers::KeepAll | Leavers::KeepAllSinkFirst, _) => 0,
            (Leavers::NeverAskForks, true) => pages,
            (_, _) => (pages - most).max(0),
        };
        match R::LEAVERS {
            Leavers::AfterTheSum | Leavers::AfterTheSumChecked if is_late => self.late.push(Late {
                account,
                pages: own,
                resets,
            }),
            _ => self.take_off_grown(account, own),
        }
        let sinks_first = matches!(
            R::LEAVERS,
            Leavers::KeepAllSinkFirst | Leavers::AfterTheSum | Leavers::AfterTheSumChecked
        );
        if is_late && !sinks_first {
            self.accounts[account].stalled += pages;
        }
    }

    /// Who has lost its processor gets it again.
    pub(crate) fn go_on(&mut self) {
        self.is_stalling = false;
        for account in &mut self.accounts {
            account.stalled = 0;
        }
        for it in std::mem::take(&mut self.late) {
            let is_set_back = self.accounts[it.account].resets != it.resets;
            if R::LEAVERS != Leavers::AfterTheSumChecked || !is_set_back {
                self.take_off_grown(it.account, it.pages);
            }
        }
    }

    /// Below zero it says nothing: a fork is being booked.
    fn take_off_grown(&mut self, account: usize, pages: i64) {
        let grown = &mut self.accounts[account].grown;
        *grown -= pages.clamp(0, (*grown).max(0));
    }
}
