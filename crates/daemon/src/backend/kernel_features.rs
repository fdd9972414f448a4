// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What only a kernel half can do: entered accounts, rows beside memory, dirty page cache, a ledger to check.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use bursar_host::machine;
use bursar_kernel::{
    AccountReading, Beancounters, DirtyPages, Enforcement, KernelHalf, KernelMemory, Membership,
    Options, RecordedEvents, ResourceIterator, RowReading, Settings, Slot,
};
use bursar_model::{AccountId, Bytes, GateMode, PageSize, Pages, Resource, Uid, Unit};

use super::ledger::Ledger;
use super::projection;

/// What the ledger and /proc may be apart. Both are exact, so this is for what moves unseen while they are read, and
/// does not grow with the machine as the published bound does: a difference of a megabyte is never lost in it.
const CHECK_TOLERANCE: Bytes = Bytes::new(256 << 10);

/// So many events of a page may a CPU finish from the one that crosses a limit to the signal: the two that are under way,
/// and one for each 0.1 ms of a decision (docs/design/16-growth-during-a-decision.md).
const EVENTS_OF_A_CPU: u64 = 8;
/// So much is published of the smallest machine.
const LEAST_BOUND_PAGES: u64 = 64;

pub(crate) const NO_KERNEL_HALF: &str = "there is no kernel half";

#[derive(Debug)]
pub(crate) struct KernelFeatures {
    pub(super) half: KernelHalf,
    pub(super) beancounters: Beancounters,
    pub(super) options: Options,
    pub(super) settings: Settings,
    /// From when somebody first asked.
    dirty: Option<DirtyPages>,
}

/// The accounts that are open.
pub(crate) type OpenAccounts = BTreeMap<AccountId, AccountReading>;

/// Read once for a request, which may be about each of them.
pub(crate) fn open_accounts(kernel: Option<&KernelFeatures>) -> OpenAccounts {
    let all = kernel
        .into_iter()
        .flat_map(|kernel| kernel.half.accounts().all());
    let open = all.filter(|account| account.is_open);
    open.map(|account| (account.id, account)).collect()
}

/// What becomes of a limit on a row.
pub(crate) fn enforcement(kernel: Option<&KernelFeatures>, resource: Resource) -> Enforcement {
    match kernel {
        Some(kernel) if resource == Resource::Privvmpages => kernel.enforcement_of_commitment(),
        Some(kernel) => kernel.beancounters.enforcement(resource),
        None => Enforcement::None(NO_KERNEL_HALF.to_owned()),
    }
}

impl KernelFeatures {
    pub(super) fn new(half: KernelHalf, options: Options, settings: Settings) -> Self {
        Self {
            beancounters: half.beancounters(&options),
            half,
            options,
            settings,
            dirty: None,
        }
    }

    /// What oom_score_adj processes with a limit are to have from now on; `None` leaves it alone.
    pub(crate) fn set_raised_adj(&mut self, raised: Option<u16>) -> Result<()> {
        self.settings.raised_adj = raised;
        Ok(self.half.configure(&self.settings)?)
    }

    /// What of its events is recorded.
    pub(crate) const fn recorded_events(&mut self) -> &mut RecordedEvents {
        self.half.recorded_events()
    }

    /// Has [`crate::fact::Fact::WatchReached`] told, once, when the account holds `above` or more, or less than `below`.
    pub(crate) fn watch(&self, id: AccountId, above: Option<Bytes>, below: Bytes) -> Result<()> {
        let accounts = self.half.accounts();
        let account = accounts.all().find(|it| it.id == id && it.is_open);
        let Some(account) = account else {
            return Ok(());
        };
        let pages = |bytes| self.page().pages_within(bytes);
        Ok(accounts.watch(account.slot, above.map(pages), pages(below))?)
    }

    /// The same of all accounts that `default` makes from now on.
    pub(crate) fn watch_default(&self, above: Option<Bytes>) -> Result<()> {
        let above = above.map(|bytes| self.page().pages_within(bytes));
        let accounts = self.half.accounts();
        Ok(accounts.watch(Slot::TEMPLATE, above, Pages::new(0))?)
    }

    /// How many accounts a plan may have: some are left to `default` and to questions.
    pub(crate) fn room_for_accounts(&self) -> usize {
        let capacity = self.half.accounts().capacity();
        capacity.saturating_sub((capacity / 4).max(1))
    }

    pub(super) const fn page(&self) -> PageSize {
        self.options.page_size
    }

    /// The users whose processes have entered these accounts.
    pub(crate) fn entrants(&self, accounts: &BTreeSet<AccountId>) -> Result<BTreeSet<Uid>> {
        if accounts.is_empty() || self.membership_if_any().is_none() {
            return Ok(BTreeSet::new());
        }
        // Whoever has entered since his last event is charged to it then.
        self.half.resum_now()?;
        Ok(projection::entrants(self.half.accounts(), accounts)?)
    }

