// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes the kernel half's accounts what a plan says.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use bursar_kernel::{AccountReading, Error, PageBounds, Slot, UidRange, Wanted};
use bursar_model::{AccountId, Bounds, Bytes, Measure, Mode, Resource, RowBounds, Uid, Unit};
use bursar_policy::{Plan, Subordinates};

use super::BpfBackend;

type Rows = BTreeMap<Resource, RowBounds>;

/// Whether passing something kills or is told.
fn is_bounded(account: &AccountReading) -> bool {
    account.bounds.limit.is_some() || account.bounds.notice.is_some()
}

impl BpfBackend {
    pub(super) fn put_in_force(&mut self, plan: &Plan) -> Result<()> {
        // First: a subordinate uid whose account is closed would have another one from `default`.
        self.hand_out(&plan.subordinates)?;
        let accounts = self.kernel.half.accounts();
        let template = plan
            .default
            .map(|it| self.to_pages(&it, &plan.default_rows, self.usual));
        accounts.set_template(template, !self.in_charge)?;
        let existing: Vec<_> = accounts.all().collect();
        let shared = self.retire(plan, &existing)?;
        self.vacant = self.kernel.half.accounts().vacant().collect();
        self.establish(plan)?;
        // Last: whoever paid there pays elsewhere by now, and was nowhere in between.
        self.kernel.half.accounts().close_accounts(&shared)?;
        if let Some(bounds) = &plan.default {
            self.open_inherited(plan, bounds)?;
        }
        // Who has left a shared account, or come into one, pays elsewhere from now on.
        self.kernel.half.configure(&self.kernel.settings)?;
        self.inherited.clear();
        let has_accounts = !plan.accounts.is_empty() || plan.default.is_some();
        if !self.in_charge {
            self.kernel
                .half
                .take_charge(&self.kernel.settings)
                .context("put the kernel half in charge")?;
            self.in_charge = true;
        } else if has_accounts || !existing.is_empty() {
            // Finds the processes of whoever has just got an account.
            self.kernel.half.resum_now()?;
        }
        self.add_initial(&existing);
        self.apply_rows(plan)
    }

    /// Says who pays for subordinate uids.
    fn hand_out(&mut self, subordinates: &Subordinates) -> Result<()> {
        if self.subordinates.as_ref() == Some(subordinates) {
            return Ok(());
        }
        let ranges = subordinates.paid().into_iter().map(|it| UidRange {
            first: it.first,
            last: it.last,
            subuid_owner: it.subuid_owner,
        });
        self.subordinates = None;
        self.kernel
            .half
            .subordinates()
            .put_in_force(&ranges.collect::<Vec<_>>())?;
        self.subordinates = Some(subordinates.clone());
        Ok(())
    }

    /// Has it looked at what those share who had no bounds before and hold something now. How many processes that are
    /// only the next re-sum says.
    fn add_initial(&self, before: &[AccountReading]) {
        let had_bounds: BTreeSet<_> = before
            .iter()
            .filter(|it| it.is_open && is_bounded(it))
            .map(|it| (it.slot, it.id))
            .collect();
        let now = self.kernel.half.accounts().all();
        let initial_scans = now.filter(|it| {
            let is_new = !had_bounds.contains(&(it.slot, it.id));
            it.is_open && it.held.get() > 0 && is_bounded(it) && is_new
        });
        self.requests.add_initial(initial_scans.map(|it| it.slot));
    }

    /// Accounts that the plan does not have: `default` keeps or takes over those of single users, whoever is to pay into a
    /// shared one keeps his own until then, the others are closed. Returns shared ones, to be closed when their members pay
    /// elsewhere.
    fn retire(&mut self, plan: &Plan, existing: &[AccountReading]) -> Result<BTreeSet<Slot>> {
        let (mut closed, mut shared) = (BTreeSet::new(), BTreeSet::new());
        let members: BTreeSet<Uid> = plan
            .accounts
            .iter()
            .filter(|(id, _)| id.uid().is_none())
            .flat_map(|(_, planned)| planned.payers.iter().copied())
            .collect();
        for account in existing.iter().filter(|it| it.is_open) {
            if plan.accounts.contains_key(&account.id) {
                continue;
            }
            match (&plan.default, account.id.uid()) {
                (_, None) => {
                    shared.insert(account.slot);
                }
                (_, Some(uid)) if members.contains(&uid) => {}
                (Some(bounds), _) if self.has_account_by_default(plan, account.id) => {
                    self.cover(account.id, bounds, &plan.default_rows)?;
                }
                _ => {
                    closed.insert(account.slot);
                }
            }
        }
        self.kernel.half.accounts().close_accounts(&closed)?;
        Ok(shared)
    }

    fn establish(&mut self, plan: &Plan) -> Result<()> {
        for (&id, planned) in &plan.accounts {
            let slot = self.open(id, false)?;
            // Bounds first: nobody pays into a shared account before it has them.
            let pages = self.to_pages(&planned.bounds, &planned.rows, self.measure_of(id));
            self.kernel.half.accounts().set_bounds(slot, pages)?;
            if id.uid().is_none() {
                // Who has entered it pays by its id.
                let payers = planned.payers.iter().copied().map(AccountId::of);
                self.admit_members(slot, &payers.chain([id]).collect())?;
            }
        }
        Ok(())
    }

