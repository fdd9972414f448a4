// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whom limits concern: who is an ordinary user, and which of them has a limit now.

use std::collections::BTreeMap;

use bursar_model::{AccountId, Bounds, Uid};
use bursar_policy::Plan;

/// Whom `default` covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) uid_min: Uid,
    /// First and last, both included.
    pub(crate) exempt: Vec<(Uid, Uid)>,
}

impl Scope {
    pub(crate) fn covers(&self, uid: Uid) -> bool {
        uid >= self.uid_min
            && !self
                .exempt
                .iter()
                .any(|&(first, last)| (first..=last).contains(&uid))
    }
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
        let accounts = plan
            .accounts
            .iter()
            .flat_map(|(&id, planned)| {
                planned
                    .payers
                    .iter()
                    .map(move |&uid| (uid, (id, planned.bounds)))
            })
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
            .filter(|(_, (it, _))| *it == id)
            .map(|(&uid, _)| uid)
            .collect();
        if named.is_empty() {
            id.uid().into_iter().collect()
        } else {
            named
        }
    }
}
