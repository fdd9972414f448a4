// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shared accounts of a plan: of a group's members, or of those who enter.

use std::collections::{BTreeMap, BTreeSet};

use bursar_model::{AccountId, AccountKind, Uid, Who};

use super::{Plan, Planned, Written, limit_or_endless};
use crate::directory::{Directory, NameError};

impl Plan {
    /// The shared accounts, and who pays into which.
    pub(super) fn claim_shared(&mut self, written: &[Written], directory: &Directory) {
        let mut offers = BTreeMap::new();
        for &(entry, bounds) in written {
            let who = &entry.who;
            let Who::Shared(name) = who else { continue };
            let (id, payers) = match directory.group(name) {
                Ok((gid, members)) => {
                    let mut had_limit = self.default.is_some_and(|it| it.limit().is_some());
                    for &uid in members {
                        let own = self.accounts.remove(&AccountId::of(uid));
                        had_limit |= own.is_some_and(|it| it.bounds.limit().is_some());
                    }
                    if bounds.is_none() && had_limit {
                        let text = "says nothing of memory, and no other limit on memory holds for its \
                                    members: write memory = \"none\" if that is meant";
                        self.remark(who, text.to_owned());
                    }
                    let id = AccountId::of_group(gid);
                    offers.insert(id, bounds.map_or(0, limit_or_endless));
                    (id, members.iter().copied().collect())
                }
                Err(NameError::Unknown) if entry.granted.is_some() => {
                    let id = number_of(name);
                    if let Some(other) = self.accounts.get(&id) {
                        let other = &other.who;
                        let text = format!("has the same number as {other}: choose another name");
                        self.remark(who, text);
                        continue;
                    }
                    (id, BTreeSet::new())
                }
                Err(error) => {
                    self.remark(who, error.of("group"));
                    continue;
                }
            };
            let bounds = bounds.unwrap_or_default();
            let planned = Planned::new(entry, AccountKind::Shared, bounds, payers);
            self.accounts.insert(id, planned);
        }
        self.settle_members(&offers);
    }

    /// A user in the groups of two shared accounts pays into the one with the larger limit; before one that
    /// says nothing of memory into any other.
    fn settle_members(&mut self, offers: &BTreeMap<AccountId, u64>) {
        let mut best: BTreeMap<Uid, (u64, AccountId)> = BTreeMap::new();
        for (id, planned) in &self.accounts {
            let Some(&size) = offers.get(id) else {
                continue;
            };
            for &uid in &planned.payers {
                let offer = (size, *id);
                let kept = best.entry(uid).or_insert(offer);
                *kept = (*kept).max(offer);
            }
        }
        for (id, planned) in self.shared() {
            let pays_here = |uid: &Uid| best.get(uid).is_none_or(|(_, winner)| winner == id);
            planned.payers.retain(pays_here);
        }
    }

    /// A user pays for himself.
    pub(super) fn leave_shared(&mut self, uid: Uid) {
        for (_, planned) in self.shared() {
            planned.payers.remove(&uid);
        }
    }

    /// The shared account that a user pays into.
    pub(super) fn shared_by(&self, uid: Uid) -> Option<&Planned> {
        let mut accounts = self.accounts.values();
        accounts.find(|it| it.kind == AccountKind::Shared && it.payers.contains(&uid))
    }

    fn shared(&mut self) -> impl Iterator<Item = (&AccountId, &mut Planned)> {
        let accounts = self.accounts.iter_mut();
        accounts.filter(|(_, it)| it.kind == AccountKind::Shared)
    }
}

/// A shared account that belongs to no Unix group: its name's FNV-1a hash, so that it is the same after every
/// restart. (The two highest bits are set as before ABI version 7, whose accounts are taken over.)
fn number_of(name: &str) -> AccountId {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    AccountId::of_name((0b11 << 30 | hash).min(u32::MAX - 1))
}
