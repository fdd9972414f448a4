// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits on who runs the machine: root and the users below UID_MIN. They are meant seldom, and can kill system
//! services.

use std::collections::BTreeMap;

use bursar_model::{Uid, Who, abridged};

use crate::{Plan, Planned};

/// Users named of an entry.
const SHOWN: usize = 3;

impl Plan {
    /// The users below `uid_min` that this plan limits and `old` did not limit in the same way, by the entry that does
    /// it. What is only observed harms nobody.
    pub fn system_accounts_limited(&self, old: &Self, uid_min: Uid) -> BTreeMap<Who, Vec<Uid>> {
        let mut found: BTreeMap<Who, Vec<Uid>> = BTreeMap::new();
        for planned in self.accounts.values().filter(|it| it.is_enforced()) {
            for &uid in planned.payers.range(..uid_min) {
                let is_as_before = |it: &Planned| {
                    it.payers.contains(&uid)
                        && it.bounds == planned.bounds
                        && it.rows == planned.rows
                };
                if !old.accounts.values().any(is_as_before) {
                    found.entry(planned.who.clone()).or_default().push(uid);
                }
            }
        }
        found
    }

    /// Says so of each entry that limits some.
    pub(crate) fn remark_system_accounts(&mut self, uid_min: Uid) {
        for (who, uids) in self.system_accounts_limited(&Self::default(), uid_min) {
            let shown = abridged(uids.iter().map(|it| format!("uid {it}")), SHOWN);
            let text = format!(
                "limits {}, below UID_MIN ({uid_min}): that can kill system services",
                shown.unwrap_or_default()
            );
            self.remarks.push((who, text));
        }
    }
}

impl Planned {
    /// Whether anybody is refused or killed by it.
    fn is_enforced(&self) -> bool {
        let by_memory = self.bounds.is_some() && !self.bounds.is_observed();
        let mut rows = self.rows.values();
        by_memory || rows.any(|it| !it.is_unlimited() && !it.mode().is_observed())
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::{Mode, Resource, RowBounds};

    use super::*;
    use crate::sample::plan_of;

    /// Who is limited anew, by the entries that do it.
    fn limited(old: &Plan, new: &Plan, uid_min: u32) -> Vec<(String, Vec<u32>)> {
        let found = new
            .system_accounts_limited(old, Uid::new(uid_min))
            .into_iter();
        let numbers = |uids: Vec<Uid>| uids.into_iter().map(Uid::get).collect();
        found
            .map(|(who, uids)| (who.to_string(), numbers(uids)))
            .collect()
    }

    #[test]
    fn a_limit_on_root_and_below_uid_min_is_found_whoever_it_is_written_for() {
        let none = plan_of(&[]);
        let root = plan_of(&[("0", "50M"), ("1001", "50M"), ("default", "50M")]);
        assert_eq!(limited(&none, &root, 1000), [("0".to_owned(), vec![0])]);
        // Members of a group, each and together.
        for group in ["@film", "=film"] {
            let film = plan_of(&[(group, "50M")]);
            assert_eq!(limited(&none, &film, 1000), []);
            assert_eq!(
                limited(&none, &film, 1002),
                [(group.to_owned(), vec![1001])]
            );
        }
    }

    #[test]
    fn what_is_so_already_and_what_harms_nobody_is_not_found() {
        let (none, root) = (plan_of(&[]), plan_of(&[("0", "50M")]));
        let more = plan_of(&[("0", "50M"), ("1001", "50M")]);
        let other = plan_of(&[("0", "60M")]);
        let observed = plan_of(&[("0", "50M observe")]);
        assert_eq!(limited(&root, &more, 1000), []);
        assert_eq!(limited(&root, &none, 1000), []);
        assert_eq!(limited(&none, &plan_of(&[("0", "none")]), 1000), []);
        assert_eq!(limited(&none, &observed, 1000), []);
        let found = [("0".to_owned(), vec![0])];
        assert_eq!(limited(&root, &other, 1000), found);
        assert_eq!(limited(&observed, &root, 1000), found);
    }

    #[test]
    fn an_administrator_is_told_once_for_each_entry() {
        let remarks = plan_of(&[("0", "50M"), ("5", "50M observe"), ("1001", "50M")]).remarks;
        let said: Vec<String> = remarks
            .iter()
            .map(|(who, it)| format!("{who}: {it}"))
            .collect();
        assert_eq!(
            said,
            ["0: limits uid 0, below UID_MIN (1000): that can kill system services"]
        );
    }

    #[test]
    fn every_resource_counts() {
        let none = plan_of(&[]);
        let mut rows = plan_of(&[("0", "none")]);
        let bounds = RowBounds::new(Some(200), Some(200)).unwrap();
        let planned = rows.accounts.values_mut().next().unwrap();
        planned.rows.insert(Resource::Numproc, bounds);
        assert_eq!(limited(&none, &rows, 1000), [("0".to_owned(), vec![0])]);
        let planned = rows.accounts.values_mut().next().unwrap();
        let observed = bounds.in_mode(Mode::Observe);
        planned.rows.insert(Resource::Numproc, observed);
        assert_eq!(limited(&none, &rows, 1000), []);
    }
}
