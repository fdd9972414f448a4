// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One process as a scan sees it: who pays for it, what of its memory counts, whether it may die.

use bursar_host::{Memory, Status, UserNamespaces, clock};
use bursar_kernel::SubordinateTable;
use bursar_model::{AccountId, Bytes, Pid, Uid};
use bursar_policy::{Weighed, is_protected};

use super::Scan;
use super::pending_victim::PendingVictim;
use crate::payers::owner_of;

/// One process seen by a scan.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// Who pays for it.
    pub(super) uid: Uid,
    pub(super) pid: Pid,
    pub(super) comm: Vec<u8>,
    pub(super) held: Bytes,
    pub(super) is_dying: bool,
    /// Dying only as far as decisions go: it would have been killed.
    pub(super) is_forgone: bool,
    pub(super) is_protected: bool,
    pub(super) raised: i16,
}

impl Seen {
    pub(super) fn weigh(&self, is_spared: bool) -> Weighed {
        Weighed {
            pid: self.pid,
            held: self.held,
            is_dying: self.is_dying,
            is_protected: self.is_protected,
            raised: self.raised,
            is_spared,
        }
    }
}

impl Scan {
    /// The account that a process pays into.
    pub(in crate::backend) fn account_of(&mut self, pid: Pid) -> Option<AccountId> {
        let status = self.proc.status(pid).ok().flatten()?;
        let mut namespaces = self.namespaces().ok()?;
        Some(self.payer_of(&status, &mut namespaces)?.0)
    }

    /// The account that a process pays into, and who pays, as the kernel half has it: nobody dies here for what another one
    /// holds.
    fn payer_of(
        &mut self,
        status: &Status,
        namespaces: &mut UserNamespaces,
    ) -> Option<(AccountId, Uid)> {
        let (holder, uid) = (status.tid, status.uid);
        let owner = owner_of(namespaces, &self.proc, holder, uid, &mut self.query)?;
        let payer = self.payers.payer(owner);
        if self.payers.subuid_payer(payer).is_some()
            && self.subuids_met.len() < SubordinateTable::MOST_MET
        {
            self.subuids_met.insert(payer);
        }
        Some((self.payers.of(payer)?.0, payer))
    }

    pub(super) fn look_at(
        &mut self,
        pid: Pid,
        namespaces: &mut UserNamespaces,
    ) -> Option<(AccountId, Seen)> {
        let status = self.proc.status(pid).ok().flatten()?;
        let memory = status.memory?;
        let (id, payer) = self.payer_of(&status, namespaces)?;
        if self.payers.is_exempt(pid) {
            return None;
        }
        let comm = self.proc.comm(pid).ok().flatten()?;
        let adj = self.proc.oom_score_adj(pid).ok().flatten()?;
        let now = clock::monotonic();
        let pending = self.pending.get(&pid);
        let pending = pending.filter(|it| it.is_there() && !it.has_lapsed(now));
        let is_forgone = pending.is_some_and(PendingVictim::is_forgone);
        let seen = Seen {
            uid: payer,
            pid,
            comm: comm.as_bytes().to_vec(),
            held: self.counted(&memory),
            is_dying: pending.is_some() || status.is_kill_pending || status.is_dead,
            is_forgone: is_forgone && !status.is_kill_pending && !status.is_dead,
            is_protected: is_protected(pid, std::process::id(), adj)
                || self.passed_over.contains_key(&pid),
            raised: adj,
        };
        Some((id, seen))
    }

    /// At one alone.
    pub(super) fn look_again(&mut self, pid: Pid) -> Option<(AccountId, Seen)> {
        let mut namespaces = self.namespaces().ok()?;
        self.look_at(pid, &mut namespaces)
    }

    /// What of a process's memory counts.
    pub(super) fn counted(&self, memory: &Memory) -> Bytes {
        match self.counts_files {
            true => memory.rss(),
            false => memory.held(),
        }
    }
}
