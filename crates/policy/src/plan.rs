// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the limits as written to the accounts of this machine: who pays into what, with which
//! bounds.
//!
//! A user pays into exactly one account. The most particular limit decides: his own, by name or
//! number; else that of a shared account whose group he is in; else that for each member of a group
//! he is in, the largest if there are several; else `default`.
//!
//! An entry may have rows only: beancounters, and nothing said of memory. Then who it is for keeps the limit
//! on memory that he has without it.

mod shared;

use std::collections::{BTreeMap, BTreeSet};

use bursar_model::{
    AccountId, AccountKind, Bounds, BoundsSpec, Bytes, Mode, Resource, RowBounds, Uid, Who,
};

use crate::{Coverage, Directory, Subordinates};

/// One limit as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The user, group or account that is limited.
    pub who: Who,
    /// What; `None`: it has rows only.
    pub memory: Option<BoundsSpec>,
    /// Of a shared account that processes enter, so that it needs no Unix group: who may, besides root.
    pub granted: Option<Vec<Who>>,
    /// The bounds of beancounters.
    pub rows: BTreeMap<Resource, RowBounds>,
    /// Whether what it says is enforced. Which entry holds for whom is the same in both modes.
    pub mode: Mode,
}

impl Entry {
    /// The bounds of beancounters, as they are held.
    fn rows_in_mode(&self) -> BTreeMap<Resource, RowBounds> {
        let rows = self.rows.iter();
        rows.map(|(&resource, bounds)| (resource, bounds.in_mode(self.mode)))
            .collect()
    }
}

/// An account to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Which limit it comes from.
    pub who: Who,
    /// Which limit its bounds come from: another one where that has rows only.
    pub memory_of: Who,
    /// What kind that is.
    pub kind: AccountKind,
    /// Its bounds.
    pub bounds: Bounds,
    /// The bounds of its beancounters.
    pub rows: BTreeMap<Resource, RowBounds>,
    /// Who pays into it: one user, or the members of a shared account.
    pub payers: BTreeSet<Uid>,
}

/// All accounts to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// By the number they have in the kernel half.
    pub accounts: BTreeMap<AccountId, Planned>,
    /// The bounds of everybody else's account, if there are any.
    pub default: Option<Bounds>,
    /// And of its beancounters.
    pub default_rows: BTreeMap<Resource, RowBounds>,
    /// Who may enter which shared account, besides root.
    pub granted: BTreeMap<Who, BTreeSet<Uid>>,
    /// Who pays for files of subordinate uids.
    pub subordinates: Subordinates,
    /// What an administrator should know, by limit.
    pub remarks: Vec<(Who, String)>,
    /// The same, of no limit in particular.
    pub notes: Vec<String>,
}

/// An entry, and its bounds on memory; `None`: it has rows only.
type Written<'a> = (&'a Entry, Option<Bounds>);

impl Plan {
    /// Whom a limit concerns: the accounts that come from it.
    pub fn accounts_of<'a>(&'a self, who: &'a Who) -> impl Iterator<Item = AccountId> + 'a {
        self.accounts
            .iter()
            .filter(move |(_, planned)| planned.who == *who)
            .map(|(id, _)| *id)
    }

    fn remark(&mut self, who: &Who, text: String) {
        self.remarks.push((who.clone(), text));
    }

