// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits shown, set and cleared.

use std::collections::BTreeMap;
use std::path::Path;

use bursar_config::{ConfigError, Limit, Limits, check_entry};
use bursar_model::{AccountId, BoundsSpec, Bytes, EntrySpec, KillManner, SizeSpec, Uid, Who};
use bursar_policy::Plan;
use bursar_protocol::{
    EntryChange, EntryOrigin, ErrorKind, LimitChange, LimitEntry, Preview, Refusal, Reply, Terms,
};

use super::actor::author;
use super::permission::{Answer, config_refusal, failed, only_root, refusal};
use super::preview;
use super::terms::{are_so, may_end, target, told, write};
use crate::accounts::{Accounts, OverLimit};
use crate::control::Requester;
use crate::daemon::Daemon;

/// Names of one limit's accounts in a reply.
const NAMES_SHOWN: usize = 100;

pub(super) fn show(accounts: &mut Accounts, uid: Uid, who: Option<&Who>) -> Answer {
    let own = accounts.of(uid);
    let own_who = own.and_then(|id| match accounts.table.plan().accounts.get(&id) {
        Some(planned) => Some(planned.who.clone()),
        None => accounts.table.plan().default.map(|_| Who::Default),
    });
    if let Some(who) = who
        && uid.get() != 0
        && own_who.as_ref() != Some(who)
    {
        only_root(uid, "see other users' limits")?;
    }
    let written: Vec<Limit> = accounts
        .table
        .limits()
        .iter()
        .filter(|limit| match who {
            Some(who) => limit.who == *who,
            None => uid.get() == 0 || own_who.as_ref() == Some(&limit.who),
        })
        .cloned()
        .collect();
    if let (Some(who), true) = (who, written.is_empty()) {
        return Err(refusal(
            ErrorKind::NotFound,
            format!("no limit is set for {who}; set one: bursar limit set {who} SIZE"),
        ));
    }
    // Whoever has no limit of his own and has processes.
    let covered: Vec<AccountId> = match uid.get() {
        0 => accounts.backend.readings().into_iter(),
        _ => Vec::new().into_iter(),
    }
    .filter(|it| it.is_default && it.processes > 0)
    .map(|it| it.id)
    .collect();
    let entries = written.into_iter().map(|limit| {
        let ids: Vec<AccountId> = match limit.who {
            Who::Default => covered.iter().copied().take(NAMES_SHOWN).collect(),
            _ => {
                let of_plan = accounts.table.plan().accounts_of(&limit.who);
                of_plan.take(NAMES_SHOWN).collect()
            }
        };
        let names = ids.into_iter().map(|id| accounts.name_of(id)).collect();
        entry_of(accounts, limit, names, uid.get() == 0)
    });
    Ok(Reply::Limits(entries.collect()))
}

/// `names`: of the accounts that it concerns.
fn entry_of(accounts: &Accounts, limit: Limit, names: Vec<String>, is_root: bool) -> LimitEntry {
    let remarks = &accounts.table.plan().remarks;
    let remark = remarks.iter().find(|(it, _)| *it == limit.who);
    let overridden = accounts.table.limits().overridden(&limit.who);
    let lasting = accounts.table.limits().lasting(&limit.who);
    let origin = |path: &Path, line| EntryOrigin {
        file: path.to_string_lossy().into_owned(),
        line,
    };
    LimitEntry {
        memory: limit.memory.unwrap_or(BoundsSpec::of_limit(SizeSpec::None)),
        is_silent: limit.memory.is_none(),
        mode: accounts.table.mode_of(&limit),
        kill: limit.kill.filter(|it| *it == KillManner::Graceful),
        rows: limit.rows,
        reason: limit.reason,
        then: limit.until.and(lasting).map(|it| Box::new(it.spec())),
        until: limit.until,
        accounts: names,
        remark: remark.map(|(_, text)| text.clone()),
        covers: (is_root && limit.who == Who::Default).then(|| accounts.coverage().to_string()),
        origin: Some(origin(&limit.path, limit.line)),
        overrides: overridden
            .iter()
            .map(|it| origin(&it.path, it.line))
            .collect(),
        who: limit.who,
    }
}

