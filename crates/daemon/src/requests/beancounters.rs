// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bills and the bounds on their rows, asked for and set.

use std::collections::{BTreeMap, BTreeSet};

use bursar_config::{Limit, Limits};
use bursar_model::{AccountId, Bill, BoundsSpec, Bytes, Mode, Resource, RowBounds, Uid, Who};
use bursar_policy::Utilisation;
use bursar_protocol::{ErrorKind, Refusal, Reply, RowsChange, Terms, UtilisationReport};

use super::limits::{change_limits, changed, may_hold, preview_of, remarks_on, too_low, unchanged};
use super::permission::{
    Answer, accounts_meant, config_refusal, only_root, permit, refusal, uid_meant,
};
use super::status::rows_of;
use super::terms::{are_so, may_end, target, told, write};
use std::sync::Arc;

use crate::accounts::Accounts;
use crate::backend::{enforcement, open_accounts};
use crate::beancounters::{Beancounters, note_on};
use crate::control::Requester;
use crate::daemon::Daemon;
use crate::physpages::Finished;

/// Bills need no limit: every user has an account, whether or not anything bounds it.
pub(super) fn bills_meant(
    accounts: &mut Accounts,
    requester: Requester,
    who: &Who,
) -> Result<Vec<AccountId>, Refusal> {
    let of_uid = |accounts: &Accounts, uid: Uid| vec![accounts.payers.account_of(uid)];
    match who {
        Who::Uid(uid) => Ok(of_uid(accounts, *uid)),
        Who::User(name) => uid_meant(accounts, requester, name).map(|uid| of_uid(accounts, uid)),
        Who::Group(_) | Who::Shared(_) | Who::Default => accounts_meant(accounts, requester, who),
    }
}

/// What the requester's process is billed to.
pub(super) fn own_bill(accounts: &Accounts, requester: Requester) -> AccountId {
    let payer = accounts.payer_of(requester);
    accounts.payers.account_of(payer)
}

/// The bills that the requester may see and asked for.
pub(super) fn show(
    accounts: &mut Accounts,
    beancounters: &mut Beancounters,
    count: Option<Arc<Finished>>,
    requester: Requester,
    who: Option<&Who>,
) -> Answer {
    let uid = requester.uid;
    let own = own_bill(accounts, requester);
    let meant = match who {
        Some(who) => {
            permit(
                accounts,
                requester,
                Some(own),
                who,
                "see other users' bills",
            )?;
            let meant = bills_meant(accounts, requester, who)?;
            if uid.get() != 0 && meant.iter().any(|id| *id != own) {
                only_root(uid, "see other users' bills")?;
            }
            Some(meant)
        }
        None if uid.get() != 0 => Some(vec![own]),
        None => None,
    };
    let scanned = beancounters.scan(accounts.backend.kernel_mut(), &accounts.payers, count);
    let is_looking =
        scanned.map_err(|error| refusal(ErrorKind::Failed, format!("cannot scan: {error:#}")))?;
    let readings = accounts.backend.readings();
    let ids = meant.unwrap_or_else(|| {
        let is_shown = |id: &AccountId| id.uid().is_none_or(|uid| accounts.covers(uid));
        let met = beancounters.accounts().filter(is_shown);
        let known = readings.iter().map(|reading| reading.id);
        met.chain(known)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    });
    let open = open_accounts(accounts.backend.kernel());
    let bills = ids.into_iter().map(|id| {
        let bounds = rows_of(accounts, id);
        let reading = readings.iter().find(|reading| reading.id == id);
        let resources = beancounters.rows(id, &bounds, reading, accounts.backend.kernel(), &open);
        Bill {
            account: accounts.name_of(id),
            uid: id.uid(),
            id: id.get(),
            resources,
        }
    });
    let bills: Vec<Bill> = bills.collect();
    let ram = accounts.table.ram();
    let info = bursar_host::Proc::host().and_then(|proc| proc.meminfo());
    let swap = info.map_or(Bytes::ZERO, |info| info.swap_total);
    let is_all = who.is_none() && uid.get() == 0;
    let mut remarks = Vec::new();
    if is_looking {
        remarks.push(
            "a scan at tasks and open files is still under way: these are of the one before"
                .to_owned(),
        );
    }
    if beancounters.is_cut() {
        remarks
            .push("there are more tasks, open files or file locks than a scan takes in".to_owned());
    }
    if uid.get() == 0 {
        remarks.extend(beancounters.remarks(accounts.backend.kernel(), &accounts.table));
    }
    Ok(Reply::Beancounters(Box::new(
        bursar_protocol::Beancounters {
            utilisation: is_all.then(|| utilisation(&bills, ram, swap)),
            bills,
            ram_bytes: ram,
            swap_bytes: swap,
            is_looking,
            remarks,
        },
    )))
}

