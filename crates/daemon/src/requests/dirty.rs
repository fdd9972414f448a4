// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who has dirtied the page cache.

use anyhow::{Context, Result};
use bursar_kernel::DirtyMode;
use bursar_model::{AccountId, Uid};
use bursar_protocol::{DirtyKnown, DirtyReport, DirtyRow, Reply};

use super::permission::{Answer, failed, only_root};
use crate::accounts::Accounts;
use crate::dirty::by_account;

pub(super) fn show(accounts: &mut Accounts, uid: Uid) -> Answer {
    only_root(uid, "see who has dirtied the page cache")?;
    let report = report(accounts).map_err(|error| failed(&error))?;
    Ok(Reply::Dirty(Box::new(report)))
}

fn report(accounts: &mut Accounts) -> Result<DirtyReport> {
    let kernel = accounts.backend.kernel_mut();
    let kernel =
        kernel.context("dirty pages are counted by the kernel half, and there is none here")?;
    let pages = kernel.dirty_pages()?;
    let is_exact = pages.mode() == DirtyMode::Exact;
    let (sums, facts) = pages.sums()?;
    let rows = by_account(&sums, &accounts.payers)
        .into_iter()
        .map(|(account, sum)| DirtyRow {
            account: account.map_or_else(|| "kernel".to_owned(), |id| accounts.name_of(id)),
            uid: account.and_then(AccountId::uid),
            dirty_bytes: is_exact.then_some(sum.dirty),
            dirtied_bytes: sum.dirtied,
            written_bytes: sum.written,
            cancelled_bytes: sum.cancelled,
        })
        .collect();
    let machine = accounts.proc().meminfo().context("read what is dirty")?;
    Ok(DirtyReport {
        known: if is_exact {
            DirtyKnown::Exact
        } else {
            DirtyKnown::Cumulative
        },
        accounts: rows,
        machine_dirty_bytes: machine.dirty,
        folios_lost: facts.folios_lost,
        payers_lost: facts.payers_lost,
        forgotten: facts.forgotten,
    })
}
