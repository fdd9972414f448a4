// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What another plan would mean for each account that it changes: bounds, what is held, and who would be killed.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use bursar_host::{Status, UserNamespaces};
use bursar_model::{AccountId, Bytes, Candidate, Pid, Uid};
use bursar_policy::{Bound, Compared, Plan, is_protected, rank};
use bursar_protocol::{AccountPreview, Over, PreviewBound};

use super::Accounts;
use crate::payers::present;

/// Accounts told one by one.
const MOST_TOLD: usize = 1000;
/// Victims looked for.
const MOST_VICTIMS: usize = 100;

/// What is held, and the highest bound that it is more than.
type Weighed = (AccountId, Compared, Bytes, Option<Over>);

/// A process of an account that is over its limit.
struct Process {
    pid: Pid,
    comm: String,
    held: Bytes,
    adj: i16,
}

impl Accounts {
    /// The accounts that a plan would change, those over most of it first, and how many more there are that are over
    /// nothing.
    pub(crate) fn preview(&mut self, new: &Plan) -> Result<(Vec<AccountPreview>, u64)> {
        let old = self.table.plan().clone();
        let closing = new.closes(&old);
        let kernel = self.backend.kernel();
        let returning = kernel.map(|it| it.entrants(&closing)).transpose()?;
        let returning = returning.unwrap_or_default();
        let here = present(&self.proc, &mut self.query)?;
        let mut ordinary: BTreeSet<Uid> = old.payers();
        ordinary.extend(new.payers());
        ordinary.extend(here.iter().chain(&returning));
        self.retain_ordinary(&mut ordinary, &old, new);
        let compared = new.compared(&old, &ordinary, &returning);
        let is_here = |it: &Compared| {
            let mut payers = it.payers.iter();
            payers.any(|uid| here.contains(uid) || returning.contains(uid))
        };
        // Who has no processes holds next to nothing; each question opens an account.
        let present = compared.iter().filter(|(_, it)| is_here(it));
        let projections = present.map(|(&id, it)| (id, it.payers.clone())).collect();
        let held = self.backend.measure(&projections, &closing)?;
        let mut weighed: Vec<Weighed> = compared
            .into_iter()
            .map(|(id, it)| {
                let held = held.get(&id).copied().unwrap_or_default();
                let over = it.new.as_ref().and_then(|bound| over(held, bound));
                (id, it, held, over)
            })
            .collect();
        weighed.sort_by_key(|(_, _, held, over)| std::cmp::Reverse((*over, *held)));
        let over = weighed.iter().filter(|(.., over)| over.is_some()).count();
        let told = MOST_TOLD.max(over);
        let left_out = weighed.len().saturating_sub(told);
        weighed.truncate(told);
        let victims = self.victims(&weighed);
        let previews = weighed
            .into_iter()
            .map(|(id, it, held, over)| AccountPreview {
                account: self.name_in(new, id),
                uid: id.uid(),
                old: it.old.map(shown),
                new: it.new.map(shown),
                held,
                over,
                victim: victims.get(&id).cloned(),
            });
        Ok((
            previews.collect(),
            u64::try_from(left_out).unwrap_or(u64::MAX),
        ))
    }

    /// Who of each account that is over its limit would be killed: by what /proc shows, in which pages that several
    /// map count for each.
    fn victims(&mut self, weighed: &[Weighed]) -> BTreeMap<AccountId, Candidate> {
        let over = weighed
            .iter()
            .filter(|(.., over)| *over == Some(Over::Limit));
        let over: Vec<(AccountId, &Compared)> = over
            .map(|(id, it, ..)| (*id, it))
            .take(MOST_VICTIMS)
            .collect();
        let mut found: BTreeMap<AccountId, (Bytes, Vec<Process>)> = BTreeMap::new();
        if over.is_empty() {
            return BTreeMap::new();
        }
        let (Ok(mut namespaces), Ok(entered)) = (UserNamespaces::new(&self.proc), self.entered())
        else {
            return BTreeMap::new();
        };
        let pids = self.proc.pids().into_iter().flatten();
        let pids: Vec<Pid> = pids.filter_map(Result::ok).collect();
        for pid in pids {
            let Ok(Some(status)) = self.proc.status(pid) else {
                continue;
            };
            if self.payers.is_exempt(pid) {
                continue;
            }
            let owner = namespaces.owner_of(&self.proc, pid, status.uid, &mut self.query);
            let owner = owner.map_or(status.uid, |it| it.uid);
            let entered = entered.account_of(pid, &self.payers);
            let is_its = |(id, it): &&(AccountId, &Compared)| match entered {
                Some(account) => account == *id,
                None => it.payers.contains(&owner),
            };
            let Some((account, compared)) = over.iter().find(is_its) else {
                continue;
            };
            let limit = compared.new.as_ref().and_then(|it| it.bounds.limit());
            if let Some(process) = self.weigh(pid, &status) {
                let (_, processes) = found
                    .entry(*account)
                    .or_insert_with(|| (limit.unwrap_or_default(), Vec::new()));
                processes.push(process);
            }
        }
        let first = |(id, (limit, processes))| Some((id, self.first(id, limit, processes)?));
        found.into_iter().filter_map(first).collect()
    }

    /// Which of an account's processes would be chosen.
    fn first(
        &mut self,
        account: AccountId,
        limit: Bytes,
        processes: Vec<Process>,
    ) -> Option<Candidate> {
        let pids = processes.iter().map(|it| it.pid).collect();
        let spared = self.spared.among(account, pids, &mut self.query);
        let order = |it: &Process| rank(it.held, limit, it.adj, spared.contains(&it.pid));
        let mut processes = processes.into_iter();
        let mut first = processes.next()?;
        // The first of equals.
        for other in processes {
            if order(&other) > order(&first) {
                first = other;
            }
        }
        Some(Candidate::new(first.pid, first.comm, first.held))
    }

    /// What it is; `None`: it would not be chosen.
    fn weigh(&self, pid: Pid, status: &Status) -> Option<Process> {
        let adj = self.proc.oom_score_adj(pid).ok()??;
        let is_dying = status.is_dead || status.is_kill_pending;
        if is_dying || is_protected(pid, std::process::id(), adj) {
            return None;
        }
        Some(Process {
            pid,
            comm: self.proc.comm(pid).ok()??.to_printable(),
            held: status.memory?.held(),
            adj,
        })
    }
}

fn over(held: Bytes, bound: &Bound) -> Option<Over> {
    let bounds = &bound.bounds;
    let all = [
        (bounds.limit(), Over::Limit),
        (bounds.barrier(), Over::Barrier),
        (bounds.notice(), Over::Notice),
    ];
    let passed = all
        .into_iter()
        .find(|(bound, _)| bound.is_some_and(|it| held > it));
    passed.map(|(_, over)| over)
}

fn shown(bound: Bound) -> PreviewBound {
    PreviewBound {
        who: bound.who,
        notice: bound.bounds.notice(),
        barrier: bound.bounds.barrier(),
        limit: bound.bounds.limit(),
        mode: bound.bounds.mode(),
    }
}
