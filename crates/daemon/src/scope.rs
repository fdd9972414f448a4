// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whom limits concern: which users are here, and which of them has a limit now.

use std::collections::{BTreeMap, BTreeSet};

use bursar_host::{HostError, Proc, UserNamespaces};
use bursar_model::{AccountId, Bounds, Uid};
use bursar_policy::Plan;

pub(crate) use bursar_policy::Scope;

/// The users who have processes now; of those in a user namespace its owner, who pays for them. It takes
/// some 30 µs a process.
pub(crate) fn present(proc: &Proc) -> Result<BTreeSet<Uid>, HostError> {
    let mut namespaces = UserNamespaces::new(proc)?;
    let mut users = BTreeSet::new();
    for pid in proc.pids()?.filter_map(Result::ok) {
        let Ok(Some(status)) = proc.status(pid) else {
            continue;
        };
        users.insert(namespaces.owner_of(proc, pid).unwrap_or(status.uid));
    }
    Ok(users)
}

/// Who pays into what, by user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Payers {
    accounts: BTreeMap<Uid, (AccountId, Bounds)>,
    default: Option<Bounds>,
    scope: Scope,
}

impl Payers {
    pub(crate) fn new(plan: &Plan, scope: Scope) -> Self {
        // Who has entered a shared account pays by its number, as if that were a uid.
        let shared = plan
            .accounts
            .iter()
            .filter(|(id, _)| id.uid().is_none())
            .map(|(&id, planned)| (Uid::new(id.get()), (id, planned.bounds)));
        let accounts = plan
            .accounts
            .iter()
            .flat_map(|(&id, planned)| {
                planned
                    .payers
                    .iter()
                    .map(move |&uid| (uid, (id, planned.bounds)))
            })
            .chain(shared)
            .collect();
        Self {
            accounts,
            default: plan.default,
            scope,
        }
    }

    /// The account that a user pays into and its bounds; `None` when no limit concerns him.
    pub(crate) fn of(&self, uid: Uid) -> Option<(AccountId, Bounds)> {
        if let Some(&found) = self.accounts.get(&uid) {
            return Some(found);
        }
        let bounds = self.default.filter(|_| self.scope.covers(uid))?;
        Some((AccountId::of(uid), bounds))
    }

    /// The account that stands for a user whether or not any limit concerns him.
    pub(crate) fn account_of(&self, uid: Uid) -> AccountId {
        self.of(uid).map_or(AccountId::of(uid), |(id, _)| id)
    }

    /// The same for ordinary users and whomever a limit concerns: all others are no account's.
    pub(crate) fn billed(&self, uid: Uid) -> Option<AccountId> {
        let is_billed = self.of(uid).is_some() || self.scope.covers(uid);
        is_billed.then(|| self.account_of(uid))
    }

    /// Whether there is this shared account.
    pub(crate) fn has(&self, id: AccountId) -> bool {
        self.accounts.contains_key(&Uid::new(id.get()))
    }

    /// Whether a user's programs can be killed because of a limit.
    pub(crate) fn is_limited(&self, uid: Uid) -> bool {
        self.of(uid)
            .is_some_and(|(_, bounds)| bounds.limit().is_some())
    }

    /// The users who pay into an account, as far as they are named; a user's own account has him.
    pub(crate) fn payers_of(&self, id: AccountId) -> Vec<Uid> {
        let named: Vec<Uid> = self
            .accounts
            .iter()
            .filter(|(uid, (it, _))| *it == id && uid.get() < AccountId::FIRST_SHARED)
            .map(|(&uid, _)| uid)
            .collect();
        if named.is_empty() {
            id.uid().into_iter().collect()
        } else {
            named
        }
    }

    /// The same, with the number by which those pay who have entered it.
    pub(crate) fn charged_to(&self, id: AccountId) -> Vec<Uid> {
        let mut all = self.payers_of(id);
        if id.uid().is_none() {
            all.push(Uid::new(id.get()));
        }
        all
    }
}
