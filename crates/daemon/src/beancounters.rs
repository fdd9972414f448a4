// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bills: what accounts hold of each resource. Rows with a limit are charged by the kernel half where it
//! can; all the others are known from a scan of all tasks and files, made when somebody asks (S5 4
//! "on-demand accounting"), and every [`EVERY`] while there is a limit on one of them.

mod held;
mod resource_scanner;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_host::Timer;
use bursar_kernel::{Enforcement, RowReading};
use bursar_model::{AccountId, Bean, How, Resource, RowBounds, Unit};
use bursar_policy::Plan;

use self::resource_scanner::ResourceScanner;
use self::snapshot::Snapshot;
use crate::backend::{KernelFeatures, NO_KERNEL_HALF, OpenAccounts, Reading, enforcement};
use crate::limit_table::LimitTable;
use crate::payers::Payers;
use crate::physpages::Finished;

/// Between two scans while somebody has a limit.
pub(crate) const EVERY: Duration = Duration::from_secs(10);
/// From a change of limits to the first: what rows are compared with is to be known soon.
const SOON: Duration = Duration::from_secs(1);
/// So long the loop waits for a scan; most are made by then.
const TIMEOUT: Duration = Duration::from_millis(50);
/// Accounts whose most is remembered although they have no limit.
const REMEMBERED: usize = 4096;

const NO_RULES: &str =
    "rules of the packet filter belong to nobody, and making one needs CAP_NET_ADMIN";
const FIRST_SCAN: &str = "the first scan is still under way: ask again";
const A_GUARANTEE: &str =
    "a guarantee: bursar check compares it with what the machine has, nothing here can grant it";

/// The bills and what is remembered of them.
#[derive(Debug)]
pub(crate) struct Beancounters {
    timer: Timer,
    resource_scanner: ResourceScanner,
    last: Option<Snapshot>,
    /// The most that was seen of a row, by account.
    most: BTreeMap<AccountId, BTreeMap<Resource, u64>>,
    /// Accounts with a limit on any row, and whether `default` has one.
    limited: HashSet<AccountId>,
    default_limited: bool,
    /// Rows that somebody has limited.
    rows: BTreeSet<Resource>,
}

