// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ledger as the BPF programs have it: records, accounts, re-sums, counts of files, PSS scans, decisions.

mod doubles;
mod leavers;
mod pss_scan;
mod record;
mod variant;

use self::record::{Account, Late, PssScan, Record};
pub use self::variant::{Leavers, Rules};
use crate::rules::{self, Doubt, Wait};
use crate::world::{CHUNK, LIMIT, Pid, SpaceId, World};

pub(crate) const RESUM_MS: u32 = 200;
/// correction.bpf.h PSS_SCAN_ASKED_NS: so long what has ended is in doubt, however often the account is scanned.
const ENDED_MS: u32 = 2_000;

/// What the running process has to do with a decision (`enum running`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Running {
    Other,
    Grew(Pid),
    Writer(Pid),
}

/// The kernel half and bursard's PSS scans.
#[derive(Debug, Clone)]
pub struct Ledger<R> {
    rules: std::marker::PhantomData<R>,
    pub(crate) records: Vec<Record>,
    pub(crate) accounts: Vec<Account>,
    /// Whether who leaves next loses its processor.
    pub(crate) is_stalling: bool,
    late: Vec<Late>,
    pss_scans: Vec<PssScan>,
    waiting: Vec<usize>,
    pub(crate) next_resum_ms: u32,
    pub(crate) next_count_ms: u32,
    /// Whom decisions have killed, in order.
    pub(crate) killed: Vec<Pid>,
}

impl<R: Rules> Ledger<R> {
    pub(crate) fn new(accounts: usize, now_ms: u32) -> Self {
        Self {
            rules: std::marker::PhantomData,
            records: Vec::new(),
            accounts: vec![Account::default(); accounts],
            is_stalling: false,
            late: Vec::new(),
            pss_scans: Vec::new(),
            waiting: Vec::new(),
            next_resum_ms: now_ms + RESUM_MS,
            next_count_ms: now_ms + RESUM_MS / 2,
            killed: Vec::new(),
        }
    }

    fn record(&mut self, space: SpaceId) -> &mut Record {
        if self.records.len() <= space {
            self.records.resize(space + 1, Record::default());
        }
        &mut self.records[space]
    }

    /// dying.bpf.h refresh_state() and record.bpf.h book().
    pub(crate) fn sync(&mut self, world: &World, space: SpaceId) {
        let now = world.now_ms;
        let pages = world.resident(space);
        let it = &world.spaces[space];
        let is_dying = it
            .owner
            .is_none_or(|owner| !world.processes[owner].is_alive);
        let is_kept = it.owner.is_none() && !it.keepers.is_empty();
        let account = it.account;
        let (inherited, copies) = (it.inherited * CHUNK, it.copies * CHUNK);
        let is_corrected = self.is_corrected(account, now);
        let patience = self.accounts[account].patience;
        let from = patience.credit_from_ms;
        let record = self.record(space);
        let was = record.held;
        record.is_known = true;
        if is_dying && !record.is_dying {
            let shared = match record.duplicate {
                Some(duplicate) if is_corrected => duplicate - record.lost,
                Some(_) => 0,
                None => inherited - copies,
            };
            record.dying.begin(pages as u32, shared.max(0) as u32, now);
            record.less_ms = now;
            record.less_pages = pages;
        }
        record.is_dying = is_dying;
        if is_kept {
            record.dying.keep(&patience);
        }
        (record.held, record.credit) = if !is_dying {
            (pages, 0)
        } else if R::IS_FORMER {
            if pages + 64 <= record.less_pages {
                record.less_pages = pages;
                record.less_ms = now;
            }
            let is_fading = it.owner.is_none() || now - record.less_ms <= 1000;
            let credit = if is_fading {
                pages.min(record.less_pages + 512).max(0)
            } else {
                0
            };
            // Ownerless memory was credited whatever it grew to.
            let credit = if it.owner.is_none() { pages } else { credit };
            (pages - credit, credit)
        } else {
            record.dying.split(pages, from, now)
        };
        let lost = was - record.held;
        // record.bpf.h growth_of(), and what note_change() tells of the dying.
        let is_shared_again = is_dying && record.credit == 0;
        let shared = i64::from(record.dying.shared_pages) * i64::from(is_shared_again);
        self.accounts[account].grown += (-lost - shared).max(0);
        if lost > 0 {
            if is_dying {
                self.leave(world, space, account, lost);
            } else {
                self.give_up(space, account, lost, now);
            }
        }
    }