/// Puts limits in force, unless somebody would be killed at once and that is not forced: as [`unless_over`].
pub(super) fn change_limits(
    daemon: &mut Daemon,
    limits: Limits,
    force: bool,
    words: impl Fn(Bytes) -> (String, &'static str),
) -> Result<(), Refusal> {
    let plan = daemon.accounts.plan_with(&limits);
    let plan = plan.map_err(|error| failed(&error))?;
    if !force {
        unless_root(&daemon.accounts, &plan)?;
        unless_over(&mut daemon.accounts, &plan, words)?;
    }
    put_in_force(daemon, limits, plan)
}

/// A plan that limits root anew is refused: seldom is it meant, and it can kill the machine's own services.
fn unless_root(accounts: &Accounts, plan: &Plan) -> Result<(), Refusal> {
    let limited = plan.system_accounts_limited(accounts.table.plan(), Uid::new(1));
    let Some((who, _)) = limited.into_iter().next() else {
        return Ok(());
    };
    let message = format!(
        "the limit of {who} would hold for root: it can kill the machine's own services; limit users, or add --force"
    );
    Err(refusal(ErrorKind::Refused, message))
}

/// What a change would be refused for, for whoever only tries it.
pub(super) fn preview_of(
    daemon: &mut Daemon,
    limits: &Limits,
    force: bool,
) -> Result<Preview, Refusal> {
    let mut preview = preview::of(daemon, limits)?;
    let plan = daemon.accounts.table.plan_with(limits);
    if let (false, Err(refused)) = (force, unless_root(&daemon.accounts, &plan)) {
        let message = format!("it would be refused: {}", refused.message);
        preview.remarks.push(message);
    }
    Ok(preview)
}

/// Why limits would be refused, if they would.
pub(super) fn limits_refused(daemon: &mut Daemon, limits: &Limits) -> Option<String> {
    let plan = daemon.accounts.table.plan_with(limits);
    let words = |limit| {
        let remedy = "it would kill at once; wait, choose a larger limit";
        (format!("the limit of {limit} that holds then"), remedy)
    };
    let accounts = &mut daemon.accounts;
    let refused = unless_root(accounts, &plan).and_then(|()| unless_over(accounts, &plan, words));
    refused.err().map(|it| it.message)
}

/// A plan that would have somebody killed at once is refused; `words`: what is too low, and what to do.
fn unless_over(
    accounts: &mut Accounts,
    plan: &Plan,
    words: impl Fn(Bytes) -> (String, &'static str),
) -> Result<(), Refusal> {
    let over = accounts
        .over_at_once(plan)
        .map_err(|error| failed(&error))?;
    let Some(first) = over.first() else {
        return Ok(());
    };
    let (what, remedy) = words(first.limit);
    let facts = OverLimit::in_words(&over, &what);
    let message = format!("{facts}: {remedy}, or add --force");
    Err(refusal(ErrorKind::Refused, message))
}

pub(super) fn set(daemon: &mut Daemon, requester: Requester, change: LimitChange) -> Answer {
    only_root(requester.uid, "set limits")?;
    let LimitChange {
        who,
        memory,
        force,
        terms,
    } = change;
    let mut limits = daemon.accounts.table.limits().clone();
    let old = told(&limits, &who, &terms);
    let is_so = |it: &Limit| it.memory == Some(memory) && are_so(it, &terms);
    if target(&limits, &who, &terms).is_some_and(is_so) {
        return Ok(unchanged(daemon, who, old));
    }
    may_end(&terms)?;
    may_hold(daemon.accounts.table.ram(), &who, memory)?;
    write(&mut limits, &who, Some(memory), &BTreeMap::new(), &terms)
        .map_err(|error| config_refusal(&error))?;
    if terms.dry_run {
        return Ok(Reply::Preview(Box::new(preview_of(
            daemon, &limits, force,
        )?)));
    }
    change_limits(daemon, limits, force, too_low)?;
    let remarks = remarks_on(&daemon.accounts, &who);
    Ok(changed(daemon, requester, &terms, (who, old), remarks))
}

/// A limit whose bounds fit one another, on this machine.
pub(super) fn may_hold(ram: Bytes, who: &Who, memory: BoundsSpec) -> Result<(), Refusal> {
    let resolved = memory.resolve(ram);
    resolved
        .map(drop)
        .map_err(|error| refusal(ErrorKind::BadRequest, format!("limit for {who}: {error}")))
}

/// What a new limit is refused for that would kill at once, and what to do.
pub(super) fn too_low(limit: Bytes) -> (String, &'static str) {
    let remedy = "setting it would kill at once; wait, choose a larger limit";
    (format!("the new limit of {limit}"), remedy)
}

/// A change that is in force: it is written down who made it. `before`: whose entry, and what it said.
pub(super) fn changed(
    daemon: &mut Daemon,
    requester: Requester,
    terms: &Terms,
    before: (Who, Option<EntrySpec>),
    mut remarks: Vec<String>,
) -> Reply {
    let (who, old) = before;
    let limits = daemon.accounts.table.limits();
    let new = told(limits, &who, terms);
    let holds = limits.temporary(&who).filter(|_| terms.until.is_none());
    remarks.extend(holds.and_then(|it| it.until).map(|until| {
        format!("{who}: a temporary limit holds until {until}, and this one afterwards (see: bursar limit show)")
    }));
    let change = EntryChange { who, old, new };
    let author = author(&daemon.accounts, requester, terms);
    daemon.responder.note_changes([(change.clone(), author)]);
    Reply::Changed {
        remarks,
        change: Some(Box::new(change)),
    }
}

/// What was asked for is in force already: nothing is written, and no event tells of it.
pub(super) fn unchanged(daemon: &Daemon, who: Who, old: Option<EntrySpec>) -> Reply {
    let remarks = remarks_on(&daemon.accounts, &who);
    let new = old.clone();
    let change = Some(Box::new(EntryChange { who, old, new }));
    Reply::Changed { remarks, change }
}

pub(super) fn clear(
    daemon: &mut Daemon,
    requester: Requester,
    who: Who,
    force: bool,
    terms: &Terms,
) -> Answer {
    only_root(requester.uid, "clear limits")?;
    let mut limits = daemon.accounts.table.limits().clone();
    let old = limits.get(&who).map(Limit::spec);
    let (cleared, kind) = match terms.temporary {
        true => (limits.clear_temporary(&who), "temporary limit"),
        false => (limits.clear(&who), "limit"),
    };
    if !cleared.map_err(|error| config_refusal(&error))? {
        let message = format!("no {kind} is set for {who}");
        return Err(refusal(ErrorKind::NotFound, message));
    }
    if terms.dry_run {
        return Ok(Reply::Preview(Box::new(preview_of(
            daemon, &limits, force,
        )?)));
    }
    change_limits(daemon, limits, force, |limit| {
        let remedy = "clearing it would kill at once; wait, raise the other limit first";
        let what = format!("the limit of {limit} that holds without this one");
        (what, remedy)
    })?;
    Ok(changed(daemon, requester, terms, (who, old), Vec::new()))
}

/// What an administrator should know of a limit: that it is only observed; and what came of its names, else what
/// `bursar check` says of it.
pub(super) fn remarks_on(accounts: &Accounts, who: &Who) -> Vec<String> {
    let entry = accounts.table.limits().get(who);
    let is_observed = entry.is_some_and(|it| accounts.table.mode_of(it).is_observed());
    let observed = is_observed.then(|| {
        format!(
            "{who}: observed, not enforced: events (would_notice, would_refuse, would_kill) tell what enforcing \
             would do"
        )
    });
    let meaning = remarks_on_meaning(accounts, who);
    observed.into_iter().chain(meaning).collect()
}

fn remarks_on_meaning(accounts: &Accounts, who: &Who) -> Vec<String> {
    let limit_table = &accounts.table;
    let of_plan = limit_table
        .plan()
        .remarks
        .iter()
        .filter(|(it, _)| it == who);
    let of_plan: Vec<String> = of_plan
        .map(|(who, text)| format!("{who}: {text}"))
        .collect();
    if !of_plan.is_empty() {
        return of_plan;
    }
    check_entry(limit_table.limits(), limit_table.ram(), who)
        .iter()
        .map(|it| format!("{who}: {}; {}", it.message, it.remedy))
        .collect()
}

/// Written down first, in force then; if it cannot be put in force the file gets its old text back.
fn put_in_force(daemon: &mut Daemon, mut limits: Limits, plan: Plan) -> Result<(), Refusal> {
    let path = limits.path().to_owned();
    limits.store(&path).map_err(|error| {
        let refused = config_refusal(&error);
        match (error, &daemon.not_in_force) {
            // Reading it again, as that says, would come to the same.
            (ConfigError::Changed { .. }, Some(why)) => {
                let message = format!(
                    "the limits as they are written are not in force: {why}. Mend {path:?} first: nothing is written \
                     over changes that were not read"
                );
                refusal(refused.kind, message)
            }
            _ => refused,
        }
    })?;
    let stored = limits.clone();
    let Err(error) = daemon.adopt(limits, plan) else {
        return Ok(());
    };
    let fate = match daemon.accounts.table.write_over(&stored) {
        Ok(()) => format!("the old limits stay in {path:?}"),
        Err(other) => format!("{path:?} could not be put back either: {other}"),
    };
    let message = format!("cannot put the limit in force: {error:#}; {fate}");
    Err(refusal(ErrorKind::Failed, message))
}
