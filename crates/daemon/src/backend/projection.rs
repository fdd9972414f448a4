// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What accounts would hold if others paid into them than do: asked of the kernel half before a limit is
//! set that would kill at once.
//!
//! Nobody's account changes for it. Who has one of his own is read there; of who pays into a shared one his
//! part is read, by his processes' records, and so is that of a subordinate uid. Who pays into none is counted
//! nowhere yet: for him the backend opens an account without bounds and closes it again. When an account goes,
//! whoever has entered it pays where his user does.

use std::collections::{BTreeMap, BTreeSet};

use bursar_kernel::{AccountTable, Error, Part, Slot};
use bursar_model::{AccountId, Pages, Uid};

/// Where a projection's parts lie.
#[derive(Debug, Default)]
struct Parts {
    whole: BTreeSet<Slot>,
    /// Of shared accounts.
    members: BTreeSet<(Slot, Part)>,
    /// Of its own account, who would not pay into it any more.
    leavers: BTreeSet<(Slot, Part)>,
    /// Accounts that there are none of yet.
    uncounted: BTreeSet<AccountId>,
}

/// Accounts as they would be.
#[derive(Debug)]
pub(super) struct Projections(BTreeMap<AccountId, Parts>);

impl Projections {
    /// Finds where everybody is counted who would pay into these.
    pub(super) fn find(
        table: &AccountTable,
        projections: &BTreeMap<AccountId, BTreeSet<Uid>>,
        closing: &BTreeSet<AccountId>,
    ) -> Result<Self, Error> {
        let paying: BTreeMap<AccountId, Slot> = table.payers()?.into_iter().collect();
        let closing = slots_of(table, closing);
        let mut users = projections.values().flatten();
        let charged = match users.all(|&uid| paying.contains_key(&uid.into())) {
            true => BTreeMap::new(),
            false => charged(table)?,
        };
        let found = projections.iter().map(|(&id, users)| {
            let mut parts = Parts::find(table, &paying, &charged, id, users);
            let entered = closing
                .iter()
                .flat_map(|&slot| users.iter().map(move |&uid| (slot, Part::Entered(uid))));
            parts.members.extend(entered);
            (id, parts)
        });
        Ok(Self(found.collect()))
    }

    pub(super) fn uncounted(&self) -> Vec<AccountId> {
        let all = self.0.values().flat_map(|it| &it.uncounted);
        all.copied().collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// What each of them holds by now; `counted`: those that were uncounted.
    pub(super) fn held(
        &self,
        table: &AccountTable,
        counted: &BTreeMap<AccountId, Pages>,
    ) -> Result<BTreeMap<AccountId, Pages>, Error> {
        let shared = self.0.values().flat_map(|it| it.members.union(&it.leavers));
        let held_in = table.parts(&shared.map(|&(slot, _)| slot).collect())?;
        let held = self.0.iter().map(|(&id, parts)| {
            let accounts = parts.whole.iter().filter_map(|&slot| table.account(slot));
            let whole = accounts.map(|it| it.held);
            let members = parts
                .members
                .iter()
                .filter_map(|it| held_in.get(it))
                .copied();
            let apart = parts
                .uncounted
                .iter()
                .filter_map(|it| counted.get(it))
                .copied();
            let leavers = parts
                .leavers
                .iter()
                .filter_map(|it| held_in.get(it))
                .copied();
            let all = sum(whole.chain(members).chain(apart));
            (id, Pages::new(all.saturating_sub(sum(leavers))))
        });
        Ok(held.collect())
    }
}

impl Parts {
    fn find(
        table: &AccountTable,
        paying: &BTreeMap<AccountId, Slot>,
        charged: &BTreeMap<Uid, BTreeSet<Slot>>,
        id: AccountId,
        users: &BTreeSet<Uid>,
    ) -> Self {
        let paid_by = |payer: AccountId| {
            let slot = *paying.get(&payer)?;
            Some((slot, table.account(slot)?.id))
        };
        let mut parts = Self::default();
        // Who has entered a shared account pays by its id.
        let own = paid_by(id).filter(|&(_, whose)| whose == id);
        let own = own.map(|(slot, _)| slot);
        parts.whole.extend(own);
        if own.is_none() && id.uid().is_none() {
            // Its processes may have entered it before it was taken away.
            parts.uncounted.insert(id);
        }
        let members = paying.iter().filter(|(_, slot)| Some(**slot) == own);
        let members = members.filter_map(|(payer, &slot)| Some((slot, payer.uid()?)));
        let leavers = members.filter(|(_, uid)| !users.contains(uid) && AccountId::of(*uid) != id);
        parts.leavers = leavers.map(|(slot, uid)| (slot, Part::Of(uid))).collect();
        for &uid in users {
            match paid_by(uid.into()) {
                Some((slot, _)) if Some(slot) == own => {}
                Some((slot, whose)) if whose == AccountId::of(uid) => {
                    parts.whole.insert(slot);
                }
                Some((slot, _)) => {
                    parts.members.insert((slot, Part::Of(uid)));
                }
                None => match charged.get(&uid) {
                    Some(slots) => {
                        let its = slots.iter().map(|&slot| (slot, Part::Of(uid)));
                        parts.members.extend(its);
                    }
                    None => {
                        parts.uncounted.insert(AccountId::of(uid));
                    }
                },
            }
        }
        let whole = &parts.whole;
        parts.members.retain(|(slot, _)| !whole.contains(slot));
        parts
    }
}

/// Whose processes have entered these accounts.
pub(super) fn entrants(
    table: &AccountTable,
    accounts: &BTreeSet<AccountId>,
) -> Result<BTreeSet<Uid>, Error> {
    let parts = table.parts(&slots_of(table, accounts))?;
    let entrants = parts.into_keys().filter_map(|(_, part)| match part {
        Part::Entered(uid) => Some(uid),
        Part::Of(_) => None,
    });
    Ok(entrants.collect())
}

/// Which of these accounts processes of this user have entered.
pub(super) fn entered_by(
    table: &AccountTable,
    uid: Uid,
    accounts: &BTreeSet<AccountId>,
) -> Result<BTreeSet<AccountId>, Error> {
    let parts = table.parts(&slots_of(table, accounts))?;
    let slots = parts.into_keys().filter_map(|(slot, part)| match part {
        Part::Entered(user) if user == uid => Some(slot),
        Part::Entered(_) | Part::Of(_) => None,
    });
    Ok(slots
        .filter_map(|slot| Some(table.account(slot)?.id))
        .collect())
}

/// Where processes of which users are charged: subordinate uids pay into nothing of their own.
fn charged(table: &AccountTable) -> Result<BTreeMap<Uid, BTreeSet<Slot>>, Error> {
    let open = table.all().filter(|it| it.is_open).map(|it| it.slot);
    let mut charged: BTreeMap<Uid, BTreeSet<Slot>> = BTreeMap::new();
    for (slot, part) in table.parts(&open.collect())?.into_keys() {
        if let Part::Of(uid) = part {
            charged.entry(uid).or_default().insert(slot);
        }
    }
    Ok(charged)
}

fn slots_of(table: &AccountTable, accounts: &BTreeSet<AccountId>) -> BTreeSet<Slot> {
    if accounts.is_empty() {
        return BTreeSet::new();
    }
    let open = table
        .all()
        .filter(|it| it.is_open && accounts.contains(&it.id));
    open.map(|it| it.slot).collect()
}

fn sum(some: impl Iterator<Item = Pages>) -> u64 {
    some.fold(0, |sum: u64, pages| sum.saturating_add(pages.get()))
}