    /// Who may enter which account, and bounds on memory for a machine with so much.
    fn resolve<'a>(
        &mut self,
        entries: &'a [Entry],
        directory: &Directory,
        ram: Bytes,
    ) -> Vec<Written<'a>> {
        let mut written = Vec::new();
        for entry in entries {
            if let Some(list) = &entry.granted {
                let users = self.grantees(&entry.who, list, directory);
                self.granted.insert(entry.who.clone(), users);
            }
            match entry.memory.map(|it| it.resolve(ram)).transpose() {
                Ok(bounds) => {
                    if let Some(limit) = bounds.and_then(|it| it.limit())
                        && limit > ram
                    {
                        let text =
                            format!("the limit ({limit}) is above this machine's memory ({ram})");
                        self.remark(&entry.who, text);
                    }
                    written.push((entry, bounds.map(|it| it.in_mode(entry.mode))));
                }
                Err(error) => self.remark(&entry.who, error.to_string()),
            }
        }
        written
    }

    /// The users in a list of those an account is granted to.
    fn grantees(&mut self, whose: &Who, list: &[Who], directory: &Directory) -> BTreeSet<Uid> {
        let mut users = BTreeSet::new();
        for grant in list {
            let found = match grant {
                Who::Uid(uid) => Ok(vec![*uid]),
                Who::User(name) => match directory.user(name) {
                    Ok(uid) => Ok(vec![uid]),
                    Err(error) => Err(error.of("user")),
                },
                Who::Group(name) => match directory.group(name) {
                    Ok((_, members)) => Ok(members.to_vec()),
                    Err(error) => Err(error.of("group")),
                },
                Who::Shared(_) | Who::Default => Ok(Vec::new()),
            };
            match found {
                Ok(found) => users.extend(found),
                Err(why) => self.remark(whose, format!("granted to {grant}: {why}")),
            }
        }
        users
    }

    fn claim_default(&mut self, written: &[Written]) {
        for (entry, bounds) in written {
            if entry.who == Who::Default {
                self.default = Some(bounds.unwrap_or_default());
                self.default_rows = entry.rows_in_mode();
            }
        }
    }

    /// Those of groups with rows only add to what the limits on memory have decided.
    fn claim_for_groups(
        &mut self,
        written: &[Written],
        directory: &Directory,
        coverage: &Coverage,
    ) {
        let mut rows_only = Vec::new();
        for &(entry, bounds) in written {
            let Who::Group(name) = &entry.who else {
                continue;
            };
            match (directory.group(name), bounds) {
                (Ok((_, members)), Some(bounds)) => {
                    for &uid in members {
                        let held = self.accounts.get(&AccountId::of(uid));
                        let is_larger = held.is_none_or(|held| {
                            limit_or_endless(bounds) > limit_or_endless(held.bounds)
                        });
                        if is_larger {
                            self.claim(uid, entry, AccountKind::Group, Some(bounds), coverage);
                        }
                    }
                }
                (Ok((_, members)), None) => rows_only.push((entry, members)),
                (Err(error), _) => self.remark(&entry.who, error.of("group")),
            }
        }
        self.add_rows(&rows_only, coverage);
    }

    /// Rows of groups that say nothing of memory, for each member: of several that name a row the largest
    /// bound, and none that his limit on memory comes with.
    fn add_rows(&mut self, rows_only: &[(&Entry, &[Uid])], coverage: &Coverage) {
        let mut found: BTreeMap<Uid, (&Entry, BTreeMap<Resource, RowBounds>)> = BTreeMap::new();
        for &(entry, members) in rows_only {
            for &uid in members {
                let (_, rows) = found.entry(uid).or_insert((entry, BTreeMap::new()));
                for (resource, bounds) in entry.rows_in_mode() {
                    let kept = rows.entry(resource).or_insert(bounds);
                    if size(bounds) > size(*kept) {
                        *kept = bounds;
                    }
                }
            }
        }
        for (uid, (entry, rows)) in found {
            let id = AccountId::of(uid);
            if !self.accounts.contains_key(&id) {
                self.claim(uid, entry, AccountKind::Group, None, coverage);
            }
            if let Some(planned) = self.accounts.get_mut(&id) {
                let is_silent = planned.memory_of != planned.who;
                for (resource, bounds) in rows {
                    match planned.rows.get_mut(&resource) {
                        Some(kept) if is_silent => *kept = bounds,
                        Some(_) => {}
                        None => {
                            planned.rows.insert(resource, bounds);
                        }
                    }
                }
            }
        }
    }

    fn claim_for_users(&mut self, written: &[Written], directory: &Directory, coverage: &Coverage) {
        let mut entries: BTreeMap<Uid, Vec<&Who>> = BTreeMap::new();
        for &(entry, bounds) in written {
            let who = &entry.who;
            let uid = match who {
                Who::Uid(uid) => *uid,
                Who::User(name) => match directory.user(name) {
                    Ok(uid) => uid,
                    Err(error) => {
                        self.remark(who, error.of("user"));
                        continue;
                    }
                },
                Who::Group(_) | Who::Shared(_) | Who::Default => continue,
            };
            if bounds.is_none()
                && let Some(shared) = self.shared_by(uid)
            {
                let text = format!(
                    "pays into {}, whose rows are for all its members together: these hold only with a limit \
                     on memory beside them",
                    shared.who
                );
                self.remark(who, text);
                continue;
            }
            self.leave_shared(uid);
            entries.entry(uid).or_default().push(who);
            self.claim(uid, entry, AccountKind::User, bounds, coverage);
        }
        for same in entries.values() {
            let [others @ .., holds] = same.as_slice() else {
                continue;
            };
            for other in others {
                // Where the one that holds has rows only, the limit on memory is that of the one before.
                let has_memory = |it: &Planned| it.who == **holds && it.memory_of == **other;
                let text = if self.accounts.values().any(has_memory) {
                    format!(
                        "is the same user as {holds}: only its limit on memory holds, and the rows of {holds}"
                    )
                } else {
                    format!(
                        "is the same user as {holds}, whose limit holds: this one has no effect"
                    )
                };
                self.remark(other, text);
            }
            let (names, are) = match others {
                [] => continue,
                [other] => (other.to_string(), "is"),
                [first @ .., last] => {
                    let first: Vec<String> = first.iter().map(ToString::to_string).collect();
                    (format!("{} and {last}", first.join(", ")), "are")
                }
            };
            let text = format!("{names} {are} the same user; this limit is the one that holds");
            self.remark(holds, text);
        }
    }

    /// Makes an account a user's own; where the entry has rows only, with the bounds on memory that he has
    /// without it.
    fn claim(
        &mut self,
        uid: Uid,
        entry: &Entry,
        kind: AccountKind,
        bounds: Option<Bounds>,
        coverage: &Coverage,
    ) {
        let id = AccountId::of(uid);
        let (bounds, memory_of) = match (bounds, self.accounts.get(&id)) {
            (Some(bounds), _) => (bounds, entry.who.clone()),
            (None, Some(before)) => (before.bounds, before.memory_of.clone()),
            (None, None) => {
                let default = self.default.filter(|_| coverage.covers(uid));
                (default.unwrap_or_default(), Who::Default)
            }
        };
        let planned = Planned {
            memory_of,
            ..Planned::new(entry, kind, bounds, BTreeSet::from([uid]))
        };
        self.accounts.insert(id, planned);
    }
}