    /// Which of these accounts processes of this user have entered, as of their last event.
    pub(crate) fn entered_by(
        &self,
        uid: Uid,
        accounts: &BTreeSet<AccountId>,
    ) -> Result<BTreeSet<AccountId>> {
        if self.membership_if_any().is_none() {
            return Ok(BTreeSet::new());
        }
        Ok(projection::entered_by(self.half.accounts(), uid, accounts)?)
    }

    /// Who has entered which account; `None` where the kernel lacks task storage.
    pub(crate) fn membership(&self) -> Option<&Membership> {
        self.half.membership()
    }

    /// The same; `None` too while nobody has entered anything.
    pub(crate) fn membership_if_any(&self) -> Option<&Membership> {
        self.half.membership_if_any()
    }

    /// Dirty page cache by payer; counted from the first time somebody asks.
    pub(crate) fn dirty_pages(&mut self) -> Result<&DirtyPages> {
        match &mut self.dirty {
            Some(pages) => Ok(pages),
            none => Ok(none.insert(self.half.dirty_pages(&self.options)?)),
        }
    }

    /// The same, where somebody has asked before.
    pub(crate) fn dirty_pages_begun(&mut self) -> Result<Option<&DirtyPages>> {
        if self.dirty.is_none() {
            self.dirty = self.half.dirty_pages_begun()?;
        }
        Ok(self.dirty.as_ref())
    }

    /// A second way to the ledger, for a thread that checks it.
    pub(crate) fn ledger(&self) -> Result<Ledger> {
        let online = self.online_cpus();
        let batch = Pages::new(Options::counter_batch_of(online).into());
        Ok(Ledger::new(
            self.half.reopen(&self.options)?,
            self.page(),
            self.options.count_file,
            online,
            batch.to_bytes(self.page()),
            CHECK_TOLERANCE,
        ))
    }

    /// Iterates over all tasks and open files, for the thread that scans them.
    pub(crate) fn resource_iterator(&mut self) -> Result<Arc<ResourceIterator>> {
        Ok(self.beancounters.resource_iterator()?)
    }

    /// The rows of an account that are charged as they are used.
    pub(crate) fn charged(&self, account: &AccountReading) -> BTreeMap<Resource, RowReading> {
        let mut rows = self
            .beancounters
            .read(account.slot)
            .unwrap_or_else(|error| {
                tracing::warn!(%error, "beancounters could not be read");
                BTreeMap::new()
            });
        // The gate's: kept with the account, for memory is what it is charged beside.
        if account.bounds.private.is_some() && self.half.gate().mode != GateMode::None {
            let units = |pages: Pages| pages.to_bytes(self.page()).get() / Unit::PAGE_BYTES;
            let row = RowReading {
                held: units(account.committed),
                maxheld: units(account.most_committed),
                failcnt: account.commitments_refused,
            };
            rows.insert(Resource::Privvmpages, row);
        }
        rows
    }

    fn enforcement_of_commitment(&self) -> Enforcement {
        let gate = self.half.gate();
        let why = || gate.reason.clone().unwrap_or_default();
        match gate.mode {
            GateMode::Strict => Enforcement::Strict,
            GateMode::BestEffort => Enforcement::BestEffort(why().into()),
            GateMode::None => Enforcement::None(format!("there is no gate ({})", why())),
        }
    }

    /// Charges what slipped through.
    pub(crate) fn catch_up(&self) -> Result<()> {
        Ok(self.beancounters.meet_everybody()?)
    }

    /// What a scan found of kernel memory, for accounts with a limit on it.
    pub(crate) fn note_kernel_memory(&self, found: impl Fn(AccountId) -> KernelMemory) {
        let of = |account: u64| found(AccountId::new(account));
        if let Err(error) = self
            .beancounters
            .note_kernel_memory(self.half.accounts(), of)
        {
            tracing::warn!(%error, "kmemsize is compared with an older scan");
        }
    }

    /// Charges that found no room in the kernel half.
    pub(crate) fn unrecorded(&self) -> u64 {
        self.beancounters.unrecorded().unwrap_or(0)
    }

    /// Most by which `held` may be off for an account near its limit.
    pub(super) fn error_bound(&self) -> Bytes {
        // Near a limit every event is counted exactly. What remains is what each CPU can fault in
        // between the event that crosses and the signal that stops it.
        let pages = u64::from(self.online_cpus()).saturating_mul(EVENTS_OF_A_CPU);
        Pages::new(pages.max(LEAST_BOUND_PAGES)).to_bytes(self.page())
    }

    /// CPUs that keep something back: what one that is off had kept back has been added to what is shared. Asked each
    /// time, for they come and go; those that may ever be where nobody says.
    pub(super) fn online_cpus(&self) -> u32 {
        let online = machine::online_cpus(Path::new("/sys")).ok();
        let count = online.and_then(|it| u32::try_from(it.len()).ok());
        count.unwrap_or(self.options.possible_cpus)
    }
}
