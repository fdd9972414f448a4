// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whom limits concern: which users are here, and which of them has a limit now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bursar_host::{ExemptCgroups, HostError, Proc, ProcessQuery, UserNamespaces, UsernsOwner};
use bursar_model::{AccountId, Bounds, Pid, Uid};
use bursar_policy::{Plan, Subordinates};

pub(crate) use bursar_policy::Coverage;

/// The users who have processes now; of those in a user namespace who answers for them. It takes some
/// 30 µs a process.
pub(crate) fn present(
    proc: &Proc,
    ask: &mut impl ProcessQuery,
) -> Result<BTreeSet<Uid>, HostError> {
    let mut namespaces = UserNamespaces::new(proc)?;
    let mut users = BTreeSet::new();
    for pid in proc.pids()?.filter_map(Result::ok) {
        let Ok(Some(status)) = proc.status(pid) else {
            continue;
        };
        let owner = namespaces.owner_of(proc, pid, status.uid, ask);
        let owner = owner.unwrap_or(UsernsOwner::itself(status.uid));
        if !owner.is_shifted {
            users.insert(owner.uid);
        }
    }
    Ok(users)
}

/// Who owns a process where a look at all of them decides who dies; `None`: nobody can say, so it is nobody's. Only who is
/// in a namespace with users of its own is asked for, which is a question to the process itself before 6.11. One that does
/// not answer in time counts for itself where only its own uid is shown there, as in a namespace that anybody makes. Else
/// it is taken for one of a range that root has shifted: only a limit on its very uid concerns it.
pub(crate) fn owner_of(
    namespaces: &mut UserNamespaces,
    proc: &Proc,
    pid: Pid,
    uid: Uid,
    ask: &mut impl ProcessQuery,
) -> Option<UsernsOwner> {
    if proc.has_our_users(pid).ok().flatten()? {
        return Some(UsernsOwner::itself(uid));
    }
    let in_doubt = || UsernsOwner {
        uid,
        is_shifted: proc.shifts(pid, uid).ok().flatten().unwrap_or(true),
    };
    let owner = namespaces.owner_of(proc, pid, uid, ask);
    Some(owner.unwrap_or_else(|_| in_doubt()))
}

/// Who pays into what: users, and who has entered a shared account, by its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Payers {
    accounts: BTreeMap<AccountId, (AccountId, Bounds)>,
    default: Option<Bounds>,
    coverage: Coverage,
    subordinates: Subordinates,
    exempt: Arc<ExemptCgroups>,
}

impl Payers {
    pub(crate) fn new(plan: &Plan, coverage: Coverage) -> Self {
        let shared = plan
            .accounts
            .iter()
            .filter(|(id, _)| id.uid().is_none())
            .map(|(&id, planned)| (id, (id, planned.bounds)));
        let accounts = plan
            .accounts
            .iter()
            .flat_map(|(&id, planned)| {
                planned
                    .payers
                    .iter()
                    .map(move |&uid| (AccountId::of(uid), (id, planned.bounds)))
            })
            .chain(shared)
            .collect();
        Self {
            accounts,
            default: plan.default,
            coverage,
            subordinates: plan.subordinates.clone(),
            exempt: Arc::default(),
        }
    }

    /// The same, but for processes in these control groups, which are nobody's.
    pub(crate) fn without(self, exempt: &Arc<ExemptCgroups>) -> Self {
        Self {
            exempt: Arc::clone(exempt),
            ..self
        }
    }

    /// Whether a process is nobody's, whoever it belongs to. So is one of which that cannot be known at this moment: this
    /// decides who may be killed, and there is a next look.
    pub(crate) fn is_exempt(&self, pid: Pid) -> bool {
        self.exempts(pid).unwrap_or(true)
    }

    /// The same; `None` where it cannot be known at this moment.
    pub(crate) fn exempts(&self, pid: Pid) -> Option<bool> {
        self.exempt.has(pid)
    }

    /// The account that a user, or who has entered one, pays into and its bounds; `None` when no limit concerns
    /// it. A subordinate uid without a limit of its own pays with whoever has it.
    pub(crate) fn of(&self, payer: impl Into<AccountId>) -> Option<(AccountId, Bounds)> {
        let payer = payer.into();
        if let Some(&found) = self.accounts.get(&payer) {
            return Some(found);
        }
        let uid = payer.uid()?;
        let uid = self.subordinates.payer_of(uid).unwrap_or(uid);
        if let Some(&found) = self.accounts.get(&uid.into()) {
            return Some(found);
        }
        let bounds = self.default.filter(|_| self.coverage.covers(uid))?;
        Some((AccountId::of(uid), bounds))
    }

    /// Who pays for a process, as in the kernel half: root does for uids that he has shifted, unless they
    /// are named in particular.
    pub(crate) fn payer(&self, owner: UsernsOwner) -> Uid {
        if owner.is_shifted && !self.accounts.contains_key(&owner.uid.into()) {
            return Uid::new(0);
        }
        owner.uid
    }

    /// The same, as a user: whoever has its uid as a subordinate one without a limit of its own.
    pub(crate) fn user_of(&self, owner: UsernsOwner) -> Uid {
        let payer = self.payer(owner);
        self.subuid_payer(payer).unwrap_or(payer)
    }

    /// Who pays for a subordinate uid; `None`: it is none, or pays for itself.
    pub(crate) fn subuid_payer(&self, uid: Uid) -> Option<Uid> {
        let is_named = self.accounts.contains_key(&uid.into());
        self.subordinates.payer_of(uid).filter(|_| !is_named)
    }