    fn is_corrected(&self, account: usize, now: u32) -> bool {
        now < self.accounts[account].correction_until_ms
    }

    fn files_credit(&self, account: usize, now: u32) -> i64 {
        let it = &self.accounts[account];
        let in_force =
            !R::IS_FORMER && rules::is_files_credit(it.files_credit_ms, &it.patience, now);
        if in_force { it.files_credit } else { 0 }
    }

    fn sums(&self, world: &World, account: usize) -> (i64, i64, i64) {
        let (mut held, mut credit, mut unkillable) = (0, 0, 0);
        for &space in &world.live {
            let Some(record) = self.records.get(space) else {
                continue;
            };
            if record.is_known && world.spaces[space].account == account {
                held += record.held;
                credit += record.credit;
                unkillable += if record.is_dying { record.held } else { 0 };
            }
        }
        (held + self.accounts[account].stalled, credit, unkillable)
    }

    /// correction.bpf.h level_from(), and total_pages().
    pub(crate) fn level(&self, world: &World, account: usize) -> (i64, i64) {
        let now = world.now_ms;
        let (held, credit, _) = self.sums(world, account);
        let it = &self.accounts[account];
        let correction = if self.is_corrected(account, now) {
            it.correction.max(0)
        } else {
            0
        };
        let files_credit = self.files_credit(account, now);
        let gross = held + it.sure_pages - correction;
        if R::IS_FORMER {
            return (gross, gross + credit);
        }
        let excess = rules::excess(credit + files_credit, LIMIT);
        (gross - files_credit + excess, gross + credit)
    }

    /// victim.bpf.h decide(). Whether somebody was killed.
    pub(crate) fn decide(
        &mut self,
        world: &mut World,
        account: usize,
        running: Running,
        starve: bool,
    ) -> bool {
        let now = world.now_ms;
        for at in 0..world.live.len() {
            let space = world.live[at];
            if world.spaces[space].account == account {
                self.sync(world, space);
            }
        }
        let (level, _) = self.level(world, account);
        let (held, _, unkillable) = self.sums(world, account);
        if level <= LIMIT {
            self.end_doubt(account, now);
            return false;
        }
        let counts_files = self.accounts[account].sure_pages > 0 && {
            let it = &self.accounts[account];
            let correction = if self.is_corrected(account, now) {
                it.correction.max(0)
            } else {
                0
            };
            held - correction <= LIMIT
        };
        let is_corrected = self.is_corrected(account, now);
        let kept = |world: &World, pid: Pid| -> i64 {
            if !counts_files {
                return 0;
            }
            let files = world.processes[pid].files.iter();
            files.map(|&file| world.files[file].chunks * CHUNK).sum()
        };
        let mut candidates: Vec<(i64, Pid, i64)> = Vec::new();
        let mut doubt = Doubt {
            level_pages: level,
            limit_pages: LIMIT,
            bound_pages: LIMIT,
            forked_pages: self.doubles(world, account),
            held_pages: held,
            ..Doubt::default()
        };
        for pid in world.living(account) {
            let space = world.processes[pid].space;
            let (pages, record) = (world.resident(space), self.records[space]);
            let copies = self.copies(world, space);
            doubt.sure_pages -= copies;
            doubt.grown_pages += copies;
            let mut own = pages;
            match record.duplicate {
                Some(duplicate) if is_corrected => {
                    doubt.hard_pages += record.lost.min(record.shared);
                    own = pages - (duplicate - record.lost).max(0);
                }
                _ => {
                    doubt.soft_pages += world.spaces[space].inherited * CHUNK;
                    doubt.sure_pages += world.spaces[space].inherited * CHUNK;
                }
            }
            doubt.largest_pages = doubt.largest_pages.max(pages);
            doubt.sure_of_one_pages = doubt.largest_pages;
            let kept = kept(world, pid);
            candidates.push((rules::rank(own + kept, LIMIT, 0, false), pid, kept));
        }
        let it = &self.accounts[account];
        if is_corrected && (it.over_ms == 0 || now - it.over_ms <= ENDED_MS) {
            doubt.ended_pages = it.ended;
        }
        let own = match running {
            Running::Grew(pid) | Running::Writer(pid) => {
                candidates.iter().find(|it| it.1 == pid).copied()
            }
            Running::Other => None,
        };
        let mut victim = candidates.iter().max_by_key(|it| it.0).copied();
        match self.await_scan(account, &mut doubt, now) {
            Wait::ForScan => return false,
            Wait::ButGrowers => match own {
                Some(own) => victim = Some(own),
                None => return false,
            },
            Wait::Not => {}
        }
        let stuck = 0;
        if level <= rules::kill_above(LIMIT, stuck, unkillable) {
            return false;
        }
        if !R::IS_FORMER
            && let (Running::Writer(_), Some(own)) = (running, own)
        {
            victim = Some(own);
        }
        let Some((_, pid, kept)) = victim else {
            return false;
        };
        if counts_files
            && kept == 0
            && !R::IS_FORMER
            && !self.accounts[account].is_counted_since_kill
        {
            return false;
        }
        if counts_files {
            let credit = self.files_credit(account, now);
            let it = &mut self.accounts[account];
            it.files_kill_ms = now;
            it.is_counted_since_kill = false;
            if R::IS_FORMER {
                it.sure_pages = (it.sure_pages - kept).max(0);
            } else {
                if credit == 0 {
                    it.files_credit_ms = now.max(1);
                }
                it.files_credit = rules::files_credit(credit, kept, it.sure_pages);
            }
        }
        self.accounts[account].kills += 1;
        self.killed.push(pid);
        world.die(pid, starve);
        world.reap(pid);
        let space = world.processes[pid].space;
        self.sync(world, space);
        true
    }

