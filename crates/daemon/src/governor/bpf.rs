// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel half as a governor: it decides alone, we hand it accounts and read its events.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bursar_kernel::{
    AccountReading, History, Journal, KernelHalf, Options, PageBounds, Settings, Slot, Started,
};
use bursar_model::{AccountId, Bounds, Bytes, KernelHalfStatus, PageSize, Pages, TriggerKind, Uid};
use bursar_policy::Plan;

use super::{Governor, Reading};
use crate::fact::Fact;

/// The kernel half, its accounts and its events.
#[derive(Debug)]
pub(crate) struct BpfGovernor {
    half: KernelHalf,
    journal: Journal,
    root: PathBuf,
    options: Options,
    settings: Settings,
    /// What the kernel half that is being replaced remembers; used once, at the first apply.
    inherited: HashMap<AccountId, History>,
    in_charge: bool,
}

impl BpfGovernor {
    pub(crate) fn start(
        root: &Path,
        options: Options,
        settings: Settings,
    ) -> Result<(Self, Started)> {
        let (half, started) = KernelHalf::start(root, &options)?;
        half.configure(&settings)?;
        let journal = half.journal()?;
        let inherited = half.inherited().into_iter().collect();
        let in_charge = started == Started::Adopted;
        let root = root.to_owned();
        Ok((
            Self {
                half,
                journal,
                root,
                options,
                settings,
                inherited,
                in_charge,
            },
            started,
        ))
    }

    /// Whole pages, rounded down: a bound is never exceeded by rounding.
    fn to_pages(&self, bounds: &Bounds) -> PageBounds {
        let pages = |bytes: Option<Bytes>| bytes.map(|it| self.options.page_size.pages_within(it));
        PageBounds {
            notice: pages(bounds.notice()),
            barrier: pages(bounds.barrier()),
            limit: pages(bounds.limit()),
        }
    }

    fn open(&mut self, id: AccountId, is_default: bool) -> Result<Slot> {
        let history = self.inherited.remove(&id).unwrap_or_default();
        let books = self.half.books();
        Ok(books.open_account(id, is_default, !self.in_charge, history)?)
    }

    /// Accounts that the plan does not have: `default` keeps or takes over those of single users,
    /// the others are closed.
    fn retire(&mut self, plan: &Plan, existing: &[AccountReading]) -> Result<()> {
        for account in existing.iter().filter(|it| it.is_open) {
            if plan.accounts.contains_key(&account.id) {
                continue;
            }
            let is_covered = account
                .id
                .uid()
                .is_some_and(|uid| covers(&self.settings, uid));
            match (plan.default, is_covered) {
                (Some(bounds), true) => {
                    let slot = self.open(account.id, true)?;
                    self.half.books().set_bounds(slot, self.to_pages(&bounds))?;
                }
                _ => self.half.books().close_account(account.slot)?,
            }
        }
        Ok(())
    }

    fn establish(&mut self, plan: &Plan) -> Result<bool> {
        let mut is_new = false;
        let before: BTreeSet<AccountId> = self
            .half
            .books()
            .accounts()
            .filter(|it| it.is_open)
            .map(|it| it.id)
            .collect();
        for (&id, planned) in &plan.accounts {
            is_new |= !before.contains(&id);
            let slot = self.open(id, false)?;
            // Bounds first: nobody pays into a shared account before it has them.
            self.half
                .books()
                .set_bounds(slot, self.to_pages(&planned.bounds))?;
            if id.uid().is_none() {
                self.admit_members(slot, &planned.payers)?;
            }
        }
        Ok(is_new)
    }

    fn admit_members(&self, slot: Slot, members: &BTreeSet<Uid>) -> Result<()> {
        let books = self.half.books();
        let paying: BTreeMap<Uid, Slot> = books.payers()?.into_iter().collect();
        for (&uid, _) in paying
            .iter()
            .filter(|(uid, to)| **to == slot && !members.contains(uid))
        {
            books.let_go(uid)?;
        }
        for &uid in members {
            match paying.get(&uid) {
                Some(&to) if to == slot => {}
                Some(&own) => {
                    // His own account goes when he shares one; what it held moves along.
                    if books
                        .account(own)
                        .is_some_and(|it| it.id == AccountId::of(uid))
                    {
                        books.close_account(own)?;
                    }
                    books.let_pay(uid, slot)?;
                }
                None => books.let_pay(uid, slot)?,
            }
        }
        Ok(())
    }