impl Planned {
    fn new(entry: &Entry, kind: AccountKind, bounds: Bounds, payers: BTreeSet<Uid>) -> Self {
        Self {
            who: entry.who.clone(),
            memory_of: entry.who.clone(),
            kind,
            bounds,
            rows: entry.rows_in_mode(),
            payers,
        }
    }
}

/// Works out the accounts. `ram` is what percentages are of, `coverage` whom `default` covers.
pub fn plan(entries: &[Entry], directory: &Directory, ram: Bytes, coverage: &Coverage) -> Plan {
    let mut plan = Plan::default();
    let written = plan.resolve(entries, directory, ram);
    // From the least particular to the most: the later claim wins.
    plan.claim_default(&written);
    plan.claim_for_groups(&written, directory, coverage);
    plan.claim_shared(&written, directory);
    plan.claim_for_users(&written, directory, coverage);
    plan.remark_system_accounts(coverage.uid_min);
    plan
}

fn size(bounds: RowBounds) -> (u64, u64) {
    let endless = |bound: Option<u64>| bound.unwrap_or(u64::MAX);
    (endless(bounds.barrier()), endless(bounds.limit()))
}

fn limit_or_endless(bounds: Bounds) -> u64 {
    bounds.limit().map_or(u64::MAX, Bytes::get)
}

