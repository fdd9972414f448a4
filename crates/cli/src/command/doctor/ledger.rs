// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the kernel half's ledger says what /proc says: bursard compares them.

use bursar_protocol::{Client, Operation, Reply};

use crate::caller::Caller;
use crate::view::abilities::{Ability, State};
use crate::view::ledger::{remedy, sentence, trouble};

/// The comparison, where there is a bursard with a kernel half; a daemon that is not there is told of
/// elsewhere.
pub(super) fn abilities(caller: &Caller) -> Option<Ability> {
    let asked = Client::connect(&caller.socket).and_then(|mut it| it.ask(Operation::CheckLedger));
    let told = |state| Ability {
        ability: "the ledger compared with /proc".into(),
        state,
        cost: "nobody has looked whether held is what processes hold".into(),
        remedy: None,
        ledger: None,
    };
    let check = match asked {
        Ok(Reply::LedgerChecked(check)) => check,
        Ok(Reply::Refused(refusal)) => return Some(told(State::Refused(refusal.message))),
        Ok(_) => {
            let reason = "bursard answered another question than was asked";
            return Some(told(State::Missing(reason.into())));
        }
        Err(_) => return None,
    };
    let found = trouble(&check);
    Some(Ability {
        ability: match found {
            None => sentence(&check, &caller.style),
            Some(_) => "the ledger agrees with /proc".into(),
        },
        cost: "held is not what processes hold: limits act too early or too late".into(),
        remedy: found.is_some().then(|| remedy(&check).to_owned()),
        state: found.map_or(State::Available, State::Wrong),
        ledger: Some(check),
    })
}
