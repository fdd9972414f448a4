// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What accounts have reserved and were refused, in sum, and who is told of it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use bursar_model::{AccountId, Bytes, Pages};

use super::denied::Denied;
use super::holdings::Holdings;
use super::{Holder, Reservations};
use crate::control::Requester;
use crate::payers::Payers;

/// Accounts whose refusals are counted; more than a ledger has.
const MOST_ACCOUNTS: usize = 1 << 16;

impl Reservations {
    /// Limits have changed: accounts may be new, or others', or not their users' any more.
    pub(crate) fn tell_all(
        &mut self,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<()> {
        let users = self.by_payer.keys();
        let accounts = users.filter_map(|&payer| payers.of(payer).map(|(id, _)| id));
        let concerned: BTreeSet<_> = accounts.chain(self.told.iter().copied()).collect();
        // One that cannot be told keeps nobody else's back.
        let told = concerned
            .into_iter()
            .map(|id| self.tell_of(id, payers, holdings));
        let told: Vec<_> = told.collect();
        told.into_iter().collect()
    }

    /// Who pays for a process may change while it has something reserved: it enters an account, or the
    /// limits change. Then that goes along.
    pub(super) fn follow(
        &mut self,
        holder: Holder,
        requester: Requester,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<(), Denied> {
        let Some(reservation) = self.by_holder.get_mut(&holder) else {
            return Ok(());
        };
        let before = std::mem::replace(&mut reservation.payer, requester.payer);
        let pages = reservation.pages;
        if before == requester.payer || pages == 0 {
            return Ok(());
        }
        self.subtract(before, pages);
        self.sum_up(requester.payer, pages);
        for payer in [before, requester.payer] {
            self.tell(payers.of(payer).map(|(id, _)| id), payers, holdings)?;
        }
        Ok(())
    }

    pub(super) fn sum_up(&mut self, payer: AccountId, pages: u64) {
        if pages > 0 {
            let sum = self.by_payer.entry(payer).or_default();
            *sum = sum.saturating_add(pages);
        }
    }

    pub(super) fn subtract(&mut self, payer: AccountId, pages: u64) {
        if let Some(sum) = self.by_payer.get_mut(&payer) {
            *sum = sum.saturating_sub(pages);
            if *sum == 0 {
                self.by_payer.remove(&payer);
            }
        }
    }

    pub(super) fn tell(
        &mut self,
        id: Option<AccountId>,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<(), Denied> {
        let told = id.map_or(Ok(()), |id| self.tell_of(id, payers, holdings));
        told.map_err(Denied::Failed)
    }

    pub(super) fn tell_of(
        &mut self,
        id: AccountId,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<()> {
        let reserved = self.page_size.pages_within(self.reserved_in(id, payers));
        // Before: what was told in part is told again.
        self.told.insert(id);
        holdings.reserved_now(id, reserved)?;
        if reserved.get() == 0 {
            self.told.remove(&id);
        }
        Ok(())
    }

    pub(super) fn count_refusals(
        &mut self,
        id: AccountId,
        count: u64,
        holdings: &mut (impl Holdings + ?Sized),
    ) {
        if count == 0 {
            return;
        }
        let is_kept = holdings.keep_refusals(id, count).unwrap_or_else(|error| {
            tracing::warn!("a refusal is counted until bursard's end only: {error:#}");
            false
        });
        if !is_kept && (self.refused.len() < MOST_ACCOUNTS || self.refused.contains_key(&id)) {
            let known = self.refused.entry(id).or_default();
            *known = known.saturating_add(count);
        }
    }

    fn sum_of(&self, table: &BTreeMap<AccountId, u64>, id: AccountId, payers: &Payers) -> u64 {
        let paying = payers.charged_to(id);
        let amounts = paying.iter().filter_map(|payer| table.get(payer));
        amounts.fold(0, |sum: u64, amount| sum.saturating_add(*amount))
    }

    /// Reserved in an account.
    pub(crate) fn reserved_in(&self, id: AccountId, payers: &Payers) -> Bytes {
        Pages::new(self.sum_of(&self.by_payer, id, payers)).to_bytes(self.page_size)
    }

    /// Refusals that were somebody's last word, as far as nobody else keeps them.
    pub(crate) fn refused_in(&self, id: AccountId) -> u64 {
        self.refused.get(&id).copied().unwrap_or(0)
    }
}
