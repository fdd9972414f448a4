// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What users' processes hold now, whatever accounts they pay into.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use bursar_host::UserNamespaces;
use bursar_model::{AccountId, Bytes, Pid, Uid};

use super::Scan;
use crate::payers::owner_of;

impl Scan {
    /// What an account's processes hold now.
    pub(in crate::backend) fn held_of(&mut self, id: AccountId) -> Result<Bytes> {
        let users = self.payers.payers_of(id).into_iter().collect();
        let held = self.measure(&BTreeMap::from([(id, users)]))?;
        Ok(held.get(&id).copied().unwrap_or_default())
    }

    /// What the processes of each of these sets of users hold now.
    pub(in crate::backend) fn measure(
        &mut self,
        projections: &BTreeMap<AccountId, BTreeSet<Uid>>,
    ) -> Result<BTreeMap<AccountId, Bytes>> {
        let named: BTreeSet<Uid> = projections.values().flatten().copied().collect();
        let mut by_user: BTreeMap<Uid, Bytes> = BTreeMap::new();
        let mut namespaces = self.namespaces()?;
        for pid in self.pids()? {
            let Some((user, held)) = self.held_by(pid, &named, &mut namespaces) else {
                continue;
            };
            let sum = by_user.entry(user).or_default();
            *sum = sum.saturating_add(held);
        }
        let sum = |users: &BTreeSet<Uid>| {
            let held = users.iter().filter_map(|uid| by_user.get(uid));
            held.fold(Bytes::ZERO, |sum, held| sum.saturating_add(*held))
        };
        Ok(projections
            .iter()
            .map(|(&id, users)| (id, sum(users)))
            .collect())
    }

    /// Of a living process. Whoever is `named` pays for himself, as he would if these projections were in force.
    fn held_by(
        &mut self,
        pid: Pid,
        named: &BTreeSet<Uid>,
        namespaces: &mut UserNamespaces,
    ) -> Option<(Uid, Bytes)> {
        let status = self.proc.status(pid).ok().flatten()?;
        let memory = status.memory?;
        if status.is_kill_pending || status.is_dead || self.payers.is_exempt(pid) {
            return None;
        }
        let (holder, uid) = (status.tid, status.uid);
        let owner = owner_of(namespaces, &self.proc, holder, uid, &mut self.query)?;
        let user = match named.contains(&owner.uid) {
            true => owner.uid,
            false => self.payers.user_of(owner),
        };
        Some((user, self.counted(&memory)))
    }
}
