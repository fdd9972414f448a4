// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which accounts a change of limits makes tighter, so that somebody could be over his limit the moment it
//! holds.

use std::collections::{BTreeMap, BTreeSet};

use bursar_model::{AccountId, Bounds, Bytes, Mode, Uid};

use crate::Plan;

/// An account that may hold less than before, or that others pay into besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tightened {
    /// Its limit from now on.
    pub limit: Bytes,
    /// Who pays into it from now on.
    pub payers: BTreeSet<Uid>,
}

impl Plan {
    /// The same with all bounds on memory only observed.
    #[must_use]
    pub fn observed(mut self) -> Self {
        for planned in self.accounts.values_mut() {
            planned.bounds = planned.bounds.in_mode(Mode::Observe);
        }
        self.default = self.default.map(|it| it.in_mode(Mode::Observe));
        self
    }

    /// Whether `default` leaves less to each than it did: then it concerns everybody it covers, and not
    /// only those whom the change is about.
    pub fn lowers_default(&self, old: &Self) -> bool {
        is_tighter(self.default, old.default)
    }

    /// Who paid into accounts of his own or with others.
    pub fn payers(&self) -> BTreeSet<Uid> {
        let accounts = self.accounts.values();
        accounts.flat_map(|it| it.payers.iter().copied()).collect()
    }

    /// The shared accounts of `old` that are none here: whoever has entered one pays for himself again.
    pub fn closes(&self, old: &Self) -> BTreeSet<AccountId> {
        let shared = old.accounts.keys().filter(|id| id.uid().is_none());
        let gone = shared.filter(|id| !self.accounts.contains_key(id));
        gone.copied().collect()
    }

    /// Those of `ordinary` that are subordinate uids, by who pays for them.
    pub(crate) fn subuids_among(&self, ordinary: &BTreeSet<Uid>) -> Subuids {
        let mut subuids = Subuids::default();
        for &uid in ordinary {
            if let Some(payer) = self.subordinates.payer_of(uid) {
                subuids.0.entry(payer).or_default().push(uid);
            }
        }
        subuids
    }

    /// Whether a uid that `default` covers pays for itself.
    pub(crate) fn is_own_payer(&self, uid: Uid) -> bool {
        self.subordinates.payer_of(uid).is_none_or(|it| it == uid)
    }

    /// The accounts that this plan makes tighter than `old` did. `ordinary`: whom `default` covers, as far
    /// as they could be concerned. `returning`: whose processes have entered an account that closes.
    pub fn tightened(
        &self,
        old: &Self,
        ordinary: &BTreeSet<Uid>,
        returning: &BTreeSet<Uid>,
    ) -> BTreeMap<AccountId, Tightened> {
        let (old_payers, payers) = (old.payers(), self.payers());
        let (old_subuids, subuids) = (old.subuids_among(ordinary), self.subuids_among(ordinary));
        let before = |id: AccountId| match old.accounts.get(&id) {
            Some(planned) => Some((planned.bounds, old_subuids.paying(&planned.payers))),
            None => {
                let had_own = |uid: &Uid| !old_payers.contains(uid) && old.is_own_payer(*uid);
                let uid = id.uid().filter(had_own)?;
                let bounds = old.default.filter(|_| ordinary.contains(&uid))?;
                Some((bounds, old_subuids.paying(&BTreeSet::from([uid]))))
            }
        };
        let planned = self.accounts.iter();
        let planned = planned.map(|(&id, it)| (id, it.bounds, subuids.paying(&it.payers)));
        let by_default = self.default.into_iter().flat_map(|bounds| {
            let others = ordinary.difference(&payers);
            let others = others.filter(|uid| self.is_own_payer(**uid));
            let subuids = &subuids;
            others.map(move |&uid| {
                let paying = subuids.paying(&BTreeSet::from([uid]));
                (AccountId::of(uid), bounds, paying)
            })
        });
        let tighter = planned
            .chain(by_default)
            .filter_map(|(id, bounds, payers)| {
                let limit = bounds.enforced_limit()?;
                let is_as_before = before(id).is_some_and(|(before, paid)| {
                    !is_tighter(Some(bounds), Some(before))
                        && payers.is_subset(&paid)
                        && payers.is_disjoint(returning)
                });
                (!is_as_before).then_some((id, Tightened { limit, payers }))
            });
        tighter.collect()
    }
}