impl Beancounters {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            timer: Timer::polled().context("make a timer")?,
            resource_scanner: ResourceScanner::start()?,
            last: None,
            most: BTreeMap::new(),
            limited: HashSet::new(),
            default_limited: false,
            rows: BTreeSet::new(),
        })
    }

    /// Looks now and then from now on while anybody has a limit; else nobody looks unless he is asked.
    pub(crate) fn watch(&mut self, plan: &Plan) {
        self.limited = plan
            .accounts
            .iter()
            .filter(|(_, planned)| !planned.rows.is_empty())
            .map(|(id, _)| *id)
            .collect();
        self.default_limited = !plan.default_rows.is_empty();
        let all = plan.accounts.values().map(|planned| &planned.rows);
        self.rows = all
            .chain([&plan.default_rows])
            .flat_map(|rows| rows.keys().copied())
            .collect();
        let is_needed = !self.limited.is_empty() || self.default_limited;
        let (first, span) = match is_needed {
            true => (SOON, EVERY),
            false => (Duration::ZERO, Duration::ZERO),
        };
        if let Err(error) = self.timer.set(first, span) {
            tracing::warn!(%error, "beancounters are scanned only when somebody asks");
        }
    }

    /// The scan that is due.
    pub(crate) fn take_turn(
        &mut self,
        kernel: Option<&mut KernelFeatures>,
        payers: &Payers,
        count: Option<Arc<Finished>>,
    ) -> Result<()> {
        // Only that it is not readable any more; how many times it was due does not matter.
        let _ = self.timer.take_expiry();
        let charged = kernel.as_ref().map_or(Ok(()), |it| it.catch_up());
        if let Err(error) = charged {
            tracing::warn!("not all that slipped through is charged: {error:#}");
        }
        self.scan(kernel, payers, count)?;
        Ok(())
    }

    /// Looks, unless somebody has just done so. `count` is the last one of mapped pages. Returns whether what
    /// is known is of an older scan, or of none, because this one takes its time.
    pub(crate) fn scan(
        &mut self,
        mut kernel: Option<&mut KernelFeatures>,
        payers: &Payers,
        count: Option<Arc<Finished>>,
    ) -> Result<bool> {
        // One that nobody has waited for may be done, and old by now.
        if let Some(found) = self.resource_scanner.take(Duration::ZERO) {
            let snapshot = Snapshot::of(
                Arc::new(found?),
                kernel.as_deref_mut(),
                payers,
                count.clone(),
            )?;
            self.remember(snapshot, kernel.as_deref());
        }
        let fresh = self
            .last
            .as_ref()
            .filter(|snapshot| snapshot.scan().is_fresh());
        let scan = match fresh {
            Some(snapshot) if snapshot.is_by(count.as_ref()) => return Ok(false),
            Some(snapshot) => Arc::clone(snapshot.scan()),
            None => {
                // Of one scan the loop waits for the beginning only, however many ask meanwhile.
                let kernel = kernel.as_deref_mut().context(NO_KERNEL_HALF)?;
                let iterator = kernel.resource_iterator()?;
                let timeout = match self.resource_scanner.begin(iterator, payers)? {
                    true => TIMEOUT,
                    false => Duration::ZERO,
                };
                match self.resource_scanner.take(timeout) {
                    Some(found) => Arc::new(found?),
                    None => return Ok(true),
                }
            }
        };
        let snapshot = Snapshot::of(scan, kernel.as_deref_mut(), payers, count)?;
        self.remember(snapshot, kernel.as_deref());
        Ok(false)
    }

    fn remember(&mut self, snapshot: Snapshot, kernel: Option<&KernelFeatures>) {
        if let Some(kernel) = kernel.filter(|_| self.rows.contains(&Resource::Kmemsize)) {
            kernel.note_kernel_memory(|id| snapshot.kernel_memory(id));
        }
        for id in snapshot.accounts() {
            let is_known = self.most.contains_key(&id) || self.limited.contains(&id);
            if !is_known && self.most.len() >= REMEMBERED {
                continue;
            }
            let most = self.most.entry(id).or_default();
            for resource in Resource::BEANCOUNTERS {
                let row = most.entry(resource).or_default();
                *row = (*row).max(snapshot.held(id, resource));
            }
        }
        self.last = Some(snapshot);
    }

    /// The accounts that the last scan met.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = AccountId> + '_ {
        self.last.iter().flat_map(Snapshot::accounts)
    }

    /// The last scan did not see everything.
    pub(crate) fn is_cut(&self) -> bool {
        self.last.as_ref().is_some_and(Snapshot::is_cut)
    }

    /// All rows of an account, as of the last scan; `reading` is what the backend knows of it, `open` what the kernel
    /// half knows of all.
    pub(crate) fn rows(
        &self,
        id: AccountId,
        bounds: &BTreeMap<Resource, RowBounds>,
        reading: Option<&Reading>,
        kernel: Option<&KernelFeatures>,
        open: &OpenAccounts,
    ) -> BTreeMap<Resource, Bean> {
        let charged = match bounds.is_empty() {
            true => BTreeMap::new(),
            false => charged(id, kernel, open),
        };
        let one = |resource: Resource| {
            let mut bean = self.row(id, resource, !bounds.is_empty());
            if let Some(row) = charged.get(&resource) {
                bean.maxheld = Some(row.maxheld);
                bean.failcnt = row.failcnt;
                match resource {
                    // Compared when something is asked for, and never more exact than the scan.
                    Resource::Kmemsize => bean.maxheld = bean.maxheld.max(bean.held),
                    // The kernel counts queued signals itself; no event tells of one that was taken.
                    Resource::Numsiginfo => bean.how = How::Exact,
                    _ => {
                        bean.held = Some(row.held);
                        bean.how = How::Exact;
                    }
                }
            }
            match (resource, reading) {
                (Resource::Oomguarpages, Some(reading)) => bean.failcnt = reading.kills,
                (Resource::Privvmpages, Some(reading)) => {
                    if let Some(committed) = reading.committed {
                        bean.held = Some(committed.get() / Unit::PAGE_BYTES);
                        bean.maxheld = bean.maxheld.max(bean.held);
                        bean.how = How::Exact;
                    }
                }
                _ => {}
            }
            if let Some(bounds) = bounds.get(&resource) {
                bean.barrier = bounds.barrier();
                bean.limit = bounds.limit();
                bean.note = note_on(resource, &enforcement(kernel, resource));
            }
            (resource, bean)
        };
        Resource::BEANCOUNTERS.into_iter().map(one).collect()
    }

    /// Those rows that are limited and charged as they are used: for `status`, which does not snapshot.
    pub(crate) fn limited_rows(
        id: AccountId,
        bounds: &BTreeMap<Resource, RowBounds>,
        kernel: Option<&KernelFeatures>,
        open: &OpenAccounts,
    ) -> BTreeMap<Resource, Bean> {
        if bounds.is_empty() {
            return BTreeMap::new();
        }
        let charged = charged(id, kernel, open);
        let one = |(&resource, bounds): (&Resource, &RowBounds)| {
            let row = charged.get(&resource);
            let bean = Bean {
                held: row
                    .filter(|_| resource != Resource::Numsiginfo)
                    .map(|row| row.held),
                maxheld: row.map(|row| row.maxheld),
                barrier: bounds.barrier(),
                limit: bounds.limit(),
                mode: bounds.mode(),
                failcnt: row.map_or(0, |row| row.failcnt),
                unit: resource.unit(),
                how: match row {
                    Some(_) if resource == Resource::Kmemsize => How::Modelled,
                    Some(_) => How::Exact,
                    None => How::Sampled { every: sampling() },
                },
                note: note_on(resource, &enforcement(kernel, resource)),
            };
            (resource, bean)
        };
        bounds.iter().map(one).collect()
    }

    fn row(&self, id: AccountId, resource: Resource, is_limited: bool) -> Bean {
        let Some(snapshot) = &self.last else {
            return Bean::unavailable(resource, FIRST_SCAN);
        };
        let mut bean = Bean::unavailable(resource, NO_RULES);
        let held = snapshot.held(id, resource);
        let most = self.most.get(&id).and_then(|rows| rows.get(&resource));
        bean.how = match resource {
            Resource::Numiptent => return bean,
            Resource::Vmguarpages => {
                bean.held = Some(0);
                bean.maxheld = Some(0);
                bean.how = How::Exact;
                return bean;
            }
            Resource::Kmemsize | Resource::Dcachesize => How::Modelled,
            Resource::Physpages | Resource::Oomguarpages => snapshot.how_of_pages(),
            Resource::Dirtypages => snapshot.how_of_dirty(),
            _ => How::Sampled {
                every: sampling().filter(|_| is_limited),
            },
        };
        if !matches!(bean.how, How::Unavailable(_)) {
            bean.held = Some(held);
            bean.maxheld = Some(most.copied().unwrap_or(0).max(held));
        }
        bean
    }

    /// Limits that nothing enforces, and what was lost.
    pub(crate) fn remarks(
        &self,
        kernel: Option<&KernelFeatures>,
        limit_table: &LimitTable,
    ) -> Vec<String> {
        let mut remarks = Vec::new();
        for &resource in &self.rows {
            if let Some(note) = note_on(resource, &enforcement(kernel, resource)) {
                remarks.push(format!("limits on {}: {note}", resource.name()));
            }
        }
        let unrecorded = kernel.map_or(0, KernelFeatures::unrecorded);
        if unrecorded > 0 && !limit_table.plan().accounts.is_empty() {
            remarks.push(format!(
                "{unrecorded} files, sockets or processes found no room in the beancounters and are not \
                 counted: raise ledger.max_objects in bursar.toml"
            ));
        }
        remarks
    }
}

impl AsFd for Beancounters {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// What the kernel half charges of an account's rows.
fn charged(
    id: AccountId,
    kernel: Option<&KernelFeatures>,
    open: &OpenAccounts,
) -> BTreeMap<Resource, RowReading> {
    let account = kernel.zip(open.get(&id));
    account.map_or_else(BTreeMap::new, |(kernel, account)| kernel.charged(account))
}

fn sampling() -> Option<u32> {
    u32::try_from(EVERY.as_secs()).ok()
}

/// What should be known about a limit on this row; `None`: it is enforced.
pub(crate) fn note_on(resource: Resource, enforcement: &Enforcement) -> Option<String> {
    match (resource, enforcement) {
        _ if resource.is_guarantee() => Some(A_GUARANTEE.to_owned()),
        (_, Enforcement::Strict) => None,
        (_, Enforcement::BestEffort(why)) => Some(format!("best effort: {why}")),
        (_, Enforcement::None(why)) => Some(format!("account-only, nothing is refused: {why}")),
    }
}