#[cfg(test)]
mod tests {
    use bursar_model::{Gid, SizeSpec};
    use proptest::prelude::*;

    use super::*;
    use crate::NameError;

    const RAM: Bytes = Bytes::from_mib(1000);

    fn entry(who: &str, limit: &str) -> Entry {
        let limit: SizeSpec = limit.parse().unwrap();
        Entry {
            who: who.parse().unwrap(),
            memory: Some(BoundsSpec::of_limit(limit)),
            granted: None,
            rows: BTreeMap::new(),
            mode: Mode::Enforce,
        }
    }

    /// One that says nothing of memory.
    fn rows_only(who: &str, rows: &[(Resource, u64)]) -> Entry {
        let bounds = |number| RowBounds::new(Some(number), Some(number)).unwrap();
        Entry {
            memory: None,
            rows: rows
                .iter()
                .map(|&(row, number)| (row, bounds(number)))
                .collect(),
            ..entry(who, "none")
        }
    }

    fn plan(entries: &[Entry], directory: &Directory, ram: Bytes) -> Plan {
        let coverage = Coverage {
            uid_min: Uid::new(1000),
            exempt: vec![(Uid::new(1003), Uid::new(1003))],
        };
        super::plan(entries, directory, ram, &coverage)
    }

    fn directory() -> Directory {
        let uid = Uid::new;
        Directory {
            users: BTreeMap::from([
                ("alice".into(), Ok(uid(1001))),
                ("bob".into(), Ok(uid(1002))),
                ("ghost".into(), Err(NameError::Unknown)),
                (
                    "far".into(),
                    Err(NameError::Unreachable("connection refused".into())),
                ),
            ]),
            groups: BTreeMap::from([
                (
                    "students".into(),
                    Ok((Gid::new(500), vec![uid(1001), uid(1002), uid(1003)])),
                ),
                (
                    "render".into(),
                    Ok((Gid::new(501), vec![uid(1002), uid(1003)])),
                ),
                ("film".into(), Ok((Gid::new(502), vec![uid(1003)]))),
            ]),
        }
    }

    fn limit_of(plan: &Plan, id: u32) -> Option<Bytes> {
        plan.accounts
            .get(&AccountId::of(Uid::new(id)))
            .and_then(|planned| planned.bounds.limit())
    }

    #[test]
    fn the_most_particular_limit_decides() {
        let entries = [
            entry("1001", "10M"),
            entry("default", "50M"),
            entry("@students", "20M"),
            entry("=render", "30M"),
        ];
        let plan = plan(&entries, &directory(), RAM);
        assert_eq!(limit_of(&plan, 1001), Some(Bytes::from_mib(10)));
        assert_eq!(limit_of(&plan, 1002), None, "bob shares");
        let shared = &plan.accounts[&AccountId::of_group(Gid::new(501))];
        assert_eq!(
            shared.payers,
            BTreeSet::from([Uid::new(1002), Uid::new(1003)])
        );
        assert_eq!(plan.default.unwrap().limit(), Some(Bytes::from_mib(50)));
    }

    #[test]
    fn of_several_groups_the_largest_limit_holds_whatever_their_order() {
        for order in [["@students", "@film"], ["@film", "@students"]] {
            let limit = |who: &str| if who == "@film" { "40M" } else { "20M" };
            let entries = order.map(|who| entry(who, limit(who)));
            assert_eq!(
                limit_of(&plan(&entries, &directory(), RAM), 1003),
                Some(Bytes::from_mib(40))
            );
        }
    }

    #[test]
    fn a_limit_of_none_for_one_user_frees_him_from_the_default() {
        let plan = plan(
            &[entry("default", "50M"), entry("alice", "none")],
            &directory(),
            RAM,
        );
        let own = &plan.accounts[&AccountId::of(Uid::new(1001))];
        assert_eq!(own.bounds, Bounds::NONE);
    }

