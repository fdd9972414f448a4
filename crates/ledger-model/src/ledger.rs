// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ledger as the BPF programs have it: records, accounts, audits, counts of files, surveys, decisions.

use crate::rules::{self, Current, Doubt, Dying, Patience, Wait};
use crate::world::{CHUNK, LIMIT, Pid, SpaceId, World};

pub(crate) const AUDIT_MS: u32 = 200;

/// What differs between sets of rules.
pub trait Rules: Copy {
    /// Whether an address space without an owner is credited for ever, giving back a little renews the credit, and
    /// there is neither patience nor a cap (the rules before ABI version 7).
    const IS_FORMER: bool;
    /// Surveys that can be under way at once.
    const LANES: usize;
    /// A correction ends so long after a survey that took so long, ms.
    fn lifetime(survey_ms: u32) -> u32;
    /// What waits for a survey decides without one after so long; and for how long then.
    fn grace(survey_ms: u32) -> (u32, u32);
}

impl Rules for Current {
    const IS_FORMER: bool = false;
    const LANES: usize = 8;
    fn lifetime(_: u32) -> u32 {
        10_000
    }
    fn grace(_: u32) -> (u32, u32) {
        (2_000, 0)
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Record {
    pub(crate) is_known: bool,
    pub(crate) is_dying: bool,
    pub(crate) dying: Dying,
    pub(crate) held: i64,
    pub(crate) credit: i64,
    /// As of the survey that the correction in force is from.
    pub(crate) duplicate: Option<i64>,
    pub(crate) lost: i64,
    /// It is in no survey, but was there when the last one ended.
    pub(crate) is_born: bool,
    /// Former rules: when it last had less, and what.
    pub(crate) less_ms: u32,
    pub(crate) less_pages: i64,
}

impl Record {
    /// What it gave up of what the survey found shared in it.
    fn lose(&mut self, pages: i64) -> i64 {
        let shared = match self.duplicate {
            Some(duplicate) => 2 * duplicate,
            // Began during the survey: half of it may be counted in what was found of others.
            None if self.is_born => return (pages + 1) / 2,
            None => 0,
        };
        let lost = pages.min(shared - self.lost).max(0);
        self.lost += lost;
        lost
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Account {
    pub(crate) patience: Patience,
    pub(crate) files_pages: i64,
    pub(crate) sure_pages: i64,
    pub(crate) files_credit: i64,
    pub(crate) files_credit_ms: u32,
    pub(crate) files_kill_ms: u32,
    pub(crate) is_counted_since_kill: bool,
    pub(crate) correction: i64,
    pub(crate) correction_until_ms: u32,
    pub(crate) asked_ms: u32,
    pub(crate) no_survey_before_ms: u32,
    pub(crate) over_ms: u32,
    pub(crate) unmapped: i64,
    pub(crate) asked_pages: i64,
    pub(crate) forked: i64,
    pub(crate) survey_ms: u32,
    /// What its next survey takes, for reasons of its user's.
    pub(crate) dear_ms: u32,
    pub(crate) kills: u32,
}

/// A survey under way: of whom, of which address spaces, until when.
#[derive(Debug, Clone)]
struct Survey {
    account: usize,
    spaces: Vec<SpaceId>,
    until_ms: u32,
}

/// What the running process has to do with a decision (`enum running`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Running {
    Other,
    Grew(Pid),
    Writer(Pid),
}

/// The kernel half and bursard's surveys.
#[derive(Debug, Clone)]
pub struct Ledger<R> {
    rules: std::marker::PhantomData<R>,
    pub(crate) records: Vec<Record>,
    pub(crate) accounts: Vec<Account>,
    surveys: Vec<Survey>,
    waiting: Vec<usize>,
    pub(crate) next_audit_ms: u32,
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
            surveys: Vec::new(),
            waiting: Vec::new(),
            next_audit_ms: now_ms + AUDIT_MS,
            next_count_ms: now_ms + AUDIT_MS / 2,
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
        if lost > 0 {
            if is_dying {
                self.leave(world, space, account, lost);
            } else {
                self.give_up(space, account, lost, now);
            }
        }
    }

    /// charge.bpf.h note_fork(). What the parent copied so far is taken off for good: it may copy the same pages again.
    pub(crate) fn forks(&mut self, world: &mut World, parent: SpaceId, child: SpaceId) {
        let copies = self.copies(world, parent);
        let it = &mut world.spaces[parent];
        it.inherited -= it.inherited.min(copies / CHUNK);
        (it.copies, it.has_forked) = (0, true);
        let account = it.account;
        self.take_off_forked(account, copies);
        self.accounts[account].forked += world.spaces[child].inherited * CHUNK;
    }

    /// Pages counted twice for certain: what forks have doubled, less what may have been copied.
    pub(crate) fn doubles(&self, world: &World, account: usize) -> i64 {
        let living = world.living(account).map(|pid| world.processes[pid].space);
        self.accounts[account].forked - living.map(|space| self.copies(world, space)).sum::<i64>()
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
    fn copies(&self, world: &World, space: SpaceId) -> i64 {
        let it = &world.spaces[space];
        let is_surveyed =
            self.records[space].duplicate.is_some() && self.is_corrected(it.account, world.now_ms);
        let most = match (it.has_forked, is_surveyed) {
            (true, _) => world.resident(space),
            (false, true) => 0,
            (false, false) => it.inherited * CHUNK,
        };
        most.min(it.copies * CHUNK)
    }

    /// copy_on_write.bpf.c count_copies(): of who is in no survey the page faults tell.
    pub(crate) fn copied(&mut self, space: SpaceId, account: usize, pages: i64, now: u32) {
        let it = self.records[space];
        let is_surveyed = self.surveys.iter().any(|it| it.account == account);
        if it.duplicate.is_some() || it.is_born || is_surveyed {
            self.give_up(space, account, pages, now);
        }
    }

    /// correction.bpf.h give_up().
    fn give_up(&mut self, space: SpaceId, account: usize, pages: i64, now: u32) {
        let left = pages - self.lose(space, account, pages, now);
        self.end_doubles(account, left);
    }

    /// correction.bpf.h leave().
    fn leave(&mut self, world: &World, space: SpaceId, account: usize, pages: i64) {
        let it = &world.spaces[space];
        let most = match (it.has_forked, self.records[space].duplicate) {
            (true, _) => i64::MAX,
            (false, Some(duplicate)) => 2 * duplicate,
            (false, None) => it.inherited * CHUNK,
        };
        let pages = pages.min(most);
        let left = pages - self.lose(space, account, pages, world.now_ms);
        if it.has_forked {
            return self.end_doubles(account, left);
        }
        if self.records[space].duplicate.is_none() {
            self.take_off_forked(account, left);
        }
    }

    /// correction.bpf.h lose(): by so much a correction in force has sunk.
    fn lose(&mut self, space: SpaceId, account: usize, pages: i64, now: u32) -> i64 {
        let is_corrected = self.is_corrected(account, now);
        let it = &mut self.accounts[account];
        let told = self.records[space].lose(pages);
        let left = it.correction.clamp(0, told);
        it.correction -= told;
        if is_corrected { left } else { 0 }
    }

    fn end_doubles(&mut self, account: usize, pages: i64) {
        let it = &mut self.accounts[account];
        if it.over_ms != 0 {
            it.unmapped += pages;
        }
        self.take_off_forked(account, pages);
    }

    fn take_off_forked(&mut self, account: usize, pages: i64) {
        let forked = &mut self.accounts[account].forked;
        *forked -= pages.min(*forked);
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
        (held, credit, unkillable)
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

    /// victim.bpf.h settle(). Whether somebody was killed.
    pub(crate) fn settle(
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
            let it = &mut self.accounts[account];
            (it.over_ms, it.unmapped, it.asked_pages) = (0, 0, 0);
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
            doubt.sure_pages -= self.copies(world, space);
            let mut own = pages;
            match record.duplicate {
                Some(duplicate) if is_corrected => {
                    doubt.hard_pages += record.lost.min(2 * duplicate);
                    own = pages - (duplicate - record.lost).max(0);
                }
                _ => {
                    doubt.soft_pages += world.spaces[space].inherited * CHUNK;
                    doubt.sure_pages += world.spaces[space].inherited * CHUNK;
                }
            }
            doubt.largest_pages = doubt.largest_pages.max(pages);
            let kept = kept(world, pid);
            candidates.push((rules::rank(own + kept, LIMIT, 0), pid, kept));
        }
        let own = match running {
            Running::Grew(pid) | Running::Writer(pid) => {
                candidates.iter().find(|it| it.1 == pid).copied()
            }
            Running::Other => None,
        };
        let mut victim = candidates.iter().max_by_key(|it| it.0).copied();
        match self.await_survey(account, &mut doubt, now) {
            Wait::ForSurvey => return false,
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
                    it.files_credit_ms = now | 1;
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

    fn await_survey(&mut self, account: usize, doubt: &mut Doubt, now: u32) -> Wait {
        let is_surveyed = self.surveys.iter().any(|it| it.account == account);
        let it = &mut self.accounts[account];
        doubt.sure_pages -= it.unmapped;
        doubt.asked_pages = it.asked_pages;
        if R::IS_FORMER {
            // Of the growth that ends a wait nothing is modelled: the former rules are shown to fail without it.
            let pages =
                (doubt.soft_pages + doubt.hard_pages).min(doubt.held_pages - doubt.largest_pages);
            if pages <= LIMIT >> 5
                || doubt.level_pages - pages > LIMIT
                || now < it.no_survey_before_ms
            {
                return Wait::Not;
            }
        }
        let wait = if R::IS_FORMER {
            Wait::ForSurvey
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
        let (grace, pause) = R::grace(it.survey_ms);
        let is_asking = is_surveyed || (it.asked_ms != 0 && now - it.asked_ms < grace);
        if !is_asking {
            let is_late = it.asked_ms != 0 && now - it.over_ms > grace;
            it.asked_ms = now;
            if !self.waiting.contains(&account) {
                self.waiting.push(account);
            }
            if is_late {
                it.no_survey_before_ms = now + pause;
                return Wait::Not;
            }
        }
        wait
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
        let account = world.spaces[space].account;
        if self.level(world, account).0 > LIMIT {
            self.settle(world, account, running, starve);
        }
    }

    /// What timers and bursard do as time goes by.
    pub(crate) fn pass(&mut self, world: &mut World, starve: bool) {
        let now = world.now_ms;
        if now >= self.next_count_ms {
            self.next_count_ms = now + AUDIT_MS;
            self.count_files(world);
        }
        self.survey(world);
        if now >= self.next_audit_ms {
            self.next_audit_ms = now + AUDIT_MS;
            self.audit(world, starve);
        }
    }

    fn audit(&mut self, world: &mut World, starve: bool) {
        for at in 0..world.live.len() {
            self.sync(world, world.live[at]);
        }
        for account in 0..self.accounts.len() {
            if !R::IS_FORMER {
                let total = self.level(world, account).1;
                self.accounts[account]
                    .patience
                    .keep(total, LIMIT, world.now_ms);
            }
            if self.level(world, account).0 > LIMIT {
                self.settle(world, account, Running::Other, starve);
            }
            for _ in 0..8 {
                if self.accounts[account].patience.is_out == 0
                    || !self.settle(world, account, Running::Other, starve)
                {
                    break;
                }
            }
        }
    }

    /// tmpfs_count.bpf.h and settle_files().
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
            it.sure_pages = before.min(pages);
        }
    }

    /// bursard's surveys: as many at once as there are lanes.
    fn survey(&mut self, world: &mut World) {
        let now = world.now_ms;
        let (done, under_way): (Vec<_>, Vec<_>) =
            self.surveys.drain(..).partition(|it| now >= it.until_ms);
        self.surveys = under_way;
        for survey in done {
            self.end_survey(world, &survey);
        }
        while self.surveys.len() < R::LANES && !self.waiting.is_empty() {
            let account = self.waiting.remove(0);
            if self.surveys.iter().any(|it| it.account == account) {
                continue;
            }
            let cost = self.accounts[account].dear_ms.max(5);
            self.accounts[account].survey_ms = cost;
            let spaces = world
                .living(account)
                .map(|pid| world.processes[pid].space)
                .collect();
            self.surveys.push(Survey {
                account,
                spaces,
                until_ms: now + cost,
            });
        }
        // An account that is corrected is surveyed again and again.
        for account in 0..self.accounts.len() {
            let it = &self.accounts[account];
            let is_due = it.correction > 0
                && it.correction_until_ms != 0
                && now + R::lifetime(it.survey_ms) >= it.correction_until_ms + 50;
            if is_due
                && !self.waiting.contains(&account)
                && !self.surveys.iter().any(|it| it.account == account)
            {
                self.waiting.push(account);
            }
        }
    }

    fn end_survey(&mut self, world: &mut World, survey: &Survey) {
        let now = world.now_ms;
        let mut correction = 0;
        for at in 0..world.live.len() {
            let space = world.live[at];
            if world.spaces[space].account != survey.account {
                continue;
            }
            let (it, is_listed) = (&world.spaces[space], survey.spaces.contains(&space));
            let is_alive = it
                .owner
                .is_some_and(|owner| world.processes[owner].is_alive);
            let record = self.record(space);
            record.duplicate = None;
            record.lost = 0;
            record.is_born = is_alive && !is_listed;
            // Who is dying has a part of what it shares.
            if !is_alive && !R::IS_FORMER {
                correction -= i64::from(record.dying.shared_pages) / 2;
            }
        }
        for &space in &survey.spaces {
            let is_alive = world.spaces[space]
                .owner
                .is_some_and(|owner| world.processes[owner].is_alive);
            if !is_alive {
                continue;
            }
            let duplicate = world.duplicate(space);
            world.spaces[space].has_forked = false;
            world.spaces[space].copies = 0;
            let record = self.record(space);
            record.duplicate = Some(duplicate);
            correction += duplicate;
        }
        let born = world.live.iter().filter(|&&space| {
            self.records[space].is_born && world.spaces[space].account == survey.account
        });
        let born = born.map(|&space| &world.spaces[space]);
        let doubles: i64 = born.map(|it| (it.inherited - it.copies).max(0)).sum();
        let it = &mut self.accounts[survey.account];
        it.correction = correction;
        it.correction_until_ms = now + R::lifetime(it.survey_ms);
        it.asked_ms = 0;
        it.no_survey_before_ms = 0;
        (it.over_ms, it.unmapped, it.asked_pages) = (0, 0, 0);
        it.forked = doubles * CHUNK / 2;
        if self.level(world, survey.account).0 > LIMIT {
            self.settle(world, survey.account, Running::Other, false);
        }
    }
}