/// vzmemcheck's sums.
fn utilisation(bills: &[Bill], ram: Bytes, swap: Bytes) -> UtilisationReport {
    let sum = |resource: Resource| {
        bills.iter().fold(0_u64, |sum, bill| {
            let held = bill.resources.get(&resource).and_then(|bean| bean.held);
            sum.saturating_add(held.unwrap_or(0))
        })
    };
    let all = Utilisation {
        kernel: Resource::KERNEL_MEMORY
            .into_iter()
            .fold(Bytes::ZERO, |bytes, resource| {
                bytes.saturating_add(Bytes::new(sum(resource)))
            }),
        resident_pages: sum(Resource::Physpages),
        kept_pages: sum(Resource::Oomguarpages),
        private_pages: sum(Resource::Privvmpages),
    };
    let both = ram.saturating_add(swap);
    UtilisationReport {
        ram_permille: all.of_ram(ram),
        memory_and_swap_permille: all.of_memory_and_swap(both),
        allocated_permille: all.allocated(both),
    }
}

/// Sets bounds on rows of a bill, and the limit on memory where one is given.
pub(super) fn set(
    daemon: &mut Daemon,
    requester: Requester,
    memory: Option<BoundsSpec>,
    change: RowsChange,
) -> Answer {
    only_root(requester.uid, "set limits")?;
    let RowsChange {
        who,
        rows,
        force,
        terms,
    } = change;
    if rows.is_empty() || rows.contains_key(&Resource::Memory) {
        let message = "name beancounters and their bounds; memory is set by its SIZE";
        return Err(refusal(ErrorKind::BadRequest, message));
    }
    let mut limits = daemon.accounts.table.limits().clone();
    let old = told(&limits, &who, &terms);
    let has_memory = |it: &Limit| memory.is_none() || it.memory == memory;
    let is_so = |it: &Limit| has_memory(it) && has_rows(it, &rows) && are_so(it, &terms);
    if target(&limits, &who, &terms).is_some_and(is_so) {
        return Ok(unchanged(daemon, who, old));
    }
    may_end(&terms)?;
    let mut remarks = Vec::new();
    match memory {
        // With a SIZE of his own he is in nobody else's account, and keeps nothing of what is for many.
        Some(memory) => may_hold(daemon.accounts.table.ram(), &who, memory)?,
        None if is_over_what_is_for_many(&mut daemon.accounts, &limits, &who, &terms) => {
            let message = format!(
                "{who} has a temporary limit, and none of his own below it: when it ends he would have this row instead \
                 of what is for many. Give him a SIZE as well, or end the temporary one first (bursar limit clear \
                 {who} --temporary)"
            );
            return Err(refusal(ErrorKind::Refused, message));
        }
        None if limits.get(&who).is_none() => {
            remarks.extend(write_own(&mut daemon.accounts, &mut limits, &who, &terms)?);
        }
        None => {}
    }
    write(&mut limits, &who, memory, &rows, &terms).map_err(|error| config_refusal(&error))?;
    if terms.dry_run {
        return Ok(Reply::Preview(Box::new(preview_of(
            daemon, &limits, force,
        )?)));
    }
    change_limits(daemon, limits, force, |limit| match memory {
        Some(_) => too_low(limit),
        // An entry that comes or goes with its rows moves its users to another limit on memory.
        None => {
            let remedy = "it would kill at once; wait, raise that limit first";
            let what = format!("the limit on memory of {limit} that holds with this change");
            (what, remedy)
        }
    })?;
    remarks.extend(remarks_on(&daemon.accounts, &who));
    for (&resource, bounds) in rows.iter().filter(|(_, bounds)| !bounds.is_unlimited()) {
        if let Some(note) = note_on(
            resource,
            &enforcement(daemon.accounts.backend.kernel(), resource),
        ) {
            remarks.push(format!("{}={bounds}: {note}", resource.name()));
        }
    }
    Ok(changed(daemon, requester, &terms, (who, old), remarks))
}