    #[test]
    fn each_bound_is_held_as_the_entry_says_in_which_it_stands() {
        let observed = |entry: Entry| Entry {
            mode: Mode::Observe,
            ..entry
        };
        let rows = [(Resource::Numproc, 200)];
        let plan = plan(
            &[
                entry("default", "50M"),
                observed(rows_only("alice", &rows)),
                observed(entry("bob", "10M")),
            ],
            &directory(),
            RAM,
        );
        let of = |uid: u32| &plan.accounts[&AccountId::of(Uid::new(uid))];
        assert_eq!(of(1001).bounds.mode(), Mode::Enforce, "default's");
        assert_eq!(of(1001).rows[&Resource::Numproc].mode(), Mode::Observe);
        assert_eq!(of(1002).bounds.mode(), Mode::Observe);
        assert_eq!(plan.default.unwrap().mode(), Mode::Enforce);
    }

    #[test]
    fn rows_alone_leave_memory_to_whichever_limit_has_it() {
        use Resource::{Numfile, Numproc};
        let rows = [(Numproc, 200)];
        let has = |plan: &Plan, id: u32| -> (Option<u64>, Who, Vec<(Resource, u64)>) {
            let planned = &plan.accounts[&AccountId::of(Uid::new(id))];
            let rows = planned.rows.iter();
            let rows = rows.map(|(&row, bounds)| (row, bounds.barrier().unwrap()));
            let limit = planned.bounds.limit().map(|it| it.get() >> 20);
            (limit, planned.memory_of.clone(), rows.collect())
        };
        // Whom default does not cover it does not reach by a group either.
        let default = entry("default", "50M");
        let found = plan(
            &[default.clone(), rows_only("@students", &rows)],
            &directory(),
            RAM,
        );
        assert_eq!(has(&found, 1001), (Some(50), Who::Default, rows.to_vec()));
        assert_eq!(has(&found, 1003), (None, Who::Default, rows.to_vec()));
        // Another group's limit on memory stays, and so do the rows beside it.
        let mut students = entry("@students", "20M");
        students.rows = rows_only("x", &[(Numfile, 7)]).rows;
        let more = rows_only("@render", &[(Numfile, 9), (Numproc, 200)]);
        for order in [[0, 1, 2], [2, 1, 0]] {
            let all = [default.clone(), students.clone(), more.clone()];
            let found = plan(&order.map(|at| all[at].clone()), &directory(), RAM);
            let both = vec![(Numproc, 200), (Numfile, 7)];
            let (limit, of, mut rows) = has(&found, 1002);
            rows.sort();
            let mut expected = both;
            expected.sort();
            assert_eq!((limit, of), (Some(20), students.who.clone()));
            assert_eq!(rows, expected);
        }
        // Of two that have rows only the larger bound.
        let two = [
            rows_only("@students", &rows),
            rows_only("@render", &[(Numproc, 300)]),
        ];
        let found = plan(&two, &directory(), RAM);
        assert_eq!(has(&found, 1002).2, [(Numproc, 300)]);
        assert_eq!(has(&found, 1001).2, [(Numproc, 200)]);
        // A user's own decide about his rows, and his group's or default's about his memory.
        let found = plan(
            &[
                default.clone(),
                students.clone(),
                rows_only("alice", &rows),
                rows_only("1004", &rows),
            ],
            &directory(),
            RAM,
        );
        assert_eq!(
            has(&found, 1001),
            (Some(20), students.who.clone(), rows.to_vec())
        );
        assert_eq!(has(&found, 1004), (Some(50), Who::Default, rows.to_vec()));
        let free = Entry {
            memory: Some(BoundsSpec::of_limit(SizeSpec::None)),
            ..rows_only("alice", &rows)
        };
        let found = plan(&[default, free.clone()], &directory(), RAM);
        assert_eq!(has(&found, 1001), (None, free.who, rows.to_vec()));
    }

