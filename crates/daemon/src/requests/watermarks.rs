// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The watermarks, shown and put back.

use bursar_model::Uid;
use bursar_protocol::{ErrorKind, Reply};

use super::permission::{Answer, only_root, refusal};
use crate::accounts::Accounts;
use crate::watermarks::Watermarks;

/// The engine's report, with the accounts that users pay into.
pub(super) fn show(accounts: &mut Accounts, watermarks: &Watermarks, uid: Uid) -> Answer {
    only_root(uid, "look at the watermarks")?;
    let Some(mut report) = watermarks.report() else {
        return Err(refusal(ErrorKind::NotFound, watermarks.absence()));
    };
    for row in &mut report.users {
        let account = row.uid.and_then(|uid| accounts.of(uid));
        row.account = account.map(|id| accounts.name_of(id));
    }
    Ok(Reply::Watermarks(Box::new(report)))
}

pub(super) fn restore(watermarks: &Watermarks, uid: Uid) -> Answer {
    only_root(uid, "put the watermarks back")?;
    match watermarks.restore() {
        Some(report) => Ok(Reply::WatermarksRestored(report)),
        None => Err(refusal(ErrorKind::NotFound, watermarks.absence())),
    }
}
