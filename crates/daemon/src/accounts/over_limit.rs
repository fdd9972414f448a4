// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which accounts would be over their limit the moment other limits hold, and so have a process killed at once.

use std::collections::BTreeSet;

use anyhow::Result;
use bursar_model::{AccountId, Bytes, Uid, Who};
use bursar_policy::{Plan, Planned};

use super::Accounts;
use crate::payers::present;

/// Accounts that are looked at whether or not anybody of them has processes.
const MOST_ASKED: usize = 256;

/// An account that a changed plan would put over its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OverLimit {
    pub(crate) id: AccountId,
    pub(crate) name: String,
    /// Whose entry puts it there.
    pub(crate) entry: Who,
    pub(crate) held: Bytes,
    pub(crate) limit: Bytes,
}

impl OverLimit {
    pub(crate) fn by(&self) -> Bytes {
        self.held.saturating_sub(self.limit)
    }

    /// `alice holds 463 MiB now, more than the new limit of 256 MiB, and 2 more accounts are over theirs`; `what`: the
    /// limit of the first of them.
    pub(crate) fn in_words(over: &[Self], what: &str) -> String {
        let Some(Self { name, held, .. }) = over.first() else {
            return String::new();
        };
        let others = match over.len() {
            1 => String::new(),
            2 => ", and one more account is over its".to_owned(),
            count => format!(
                ", and {} more accounts are over theirs",
                count.saturating_sub(1)
            ),
        };
        format!("{name} holds {held} now, more than {what}{others}")
    }
}

impl Accounts {
    /// The accounts in which somebody would be killed at once if this plan were put in force, the one that is furthest
    /// over first: those that it makes tighter, with what is held now by all who will pay into them.
    pub(crate) fn over_at_once(&mut self, new: &Plan) -> Result<Vec<OverLimit>> {
        let old = self.in_force();
        let closing = new.closes(&old);
        let mut ordinary = old.payers();
        if new.lowers_default(&old) || new.subordinates != old.subordinates {
            ordinary.extend(present(&self.proc, &mut self.query)?);
        }
        // Whose processes pay with others of whom the change may be.
        ordinary.extend(self.backend.subuids_met()?);
        let kernel = self.backend.kernel();
        let returning = kernel.map(|it| it.entrants(&closing)).transpose()?;
        let returning = returning.unwrap_or_default();
        ordinary.extend(&returning);
        self.retain_ordinary(&mut ordinary, &old, new);
        let tightened = new.tightened(&old, &ordinary, &returning);
        if tightened.is_empty() {
            return Ok(Vec::new());
        }
        // Who has no processes holds next to nothing; each question opens an account.
        let here = match tightened.len() > MOST_ASKED {
            true => Some(present(&self.proc, &mut self.query)?),
            false => None,
        };
        let is_here = |payers: &BTreeSet<Uid>| {
            let mut payers = payers.iter();
            here.as_ref()
                .is_none_or(|here| payers.any(|it| here.contains(it) || returning.contains(it)))
        };
        let projections = tightened
            .iter()
            .filter(|(_, it)| is_here(&it.payers))
            .map(|(&id, it)| (id, it.payers.clone()))
            .collect();
        let held = self.backend.measure(&projections, &closing)?;
        let mut over: Vec<OverLimit> = held
            .into_iter()
            .filter_map(|(id, held)| {
                let limit = tightened.get(&id)?.limit;
                (held > limit).then(|| OverLimit {
                    id,
                    name: self.name_in(new, id),
                    entry: entry_of(new, id),
                    held,
                    limit,
                })
            })
            .collect();
        over.sort_by_key(|it| std::cmp::Reverse(it.by()));
        Ok(over)
    }

    /// Those whom `default` covers, and whoever pays for those with subordinate uids.
    pub(super) fn retain_ordinary(&self, uids: &mut BTreeSet<Uid>, old: &Plan, new: &Plan) {
        let payers = |plan: &Plan| -> Vec<Uid> {
            let payers = uids.iter().map(|&uid| plan.subordinates.payer_of(uid));
            payers.flatten().collect()
        };
        let (before, then) = (payers(old), payers(new));
        uids.extend(before.into_iter().chain(then));
        let is_subordinate = |uid: Uid| {
            let payers = [old, new].map(|it| it.subordinates.payer_of(uid));
            payers.into_iter().flatten().any(|it| it != uid)
        };
        uids.retain(|&uid| self.coverage.covers(uid) || is_subordinate(uid));
    }

    pub(super) fn name_in(&mut self, new: &Plan, id: AccountId) -> String {
        match new.accounts.get(&id) {
            Some(Planned {
                who: Who::User(name),
                ..
            }) => name.clone(),
            Some(planned) if id.uid().is_none() => planned.who.to_string(),
            _ => self.name_of(id),
        }
    }
}

/// Whose entry limits the memory of an account.
fn entry_of(plan: &Plan, id: AccountId) -> Who {
    let planned = plan.accounts.get(&id);
    planned.map_or(Who::Default, |it| it.memory_of.clone())
}