    #[test]
    fn rows_alone_take_nobody_out_of_a_shared_account_with_a_limit_on_memory() {
        let rows = [(Resource::Numproc, 200)];
        let render = AccountId::of_group(Gid::new(501));
        let entries = [
            entry("default", "50M"),
            rows_only("bob", &rows),
            entry("=render", "30M"),
            rows_only("=students", &rows),
        ];
        let plan = plan(&entries, &directory(), RAM);
        let payers = BTreeSet::from([Uid::new(1002), Uid::new(1003)]);
        assert_eq!(plan.accounts[&render].payers, payers);
        let said = |who: &str| {
            let who: Who = who.parse().unwrap();
            let mut texts = plan.remarks.iter().filter(|(it, _)| *it == who);
            texts
                .next()
                .map(|(_, text)| text.clone())
                .unwrap_or_default()
        };
        assert!(
            said("bob").starts_with("pays into =render"),
            "{}",
            said("bob")
        );
        assert!(said("=students").contains("says nothing of memory"));
    }

    #[test]
    fn unknown_names_are_kept_and_reported() {
        let entries = [
            entry("ghost", "1M"),
            entry("far", "1M"),
            entry("@nogroup", "1M"),
        ];
        let plan = plan(&entries, &directory(), RAM);
        assert!(plan.accounts.is_empty());
        let texts: Vec<_> = plan
            .remarks
            .iter()
            .map(|(who, text)| format!("{who}: {text}"))
            .collect();
        assert_eq!(
            texts,
            [
                "@nogroup: there is no group of this name; kept until there is",
                "ghost: there is no user of this name; kept until there is",
                "far: the user cannot be looked up (connection refused); asked again every few minutes",
            ]
        );
    }

    #[test]
    fn an_account_that_is_entered_needs_no_group_and_keeps_its_number() {
        let entered = |who: &str| Entry {
            granted: Some(Vec::new()),
            ..entry(who, "5M")
        };
        let planned = plan(&[entered("=batch"), entered("=render")], &directory(), RAM);
        let id_of = |who: &str| planned.accounts_of(&who.parse().unwrap()).next().unwrap();
        // of the group, which there is
        assert_eq!(id_of("=render"), AccountId::of_group(Gid::new(501)));
        let batch = id_of("=batch");
        assert!(batch.uid().is_none() && planned.accounts[&batch].payers.is_empty());
        let alone = plan(&[entered("=batch")], &directory(), RAM);
        assert_eq!(alone.accounts.keys().collect::<Vec<_>>(), [&batch]);
        assert!(
            plan(&[entry("=batch", "5M")], &directory(), RAM)
                .accounts
                .is_empty()
        );
    }

    #[test]
    fn an_account_is_granted_to_users_and_members_and_unknown_names_are_said() {
        let grants = ["1009", "alice", "@film", "ghost", "@nogroup"];
        let batch = Entry {
            granted: Some(grants.map(|who| who.parse().unwrap()).into()),
            ..entry("=batch", "5M")
        };
        let plan = plan(&[batch], &directory(), RAM);
        let uids: Vec<u32> = plan.granted[&"=batch".parse().unwrap()]
            .iter()
            .map(|uid| uid.get())
            .collect();
        assert_eq!(uids, [1001, 1003, 1009]);
        let texts: Vec<_> = plan.remarks.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "granted to ghost: there is no user of this name; kept until there is",
                "granted to @nogroup: there is no group of this name; kept until there is",
            ]
        );
    }

    #[test]
    fn a_limit_above_ram_is_allowed_and_said() {
        let plan = plan(&[entry("alice", "2000M")], &directory(), RAM);
        assert_eq!(limit_of(&plan, 1001), Some(Bytes::from_mib(2000)));
        assert!(plan.remarks[0].1.contains("above this machine's memory"));
    }

    proptest! {
        #[test]
        fn everybody_pays_into_one_account_at_most(picks in prop::collection::vec(0usize..7, 0..8)) {
            let names = ["alice", "1002", "@students", "@film", "=render", "=film", "=students"];
            let entries: Vec<_> = picks.iter().map(|&pick| entry(names[pick], "5M")).collect();
            let plan = plan(&entries, &directory(), RAM);
            let mut seen = BTreeSet::new();
            for planned in plan.accounts.values() {
                for uid in &planned.payers {
                    prop_assert!(seen.insert(*uid), "{uid} pays twice");
                }
            }
        }
    }
}