/// Whether a user has a temporary entry alone, and limits for many may hold for him when it ends: an entry without an end
/// would come before those, and what they are is not known while the temporary one holds.
fn is_over_what_is_for_many(
    accounts: &mut Accounts,
    limits: &Limits,
    who: &Who,
    terms: &Terms,
) -> bool {
    let is_for_many = |it: &Limit| matches!(it.who, Who::Group(_) | Who::Shared(_) | Who::Default);
    let has_temporary_alone =
        terms.until.is_none() && limits.lasting(who).is_none() && limits.temporary(who).is_some();
    has_temporary_alone && user_meant(accounts, who).is_some() && limits.iter().any(is_for_many)
}

/// Whoever has no entry yet and is to have rows of his own keeps what holds for him as one of many. What is to be known of
/// that.
fn write_own(
    accounts: &mut Accounts,
    limits: &mut Limits,
    who: &Who,
    terms: &Terms,
) -> Result<Option<String>, Refusal> {
    if let Some(shared) = shared_with_others(accounts, who) {
        // An entry of rows only would take him out of it, and leave him without its memory limit.
        let message = format!(
            "{who} pays into {shared}, whose rows are for all its members together: set the row there \
             (bursar limit set {shared} …), or give {who} a SIZE of his own first (bursar limit set {who} \
             SIZE), with which he leaves it"
        );
        return Err(refusal(ErrorKind::Refused, message));
    }
    let Some(less) = less_particular(accounts, who) else {
        return Ok(None);
    };
    // From now on he has an entry of his own, and what was for many holds for him no more.
    let own = as_terms_of(accounts, who, &less, terms)?;
    write(limits, who, less.memory, &less.rows, &own).map_err(|error| config_refusal(&error))?;
    Ok(Some(match less.memory {
        Some(memory) => format!(
            "{who} had the limits of {} and keeps them as his own: memory {}",
            less.who, memory.limit
        ),
        None => format!(
            "{who} had the rows of {} and keeps them as his own",
            less.who
        ),
    }))
}

/// How a copy of an entry for many is written. It is held as that is: an entry has one mode.
fn as_terms_of(
    accounts: &Accounts,
    who: &Who,
    less: &Limit,
    terms: &Terms,
) -> Result<Terms, Refusal> {
    let mode = accounts.table.mode_of(less);
    if terms.mode.is_some_and(|it| it != mode) {
        let message = format!(
            "{who} has the limits of {} and would keep them as his own, in the mode {mode}, and an entry has one mode: \
             give him a SIZE of his own as well, or leave the mode as it is",
            less.who
        );
        return Err(refusal(ErrorKind::Refused, message));
    }
    Ok(Terms {
        mode: less.mode,
        ..terms.clone()
    })
}

/// Whether an entry has these rows already; one that is not there is unlimited.
fn has_rows(entry: &Limit, rows: &BTreeMap<Resource, RowBounds>) -> bool {
    rows.iter()
        .all(|(resource, bounds)| match entry.rows.get(resource) {
            Some(old) => old == bounds,
            None => bounds.is_unlimited(),
        })
}

/// The one user that is meant, if it is one.
fn user_meant(accounts: &mut Accounts, who: &Who) -> Option<Uid> {
    match who {
        Who::Uid(uid) => Some(*uid),
        Who::User(name) => accounts.table.uid_of(name).ok(),
        Who::Group(_) | Who::Shared(_) | Who::Default => None,
    }
}

/// The shared account that this one user is in.
fn shared_with_others(accounts: &mut Accounts, who: &Who) -> Option<Who> {
    let uid = user_meant(accounts, who)?;
    let id = accounts.of(uid)?;
    let planned = accounts.table.plan().accounts.get(&id)?;
    id.uid().is_none().then(|| planned.who.clone())
}

/// The limit for many that has held for this one user until now.
fn less_particular(accounts: &mut Accounts, who: &Who) -> Option<bursar_config::Limit> {
    let uid = user_meant(accounts, who)?;
    let plan = accounts.table.plan();
    // Rows may be of several groups.
    let (from, rows) = match plan.accounts.get(&AccountId::of(uid)) {
        Some(planned) => (&planned.who, &planned.rows),
        None if accounts.covers(uid) => (&Who::Default, &plan.default_rows),
        None => return None,
    };
    let limit = accounts.table.limits().get(from)?.clone();
    // As they are written.
    let rows = rows.iter();
    let rows = rows.map(|(&resource, bounds)| (resource, bounds.in_mode(Mode::Enforce)));
    Some(bursar_config::Limit {
        rows: rows.collect(),
        ..limit
    })
}
