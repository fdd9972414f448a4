// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that count twice because processes share them: made by forks, undone by copies and ends.

use super::{Ledger, Rules};
use crate::world::{CHUNK, Space, SpaceId, World};

impl<R: Rules> Ledger<R> {
    /// charge.bpf.h note_fork(). What the parent copied so far is taken off for good: it may copy the same pages again.
    pub(crate) fn forks(&mut self, world: &mut World, parent: SpaceId, child: SpaceId) {
        let copies = self.copies(world, parent);
        let it = &mut world.spaces[parent];
        it.inherited -= it.inherited.min(copies / CHUNK);
        (it.copies, it.has_forked) = (0, true);
        let account = it.account;
        self.take_off_forked(account, copies);
        let doubled = world.spaces[child].inherited * CHUNK;
        let it = &mut self.accounts[account];
        it.forked += doubled;
        it.grown += copies - doubled;
    }

    /// Pages counted twice for certain: what forks have doubled, less what may have been copied.
    pub(crate) fn doubles(&self, world: &World, account: usize) -> i64 {
        let living = world.living(account).map(|pid| world.processes[pid].space);
        self.accounts[account].forked - living.map(|space| self.copies(world, space)).sum::<i64>()
    }

    /// Pages that are there and not on their way out, each once.
    pub(crate) fn held_once(&self, world: &World, account: usize) -> i64 {
        let is_held = |it: &SpaceId| {
            let record = self.records.get(*it);
            world.spaces[*it].account == account
                && record
                    .is_some_and(|record| !record.is_dying || record.held >= world.resident(*it))
        };
        world.mapped_by(world.live.iter().copied().filter(is_held))
    }

    /// It holds no more than its limit and this.
    pub(crate) fn growth(&self, world: &World, account: usize) -> i64 {
        let living = world.living(account).map(|pid| world.processes[pid].space);
        let copies: i64 = living.map(|space| self.copies(world, space)).sum();
        self.accounts[account].grown.max(0) + copies
    }

    /// Pages of the dying that are in no sum, for the living share them.
    pub(crate) fn shared_by_dying(&self, world: &World, account: usize) -> i64 {
        let spaces = world
            .live
            .iter()
            .filter(|&&it| world.spaces[it].account == account);
        let records = spaces.filter_map(|&it| self.records.get(it).filter(|it| it.is_dying));
        records.map(|it| i64::from(it.dying.shared_pages)).sum()
    }

    /// correction.bpf.h copied_pages().
    pub(super) fn copies(&self, world: &World, space: SpaceId) -> i64 {
        let it = &world.spaces[space];
        let most = match (it.has_forked, self.faults_tell(world, space)) {
            (true, _) => world.resident(space),
            (false, false) => 0,
            (false, true) => it.inherited * CHUNK,
        };
        most.min(it.copies * CHUNK)
    }

    /// correction.bpf.h faults_tell().
    fn faults_tell(&self, world: &World, space: SpaceId) -> bool {
        let it = &world.spaces[space];
        let is_scanned =
            self.records[space].duplicate.is_some() && self.is_corrected(it.account, world.now_ms);
        it.has_forked || !is_scanned
    }

    /// copy_on_write.bpf.c count_copies(): of who is in no PSS scan the page faults tell.
    pub(crate) fn copied(
        &mut self,
        world: &World,
        space: SpaceId,
        account: usize,
        pages: i64,
        now: u32,
    ) {
        let it = self.records[space];
        if !self.faults_tell(world, space) {
            self.accounts[account].grown += pages;
        }
        let is_scanned = self.pss_scans.iter().any(|it| it.account == account);
        if it.duplicate.is_some() || it.is_born || is_scanned {
            self.give_up(space, account, pages, now);
        }
    }

    /// correction.bpf.h give_up().
    pub(super) fn give_up(&mut self, space: SpaceId, account: usize, pages: i64, now: u32) {
        let left = pages - self.lose(space, account, pages, now);
        self.end_doubles(account, left);
    }

    /// correction.bpf.h leave().
    pub(super) fn leave(&mut self, world: &World, space: SpaceId, account: usize, pages: i64) {
        let it = &world.spaces[space];
        let most = self.shared_at_most(it, space);
        self.leave_growth(account, pages, it.has_forked, most);
        let pages = pages.min(most);
        let told = self.lose(space, account, pages, world.now_ms);
        self.accounts[account].ended += told;
        let left = pages - told;
        if it.has_forked {
            return self.end_doubles(account, left);
        }
        if self.records[space].duplicate.is_none() {
            self.take_off_forked(account, left);
        }
    }

    /// correction.bpf.h shared_at_most().
    pub(super) fn shared_at_most(&self, it: &Space, space: SpaceId) -> i64 {
        let record = &self.records[space];
        match record.duplicate {
            _ if it.has_forked => i64::MAX,
            Some(_) => record.shared,
            None if record.is_unseen && R::UNSEEN_SHARE_ALL => i64::MAX,
            // What a PSS scan has found is what it has inherited from then on.
            None => record.inherited.unwrap_or(it.inherited * CHUNK),
        }
    }

    /// correction.bpf.h lose(): by so much a correction in force has sunk.
    pub(super) fn lose(&mut self, space: SpaceId, account: usize, pages: i64, now: u32) -> i64 {
        let is_corrected = self.is_corrected(account, now);
        let it = &mut self.accounts[account];
        let told = self.records[space].lose(pages);
        let left = it.correction.clamp(0, told);
        it.correction -= told;
        if is_corrected { left } else { 0 }
    }

    pub(super) fn end_doubles(&mut self, account: usize, pages: i64) {
        let it = &mut self.accounts[account];
        if it.over_ms != 0 {
            it.unmapped += pages;
        }
        self.take_off_forked(account, pages);
    }

    pub(super) fn take_off_forked(&mut self, account: usize, pages: i64) {
        let forked = &mut self.accounts[account].forked;
        *forked -= pages.min(*forked);
    }
}