    /// correction.bpf.h end_doubt(). What is credited of files counts as grown: it is there still if somebody keeps them.
    fn end_doubt(&mut self, account: usize, now: u32) {
        let credit = self.files_credit(account, now);
        let it = &mut self.accounts[account];
        (it.over_ms, it.unmapped, it.asked_pages, it.grown) = (0, 0, 0, credit);
        it.resets += 1;
    }

    /// react.bpf.h react().
    fn react(&mut self, world: &mut World, account: usize, running: Running, starve: bool) {
        if self.level(world, account).0 > LIMIT {
            self.decide(world, account, running, starve);
        } else {
            self.end_doubt(account, world.now_ms);
        }
    }

    /// react.bpf.h: an event of an address space.
    pub(crate) fn event(
        &mut self,
        world: &mut World,
        space: SpaceId,
        running: Running,
        starve: bool,
    ) {
        self.sync(world, space);
        self.react(world, world.spaces[space].account, running, starve);
    }

    /// What timers and bursard do as time goes by.
    pub(crate) fn pass(&mut self, world: &mut World, starve: bool) {
        let now = world.now_ms;
        if now >= self.next_count_ms {
            self.next_count_ms = now + RESUM_MS;
            self.count_files(world);
        }
        self.pss_scan(world);
        if now >= self.next_resum_ms {
            self.next_resum_ms = now + RESUM_MS;
            self.resum(world, starve);
        }
    }

    fn resum(&mut self, world: &mut World, starve: bool) {
        for at in 0..world.live.len() {
            self.sync(world, world.live[at]);
        }
        for account in 0..self.accounts.len() {
            if !R::IS_FORMER {
                let total = self.level(world, account).1;
                let it = &mut self.accounts[account];
                let patient = rules::Patience::default();
                if !rules::is_files_credit(it.files_credit_ms, &patient, world.now_ms) {
                    it.files_credit_ms = 0;
                }
                it.patience.keep(total, LIMIT, world.now_ms);
            }
            self.react(world, account, Running::Other, starve);
            for _ in 0..8 {
                if self.accounts[account].patience.is_out == 0
                    || !self.decide(world, account, Running::Other, starve)
                {
                    break;
                }
            }
        }
    }

    /// tmpfs_count.bpf.h and book_files().
    fn count_files(&mut self, world: &World) {
        let now = world.now_ms;
        for account in 0..self.accounts.len() {
            let pages = world.kept_chunks(account) * CHUNK;
            let it = &mut self.accounts[account];
            let before = it.files_pages;
            it.files_pages = pages;
            if R::IS_FORMER {
                if now - it.files_kill_ms > 1000 {
                    it.sure_pages = before.min(pages);
                } else {
                    it.sure_pages = it.sure_pages.min(pages);
                }
                continue;
            }
            it.is_counted_since_kill = true;
            if pages < before {
                it.files_credit -= (before - pages).min(it.files_credit);
            }
            it.grown += (before.min(pages) - it.sure_pages).max(0);
            it.sure_pages = before.min(pages);
        }
    }
}
