// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty page cache by account: counted from the moment somebody first asks.

use std::collections::BTreeMap;

use bursar_host::machine;
use bursar_kernel::DirtySum;
use bursar_model::{AccountId, Bytes};

use crate::payers::Payers;

/// Several users may pay into one account.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    pub(crate) dirty: Bytes,
    pub(crate) dirtied: Bytes,
    pub(crate) written: Bytes,
    pub(crate) cancelled: Bytes,
}

impl Sum {
    fn add(&mut self, sum: &DirtySum) {
        let page = machine::page_size();
        for (total, pages) in [
            (&mut self.dirty, sum.dirty),
            (&mut self.dirtied, sum.dirtied),
            (&mut self.written, sum.written),
            (&mut self.cancelled, sum.cancelled),
        ] {
            *total = total.saturating_add(pages.to_bytes(page));
        }
    }
}

/// By account; `None`: the kernel itself.
pub(crate) fn by_account(sums: &[DirtySum], payers: &Payers) -> BTreeMap<Option<AccountId>, Sum> {
    let mut found: BTreeMap<_, Sum> = BTreeMap::new();
    for sum in sums {
        let account = sum.payer.map(|payer| payers.account_of(payer));
        found.entry(account).or_default().add(sum);
    }
    found
}
