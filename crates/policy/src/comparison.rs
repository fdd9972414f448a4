// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a change of limits changes for each account: from which limit it comes to which, and who pays.

use std::collections::{BTreeMap, BTreeSet};

use bursar_model::{AccountId, Bounds, Uid, Who};

use crate::Plan;

/// The bounds of an account, and which entry they come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// Whose entry.
    pub who: Who,
    /// On memory.
    pub bounds: Bounds,
}

/// An account that is another one under another plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    /// What held; `None`: no limit concerned it.
    pub old: Option<Bound>,
    /// What holds then.
    pub new: Option<Bound>,
    /// Who pays then.
    pub payers: BTreeSet<Uid>,
}

impl Plan {
    /// The accounts for which this plan is another one than `old`. `ordinary`: whom `default` covers, as far as they
    /// could be concerned. `returning`: whose processes have entered an account that closes.
    pub fn compared(
        &self,
        old: &Self,
        ordinary: &BTreeSet<Uid>,
        returning: &BTreeSet<Uid>,
    ) -> BTreeMap<AccountId, Compared> {
        let payers = self.payers();
        let (old_subuids, subuids) = (old.subuids_among(ordinary), self.subuids_among(ordinary));
        let planned = self.accounts.iter().map(|(&id, it)| {
            let before = match id.uid() {
                Some(uid) => old.bound_of(uid, ordinary),
                None => old.accounts.get(&id).map(bound),
            };
            let paid = old.accounts.get(&id).map(|it| &it.payers);
            let paying = subuids.paying(&it.payers);
            let is_joined = match id.uid() {
                Some(uid) => !paying.is_subset(&old_subuids.paying(&BTreeSet::from([uid]))),
                None => paid != Some(&it.payers),
            };
            (id, before, Some(bound(it)), paying, is_joined)
        });
        let all = old.payers().into_iter().chain(ordinary.iter().copied());
        let all: BTreeSet<Uid> = all.chain(returning.iter().copied()).collect();
        let others = all.difference(&payers);
        let others = others.filter(|uid| self.is_own_payer(**uid)).map(|&uid| {
            let (before, then) = (old.bound_of(uid, ordinary), self.bound_of(uid, ordinary));
            let own = BTreeSet::from([uid]);
            let paying = subuids.paying(&own);
            let is_joined = then.is_some() && !paying.is_subset(&old_subuids.paying(&own));
            (AccountId::of(uid), before, then, paying, is_joined)
        });
        let differing = planned
            .chain(others)
            .filter(|(_, old, new, payers, is_joined)| {
                old != new || *is_joined || (new.is_some() && !payers.is_disjoint(returning))
            });
        let compared =
            differing.map(|(id, old, new, payers, _)| (id, Compared { old, new, payers }));
        compared.collect()
    }

    /// What limits this user: his own account, a shared one, or `default`.
    fn bound_of(&self, uid: Uid, ordinary: &BTreeSet<Uid>) -> Option<Bound> {
        let own = self.accounts.get(&AccountId::of(uid));
        let shared = || self.accounts.values().find(|it| it.payers.contains(&uid));
        own.or_else(shared).map(bound).or_else(|| {
            let is_covered = ordinary.contains(&uid) && self.is_own_payer(uid);
            let bounds = self.default.filter(|_| is_covered)?;
            let who = Who::Default;
            Some(Bound { who, bounds })
        })
    }
}

fn bound(planned: &crate::Planned) -> Bound {
    Bound {
        who: planned.memory_of.clone(),
        bounds: planned.bounds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::plan_of;

    /// `uid or group: FROM limit -> TO limit`, in MiB.
    fn said(old: &[(&str, &str)], new: &[(&str, &str)]) -> Vec<String> {
        let ordinary = [1001, 1002, 1003].map(Uid::new).into();
        let (old, new) = (plan_of(old), plan_of(new));
        let text = |bound: &Option<Bound>| match bound {
            None => "none".to_owned(),
            Some(it) => {
                let limit = it.bounds.limit().map_or(0, |it| it.get() >> 20);
                format!("{} {limit}", it.who)
            }
        };
        let compared = new.compared(&old, &ordinary, &BTreeSet::new());
        let lines = compared.iter().map(|(id, it)| {
            let name = id.uid().map_or("film".to_owned(), |uid| uid.to_string());
            format!("{name}: {} -> {}", text(&it.old), text(&it.new))
        });
        lines.collect()
    }

    #[test]
    fn each_who_comes_to_another_limit_is_told_with_both() {
        let default = ("default", "50M");
        assert_eq!(
            said(&[default], &[default, ("1001", "20M")]),
            ["1001: default 50 -> 1001 20"]
        );
        assert_eq!(said(&[("1001", "20M")], &[]), ["1001: 1001 20 -> none"]);
        assert_eq!(
            said(
                &[default, ("1001", "20M")],
                &[("default", "40M"), ("1001", "20M")]
            ),
            [
                "1002: default 50 -> default 40",
                "1003: default 50 -> default 40"
            ]
        );
        assert!(said(&[default, ("@film", "9M")], &[("@film", "9M"), default]).is_empty());
        // Who leaves a shared account had its limit.
        assert_eq!(
            said(&[("=film", "30M")], &[default]),
            [
                "1001: =film 30 -> default 50",
                "1002: =film 30 -> default 50",
                "1003: none -> default 50"
            ]
        );
        assert_eq!(
            said(&[("1001", "20M")], &[("1001", "20M"), ("=film", "30M")]),
            ["film: none -> =film 30"]
        );
    }
}
