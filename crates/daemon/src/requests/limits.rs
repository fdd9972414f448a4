// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits shown, set and cleared.

use bursar_config::{ConfigError, Limits};
use bursar_model::{AccountId, Bytes, EventKind, Uid, Who};
use bursar_policy::Plan;
use bursar_protocol::{ErrorKind, LimitChange, LimitEntry, Refusal, Reply};

use super::{Answer, only_root, refusal};
use crate::steward::Steward;

/// Names of one limit's accounts in a reply.
const NAMES_SHOWN: usize = 100;

pub(super) fn show(steward: &mut Steward, uid: Uid, who: Option<&Who>) -> Answer {
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

pub(super) fn config_refusal(error: &ConfigError) -> Refusal {
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

pub(super) fn set(steward: &mut Steward, uid: Uid, change: LimitChange) -> Answer {
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

pub(super) fn clear(steward: &mut Steward, uid: Uid, who: &Who) -> Answer {
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

pub(super) fn remarks_on(steward: &Steward, who: &Who) -> Vec<String> {
    let remarks = steward.roster.plan().remarks.iter();
    remarks
        .filter(|(it, _)| it == who)
        .map(|(who, text)| format!("{who}: {text}"))
        .collect()
}

/// Written down first, in force then; if it cannot be put in force the file gets its old text back.
pub(super) fn put_in_force(
    steward: &mut Steward,
    mut limits: Limits,
    plan: Plan,
) -> Result<(), Refusal> {
    let path = limits.path().to_owned();
    limits
        .store(&path)
        .map_err(|error| config_refusal(&error))?;
    let stored = limits.clone();
    let Err(error) = steward.adopt(limits, plan) else {
        return Ok(());
    };
    let fate = match steward.roster.write_over(&stored) {
        Ok(()) => format!("the old limits stay in {path:?}"),
        Err(other) => format!("{path:?} could not be put back either: {other}"),
    };
    let message = format!("cannot put the limit in force: {error:#}; {fate}");
    Err(refusal(ErrorKind::Failed, message))
}
