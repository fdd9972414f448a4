// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PSS scans of shared pages: asked for, waited for, under way, ended.

use super::record::PssScan;
use super::{Ledger, Rules, Running};
use crate::rules::{Doubt, Wait};
use crate::world::{CHUNK, LIMIT, World};

impl<R: Rules> Ledger<R> {
    pub(super) fn await_scan(&mut self, account: usize, doubt: &mut Doubt, now: u32) -> Wait {
        let is_scanned = self.pss_scans.iter().any(|it| it.account == account);
        let it = &mut self.accounts[account];
        doubt.sure_pages -= it.unmapped;
        doubt.asked_pages = it.asked_pages;
        doubt.grown_pages += it.grown;
        if R::IS_FORMER {
            // Of the growth that ends a wait nothing is modelled: the former rules are shown to fail without it.
            let pages =
                (doubt.soft_pages + doubt.hard_pages).min(doubt.held_pages - doubt.largest_pages);
            if pages <= LIMIT >> 5
                || doubt.level_pages - pages > LIMIT
                || now < it.no_scan_before_ms
            {
                return Wait::Not;
            }
        }
        let wait = if R::IS_FORMER {
            Wait::ForScan
        } else {
            doubt.wait()
        };
        if wait == Wait::Not {
            return wait;
        }
        it.asked_pages = doubt.asked_pages;
        if it.over_ms == 0 {
            it.over_ms = now;
        }
        let (grace, pause) = R::grace(it.scan_ms);
        let is_asking = is_scanned || (it.asked_ms != 0 && now - it.asked_ms < grace);
        if !is_asking {
            let is_late = it.asked_ms != 0 && now - it.over_ms > grace;
            it.asked_ms = now;
            if !self.waiting.contains(&account) {
                self.waiting.push(account);
            }
            if is_late {
                it.no_scan_before_ms = now + pause;
                return Wait::Not;
            }
        }
        wait
    }

    /// bursard's PSS scans: as many at once as there are lanes.
    pub(super) fn pss_scan(&mut self, world: &mut World) {
        let now = world.now_ms;
        let (done, under_way): (Vec<_>, Vec<_>) =
            self.pss_scans.drain(..).partition(|it| now >= it.until_ms);
        self.pss_scans = under_way;
        for pss_scan in done {
            self.end_pss_scan(world, &pss_scan);
        }
        while self.pss_scans.len() < R::LANES && !self.waiting.is_empty() {
            let account = self.waiting.remove(0);
            if self.pss_scans.iter().any(|it| it.account == account) {
                continue;
            }
            let cost = self.accounts[account].dear_ms.max(5);
            self.accounts[account].scan_ms = cost;
            let spaces = world
                .living(account)
                .map(|pid| world.processes[pid].space)
                .collect();
            self.pss_scans.push(PssScan {
                account,
                spaces,
                until_ms: now + cost,
            });
        }
        // An account that is corrected is scanned again and again.
        for account in 0..self.accounts.len() {
            let it = &self.accounts[account];
            let is_due = it.correction > 0
                && it.correction_until_ms != 0
                && now + R::lifetime(it.scan_ms) >= it.correction_until_ms + 50;
            if is_due
                && !self.waiting.contains(&account)
                && !self.pss_scans.iter().any(|it| it.account == account)
            {
                self.waiting.push(account);
            }
        }
    }

    pub(super) fn end_pss_scan(&mut self, world: &mut World, pss_scan: &PssScan) {
        let now = world.now_ms;
        let mut correction = 0;
        for at in 0..world.live.len() {
            let space = world.live[at];
            if world.spaces[space].account != pss_scan.account {
                continue;
            }
            let (it, is_listed) = (&world.spaces[space], pss_scan.spaces.contains(&space));
            let is_alive = it
                .owner
                .is_some_and(|owner| world.processes[owner].is_alive);
            let most = self.shared_at_most(it, space).min(world.resident(space));
            let record = self.record(space);
            record.duplicate = None;
            record.lost = 0;
            record.is_born = is_alive && !is_listed;
            record.is_unseen = false;
            // Who is dying has a part of what it shares.
            if !is_alive && !R::IS_FORMER {
                let shared = i64::from(record.dying.shared_pages);
                correction -= if R::DYING_SHARE_ALL { most } else { shared } / 2;
            }
        }
        for &space in &pss_scan.spaces {
            let is_alive = world.spaces[space]
                .owner
                .is_some_and(|owner| world.processes[owner].is_alive);
            if !is_alive {
                continue;
            }
            if std::mem::take(&mut world.spaces[space].is_hidden) {
                self.record(space).is_unseen = true;
                continue;
            }
            let (duplicate, shared) = (world.duplicate(space), world.shared(space));
            self.accounts[pss_scan.account].grown += self.copies(world, space);
            world.spaces[space].has_forked = false;
            world.spaces[space].copies = 0;
            let inherited = world.spaces[space].inherited * CHUNK;
            let record = self.record(space);
            record.duplicate = Some(duplicate);
            let inherited = record.inherited.unwrap_or(inherited);
            record.inherited = Some(inherited.min(shared));
            record.shared = shared;
            correction += duplicate;
        }
        let born = world.live.iter().filter(|&&space| {
            self.records[space].is_born && world.spaces[space].account == pss_scan.account
        });
        let born = born.map(|&space| &world.spaces[space]);
        let doubles: i64 = born.map(|it| (it.inherited - it.copies).max(0)).sum();
        let it = &mut self.accounts[pss_scan.account];
        (it.correction, it.ended) = (correction, 0);
        it.correction_until_ms = now + R::lifetime(it.scan_ms);
        it.asked_ms = 0;
        it.no_scan_before_ms = 0;
        (it.unmapped, it.asked_pages) = (0, 0);
        it.forked = doubles * CHUNK / 2;
        self.react(world, pss_scan.account, Running::Other, false);
    }
}
