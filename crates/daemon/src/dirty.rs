// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty page cache by account: counted from the moment somebody first asks.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use bursar_host::machine;
use bursar_kernel::{DirtyMode, DirtySum};
use bursar_model::{AccountId, Bytes};
use bursar_protocol::{DirtyKnown, DirtyReport, DirtyRow};

use crate::daemon::Daemon;
use crate::payers::Payers;

/// Several users may pay into one account.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    pub(crate) dirty: Bytes,
    dirtied: Bytes,
    written: Bytes,
    cancelled: Bytes,
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

/// Who has dirtied what.
pub(crate) fn report(daemon: &mut Daemon) -> Result<DirtyReport> {
    let pages = daemon.backend.dirty_pages()?;
    let is_exact = pages.mode() == DirtyMode::Exact;
    let (sums, facts) = pages.sums()?;
    let accounts = by_account(&sums, &daemon.payers())
        .into_iter()
        .map(|(account, sum)| DirtyRow {
            account: account.map_or_else(|| "kernel".to_owned(), |id| daemon.account_name(id)),
            uid: account.and_then(AccountId::uid),
            dirty_bytes: is_exact.then_some(sum.dirty),
            dirtied_bytes: sum.dirtied,
            written_bytes: sum.written,
            cancelled_bytes: sum.cancelled,
        })
        .collect();
    let machine = daemon.proc().meminfo().context("read what is dirty")?;
    Ok(DirtyReport {
        known: if is_exact {
            DirtyKnown::Exact
        } else {
            DirtyKnown::Cumulative
        },
        accounts,
        machine_dirty_bytes: machine.dirty,
        folios_lost: facts.folios_lost,
        payers_lost: facts.payers_lost,
        forgotten: facts.forgotten,
    })
}