    /// The account that stands for a user whether or not any limit concerns him.
    pub(crate) fn account_of(&self, payer: impl Into<AccountId>) -> AccountId {
        let payer = payer.into();
        self.of(payer).map_or(payer, |(id, _)| id)
    }

    /// The same for ordinary users and whomever a limit concerns: all others are no account's.
    pub(crate) fn billed(&self, uid: Uid) -> Option<AccountId> {
        let is_billed = self.of(uid).is_some() || self.coverage.covers(uid);
        is_billed.then(|| self.account_of(uid))
    }

    /// Whether there is this shared account.
    pub(crate) fn has(&self, id: AccountId) -> bool {
        self.accounts.contains_key(&id)
    }

    /// Whether a user's programs can be killed because of a limit.
    pub(crate) fn is_limited(&self, uid: Uid) -> bool {
        self.of(uid)
            .is_some_and(|(_, bounds)| bounds.enforced_limit().is_some())
    }

    /// The users who pay into an account, as far as they are named; a user's own account has him.
    pub(crate) fn payers_of(&self, id: AccountId) -> Vec<Uid> {
        let named: Vec<Uid> = self
            .accounts
            .iter()
            .filter(|(_, (it, _))| *it == id)
            .filter_map(|(payer, _)| payer.uid())
            .collect();
        if named.is_empty() {
            id.uid().into_iter().collect()
        } else {
            named
        }
    }

    /// The same, with those that have entered it.
    pub(crate) fn charged_to(&self, id: AccountId) -> Vec<AccountId> {
        let users = self.payers_of(id).into_iter().map(AccountId::of);
        users.chain(id.uid().is_none().then_some(id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::{AccountKind, BoundsSpec, Bytes, SizeSpec};
    use bursar_policy::{Planned, Subordinate};

    use super::*;

    #[test]
    fn root_answers_for_whom_he_has_shifted_unless_he_is_named() {
        let named = Uid::new(524_293);
        let limit = SizeSpec::Bytes(Bytes::from_mib(1));
        let bounds = BoundsSpec::of_limit(limit).resolve(Bytes::MAX).unwrap();
        let planned = Planned {
            who: "524293".parse().unwrap(),
            kind: AccountKind::User,
            memory_of: "524293".parse().unwrap(),
            bounds,
            rows: BTreeMap::new(),
            payers: BTreeSet::from([named]),
        };
        let plan = Plan {
            accounts: BTreeMap::from([(AccountId::of(named), planned)]),
            default: Some(bounds),
            ..Plan::default()
        };
        let coverage = Coverage {
            uid_min: Uid::new(1000),
            exempt: Vec::new(),
        };
        let payers = Payers::new(&plan, coverage);
        let of = |uid: u32, is_shifted: bool| {
            let uid = Uid::new(uid);
            payers
                .of(payers.payer(UsernsOwner { uid, is_shifted }))
                .is_some()
        };
        assert!(of(524_293, true));
        assert!(!of(524_294, true));
        assert!(of(524_294, false), "then default concerns him");
        assert!(!of(0, false));
    }

    #[test]
    fn a_subordinate_uid_pays_with_whoever_has_it() {
        let bounds = BoundsSpec::of_limit(SizeSpec::Bytes(Bytes::from_mib(1)));
        let subuid_owner = Uid::new(1001);
        let planned = Planned {
            who: "1001".parse().unwrap(),
            kind: AccountKind::User,
            memory_of: "1001".parse().unwrap(),
            bounds: bounds.resolve(Bytes::MAX).unwrap(),
            rows: BTreeMap::new(),
            payers: BTreeSet::from([subuid_owner]),
        };
        let given = [
            Subordinate::new(Uid::new(100_000), 10, subuid_owner).unwrap(),
            Subordinate::new(Uid::new(200_000), 10, Uid::new(1002)).unwrap(),
            Subordinate::new(Uid::new(200_005), 10, Uid::new(1003)).unwrap(),
        ];
        let mut plan = Plan {
            accounts: BTreeMap::from([(AccountId::of(subuid_owner), planned)]),
            subordinates: Subordinates::new(&given, &BTreeSet::new(), 10),
            ..Plan::default()
        };
        let coverage = Coverage {
            uid_min: Uid::new(1000),
            exempt: Vec::new(),
        };
        let of = |plan: &Plan, uid: u32| {
            let found = Payers::new(plan, coverage.clone()).of(Uid::new(uid));
            found.map(|(id, _)| id.get())
        };
        assert_eq!(of(&plan, 100_009), Some(1001));
        assert_eq!(of(&plan, 100_010), None);
        assert_eq!(of(&plan, 200_000), None);
        let user_of = |plan: &Plan, uid: u32| {
            let payers = Payers::new(plan, coverage.clone());
            payers.user_of(UsernsOwner::itself(Uid::new(uid))).get()
        };
        assert_eq!(user_of(&plan, 100_009), 1001);
        assert_eq!(user_of(&plan, 200_000), 1002);
        assert_eq!(user_of(&plan, 100_010), 100_010);
        plan.default = Some(plan.accounts[&AccountId::of(subuid_owner)].bounds);
        assert_eq!(user_of(&plan, 100_009), 1001);
        assert_eq!(of(&plan, 100_009), Some(1001));
        assert_eq!(of(&plan, 100_010), Some(100_010));
        assert_eq!(of(&plan, 200_000), Some(1002), "by default");
        assert_eq!(of(&plan, 200_009), Some(200_005), "two have it");
    }
}
