// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is asked over the control socket, answered. Who asks is known from the kernel; root may ask
//! everything, others about themselves.

mod beancounters;
mod ledger;
mod physpages;

use std::collections::BTreeMap;
use std::time::SystemTime;

use bursar_config::ConfigError;
use bursar_host::clock;
use bursar_model::{
    AccountId, AccountStatus, BoundsSpec, Bytes, DaemonStatus, Event, EventKind, Pid, Resource,
    Row, RowBounds, Rows, Uid, Who,
};
use bursar_policy::Plan;
use bursar_protocol::{
    Ask, ErrorKind, Granted, LimitChange, LimitEntry, Quota, Refusal, Reply, Request, VERSION,
};

use crate::beancounters::Beancounters;
use crate::control::After;
use crate::dirty;
use crate::entering;
use crate::governor::Reading;
use crate::recorder::Recorder;
use crate::reservations::{Asker, Denied};
use crate::scope::Payers;
use crate::steward::Steward;

pub(crate) use ledger::checked as ledger_checked;

/// Names of one limit's accounts in a reply.
const NAMES_SHOWN: usize = 100;

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

/// Answers one line; `None`: it will be answered later. Events made on the way are left for the steward
/// to publish.
pub(crate) fn answer(steward: &mut Steward, asker: Asker, line: &[u8]) -> Option<(Reply, After)> {
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
    let follows = matches!(request.ask, Ask::Events { follow: true, .. });
    match dispatch(steward, asker, request.ask) {
        Ok(None) => None,
        Ok(Some(reply)) => Some((reply, if follows { After::Follow } else { After::Ask })),
        Err(refusal) => refused(refusal),
    }
}

/// `None`: later.
fn dispatch(steward: &mut Steward, asker: Asker, ask: Ask) -> Result<Option<Reply>, Refusal> {
    let uid = asker.uid;
    let answer = match ask {
        Ask::Status { who } => status(steward, asker, who.as_ref()),
        Ask::Quota => quota(steward, entering::payer_of(steward, asker)),
        Ask::Limits { who } => limits(steward, uid, who.as_ref()),
        Ask::SetLimit(change) => set_limit(steward, uid, change),
        Ask::SetRows(change) => beancounters::set(steward, uid, change),
        Ask::Beancounters { who } => beancounters::show(steward, asker, who.as_ref()),
        Ask::ClearLimit { who } => clear_limit(steward, uid, &who),
        Ask::Events { since, .. } => events(steward, uid, since.as_deref()),
        Ask::Why { pid } => why(steward, uid, pid),
        Ask::Dirty => {
            only_root(uid, "see who has dirtied the page cache")?;
            let report = dirty::report(steward);
            let report =
                report.map_err(|error| refusal(ErrorKind::Failed, format!("{error:#}")))?;
            Ok(Reply::Dirty(Box::new(report)))
        }
        Ask::Enter { account } => {
            entering::enter(steward, asker, &account).map(|account| Reply::Entered { account })
        }
        Ask::Reserve(ask) => match steward.reserve(paying(steward, asker), &ask) {
            Ok((pages, reserved)) => Ok(Reply::Granted(Granted { pages, reserved })),
            Err(denied) => Err(denied_refusal(&denied)),
        },
        Ask::Commit { pages } => match steward.commit(paying(steward, asker), pages) {
            Ok(reserved) => Ok(Reply::Granted(Granted { pages, reserved })),
            Err(denied) => Err(denied_refusal(&denied)),
        },
        Ask::RunKiller => run_killer(steward, uid),
        Ask::CheckLedger => return ledger::begin(steward, asker).map(|()| None),
        Ask::Watermarks => watermarks(steward, uid),
        Ask::RestoreWatermarks => restore_watermarks(steward, uid),
        Ask::Physpages { who, ticket } => physpages::show(steward, asker, who.as_ref(), ticket),
    };
    answer.map(Some)
}

/// What the asker's process pays into.
fn own_account(steward: &Steward, asker: Asker) -> Option<AccountId> {
    let payer = entering::payer_of(steward, asker);
    steward.payers().of(payer).map(|(id, _)| id)
}

