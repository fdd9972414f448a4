// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory reserved and given back.

use bursar_protocol::{ErrorKind, Granted, Refusal, Renew, Reply, Reserve};

use super::permission::{Answer, paying, refusal};
use crate::accounts::Accounts;
use crate::control::{RESERVING_PER_USER, Requester};
use crate::reservations::{Denied, Reservations};

pub(super) fn reserve(
    accounts: &mut Accounts,
    reservations: &mut Reservations,
    requester: Requester,
    ask: &Reserve,
    may_reserve: bool,
) -> Answer {
    if !may_reserve {
        return Err(refusal(
            ErrorKind::Refused,
            format!(
                "{RESERVING_PER_USER} connections of this user have memory reserved already, which is all that \
                 one may have, or everybody's together are too many; try again later"
            ),
        ));
    }
    let requester = paying(accounts, requester);
    let ram = accounts.table.ram();
    let (payers, holdings) = (&accounts.payers, &mut *accounts.backend);
    match reservations.reserve(requester, ask, payers, ram, holdings) {
        Ok((pages, reserved)) => Ok(granted(pages, reserved)),
        Err(denied) => Err(denied_refusal(&denied)),
    }
}

/// Gives back.
pub(super) fn commit(
    accounts: &mut Accounts,
    reservations: &mut Reservations,
    requester: Requester,
    pages: u64,
) -> Answer {
    let requester = paying(accounts, requester);
    let (payers, holdings) = (&accounts.payers, &mut *accounts.backend);
    match reservations.commit(requester, pages, payers, holdings) {
        Ok(reserved) => Ok(granted(pages, reserved)),
        Err(denied) => Err(denied_refusal(&denied)),
    }
}

/// Replaces what a process has reserved.
pub(super) fn renew(
    accounts: &mut Accounts,
    reservations: &mut Reservations,
    requester: Requester,
    ask: &Renew,
) -> Answer {
    let requester = paying(accounts, requester);
    let (payers, holdings) = (&accounts.payers, &mut *accounts.backend);
    match reservations.renew(requester, ask, payers, holdings) {
        Ok(granted) => Ok(Reply::Granted(granted)),
        Err(denied) => Err(denied_refusal(&denied)),
    }
}

fn granted(pages: u64, reserved: u64) -> Reply {
    Reply::Granted(Granted {
        pages,
        reserved,
        unlimited: false,
    })
}

fn denied_refusal(denied: &Denied) -> Refusal {
    let kind = match denied {
        Denied::Senseless(_) => ErrorKind::BadRequest,
        Denied::Full { .. } => ErrorKind::Refused,
        Denied::Gone(_) => ErrorKind::NotFound,
        Denied::TooMany(_) | Denied::Failed(_) => ErrorKind::Failed,
    };
    let reserved = match denied {
        Denied::Full { kept, .. } => *kept,
        _ => None,
    };
    Refusal {
        reserved,
        ..refusal(kind, denied.to_string())
    }
}
