// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who asks for a change, as far as it can be known, for those who have to account for it.

use bursar_model::{Actor, Uid, printable};
use bursar_protocol::Terms;

use crate::accounts::Accounts;
use crate::control::Requester;
use crate::responder::Author;

/// Characters of what somebody says of himself.
const NAME_WIDTH: usize = 64;

/// Who asks, and why.
pub(super) fn author(accounts: &Accounts, requester: Requester, terms: &Terms) -> Author {
    let said_by = terms.said_by.as_deref();
    Author {
        actor: Actor::Request {
            uid: requester.uid,
            pid: requester.pid,
            login_uid: login_uid(accounts, requester),
            said_by: said_by.map(|name| printable(name.as_bytes(), NAME_WIDTH)),
        },
        reason: terms.reason.clone(),
        source: None,
    }
}

/// Who connected may have ended; then its number may be another's, and nothing is said.
fn login_uid(accounts: &Accounts, requester: Requester) -> Option<Uid> {
    let process = accounts.proc().process(requester.pid).ok()??;
    let status = process.status().ok()??;
    (status.uid == requester.uid)
        .then(|| process.login_uid().ok()?)
        .flatten()
}