/// Subordinate uids that processes have, by who pays for them.
#[derive(Debug, Default)]
pub(crate) struct Subuids(BTreeMap<Uid, Vec<Uid>>);

impl Subuids {
    /// Who pays into the account of `payers`: they, and whoever has a subordinate uid of theirs.
    pub(crate) fn paying(&self, payers: &BTreeSet<Uid>) -> BTreeSet<Uid> {
        let subuids = payers.iter().filter_map(|it| self.0.get(it)).flatten();
        payers.iter().chain(subuids).copied().collect()
    }
}

fn is_tighter(new: Option<Bounds>, old: Option<Bounds>) -> bool {
    let limit = |bounds: Option<Bounds>| bounds.and_then(|it| it.enforced_limit());
    match (limit(new), limit(old)) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(new), Some(old)) => new < old,
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::Gid;

    use super::*;
    use crate::sample::{FILM, plan_of};
    use crate::{Subordinate, Subordinates};

    /// Whose accounts are tighter: their numbers, limits in MiB and payers.
    fn tightened(
        old: &[(&str, &str)],
        new: &[(&str, &str)],
        ordinary: &[u32],
    ) -> Vec<(u32, u64, Vec<u32>)> {
        tightened_by(old, new, ordinary, &[])
    }

    /// The same where some have processes in an account that goes.
    fn tightened_by(
        old: &[(&str, &str)],
        new: &[(&str, &str)],
        ordinary: &[u32],
        returning: &[u32],
    ) -> Vec<(u32, u64, Vec<u32>)> {
        let uids = |some: &[u32]| some.iter().copied().map(Uid::new).collect();
        let found = plan_of(new).tightened(&plan_of(old), &uids(ordinary), &uids(returning));
        found
            .into_iter()
            .map(|(id, it)| {
                let payers = it.payers.iter().map(|uid| uid.get()).collect();
                (id.number(), it.limit.get() >> 20, payers)
            })
            .collect()
    }

    #[test]
    fn the_first_default_concerns_everybody_it_covers() {
        let (none, default) = (&[][..], &[("default", "50M")][..]);
        assert!(plan_of(default).lowers_default(&plan_of(none)));
        let found = tightened(none, default, &[1001, 1003]);
        assert_eq!(found, [(1001, 50, vec![1001]), (1003, 50, vec![1003])]);
        let spared = [("default", "50M"), ("1003", "none")];
        let found = tightened(none, &spared, &[1001, 1003]);
        assert_eq!(found, [(1001, 50, vec![1001])]);
    }

    #[test]
    fn a_limit_raised_or_left_alone_concerns_nobody() {
        let old = [("default", "50M"), ("1001", "60M"), ("=film", "70M")];
        let new = [("default", "55M"), ("1001", "60M"), ("=film", "90M")];
        assert!(!plan_of(&new).lowers_default(&plan_of(&old)));
        assert_eq!(tightened(&old, &new, &[1001, 1003]), []);
        // more than default gave him
        assert_eq!(
            tightened(
                &[("default", "50M")],
                &[("default", "50M"), ("1003", "60M")],
                &[1003]
            ),
            []
        );
    }

    #[test]
    fn all_that_was_only_observed_is_tighter_when_it_is_enforced() {
        let limits = [("default", "50M"), ("1001", "20M"), ("1002", "30M observe")];
        let plan = plan_of(&limits);
        let observed = plan.clone().observed();
        assert!(plan.lowers_default(&observed));
        let ordinary = [1001, 1002, 1003].map(Uid::new).into();
        let tighter = plan.tightened(&observed, &ordinary, &BTreeSet::new());
        let uids: Vec<u32> = tighter.keys().map(|id| id.number()).collect();
        assert_eq!(uids, [1001, 1003]);
        assert!(
            observed
                .tightened(&plan, &ordinary, &BTreeSet::new())
                .is_empty()
        );
    }

    #[test]
    fn a_limit_that_is_only_observed_concerns_nobody_until_it_is_enforced() {
        let (none, wide) = (&[][..], &[("1001", "90M")][..]);
        let observed = [("1001", "20M observe")];
        assert_eq!(tightened(none, &observed, &[]), []);
        assert_eq!(tightened(wide, &observed, &[]), []);
        assert_eq!(tightened(&observed, &[("1001", "10M observe")], &[]), []);
        let enforced = tightened(&observed, &[("1001", "20M")], &[]);
        assert_eq!(enforced, [(1001, 20, vec![1001])]);
        // Also where it rises by that.
        let enforced = tightened(&observed, wide, &[]);
        assert_eq!(enforced, [(1001, 90, vec![1001])]);
        let by_default = [("default", "50M observe")];
        assert!(!plan_of(&by_default).lowers_default(&plan_of(none)));
        assert!(plan_of(&[("default", "50M")]).lowers_default(&plan_of(&by_default)));
    }

    #[test]
    fn a_shared_account_is_tighter_for_who_comes_and_not_for_who_goes() {
        let film = [(FILM, 70, vec![1001, 1002])];
        let shared = [("=film", "70M")];
        let (none, of_one) = (&[][..], &[("=film", "70M"), ("1001", "none")][..]);
        assert_eq!(tightened(none, &shared, &[]), film);
        // a limit of his own is cleared, and he comes back
        assert_eq!(tightened(of_one, &shared, &[]), film);
        assert_eq!(tightened(&shared, of_one, &[]), []);
        // a lower one of his own
        let own = [("=film", "70M"), ("1001", "80M")];
        assert_eq!(tightened(&shared, &own, &[]), [(1001, 80, vec![1001])]);
    }

    #[test]
    fn who_falls_back_to_a_lower_default_is_concerned() {
        let old = [("default", "50M"), ("1003", "60M"), ("1004", "40M")];
        let new = [("default", "50M"), ("1004", "40M")];
        let cleared = tightened(&old, &new, &[1003, 1004]);
        assert_eq!(cleared, [(1003, 50, vec![1003])]);
        assert_eq!(tightened(&old, &new, &[1004]), [], "exempt");
        // to a higher one
        let new = [("default", "50M"), ("1003", "60M")];
        assert_eq!(tightened(&old, &new, &[1003, 1004]), []);
    }

    /// A plan where 1003 has the uids from 60500 on.
    fn with_subuids(limits: &[(&str, &str)]) -> Plan {
        let given = Subordinate::new(Uid::new(60_500), 10, Uid::new(1003));
        let given: Vec<_> = given.into_iter().collect();
        Plan {
            subordinates: Subordinates::new(&given, &BTreeSet::new(), 10),
            ..plan_of(limits)
        }
    }

    #[test]
    fn subordinate_uids_are_in_the_account_of_whoever_has_them() {
        let default = [("default", "50M")];
        let (with, without) = (with_subuids(&default), plan_of(&default));
        let none = plan_of(&[]);
        let ordinary = [1003, 60_501].map(Uid::new).into();
        let found = |old: &Plan, new: &Plan| -> Vec<(u32, Vec<u32>)> {
            let found = new.tightened(old, &ordinary, &BTreeSet::new()).into_iter();
            let uids = |it: Tightened| it.payers.into_iter().map(Uid::get).collect();
            found.map(|(id, it)| (id.number(), uids(it))).collect()
        };
        let together = [(1003, vec![1003, 60_501])];
        assert_eq!(found(&none, &with), together);
        assert_eq!(found(&without, &with), together);
        assert_eq!(found(&with, &with), []);
        // Who turns out to be a user pays for himself.
        assert_eq!(found(&with, &without), [(60_501, vec![60_501])]);
        let own = with_subuids(&[("1003", "60M"), ("default", "50M")]);
        assert_eq!(found(&none, &own), together);
        let compared = with.compared(&without, &ordinary, &BTreeSet::new());
        assert_eq!(
            compared.keys().map(|it| it.number()).collect::<Vec<_>>(),
            [1003]
        );
    }

    #[test]
    fn an_account_that_goes_sends_whoever_entered_it_home() {
        let own = [("default", "50M"), ("1001", "60M")];
        let film = [&own[..], &[("=film", "70M")]].concat();
        let gone = plan_of(&own).closes(&plan_of(&film));
        let shared = AccountId::of_group(Gid::new(FILM));
        assert_eq!(gone, BTreeSet::from([shared]));
        assert_eq!(plan_of(&film).closes(&plan_of(&film)), BTreeSet::new());
        // By his own limit, by default's, and exempt from it.
        let found = tightened_by(&film, &own, &[1001, 1003], &[1001, 1003, 1004]);
        assert_eq!(found, [(1001, 60, vec![1001]), (1003, 50, vec![1003])]);
    }
}
