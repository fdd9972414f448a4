// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of the mapped pages, asked for: counted by a thread of its own, so who asks gets a ticket first.

use std::time::Duration;

use bursar_host::machine;
use bursar_model::{AccountId, Pages, Who};
use bursar_pagemap_scan::Holding;
use bursar_protocol::{
    ErrorKind, Physpages, PhyspagesMachine, PhyspagesReply, PhyspagesRow, Reply,
};

use super::beancounters::{bills_meant, own_bill};
use super::permission::{Answer, failed, only_root, permit, refusal};
use crate::accounts::Accounts;
use crate::control::Requester;
use crate::physpages::{Finished, Physpages as Counts, State};

/// Root has a count made; others hear of one that may be a little older, and of their own part.
pub(super) fn show(
    accounts: &mut Accounts,
    physpages: &mut Counts,
    requester: Requester,
    who: Option<&Who>,
    ticket: Option<u64>,
) -> Answer {
    let is_root = requester.uid.get() == 0;
    let own = own_bill(accounts, requester);
    let meant = match who {
        Some(who) => {
            permit(
                accounts,
                requester,
                Some(own),
                who,
                "see other users' pages",
            )?;
            Some(bills_meant(accounts, requester, who)?)
        }
        None if is_root => None,
        None => Some(vec![own]),
    };
    if meant.iter().flatten().any(|id| *id != own) {
        only_root(requester.uid, "see other users' pages")?;
    }
    let recent = match (is_root, ticket) {
        (false, None) => physpages.latest().filter(|it| it.is_recent()),
        _ => None,
    };
    let state = match recent {
        Some(finished) => State::Counted(finished),
        None => {
            let ticket = match ticket {
                Some(ticket) => ticket,
                None => count(accounts, physpages).map_err(|error| failed(&error))?,
            };
            physpages.state(ticket).map_err(|error| failed(&error))?
        }
    };
    let reply = match state {
        State::Counting(ticket) => PhyspagesReply::Counting { ticket },
        State::Counted(finished) => {
            PhyspagesReply::Counted(present(accounts, &finished, meant.as_deref(), is_root))
        }
        State::Failed(why) => {
            let message = format!("mapped pages could not be counted: {why}");
            return Err(refusal(ErrorKind::Failed, message));
        }
    };
    Ok(Reply::Physpages(Box::new(reply)))
}

/// Has pages counted for whoever pays as of now; the count's ticket.
fn count(accounts: &Accounts, physpages: &mut Counts) -> anyhow::Result<u64> {
    physpages.order(accounts.payers.clone(), accounts.entered()?)
}

fn present(
    accounts: &mut Accounts,
    finished: &Finished,
    meant: Option<&[AccountId]>,
    is_root: bool,
) -> Physpages {
    let count = &finished.count;
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mut row = |holding: &Holding| {
        let account = match holding.account {
            Some(id) => accounts.name_of(id),
            None => "unaccounted".to_owned(),
        };
        PhyspagesRow {
            account,
            uid: holding.account.and_then(AccountId::uid),
            processes: holding.processes,
            resident_pages: holding.resident_pages,
            own_pages: holding.own_pages,
            exact_parts: holding.exact_parts,
            shift_parts: holding.shift_parts,
        }
    };
    let is_shown = |id: AccountId| meant.is_none_or(|meant| meant.contains(&id));
    let accounts = count
        .holdings
        .iter()
        .filter(|it| it.account.is_some_and(is_shown))
        .map(&mut row)
        .collect();
    let unaccounted = count.holdings.iter().find(|it| it.account.is_none());
    let facts = &count.facts;
    let machine = PhyspagesMachine {
        mapped_pages: count.mapped_pages,
        shared_pages: count.shared_pages,
        is_whole: count.is_whole(),
        processes: facts.processes,
        vanished: facts.vanished,
        refused: facts.refused,
        crowded_pages: facts.crowded_pages,
        unseen_pages: facts.unseen_pages,
        moved_pages: facts.moved_pages,
        nobodys_entries: facts.nobodys_entries,
        nobodys_unknown: facts.nobodys_unknown,
    };
    Physpages {
        age_ns: nanos(finished.at.elapsed()),
        took_ns: nanos(count.took),
        work_ns: nanos(count.work),
        page_bytes: Pages::new(1).to_bytes(machine::page_size()),
        accounts,
        unaccounted: unaccounted.filter(|_| is_root).map(row),
        machine: is_root.then_some(machine),
    }
}
