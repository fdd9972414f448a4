// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is asked over the control socket, answered. Who asks is known from the kernel; root may ask
//! everything, others about themselves.

mod beancounters;
mod history;
mod ledger;
mod limits;
mod physpages;
mod whose;

use std::collections::BTreeMap;

use bursar_model::{
    AccountId, AccountStatus, Bounds, Bytes, DaemonStatus, ReapStatus, Resource, Row, RowBounds,
    Rows, Uid, Who,
};
use bursar_policy::NameError;
use bursar_protocol::{ErrorKind, Granted, Operation, Quota, Refusal, Reply, Request, VERSION};

use crate::backend::Reading;
use crate::beancounters::Beancounters;
use crate::control::{After, RESERVING_PER_USER, Requester};
use crate::daemon::Daemon;
use crate::dirty;
use crate::join;
use crate::payers::Payers;
use crate::reservations::Denied;

pub(crate) use history::may_see;
pub(crate) use ledger::checked as ledger_checked;

type Answer = Result<Reply, Refusal>;

fn refusal(kind: ErrorKind, message: impl Into<String>) -> Refusal {
    Refusal {
        kind,
        message: message.into(),
    }
}

fn only_root(uid: Uid, what: &str) -> Result<(), Refusal> {
    if uid.get() == 0 {
        return Ok(());
    }
    Err(refusal(
        ErrorKind::NotPermitted,
        format!("only root may {what}; you are uid {uid}"),
    ))
}

/// Answers one line; `None`: it will be answered later. Events made on the way are left for the daemon
/// to publish.
pub(crate) fn answer(
    daemon: &mut Daemon,
    requester: Requester,
    line: &[u8],
) -> Option<(Reply, After)> {
    let refused = |refusal: Refusal| Some((Reply::Refused(refusal), After::Ask));
    let request = match serde_json::from_slice::<Request>(line) {
        Ok(request) => request,
        Err(error) => {
            let message = format!("this is no request: {error}");
            return refused(refusal(ErrorKind::BadRequest, message));
        }
    };
    if request.version != VERSION {
        let message = format!(
            "this bursard speaks version {VERSION} of the protocol, the request version {}; use the \
             bursar that belongs to it",
            request.version
        );
        return refused(refusal(ErrorKind::BadRequest, message));
    }
    let follows = matches!(request.ask, Operation::Events { follow: true, .. });
    match dispatch(daemon, requester, request.ask) {
        Ok(None) => None,
        Ok(Some(reply)) => Some((reply, if follows { After::Follow } else { After::Ask })),
        Err(refusal) => refused(refusal),
    }
}

/// `None`: later.
fn dispatch(
    daemon: &mut Daemon,
    requester: Requester,
    ask: Operation,
) -> Result<Option<Reply>, Refusal> {
    let uid = requester.uid;
    let answer = match ask {
        Operation::Status { who } => status(daemon, requester, who.as_ref()),
        Operation::Quota => quota(daemon, requester),
        Operation::Limits { who } => limits::show(daemon, uid, who.as_ref()),
        Operation::SetLimit(change) => limits::set(daemon, uid, change),
        Operation::SetRows(change) => beancounters::set(daemon, uid, change),
        Operation::Beancounters { who } => beancounters::show(daemon, requester, who.as_ref()),
        Operation::ClearLimit { who, force } => limits::clear(daemon, uid, &who, force),
        Operation::Events { since, .. } => history::events(daemon, uid, since.as_deref()),
        Operation::Why { pid, who } => history::why(daemon, requester, pid, who.as_ref()),
        Operation::Dirty => {
            only_root(uid, "see who has dirtied the page cache")?;
            let report = dirty::report(daemon);
            let report =
                report.map_err(|error| refusal(ErrorKind::Failed, format!("{error:#}")))?;
            Ok(Reply::Dirty(Box::new(report)))
        }
        Operation::Enter { account } => {
            join::enter(daemon, requester, &account).map(|account| Reply::Entered { account })
        }
        Operation::Reserve(_) if !daemon.admission.may_reserve => Err(refusal(
            ErrorKind::Refused,
            format!(
                "{RESERVING_PER_USER} connections of this user have memory reserved already, which is all that \
                 one may have"
            ),
        )),
        Operation::Reserve(ask) => match daemon.reserve(paying(daemon, requester), &ask) {
            Ok((pages, reserved)) => Ok(Reply::Granted(Granted { pages, reserved })),
            Err(denied) => Err(denied_refusal(&denied)),
        },
        Operation::Commit { pages } => match daemon.commit(paying(daemon, requester), pages) {
            Ok(reserved) => Ok(Reply::Granted(Granted { pages, reserved })),
            Err(denied) => Err(denied_refusal(&denied)),
        },
        Operation::RunKiller => run_killer(daemon, uid),
        Operation::CheckLedger => return ledger::begin(daemon, requester).map(|()| None),
        Operation::Watermarks => watermarks(daemon, uid),
        Operation::RestoreWatermarks => restore_watermarks(daemon, uid),
        Operation::Physpages { who, ticket } => {
            physpages::show(daemon, requester, who.as_ref(), ticket)
        }
    };
    answer.map(Some)
}

