// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How accounts and the daemon stand.

use std::collections::BTreeMap;

use bursar_config::Limit;
use bursar_model::{
    AccountId, AccountStatus, DaemonStatus, GateMode, KernelHalfStatus, ReapStatus, Resource, Row,
    RowBounds, Rows, Uid, Who,
};
use bursar_protocol::{Quota, Reply};

use super::history;
use super::join;
use super::permission::{Answer, accounts_meant, only_root, own_account, permit};
use super::remarks::remarks;
use crate::accounts::Accounts;
use crate::backend::{OpenAccounts, Reading, open_accounts};
use crate::beancounters::Beancounters;
use crate::control::Requester;
use crate::daemon::Daemon;
use crate::reservations::Reservations;

pub(super) fn status(daemon: &mut Daemon, requester: Requester, who: Option<&Who>) -> Answer {
    let uid = requester.uid;
    let mut readings = daemon.accounts.backend.readings();
    let own = own_account(&daemon.accounts, requester);
    if let Some(who) = who {
        permit(
            &mut daemon.accounts,
            requester,
            own,
            who,
            "see other users' accounts",
        )?;
        let meant = accounts_meant(&mut daemon.accounts, requester, who)?;
        if uid.get() != 0 && meant.iter().any(|id| Some(*id) != own) {
            only_root(uid, "see other users' accounts")?;
        }
        readings.retain(|reading| meant.contains(&reading.id));
    } else if uid.get() != 0 {
        readings.retain(|reading| Some(reading.id) == own);
    }
    let open = open_accounts(daemon.accounts.backend.kernel());
    let mut accounts: Vec<AccountStatus> = readings
        .iter()
        .map(|reading| show(&mut daemon.accounts, &daemon.reservations, reading, &open))
        .collect();
    accounts.sort_by(|a, b| a.account.cmp(&b.account));
    // Of reaps of others' programs, too: two looks would tell him what another one's held, and when it died.
    let kernel_half = kernel_half_for(uid, daemon.accounts.backend.status());
    let ((remarks, counts), reaps) = if uid.get() == 0 {
        let mut reaps = daemon.responder.recorder.reaps().clone();
        daemon.responder.reaper.note_losses(&mut reaps);
        (remarks(daemon), reaps)
    } else {
        (<_>::default(), ReapStatus::default())
    };
    Ok(Reply::Status(Box::new(DaemonStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        dry_run: daemon.responder.is_dry_run(),
        kernel_half,
        error_bound_bytes: daemon.accounts.backend.error_bound(),
        ram_bytes: daemon.accounts.table.ram(),
        reaps,
        accounts,
        remarks,
        counts,
    })))
}

/// What the kernel half can do everybody may know. Its counters tell when others' processes begin and end, and how near
/// somebody is to a bound: they are root's.
fn kernel_half_for(uid: Uid, status: KernelHalfStatus) -> KernelHalfStatus {
    if uid.get() == 0 {
        return status;
    }
    KernelHalfStatus {
        attached: status.attached,
        trigger: status.trigger,
        event_trigger: status.event_trigger,
        timer: status.timer,
        signals_others: status.signals_others,
        counter_cpus: status.counter_cpus,
        counter_batch_pages: status.counter_batch_pages,
        page_bytes: status.page_bytes,
        counts_files: status.counts_files,
        gate: status.gate,
        ..KernelHalfStatus::default()
    }
}

pub(super) fn quota(daemon: &mut Daemon, requester: Requester) -> Answer {
    let history = daemon.responder.recorder.history();
    let recent = history::recent(&mut daemon.accounts, history, requester);
    let (accounts, reservations) = (&mut daemon.accounts, &daemon.reservations);
    let own = accounts.payers.of(accounts.payer_of(requester));
    let readings = accounts.backend.readings();
    let reading_of = |id, bounds| {
        let known = readings.iter().find(|it| it.id == id).cloned();
        known.unwrap_or_else(|| Reading::untouched(id, bounds))
    };
    let open = open_accounts(accounts.backend.kernel());
    let account =
        own.map(|(id, bounds)| show(accounts, reservations, &reading_of(id, bounds), &open));
    let shared = join::open_to(accounts, requester.uid, &readings)?;
    let mut shared: Vec<AccountStatus> = shared
        .into_iter()
        .filter(|(id, _)| own.is_none_or(|(own, _)| own != *id))
        .map(|(id, bounds)| show(accounts, reservations, &reading_of(id, bounds), &open))
        .collect();
    shared.sort_by(|a, b| a.account.cmp(&b.account));
    let error_bound_bytes = accounts.backend.error_bound();
    let entry = own.and_then(|(id, _)| entry_of(accounts, id));
    let reason = entry.and_then(|it| it.reason.clone());
    let until = entry.and_then(|it| it.until);
    Ok(Reply::Quota(Box::new(Quota {
        account,
        shared,
        error_bound_bytes,
        barrier_refuses: accounts.backend.status().gate.mode != GateMode::None,
        recent,
        hint: daemon.responder.hint().map(str::to_owned),
        reason,
        until,
    })))
}

/// The entry that an account's limit on memory comes from.
fn entry_of(accounts: &Accounts, id: AccountId) -> Option<&Limit> {
    let table = &accounts.table;
    let planned = table.plan().accounts.get(&id);
    let who = planned.map_or(&Who::Default, |it| &it.memory_of);
    table.limits().get(who)
}

fn show(
    accounts: &mut Accounts,
    reservations: &Reservations,
    reading: &Reading,
    open: &OpenAccounts,
) -> AccountStatus {
    let (account, kind) = accounts.table.name_of(reading.id);
    let row = Row {
        held: reading.held,
        maxheld: reading.maxheld,
        notice: reading.bounds.notice(),
        barrier: reading.bounds.barrier(),
        limit: reading.bounds.limit(),
        failcnt: reading
            .failcnt
            .saturating_add(reservations.refused_in(reading.id)),
        reserved: reservations.reserved_in(reading.id, &accounts.payers),
    };
    let mut resources = Rows::from([(Resource::Memory, row)]);
    let bounds = rows_of(accounts, reading.id);
    resources.beans =
        Beancounters::limited_rows(reading.id, &bounds, accounts.backend.kernel(), open);
    AccountStatus {
        account,
        uid: reading.id.uid(),
        kind,
        mode: reading.bounds.mode(),
        processes: reading.processes,
        resources,
        dying: reading.dying,
        unkillable: reading.unkillable,
        committed: reading.committed,
        unmapped: reading.unmapped,
        stuck: reading.stuck,
        reserved: reading.reserved,
        correction: reading.correction,
        kills: reading.kills,
        notices: reading.notices,
    }
}

/// The bounds of an account's beancounters.
pub(super) fn rows_of(accounts: &Accounts, id: AccountId) -> BTreeMap<Resource, RowBounds> {
    let plan = accounts.table.plan();
    match plan.accounts.get(&id) {
        Some(planned) => planned.rows.clone(),
        None => match id.uid() {
            Some(uid) if accounts.covers(uid) => plan.default_rows.clone(),
            _ => BTreeMap::new(),
        },
    }
}
