// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose subordinate uids are: what subuid(5) gives to users, made disjoint. Files of what two users have are nobody's:
//! neither can be told from the other, and nobody is to die for another's files.

use std::collections::{BTreeMap, BTreeSet};

use bursar_model::Uid;

/// The last uid that anybody can have: the one after it says "no uid".
const LAST: u32 = u32::MAX - 1;

/// Uids given to a user, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subordinate {
    /// The first.
    pub first: Uid,
    /// The last.
    pub last: Uid,
    /// Whose they are.
    pub subuid_owner: Uid,
}

/// Uids given to several users, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disputed {
    /// The first.
    pub first: Uid,
    /// The last.
    pub last: Uid,
    /// The two first of these users.
    pub subuid_owners: (Uid, Uid),
}

/// Whose all subordinate uids are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subordinates {
    ranges: Vec<Subordinate>,
    disputed: Vec<Disputed>,
    left_out: usize,
}

impl Subordinate {
    /// `count` uids from `first` on; `None` when there are none, or more than there can be.
    pub fn new(first: Uid, count: u32, subuid_owner: Uid) -> Option<Self> {
        let last = first.get().checked_add(count.checked_sub(1)?)?;
        (last <= LAST).then_some(Self {
            first,
            last: Uid::new(last),
            subuid_owner,
        })
    }
}

impl Subordinates {
    /// Of what was given, but for what is root's (nobody counts root's files), and for uids that are
    /// somebody's `own`: those who have them are users themselves. At most `most` ranges, the first, and those that several
    /// have before those of one.
    pub fn new(given: &[Subordinate], own: &BTreeSet<Uid>, most: usize) -> Self {
        let mut found = Self::default();
        // Where a range begins, and after its end.
        let mut turns: BTreeMap<u32, Vec<(Uid, bool)>> = BTreeMap::new();
        for range in given.iter().filter(|it| it.subuid_owner.get() != 0) {
            let after = range.last.get().saturating_add(1);
            let begins = turns.entry(range.first.get()).or_default();
            begins.push((range.subuid_owner, true));
            turns
                .entry(after)
                .or_default()
                .push((range.subuid_owner, false));
        }
        let mut having: BTreeMap<Uid, usize> = BTreeMap::new();
        let mut since = 0;
        for (at, changes) in turns {
            if let Some(last) = at.checked_sub(1).filter(|last| *last >= since) {
                found.add(since, last, &having, own);
            }
            since = at;
            for (subuid_owner, begins) in changes {
                let count = having.entry(subuid_owner).or_default();
                *count = match begins {
                    true => count.saturating_add(1),
                    false => count.saturating_sub(1),
                };
                if *count == 0 {
                    having.remove(&subuid_owner);
                }
            }
        }
        let room = most.saturating_sub(found.disputed.len());
        let left_out = |count: usize, room| count.saturating_sub(room);
        found.left_out = left_out(found.ranges.len(), room) + left_out(found.disputed.len(), most);
        found.ranges.truncate(room);
        found.disputed.truncate(most);
        found
    }

    /// These uids are had by these users: so they are theirs in pieces between those that are somebody's own.
    fn add(&mut self, first: u32, last: u32, having: &BTreeMap<Uid, usize>, own: &BTreeSet<Uid>) {
        let mut subuid_owners = having.keys().copied();
        let Some(subuid_owner) = subuid_owners.next() else {
            return;
        };
        let other = subuid_owners.next();
        let mut begin = first;
        let cuts = own.range(Uid::new(first)..=Uid::new(last)).copied();
        let root = Some(Uid::new(0)).filter(|uid| first == 0 && !own.contains(uid));
        for cut in root.into_iter().chain(cuts).map(Some).chain([None]) {
            let end = match cut {
                Some(uid) => uid.get().checked_sub(1),
                None => Some(last),
            };
            if let Some(end) = end.filter(|end| *end >= begin) {
                self.push(Uid::new(begin), Uid::new(end), subuid_owner, other);
            }
            begin = cut.map_or(begin, |uid| uid.get().saturating_add(1));
        }
    }

    /// Joins what follows without a gap.
    fn push(&mut self, first: Uid, last: Uid, subuid_owner: Uid, other: Option<Uid>) {
        let follows = |end: Uid| end.get().checked_add(1) == Some(first.get());
        match other {
            Some(other) => {
                let subuid_owners = (subuid_owner, other);
                match self.disputed.last_mut() {
                    Some(before)
                        if follows(before.last) && before.subuid_owners == subuid_owners =>
                    {
                        before.last = last;
                    }
                    _ => self.disputed.push(Disputed {
                        first,
                        last,
                        subuid_owners,
                    }),
                }
            }
            None => match self.ranges.last_mut() {
                Some(before) if follows(before.last) && before.subuid_owner == subuid_owner => {
                    before.last = last;
                }
                _ => self.ranges.push(Subordinate {
                    first,
                    last,
                    subuid_owner,
                }),
            },
        }
    }

    /// Whose a uid is; `None`: it is no subordinate uid, or that of several.
    pub fn subuid_owner_of(&self, uid: Uid) -> Option<Uid> {
        let after = self.ranges.partition_point(|it| it.first <= uid);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        (uid <= range.last).then_some(range.subuid_owner)
    }

    /// Who pays for a process that has it outside of user namespaces: whose it is. Of uids that several have they all pay
    /// as the first uid, so that none of these users has as many limits as uids. `None`: it is no subordinate uid.
    pub fn payer_of(&self, uid: Uid) -> Option<Uid> {
        let disputed = || self.disputed_with(uid).map(|it| it.first);
        self.subuid_owner_of(uid).or_else(disputed)
    }