/// What the requester's process pays into.
fn own_account(daemon: &Daemon, requester: Requester) -> Option<AccountId> {
    let payer = join::payer_of(daemon, requester);
    daemon.payers().of(payer).map(|(id, _)| id)
}

/// The requester as who pays for him.
fn paying(daemon: &Daemon, requester: Requester) -> Requester {
    Requester {
        payer: join::payer_of(daemon, requester),
        ..requester
    }
}

fn watermarks(daemon: &mut Daemon, uid: Uid) -> Answer {
    only_root(uid, "look at the watermarks")?;
    match daemon.watermarks_report() {
        Some(report) => Ok(Reply::Watermarks(Box::new(report))),
        None => Err(refusal(ErrorKind::NotFound, daemon.watermarks.absence())),
    }
}

fn restore_watermarks(daemon: &mut Daemon, uid: Uid) -> Answer {
    only_root(uid, "put the watermarks back")?;
    match daemon.watermarks.restore() {
        Some(report) => Ok(Reply::WatermarksRestored(report)),
        None => Err(refusal(ErrorKind::NotFound, daemon.watermarks.absence())),
    }
}

fn denied_refusal(denied: &Denied) -> Refusal {
    let kind = match denied {
        Denied::Senseless(_) => ErrorKind::BadRequest,
        Denied::Full { .. } => ErrorKind::Refused,
        Denied::Gone(_) => ErrorKind::NotFound,
        Denied::Failed(_) => ErrorKind::Failed,
    };
    refusal(kind, denied.to_string())
}

fn run_killer(daemon: &mut Daemon, uid: Uid) -> Answer {
    only_root(uid, "run the killer out of turn")?;
    let failed = |error: anyhow::Error| refusal(ErrorKind::Failed, format!("{error:#}"));
    let killed = |daemon: &Daemon| {
        let readings = daemon.backend.readings();
        readings
            .iter()
            .fold(0, |sum: u64, it| sum.saturating_add(it.kills))
    };
    let before = killed(daemon);
    daemon.backend.recount().map_err(failed)?;
    daemon.attend().map_err(failed)?;
    Ok(Reply::KillerRan {
        kills: killed(daemon).saturating_sub(before),
    })
}

