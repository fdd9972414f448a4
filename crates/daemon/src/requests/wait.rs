// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who waits for a level of his account: `bursar wait`, `bursar run --on-notice`, bursar_watch(3).

use bursar_model::WatchLevel;
use bursar_protocol::{ErrorKind, Refusal};

use super::permission::refusal;
use crate::control::{Requester, WATCHING_PER_USER};
use crate::daemon::Daemon;
use crate::level_watches::{LevelWatch, missing_bound, no_account};

/// Answered when the account is at the level, which may be now.
pub(super) fn begin(
    daemon: &mut Daemon,
    requester: Requester,
    at: WatchLevel,
    follows: bool,
) -> Result<(), Refusal> {
    if !daemon.admission.may_watch {
        let message = format!(
            "{WATCHING_PER_USER} programs of uid {} wait for a level already, or everybody's together are too many; end some of them",
            requester.counts_as
        );
        return Err(refusal(ErrorKind::Refused, message));
    }
    let payer = daemon.accounts.payer_of(requester);
    let id = daemon.accounts.payers.of(payer).map(|(id, _)| id);
    let id = id.ok_or_else(no_account)?;
    // Whom `default` covers, and who has held nothing yet, has no account yet.
    let reading = daemon.accounts.reading_of(id).ok_or_else(no_account)?;
    if at.bytes(&reading.bounds).is_none() {
        let name = daemon.accounts.name_of(id);
        return Err(missing_bound(&name, at));
    }
    let watch = LevelWatch::new(payer, at, follows);
    daemon
        .level_watches
        .add(requester.client, watch, &mut daemon.accounts);
    Ok(())
}
