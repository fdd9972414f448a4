// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One scan: what of everything that runs, is open, mapped or dirty is on whose bill.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use bursar_kernel::{DirtyMode, KernelMemory};
use bursar_model::{AccountId, How, Resource, Unit};

use super::held::Held;
use super::resource_scanner::Scan;
use crate::backend::KernelFeatures;
use crate::dirty;
use crate::payers::Payers;
use crate::physpages::Finished;

const NOBODY_ASKED: &str =
    "dirty pages are counted from the moment somebody first asks for them: bursar dirty";
const CLEANING_UNSEEN: &str =
    "nothing tells when a page becomes clean; bursar dirty shows how many became dirty";

/// A scan, by account.
#[derive(Debug)]
pub(super) struct Snapshot {
    scan: Arc<Scan>,
    /// With what the count of mapped pages adds.
    accounts: BTreeMap<AccountId, Held>,
    /// The last count of mapped pages before it.
    count: Option<Arc<Finished>>,
    /// Whether shared pages are split as that count found them.
    is_counted: bool,
    /// Why dirty pages are not known.
    dirty_unknown: Option<&'static str>,
}

impl Snapshot {
    /// Of what was found. `count` is the last one of mapped pages.
    pub(super) fn of(
        scan: Arc<Scan>,
        kernel: Option<&mut KernelFeatures>,
        payers: &Payers,
        count: Option<Arc<Finished>>,
    ) -> Result<Self> {
        let mut snapshot = Self {
            accounts: scan.accounts.clone(),
            is_counted: count.as_ref().is_some_and(|it| it.is_recent()),
            scan,
            count,
            dirty_unknown: None,
        };
        snapshot.split_pages();
        snapshot.add_dirty(kernel, payers)?;
        Ok(snapshot)
    }

    /// Of pages that others map as well an account has what the last count gave it, or, where that was
    /// long ago, as much of its resident pages as then.
    fn split_pages(&mut self) {
        for (id, held) in &mut self.accounts {
            let count = self.count.as_ref().map(|it| &it.count);
            let holding = count.and_then(|it| it.of(*id));
            let pages = match holding {
                Some(holding) if self.is_counted => holding.exact_pages(),
                Some(holding) => holding.exact_of(held.resident),
                None if self.is_counted => 0,
                None => held.resident,
            };
            held.add(Resource::Physpages, pages);
            held.add(Resource::Oomguarpages, pages.saturating_add(held.swapped));
        }
    }

    fn add_dirty(&mut self, kernel: Option<&mut KernelFeatures>, payers: &Payers) -> Result<()> {
        let pages = kernel.map(KernelFeatures::dirty_pages_begun).transpose()?;
        let Some(pages) = pages.flatten() else {
            self.dirty_unknown = Some(NOBODY_ASKED);
            return Ok(());
        };
        if pages.mode() != DirtyMode::Exact {
            self.dirty_unknown = Some(CLEANING_UNSEEN);
            return Ok(());
        }
        for (account, sum) in dirty::by_account(&pages.sums()?.0, payers) {
            if let Some(id) = account {
                let held = self.accounts.entry(id).or_default();
                held.add(Resource::Dirtypages, sum.dirty.get() / Unit::PAGE_BYTES);
            }
        }
        Ok(())
    }

    /// What was found.
    pub(super) fn scan(&self) -> &Arc<Scan> {
        &self.scan
    }

    /// Whether it went by this count of mapped pages.
    pub(super) fn is_by(&self, count: Option<&Arc<Finished>>) -> bool {
        match (&self.count, count) {
            (Some(own), Some(last)) => Arc::ptr_eq(own, last),
            (None, None) => true,
            _ => false,
        }
    }

    /// It did not see everything.
    pub(super) fn is_cut(&self) -> bool {
        self.scan.is_cut
    }

    /// The accounts that it met.
    pub(super) fn accounts(&self) -> impl Iterator<Item = AccountId> + '_ {
        self.accounts.keys().copied()
    }

    /// How pages are known that several may map.
    pub(super) fn how_of_pages(&self) -> How {
        match self.is_counted {
            true => How::Sampled { every: None },
            false => How::Modelled,
        }
    }

    /// How dirty pages are known.
    pub(super) fn how_of_dirty(&self) -> How {
        match self.dirty_unknown {
            Some(why) => How::Unavailable(why.to_owned()),
            None => How::Exact,
        }
    }

    /// What an account has of the kernel's own memory.
    pub(super) fn kernel_memory(&self, id: AccountId) -> KernelMemory {
        self.accounts
            .get(&id)
            .map_or_else(KernelMemory::default, Held::kernel_memory)
    }

    /// In the row's unit.
    pub(super) fn held(&self, id: AccountId, resource: Resource) -> u64 {
        self.accounts.get(&id).map_or(0, |it| it.of(resource))
    }
}