fn show(daemon: &mut Daemon, reading: &Reading) -> AccountStatus {
    let (account, kind) = daemon.limit_table.name_of(reading.id);
    let row = Row {
        held: reading.held,
        maxheld: reading.maxheld,
        notice: reading.bounds.notice(),
        barrier: reading.bounds.barrier(),
        limit: reading.bounds.limit(),
        failcnt: reading
            .failcnt
            .saturating_add(daemon.reservations.refused_in(reading.id)),
        reserved: daemon.reservations.reserved_in(reading.id, &daemon.paying),
    };
    let mut resources = Rows::from([(Resource::Memory, row)]);
    let bounds = rows_of(daemon, reading.id);
    resources.beans = Beancounters::limited_rows(reading.id, &bounds, &*daemon.backend);
    AccountStatus {
        account,
        uid: reading.id.uid(),
        kind,
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
fn rows_of(daemon: &Daemon, id: AccountId) -> BTreeMap<Resource, RowBounds> {
    let plan = daemon.limit_table.plan();
    match plan.accounts.get(&id) {
        Some(planned) => planned.rows.clone(),
        None => match id.uid() {
            Some(uid) if daemon.coverage.covers(uid) => plan.default_rows.clone(),
            _ => BTreeMap::new(),
        },
    }
}

/// Whether somebody may ask about WHO: root about all, others about themselves. Before anything is looked
/// up: a name that a user thinks of is no question that we put to a directory for him.
fn permit(
    daemon: &mut Daemon,
    requester: Requester,
    own: Option<AccountId>,
    who: &Who,
    what: &str,
) -> Result<(), Refusal> {
    let uid = requester.uid;
    let is_own = match who {
        Who::Uid(it) => *it == uid,
        Who::User(name) => daemon.limit_table.user_name(uid) == *name,
        Who::Group(_) | Who::Shared(_) | Who::Default => false,
    };
    let mut accounts = daemon.limit_table.plan().accounts_of(who);
    if is_own || accounts.any(|id| Some(id) == own) {
        return Ok(());
    }
    only_root(uid, what)
}

/// The user that a name means. Whoever is not root was permitted to ask for he means himself, and has
/// nobody looked up.
fn uid_meant(daemon: &mut Daemon, requester: Requester, name: &str) -> Result<Uid, Refusal> {
    if let Some(uid) = daemon.limit_table.uid_in_plan(name) {
        return Ok(uid);
    }
    if requester.uid.get() != 0 {
        return Ok(requester.uid);
    }
    daemon
        .limit_table
        .uid_of(name)
        .map_err(|error| match error {
            NameError::Unknown => {
                refusal(ErrorKind::NotFound, format!("there is no user {name:?}"))
            }
            NameError::Unreachable(why) => refusal(
                ErrorKind::Failed,
                format!("the user {name:?} cannot be looked up now ({why}): ask again, or by uid"),
            ),
        })
}

/// The accounts that WHO means now.
fn accounts_meant(
    daemon: &mut Daemon,
    requester: Requester,
    who: &Who,
) -> Result<Vec<AccountId>, Refusal> {
    let from_plan: Vec<AccountId> = daemon.limit_table.plan().accounts_of(who).collect();
    if !from_plan.is_empty() {
        return Ok(from_plan);
    }
    let payers = daemon.payers();
    let of_uid = |uid: Uid| payers.of(uid).map(|(id, _)| vec![id]);
    let found = match who {
        Who::Uid(uid) => of_uid(*uid),
        Who::User(name) => of_uid(uid_meant(daemon, requester, name)?),
        Who::Default => {
            let defaults = daemon
                .backend
                .readings()
                .into_iter()
                .filter(|it| it.is_default);
            Some(defaults.map(|it| it.id).collect())
        }
        Who::Group(_) | Who::Shared(_) => None,
    };
    found.ok_or_else(|| {
        let message = format!("no limit concerns {who}; set one with: bursar limit set {who} SIZE");
        refusal(ErrorKind::NotFound, message)
    })
}

fn status(daemon: &mut Daemon, requester: Requester, who: Option<&Who>) -> Answer {
    let uid = requester.uid;
    let mut readings = daemon.backend.readings();
    let own = own_account(daemon, requester);
    if let Some(who) = who {
        permit(daemon, requester, own, who, "see other users' accounts")?;
        let meant = accounts_meant(daemon, requester, who)?;
        if uid.get() != 0 && meant.iter().any(|id| Some(*id) != own) {
            only_root(uid, "see other users' accounts")?;
        }
        readings.retain(|reading| meant.contains(&reading.id));
    } else if uid.get() != 0 {
        readings.retain(|reading| Some(reading.id) == own);
    }
    let mut accounts: Vec<AccountStatus> = readings
        .iter()
        .map(|reading| show(daemon, reading))
        .collect();
    accounts.sort_by(|a, b| a.account.cmp(&b.account));
    // Of reaps of others' programs, too: two looks would tell him what another one's held, and when it died.
    let (remarks, reaps) = if uid.get() == 0 {
        let mut reaps = daemon.recorder.reaps().clone();
        daemon.reaper().note_losses(&mut reaps);
        (daemon.remarks(), reaps)
    } else {
        (Vec::new(), ReapStatus::default())
    };
    Ok(Reply::Status(Box::new(DaemonStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        dry_run: daemon.is_dry_run(),
        kernel_half: daemon.backend.status(),
        error_bound_bytes: daemon.backend.error_bound(),
        ram_bytes: daemon.limit_table.ram(),
        reaps,
        accounts,
        remarks,
    })))
}

fn quota(daemon: &mut Daemon, requester: Requester) -> Answer {
    let own = daemon.payers().of(join::payer_of(daemon, requester));
    let readings = daemon.backend.readings();
    let reading_of = |id, bounds| {
        let known = readings.iter().find(|it| it.id == id).cloned();
        known.unwrap_or_else(|| untouched(id, bounds))
    };
    let account = own.map(|(id, bounds)| show(daemon, &reading_of(id, bounds)));
    let shared = join::open_to(daemon, requester.uid, &readings)?;
    let mut shared: Vec<AccountStatus> = shared
        .into_iter()
        .filter(|(id, _)| own.is_none_or(|(own, _)| own != *id))
        .map(|(id, bounds)| show(daemon, &reading_of(id, bounds)))
        .collect();
    shared.sort_by(|a, b| a.account.cmp(&b.account));
    let error_bound_bytes = daemon.backend.error_bound();
    Ok(Reply::Quota(Box::new(Quota {
        account,
        shared,
        error_bound_bytes,
    })))
}

/// Of an account that nothing has run in yet.
fn untouched(id: AccountId, bounds: Bounds) -> Reading {
    Reading {
        id,
        is_default: true,
        held: Bytes::ZERO,
        correction: None,
        dying: Bytes::ZERO,
        unkillable: Bytes::ZERO,
        committed: None,
        unmapped: Bytes::ZERO,
        stuck: Bytes::ZERO,
        reserved: Bytes::ZERO,
        maxheld: Bytes::ZERO,
        processes: 0,
        bounds,
        failcnt: 0,
        kills: 0,
        notices: 0,
    }
}

impl Daemon {
    /// Who pays into what now.
    pub(crate) fn payers(&self) -> Payers {
        Payers::new(self.limit_table.plan(), self.coverage.clone())
    }
}