    fn admit_members(&self, slot: Slot, members: &BTreeSet<AccountId>) -> Result<()> {
        let accounts = self.kernel.half.accounts();
        let paying: BTreeMap<AccountId, Slot> = accounts.payers()?.into_iter().collect();
        for (&payer, _) in paying
            .iter()
            .filter(|(payer, to)| **to == slot && !members.contains(payer))
        {
            accounts.let_go(payer)?;
        }
        for &payer in members {
            match paying.get(&payer) {
                Some(&to) if to == slot => {}
                Some(&own) => {
                    // A user's own account goes when it shares one; what it held moves along. Never without either: an
                    // event in between would give him one by `default`, and its limit.
                    accounts.let_pay(payer, slot)?;
                    if accounts.account(own).is_some_and(|it| it.id == payer) {
                        accounts.close_account(own)?;
                    }
                }
                None => accounts.let_pay(payer, slot)?,
            }
        }
        Ok(())
    }

    /// Histories of users that only `default` covers live on in accounts of their own.
    fn open_inherited(&mut self, plan: &Plan, bounds: &Bounds) -> Result<()> {
        let inherited = self.inherited.keys().copied();
        let inherited: Vec<_> = inherited
            .filter(|&id| self.has_account_by_default(plan, id))
            .collect();
        inherited
            .into_iter()
            .try_for_each(|id| self.cover(id, bounds, &plan.default_rows))
    }

    /// Gives a user whom `default` covers an account of his own.
    fn cover(&mut self, id: AccountId, bounds: &Bounds, rows: &Rows) -> Result<()> {
        let slot = self.open(id, true)?;
        let pages = self.to_pages(bounds, rows, self.measure_of(id));
        Ok(self.kernel.half.accounts().set_bounds(slot, pages)?)
    }

    fn open(&mut self, id: AccountId, is_default: bool) -> Result<Slot> {
        let history = self.inherited.remove(&id).unwrap_or_default();
        let accounts = self.kernel.half.accounts();
        let paused = !self.in_charge;
        let vacant = self.vacant.pop();
        match accounts.open_account_in(vacant, id, is_default, paused, history) {
            // It was there already.
            Ok(slot) if Some(slot) != vacant => {
                self.vacant.extend(vacant);
                Ok(slot)
            }
            // Others may have been closed meanwhile.
            Err(Error::AccountsFull { .. }) => {
                Ok(accounts.open_account(id, is_default, paused, history)?)
            }
            done => Ok(done?),
        }
    }

    /// The kernel half opens those by the same rule.
    fn has_account_by_default(&self, plan: &Plan, id: AccountId) -> bool {
        id.uid().is_some_and(|uid| {
            let payer = plan.subordinates.payer_of(uid).unwrap_or(uid);
            payer == uid && self.coverage.covers(uid)
        })
    }

    /// What the gate measures of an account; the kernel half opens those of `default` by the same rule.
    fn measure_of(&self, id: AccountId) -> Measure {
        let mut committed = self.kernel.settings.committed.iter();
        let is_listed = |uid: Uid| committed.any(|&(first, last)| (first..=last).contains(&uid));
        match id.uid().is_some_and(is_listed) {
            true => Measure::Committed,
            false => self.usual,
        }
    }

    /// Whole pages, rounded down: a bound is never exceeded by rounding.
    fn to_pages(&self, bounds: &Bounds, rows: &Rows, measure: Measure) -> PageBounds {
        let pages = |bytes: Option<Bytes>| bytes.map(|it| self.page().pages_within(it));
        let private = rows.get(&Resource::Privvmpages);
        let in_bytes = |row_pages: u64| Bytes::new(row_pages.saturating_mul(Unit::PAGE_BYTES));
        PageBounds {
            notice: pages(bounds.notice()),
            barrier: pages(bounds.barrier()),
            limit: pages(bounds.limit()),
            private: pages(private.and_then(|it| it.barrier()).map(in_bytes)),
            private_mode: private.map_or_else(Mode::default, |it| it.mode()),
            measure,
            mode: bounds.mode(),
        }
    }

    /// Beancounters as the plan has them, of the accounts that are there by now.
    fn apply_rows(&mut self, plan: &Plan) -> Result<()> {
        let mut wanted = Wanted::new();
        if !plan.default_rows.is_empty() {
            wanted.insert(Slot::TEMPLATE, plan.default_rows.clone());
        }
        for account in self.kernel.half.accounts().all().filter(|it| it.is_open) {
            let rows = match plan.accounts.get(&account.id) {
                Some(planned) => &planned.rows,
                None if account.is_default => &plan.default_rows,
                None => continue,
            };
            if !rows.is_empty() {
                wanted.insert(account.slot, rows.clone());
            }
        }
        self.kernel
            .beancounters
            .apply(&wanted, self.kernel.half.accounts())?;
        Ok(())
    }
}