    fn disputed_with(&self, uid: Uid) -> Option<&Disputed> {
        let after = self.disputed.partition_point(|it| it.first <= uid);
        let found = self.disputed.get(after.checked_sub(1)?)?;
        (uid <= found.last).then_some(found)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.disputed.is_empty()
    }

    /// Who pays for which uids, sorted and disjoint.
    pub fn paid(&self) -> Vec<Subordinate> {
        let disputed = self.disputed.iter().map(|it| Subordinate {
            first: it.first,
            last: it.last,
            subuid_owner: it.first,
        });
        let mut all: Vec<_> = self.ranges.iter().copied().chain(disputed).collect();
        all.sort_by_key(|it| it.first);
        all
    }

    /// Whose one user's are, sorted and disjoint.
    pub fn ranges(&self) -> &[Subordinate] {
        &self.ranges
    }

    /// What is nobody's because several have it, sorted.
    pub fn disputed(&self) -> &[Disputed] {
        &self.disputed
    }

    /// Ranges for which there was no room.
    pub const fn left_out(&self) -> usize {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    use super::*;

    fn given(first: u32, count: u32, subuid_owner: u32) -> Subordinate {
        Subordinate::new(Uid::new(first), count, Uid::new(subuid_owner)).unwrap()
    }

    fn none() -> BTreeSet<Uid> {
        BTreeSet::new()
    }

    #[test]
    fn a_range_has_an_end_that_is_a_uid() {
        let range = |first, count| Subordinate::new(Uid::new(first), count, Uid::new(1));
        assert_eq!(range(5, 0), None);
        assert_eq!(range(u32::MAX, 1), None);
        assert_eq!(range(1, u32::MAX), None);
        assert_eq!(range(1, u32::MAX - 1).unwrap().last, Uid::new(LAST));
    }

    #[test]
    fn what_two_users_have_is_nobodys_and_what_one_has_twice_is_his() {
        let all = [
            given(100, 50, 1001),
            given(140, 60, 1002),
            given(110, 20, 1001),
            given(200, 10, 1002),
        ];
        let found = Subordinates::new(&all, &none(), 10);
        assert_eq!(found.ranges(), [given(100, 40, 1001), given(150, 60, 1002)]);
        let disputed = Disputed {
            first: Uid::new(140),
            last: Uid::new(149),
            subuid_owners: (Uid::new(1001), Uid::new(1002)),
        };
        assert_eq!(found.disputed(), [disputed]);
        assert_eq!(found.subuid_owner_of(Uid::new(145)), None);
        assert_eq!(found.payer_of(Uid::new(145)), Some(Uid::new(140)));
        assert_eq!(found.payer_of(Uid::new(99)), None);
        let disputed = given(140, 10, 140);
        let paid = [given(100, 40, 1001), disputed, given(150, 60, 1002)];
        assert_eq!(found.paid(), paid);
    }

    #[test]
    fn roots_are_nobodys_and_whoever_is_a_user_is_his_own() {
        let all = [given(0, 10, 1001), given(0, 1000, 0)];
        let own = BTreeSet::from([Uid::new(4), Uid::new(1001)]);
        let found = Subordinates::new(&all, &own, 10);
        assert_eq!(found.ranges(), [given(1, 3, 1001), given(5, 5, 1001)]);
    }

    #[test]
    fn what_there_is_no_room_for_is_counted() {
        let all = [given(10, 1, 1), given(20, 1, 2), given(30, 1, 3)];
        let found = Subordinates::new(&all, &none(), 2);
        assert_eq!((found.ranges().len(), found.left_out()), (2, 1));
        assert_eq!(found.subuid_owner_of(Uid::new(30)), None);
        let disputed = [given(40, 1, 1), given(40, 1, 2)];
        let found = Subordinates::new(&[&all[..], &disputed].concat(), &none(), 2);
        assert_eq!((found.paid().len(), found.left_out()), (2, 2));
        assert_eq!(found.payer_of(Uid::new(40)), Some(Uid::new(40)));
    }

    proptest! {
        /// What it is by looking at each uid by itself.
        #[test]
        fn each_uid_is_whose_alone_it_was_given_to(
            given in vec((0_u32..60, 1_u32..30, 0_u32..4), 0..8),
            own in btree_set(0_u32..90, 0..6),
        ) {
            let given: Vec<_> = given
                .into_iter()
                .map(|(first, count, subuid_owner)| self::given(first, count, subuid_owner))
                .collect();
            let own: BTreeSet<Uid> = own.into_iter().map(Uid::new).collect();
            let found = Subordinates::new(&given, &own, 100);
            for uid in (0..100).map(Uid::new) {
                let having: BTreeSet<Uid> = given
                    .iter()
                    .filter(|it| it.subuid_owner.get() != 0 && (it.first..=it.last).contains(&uid))
                    .map(|it| it.subuid_owner)
                    .collect();
                let is_nobodys = own.contains(&uid) || uid.get() == 0;
                let alone = having.first().filter(|_| having.len() == 1 && !is_nobodys);
                prop_assert_eq!(found.subuid_owner_of(uid), alone.copied());
                prop_assert_eq!(found.payer_of(uid).is_some(), !having.is_empty() && !is_nobodys);
                let paid = found.paid();
                let range = paid.iter().find(|it| (it.first..=it.last).contains(&uid));
                prop_assert_eq!(found.payer_of(uid), range.map(|it| it.subuid_owner));
            }
            let ends: Vec<(Uid, Uid)> = found.ranges().iter().map(|it| (it.first, it.last)).collect();
            prop_assert!(ends.iter().all(|(first, last)| first <= last));
            prop_assert!(ends.windows(2).all(|two| two[0].1 < two[1].0));
        }
    }
}