    fn to_reading(&self, account: &AccountReading) -> Reading {
        let page = self.options.page_size;
        let bytes = |pages: Option<Pages>| pages.map(|it| it.to_bytes(page));
        let bounds = &account.bounds;
        Reading {
            id: account.id,
            is_default: account.is_default,
            held: account.held.to_bytes(page),
            dying: account.dying.to_bytes(page),
            maxheld: account.history.maxheld.to_bytes(page),
            processes: account.processes,
            // They were checked on their way in; two writes apart they may disagree for a moment.
            bounds: Bounds::new(
                bytes(bounds.notice),
                bytes(bounds.barrier),
                bytes(bounds.limit),
            )
            .unwrap_or_default(),
            failcnt: account.history.failcnt,
            kills: account.history.kills,
            notices: account.history.notices,
        }
    }

    fn page(&self) -> PageSize {
        self.options.page_size
    }
}

fn covers(settings: &Settings, uid: Uid) -> bool {
    uid >= settings.uid_min
        && !settings
            .exempt
            .iter()
            .any(|&(first, last)| (first..=last).contains(&uid))
}

impl Governor for BpfGovernor {
    fn apply(&mut self, plan: &Plan) -> Result<()> {
        let template = plan.default.as_ref().map(|bounds| self.to_pages(bounds));
        self.half.books().set_template(template, !self.in_charge)?;
        let existing: Vec<_> = self.half.books().accounts().collect();
        self.retire(plan, &existing)?;
        let mut is_new = self.establish(plan)?;
        if plan.default.is_some() {
            // Histories of users that only `default` covers live on in accounts of their own.
            let heirs: Vec<_> = self.inherited.keys().copied().collect();
            for id in heirs {
                if id.uid().is_some_and(|uid| covers(&self.settings, uid)) {
                    let slot = self.open(id, true)?;
                    self.half
                        .books()
                        .set_bounds(slot, template.unwrap_or_default())?;
                }
            }
            is_new = true;
        }
        self.inherited.clear();
        if !self.in_charge {
            self.half
                .take_charge(&self.settings)
                .context("put the kernel half in charge")?;
            self.in_charge = true;
        } else if is_new || !existing.is_empty() {
            // Finds the processes of whoever has just got an account.
            self.half.resum_now()?;
        }
        Ok(())
    }

    fn wake(&self) -> BorrowedFd<'_> {
        self.journal.as_fd()
    }

    fn drain(&mut self) -> Result<Vec<Fact>> {
        let page = self.page();
        let entries = self.journal.drain()?;
        Ok(entries
            .into_iter()
            .map(|entry| Fact::from_entry(entry, page))
            .collect())
    }

    fn readings(&self) -> Vec<Reading> {
        let books = self.half.books();
        books
            .accounts()
            .filter(|it| it.is_open)
            .map(|it| self.to_reading(&it))
            .collect()
    }

    fn measure(&mut self, id: AccountId) -> Result<Bytes> {
        let known = self
            .half
            .books()
            .accounts()
            .find(|it| it.id == id && it.is_open);
        let slot = match known {
            Some(account) => account.slot,
            None => self.open(id, false)?,
        };
        self.half.resum_now()?;
        let held = self
            .half
            .books()
            .account(slot)
            .map_or(Bytes::ZERO, |it| it.held.to_bytes(self.page()));
        if known.is_none() {
            self.half.books().close_account(slot)?;
        }
        Ok(held)
    }

    fn status(&self) -> KernelHalfStatus {
        let Ok(facts) = self.half.facts() else {
            return KernelHalfStatus::default();
        };
        KernelHalfStatus {
            attached: true,
            trigger: Some(TriggerKind::Bpf),
            event_trigger: facts.event_trigger,
            timer: facts.timer_running,
            signals_others: facts.signals_others,
            resums: facts.resums,
            resum_ns: facts.resum.get(),
            resum_max_ns: facts.resum_max.get(),
            resum_processes: facts.resum_processes,
            decision_max_ns: facts.decision_max.get(),
            drift_repaired_bytes: facts.drift_repaired.to_bytes(self.page()),
            drift_repairs: facts.drift_repairs,
            stale_records: facts.stale_records,
            missed_processes: facts.missed_processes,
            events_lost: facts.events_lost,
            records_full: facts.records_full,
            accounts_full: facts.accounts_full,
            kills_retried: facts.kills_retried,
            skipped_runs: facts.skipped_runs,
        }
    }

    fn error_bound(&self) -> Bytes {
        // Near a limit every event is counted exactly. What remains is what each CPU can fault in
        // between the event that crosses and the signal that stops it; a batch of lib/
        // percpu_counter.c is far more than was ever measured (docs/ACCOUNTING.md).
        let pages = u64::from(self.options.possible_cpus)
            .saturating_mul(u64::from(self.options.counter_batch()));
        Pages::new(pages).to_bytes(self.page())
    }

    fn leave(&mut self, release: bool) -> Result<()> {
        if release {
            KernelHalf::release(&self.root)?;
        }
        Ok(())
    }
}