/// The asker as who pays for him.
fn paying(steward: &Steward, asker: Asker) -> Asker {
    Asker {
        uid: entering::payer_of(steward, asker),
        ..asker
    }
}

fn watermarks(steward: &mut Steward, uid: Uid) -> Answer {
    only_root(uid, "look at the watermarks")?;
    match steward.watermarks_report() {
        Some(report) => Ok(Reply::Watermarks(Box::new(report))),
        None => Err(refusal(ErrorKind::NotFound, steward.watermarks.absence())),
    }
}

fn restore_watermarks(steward: &mut Steward, uid: Uid) -> Answer {
    only_root(uid, "put the watermarks back")?;
    match steward.watermarks.restore() {
        Some(report) => Ok(Reply::WatermarksRestored(report)),
        None => Err(refusal(ErrorKind::NotFound, steward.watermarks.absence())),
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

fn run_killer(steward: &mut Steward, uid: Uid) -> Answer {
    only_root(uid, "run the killer out of turn")?;
    let failed = |error: anyhow::Error| refusal(ErrorKind::Failed, format!("{error:#}"));
    let killed = |steward: &Steward| {
        let readings = steward.governor.readings();
        readings
            .iter()
            .fold(0, |sum: u64, it| sum.saturating_add(it.kills))
    };
    let before = killed(steward);
    steward.governor.recount().map_err(failed)?;
    steward.attend().map_err(failed)?;
    Ok(Reply::KillerRan {
        kills: killed(steward).saturating_sub(before),
    })
}

fn show(steward: &mut Steward, reading: &Reading) -> AccountStatus {
    let (account, kind) = steward.roster.name_of(reading.id);
    let row = Row {
        held: reading.held,
        maxheld: reading.maxheld,
        notice: reading.bounds.notice(),
        barrier: reading.bounds.barrier(),
        limit: reading.bounds.limit(),
        failcnt: reading
            .failcnt
            .saturating_add(steward.reservations.refused_in(reading.id, &steward.paying)),
        reserved: steward
            .reservations
            .reserved_in(reading.id, &steward.paying),
    };
    let mut resources = Rows::from([(Resource::Memory, row)]);
    let bounds = rows_of(steward, reading.id);
    resources.beans = Beancounters::limited_rows(reading.id, &bounds, &*steward.governor);
    AccountStatus {
        account,
        uid: reading.id.uid(),
        kind,
        processes: reading.processes,
        resources,
        dying: reading.dying,
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
fn rows_of(steward: &Steward, id: AccountId) -> BTreeMap<Resource, RowBounds> {
    let plan = steward.roster.plan();
    match plan.accounts.get(&id) {
        Some(planned) => planned.rows.clone(),
        None => match id.uid() {
            Some(uid) if steward.scope.covers(uid) => plan.default_rows.clone(),
            _ => BTreeMap::new(),
        },
    }
}

/// The accounts that WHO means now.
fn accounts_meant(steward: &mut Steward, who: &Who) -> Result<Vec<AccountId>, Refusal> {
    let from_plan: Vec<AccountId> = steward.roster.plan().accounts_of(who).collect();
    if !from_plan.is_empty() {
        return Ok(from_plan);
    }
    let payers = steward.payers();
    let of_uid = |uid: Uid| payers.of(uid).map(|(id, _)| vec![id]);
    let found = match who {
        Who::Uid(uid) => of_uid(*uid),
        Who::User(name) => match steward.roster.uid_of(name) {
            Some(uid) => of_uid(uid),
            None => {
                return Err(refusal(
                    ErrorKind::NotFound,
                    format!("there is no user {name:?}"),
                ));
            }
        },
        Who::Default => {
            let defaults = steward
                .governor
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

fn status(steward: &mut Steward, asker: Asker, who: Option<&Who>) -> Answer {
    let uid = asker.uid;
    let mut readings = steward.governor.readings();
    let own = own_account(steward, asker);
    if let Some(who) = who {
        let meant = accounts_meant(steward, who)?;
        if uid.get() != 0 && meant.iter().any(|id| Some(*id) != own) {
            only_root(uid, "see other users' accounts")?;
        }
        readings.retain(|reading| meant.contains(&reading.id));
    } else if uid.get() != 0 {
        readings.retain(|reading| Some(reading.id) == own);
    }
    let mut accounts: Vec<AccountStatus> = readings
        .iter()
        .map(|reading| show(steward, reading))
        .collect();
    accounts.sort_by(|a, b| a.account.cmp(&b.account));
    let remarks = if uid.get() == 0 {
        steward.remarks()
    } else {
        Vec::new()
    };
    Ok(Reply::Status(Box::new(DaemonStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        dry_run: steward.is_dry_run(),
        kernel_half: steward.governor.status(),
        error_bound_bytes: steward.governor.error_bound(),
        ram_bytes: steward.roster.ram(),
        reaps: steward.recorder.reaps().clone(),
        accounts,
        remarks,
    })))
}

fn quota(steward: &mut Steward, uid: Uid) -> Answer {
    let own = steward.payers().of(uid);
    let account = match own {
        None => None,
        Some((id, bounds)) => {
            let known = steward
                .governor
                .readings()
                .into_iter()
                .find(|it| it.id == id);
            // Covered by `default` and nothing of his has run yet.
            let reading = known.unwrap_or(Reading {
                id,
                is_default: true,
                held: Bytes::ZERO,
                correction: None,
                dying: Bytes::ZERO,
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
            });
            Some(show(steward, &reading))
        }
    };
    let error_bound_bytes = steward.governor.error_bound();
    Ok(Reply::Quota(Box::new(Quota {
        account,
        error_bound_bytes,
    })))
}

fn limits(steward: &mut Steward, uid: Uid, who: Option<&Who>) -> Answer {
    let own = steward.payers().of(uid).map(|(id, _)| id);
    let own_who = own.and_then(|id| match steward.roster.plan().accounts.get(&id) {
        Some(planned) => Some(planned.who.clone()),
        None => steward.roster.plan().default.map(|_| Who::Default),
    });
    if let Some(who) = who
        && uid.get() != 0
        && own_who.as_ref() != Some(who)
    {
        only_root(uid, "see other users' limits")?;
    }
    let written: Vec<(Who, _, _)> = steward
        .roster
        .limits()
        .iter()
        .filter(|limit| match who {
            Some(who) => limit.who == *who,
            None => uid.get() == 0 || own_who.as_ref() == Some(&limit.who),
        })
        .map(|limit| (limit.who.clone(), limit.memory, limit.rows.clone()))
        .collect();
    if let (Some(who), true) = (who, written.is_empty()) {
        return Err(refusal(
            ErrorKind::NotFound,
            format!("no limit is set for {who}"),
        ));
    }
    let entries = written.into_iter().map(|(who, memory, rows)| {
        let ids: Vec<AccountId> = steward
            .roster
            .plan()
            .accounts_of(&who)
            .take(NAMES_SHOWN)
            .collect();
        let accounts = ids
            .into_iter()
            .map(|id| steward.roster.name_of(id).0)
            .collect();
        let remarks = &steward.roster.plan().remarks;
        let remark = remarks
            .iter()
            .find(|(it, _)| *it == who)
            .map(|(_, text)| text.clone());
        LimitEntry {
            who,
            memory,
            rows,
            accounts,
            remark,
        }
    });
    Ok(Reply::Limits(entries.collect()))
}

fn config_refusal(error: &ConfigError) -> Refusal {
    let kind = match error {
        ConfigError::Invalid(_) => ErrorKind::BadRequest,
        _ => ErrorKind::Failed,
    };
    refusal(kind, error.to_string())
}

/// What a changed plan would put below what is held: account, held, new limit.
fn too_low(steward: &mut Steward, new: &Plan) -> Result<Vec<(AccountId, Bytes, Bytes)>, Refusal> {
    let mut found = Vec::new();
    let old = steward.roster.plan().clone();
    let failed = |error: anyhow::Error| refusal(ErrorKind::Failed, format!("{error:#}"));
    for (&id, planned) in &new.accounts {
        let Some(limit) = planned.bounds.limit() else {
            continue;
        };
        let before = old.accounts.get(&id);
        if before.is_some_and(|it| it.bounds == planned.bounds && it.payers == planned.payers) {
            continue;
        }
        let held = steward.governor.measure(id).map_err(failed)?;
        if held > limit {
            found.push((id, held, limit));
        }
    }
    if new.default != old.default
        && let Some(limit) = new.default.and_then(|bounds| bounds.limit())
    {
        let readings = steward.governor.readings();
        let over = readings
            .iter()
            .filter(|it| it.is_default && it.held > limit);
        found.extend(over.map(|it| (it.id, it.held, limit)));
    }
    Ok(found)
}

fn set_limit(steward: &mut Steward, uid: Uid, change: LimitChange) -> Answer {
    only_root(uid, "set limits")?;
    let LimitChange { who, memory, force } = change;
    let bounds = memory
        .resolve(steward.roster.ram())
        .map_err(|error| refusal(ErrorKind::BadRequest, format!("limit for {who}: {error}")))?;
    let mut limits = steward.roster.limits().clone();
    limits
        .set(&who, memory)
        .map_err(|error| config_refusal(&error))?;
    let plan = steward.roster.plan_with(&limits);
    let over = if force {
        Vec::new()
    } else {
        too_low(steward, &plan)?
    };
    if let Some(&(id, held, limit)) = over.first() {
        let name = steward.roster.name_of(id).0;
        let others = match over.len() {
            1 => String::new(),
            count => format!(", and {} more accounts are over it", count - 1),
        };
        let message = format!(
            "{name} holds {held} now, more than the new limit of {limit}{others}: setting it would kill \
             at once; wait, choose a larger limit, or add --force"
        );
        return Err(refusal(ErrorKind::Refused, message));
    }
    put_in_force(steward, limits, plan)?;
    let limit = bounds
        .limit()
        .map_or_else(|| "none".to_owned(), |limit| limit.to_string());
    steward.note(
        EventKind::LimitChanged,
        Some(who.to_string()),
        format!("memory limit {limit} ({})", memory.limit),
    );
    Ok(Reply::Changed {
        remarks: remarks_on(steward, &who),
    })
}

fn clear_limit(steward: &mut Steward, uid: Uid, who: &Who) -> Answer {
    only_root(uid, "clear limits")?;
    let mut limits = steward.roster.limits().clone();
    if !limits.clear(who).map_err(|error| config_refusal(&error))? {
        return Err(refusal(
            ErrorKind::NotFound,
            format!("no limit is set for {who}"),
        ));
    }
    let plan = steward.roster.plan_with(&limits);
    put_in_force(steward, limits, plan)?;
    steward.note(
        EventKind::LimitChanged,
        Some(who.to_string()),
        "limit cleared".to_owned(),
    );
    Ok(Reply::Changed {
        remarks: Vec::new(),
    })
}

fn remarks_on(steward: &Steward, who: &Who) -> Vec<String> {
    let remarks = steward.roster.plan().remarks.iter();
    remarks
        .filter(|(it, _)| it == who)
        .map(|(who, text)| format!("{who}: {text}"))
        .collect()
}

/// Written down first, in force then; if it cannot be put in force the file gets its old text back.
fn put_in_force(
    steward: &mut Steward,
    mut limits: bursar_config::Limits,
    plan: Plan,
) -> Result<(), Refusal> {
    let path = limits.path().to_owned();
    limits
        .store(&path)
        .map_err(|error| config_refusal(&error))?;
    if let Err(error) = steward.governor.apply(&plan) {
        let mut old = limits;
        let wanted: Vec<_> = steward
            .roster
            .limits()
            .iter()
            .map(|it| (it.who.clone(), it.memory, it.rows.clone()))
            .collect();
        let stray: Vec<Who> = old.iter().map(|it| it.who.clone()).collect();
        let undone = stray
            .iter()
            .filter(|who| !wanted.iter().any(|(it, _, _)| it == *who))
            .try_for_each(|who| old.clear(who).map(drop))
            .and_then(|()| {
                wanted
                    .iter()
                    .try_for_each(|(who, spec, rows)| put_back(&mut old, who, *spec, rows))
            })
            .and_then(|()| old.store(&path));
        let fate = match undone {
            Ok(()) => "nothing was changed".to_owned(),
            Err(other) => format!("{path:?} could not be put back either: {other}"),
        };
        return Err(refusal(
            ErrorKind::Failed,
            format!("cannot put the limit in force: {error:#}; {fate}"),
        ));
    }
    steward.roster.adopt(limits, plan);
    steward.limits_changed();
    Ok(())
}

/// An entry as it was.
fn put_back(
    limits: &mut bursar_config::Limits,
    who: &Who,
    memory: BoundsSpec,
    rows: &BTreeMap<Resource, RowBounds>,
) -> Result<(), ConfigError> {
    // Rows that were not there go.
    let mut all: BTreeMap<Resource, RowBounds> = limits
        .get(who)
        .map(|limit| limit.rows.keys().copied())
        .into_iter()
        .flatten()
        .map(|resource| (resource, RowBounds::UNLIMITED))
        .collect();
    all.extend(rows);
    limits.set(who, memory)?;
    if all.is_empty() {
        return Ok(());
    }
    limits.set_rows(who, &all)
}

/// What a user may see of the past.
fn may_see<'a>(uid: Uid, account: Option<&'a str>) -> impl Fn(&Event) -> bool + 'a {
    move |event| uid.get() == 0 || Recorder::concerns(event, uid, account)
}

fn own_account_name(steward: &mut Steward, uid: Uid) -> Option<String> {
    let (id, _) = steward.payers().of(uid)?;
    Some(steward.roster.name_of(id).0)
}

fn events(steward: &mut Steward, uid: Uid, since: Option<&str>) -> Answer {
    let own = own_account_name(steward, uid);
    let see = may_see(uid, own.as_deref());
    let history = steward.recorder.history();
    let Some(since) = since else {
        return Ok(Reply::Events(
            history
                .recent()
                .filter(|event| see(event))
                .cloned()
                .collect(),
        ));
    };
    let moment = clock::parse_since(since, SystemTime::now())
        .map_err(|error| refusal(ErrorKind::BadRequest, error.to_string()))?;
    let since = clock::rfc3339(moment);
    let is_remembered = history
        .recent()
        .next()
        .is_some_and(|oldest| oldest.time <= since);
    // Reading the files takes long: for root, when memory does not reach back far enough.
    let found: Vec<Event> = if uid.get() == 0 && !is_remembered {
        history.all_since(&since)
    } else {
        history
            .recent()
            .filter(|event| event.time >= since && see(event))
            .cloned()
            .collect()
    };
    Ok(Reply::Events(found))
}

fn why(steward: &mut Steward, uid: Uid, pid: Option<Pid>) -> Answer {
    let is_kill = |event: &Event| {
        matches!(
            event.event,
            EventKind::Kill | EventKind::KillFailed | EventKind::WouldKill
        ) || (event.event == EventKind::NoVictim && event.files_bytes.is_some())
    };
    let own = own_account_name(steward, uid);
    let see = may_see(uid, own.as_deref());
    let history = steward.recorder.history();
    let mut story: Vec<Event> = Vec::new();
    for event in history.recent().filter(|event| see(event)) {
        if is_kill(event) && pid.is_none_or(|pid| event.pid == Some(pid)) {
            story = vec![event.clone()];
        } else if let Some(kill) = story.first()
            && event.event == EventKind::Reaped
            && event.pid == kill.pid
            && story.len() == 1
        {
            story.push(event.clone());
        }
    }
    Ok(Reply::Why(story))
}

impl Steward {
    /// Who pays into what now.
    pub(crate) fn payers(&self) -> Payers {
        Payers::new(self.roster.plan(), self.scope.clone())
    }
}
