// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel half's ledger for whoever checks it: opened a second time from its pins, so that a look
//! that takes long needs nobody's turn.

use std::collections::BTreeMap;

use anyhow::Result;
use bursar_kernel::{AccountReading, AddressSpace, KernelHalf, Slot};
use bursar_model::{AccountId, Bytes, PageSize, Pages};

/// The ledger, to be read and counted anew.
#[derive(Debug)]
pub(crate) struct Ledger {
    kernel_half: KernelHalf,
    page: PageSize,
    /// S1's literal RSS: file pages count too.
    pub(crate) counts_file: bool,
    /// What it may be apart from /proc where both are exact: what moves unseen.
    pub(crate) bound: Bytes,
    /// What a CPU may keep back of one counter: /proc leaves it out where it is not exact.
    pub(crate) batch: Bytes,
    pub(crate) cpus: u32,
}

/// What the ledger has of one account at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) id: AccountId,
    pub(crate) held: Bytes,
    /// What its living processes have, each in full: held without what is taken off it for shared
    /// pages, and without files.
    pub(crate) in_full: Bytes,
    pub(crate) correction: Bytes,
    pub(crate) unmapped: Bytes,
    pub(crate) processes: u32,
}

/// By account, and by the number that only this address space ever has.
pub(crate) type AddressSpaces = BTreeMap<(AccountId, u64), Bytes>;

impl Sum {
    /// Of an account that the ledger does not have.
    pub(crate) const fn nothing(id: AccountId) -> Self {
        Self {
            id,
            held: Bytes::ZERO,
            in_full: Bytes::ZERO,
            correction: Bytes::ZERO,
            unmapped: Bytes::ZERO,
            processes: 0,
        }
    }
}

impl Ledger {
    pub(super) const fn new(
        kernel_half: KernelHalf,
        page: PageSize,
        counts_file: bool,
        cpus: u32,
        batch: Bytes,
        bound: Bytes,
    ) -> Self {
        Self {
            kernel_half,
            page,
            counts_file,
            bound,
            batch,
            cpus,
        }
    }

    /// Reads all counters anew; what is out by then is not repaired by it, for that takes two.
    pub(crate) fn recount(&self) -> Result<()> {
        Ok(self.kernel_half.resum_now()?)
    }

    pub(crate) fn sums(&self) -> impl Iterator<Item = Sum> + '_ {
        let accounts = self.kernel_half.accounts();
        accounts
            .all()
            .filter(|it| it.is_open)
            .map(|it| self.sum_of(&it))
    }

    /// What each address space holds, of all accounts.
    pub(crate) fn address_spaces(&self) -> Result<AddressSpaces> {
        let accounts = self.kernel_half.accounts();
        let ids: BTreeMap<Slot, AccountId> = accounts.all().map(|it| (it.slot, it.id)).collect();
        let all = accounts.address_spaces()?;
        let held = |it: AddressSpace| {
            let id = *ids.get(&it.slot)?;
            Some(((id, it.context), it.held.to_bytes(self.page)))
        };
        Ok(all.into_iter().filter_map(held).collect())
    }

    pub(crate) const fn page_bytes(&self) -> Bytes {
        Pages::new(1).to_bytes(self.page)
    }

    /// Processes and users for whom there was no room.
    pub(crate) fn unfit(&self) -> Result<u64> {
        let facts = self.kernel_half.facts()?;
        Ok(facts.records_full.saturating_add(facts.accounts_full))
    }

    fn sum_of(&self, account: &AccountReading) -> Sum {
        let bytes = |pages: Pages| pages.to_bytes(self.page);
        let correction = account.corrected.map_or(Bytes::ZERO, |it| bytes(it.pages));
        let (held, unmapped) = (bytes(account.held), bytes(account.unmapped));
        Sum {
            id: account.id,
            held,
            in_full: held.saturating_add(correction).saturating_sub(unmapped),
            correction,
            unmapped,
            processes: account.processes,
        }
    }
}
