// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Beancounters that refuse (`bpf/beancounters/beancounters.bpf.c`): loaded and attached when the first account gets a limit
//! on a row, taken away with the last, tried with a real child as the gate is.

mod programs;
mod row;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::Arc;

use bursar_model::{Bytes, PageSize, Pages, Resource, RowBounds, Unit};
use libbpf_rs::{MapCore, MapFlags, ProgramHandle};

use self::programs::Programs;
pub(crate) use self::row::resource_of;
pub use self::row::{Enforcement, RowReading};
use self::row::{Object, ROWS, Row, row_of};
use crate::abi::{self, Pod};
use crate::account::Slot;
use crate::accounts::AccountTable;
use crate::mapped::Mapped;
use crate::pins::Pins;
use crate::selftest;
use crate::selftest_account::SELFTEST_ACCOUNT;
use crate::skeleton::beancounters::types::{
    bill, bill_facts, bill_row, bill_state, forget_bill_args, note_kernel_memory_args,
    set_bill_args,
};
use crate::{Error, Options, ResourceIterator, call};

/// The rows of accounts: what each may hold.
pub type Wanted = BTreeMap<Slot, BTreeMap<Resource, RowBounds>>;

/// Objects of network buffers, and what counts theirs.
const BUFFERS: [(Object, &str); 2] = [
    (Object::Buffers, "recount_buffers"),
    (Object::Tcp, "recount_tcp"),
];

/// The beancounters of one kernel half.
#[derive(Debug)]
pub struct Beancounters {
    programs: Programs,
    resource_iterator: Option<Arc<ResourceIterator>>,
    /// What became of the rows that somebody has limited.
    rows: BTreeMap<Resource, Enforcement>,
    /// Nobody has asked while it is absent.
    trial: Option<Trial>,
}

/// An account's part of the kernel's own memory, as a scan found it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelMemory {
    /// The whole part, namespaces included.
    pub all: Bytes,
    /// Without namespaces, which the kernel counts itself.
    pub scanned: Bytes,
}

/// What the child of the self-test saw.
#[derive(Debug)]
enum Trial {
    Refused,
    Granted,
    /// There was none, and why.
    Failed(String),
}

// SAFETY: integers only (beancounters.h).
unsafe impl Pod for bill {}
// SAFETY: as above.
unsafe impl Pod for bill_facts {}
// SAFETY: as above.
unsafe impl Pod for set_bill_args {}
// SAFETY: as above.
unsafe impl Pod for forget_bill_args {}
// SAFETY: as above.
unsafe impl Pod for note_kernel_memory_args {}

impl Beancounters {
    pub(crate) fn new(pins: Pins, options: Options) -> Self {
        Self {
            programs: Programs { pins, options },
            resource_iterator: None,
            rows: BTreeMap::new(),
            trial: None,
        }
    }

    /// The iterators over all tasks and files, loaded at the first use.
    ///
    /// # Errors
    /// Where the kernel does not let us.
    pub fn resource_iterator(&mut self) -> Result<Arc<ResourceIterator>, Error> {
        let Programs { pins, options } = &self.programs;
        match &mut self.resource_iterator {
            Some(iterator) => Ok(Arc::clone(iterator)),
            none => {
                let iterator = none.insert(Arc::new(ResourceIterator::load(pins, options)?));
                Ok(Arc::clone(iterator))
            }
        }
    }

    /// What becomes of a limit on this row.
    pub fn enforcement(&self, resource: Resource) -> Enforcement {
        let why = match row_of(resource) {
            None => "nothing in the kernel can refuse it to one user",
            Some(_) => "nobody has limited it yet",
        };
        let known = self.rows.get(&resource).cloned();
        known.unwrap_or_else(|| Enforcement::None(why.to_owned()))
    }

    /// Makes the rows what is wanted, of these accounts and no others. Limits hold when this returns, where
    /// they can; where not [`Self::enforcement`] says why.
    ///
    /// # Errors
    /// When a map or a program of ours cannot be used.
    pub fn apply(&mut self, wanted: &Wanted, accounts: &AccountTable) -> Result<(), Error> {
        let limited: BTreeMap<Resource, &Row> = wanted
            .values()
            .flatten()
            .filter(|(_, bounds)| !bounds.is_unlimited())
            .filter_map(|(&resource, _)| Some((resource, row_of(resource)?)))
            .collect();
        if !limited.is_empty()
            && let Err(error) = self.programs.provide_core(Object::Rows)
        {
            let none = Enforcement::None(error.to_string());
            let rows = limited.into_keys();
            self.rows = rows.map(|resource| (resource, none.clone())).collect();
            return Ok(());
        }
        let mut needed = BTreeSet::new();
        // Once the child was granted what they refuse, there is no need to load them for each change.
        let is_in_vain = matches!(self.trial, Some(Trial::Granted));
        let mut provide = |row| match is_in_vain {
            true => Enforcement::None(selftest::NOT_CALLED.to_owned()),
            false => self.programs.provide(row, &mut needed),
        };
        self.rows = limited
            .into_iter()
            .map(|(resource, row)| (resource, provide(row)))
            .collect();
        self.programs.detach_all_but(&needed);
        if !self.programs.has_core(Object::Rows) {
            return Ok(());
        }
        if !needed.is_empty() {
            self.try_once(accounts);
        }
        self.heed_trial();
        self.write(wanted, accounts)?;
        // How many files are open others choose: no limit may depend on meeting them all.
        if let Err(error) = self.meet_everybody() {
            tracing::warn!(%error, "not all that was there before is charged; it is tried again every 10 s");
        }
        Ok(())
    }

    /// What the child saw holds for all rows.
    fn heed_trial(&mut self) {
        match &self.trial {
            None | Some(Trial::Refused) => {}
            Some(Trial::Granted) => {
                for enforcement in self.rows.values_mut() {
                    *enforcement = Enforcement::None(selftest::NOT_CALLED.to_owned());
                }
                self.programs.detach_all_but(&BTreeSet::new());
            }
            // They may well work, and may be in force since before us; nobody can promise it.
            Some(Trial::Failed(why)) => {
                for enforcement in self.rows.values_mut() {
                    let known = match enforcement {
                        Enforcement::None(_) => continue,
                        Enforcement::Strict => why.clone(),
                        Enforcement::BestEffort(known) => format!("{known}; {why}"),
                    };
                    *enforcement = Enforcement::BestEffort(known.into());
                }
            }
        }
    }

    /// Charges what was there before its account had a limit, and what slipped through.
    ///
    /// # Errors
    /// When an iterator cannot be read.
    pub fn meet_everybody(&self) -> Result<(), Error> {
        if !self.programs.has_core(Object::Rows) || !self.is_counting() {
            return Ok(());
        }
        self.programs.walk(Object::Rows)?;
        for (object, recount) in BUFFERS {
            if self.counts(object) {
                self.programs.walk(object)?;
                self.recount(recount)?;
            }
        }
        Ok(())
    }

    /// Whether rows of an object are charged.
    fn counts(&self, object: Object) -> bool {
        let mut rows = self.rows.iter();
        rows.any(|(&resource, enforcement)| {
            let is_of_it = row_of(resource).is_some_and(|it| it.object == object);
            is_of_it && enforcement.refuses()
        })
    }

    fn recount(&self, program: &str) -> Result<(), Error> {
        let recount = self.pins().program(program)?;
        let mut args = forget_bill_args { slot: 0, row: 0 };
        let args = abi::bytes_of_mut(&mut args);
        call::run(recount.as_fd(), "count network buffers", args)
    }

    /// Whether anything is charged by hooks.
    fn is_counting(&self) -> bool {
        self.rows.values().any(Enforcement::refuses)
    }

    /// The rows of an account that are charged.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn read(&self, slot: Slot) -> Result<BTreeMap<Resource, RowReading>, Error> {
        if !self.programs.has_core(Object::Rows) {
            return Ok(BTreeMap::new());
        }
        let mut args = forget_bill_args {
            slot: slot.0,
            row: bill_row::BILL_ROWS.0,
        };
        let recount = self.pins().program("recount_bill")?;
        let what = "count file locks";
        call::run(recount.as_fd(), what, abi::bytes_of_mut(&mut args))?;
        for (object, recount) in BUFFERS {
            if self.counts(object) {
                self.recount(recount)?;
            }
        }
        let Some(raw) = made(&self.mapped()?, slot.0) else {
            return Ok(BTreeMap::new());
        };
        let rows = ROWS.iter().filter_map(|row| {
            let found = raw.rows.get(usize::try_from(row.index.0).ok()?)?;
            let is_known = self.enforcement(row.resource).refuses();
            (found.counted != 0 && is_known).then(|| (row.resource, RowReading::new(found)))
        });
        Ok(rows.collect())
    }

    /// What a scan found of kernel memory, by the account's number; for accounts with a limit on it.
    ///
    /// # Errors
    /// When a map or a program of ours cannot be used.
    pub fn note_kernel_memory(
        &self,
        accounts: &AccountTable,
        found: impl Fn(u64) -> KernelMemory,
    ) -> Result<(), Error> {
        if !self.programs.has_core(Object::Rows) {
            return Ok(());
        }
        let note = self.pins().program("note_kernel_memory")?;
        let bills = self.mapped()?;
        let index = usize::try_from(bill_row::BILL_KMEMSIZE.0).unwrap_or(usize::MAX);
        // Slot 0 is nobody's.
        for slot in 1..accounts.slots() {
            let bill = made(&bills, slot);
            let Some(bill) =
                bill.filter(|it| it.rows.get(index).is_some_and(|row| row.counted != 0))
            else {
                continue;
            };
            let KernelMemory { all, scanned } = found(bill.account_id);
            let bytes = |it: Bytes| i64::try_from(it.get()).unwrap_or(i64::MAX);
            let mut args = note_kernel_memory_args {
                slot,
                pad: 0,
                account_id: bill.account_id,
                scanned_bytes: bytes(scanned),
                held_bytes: bytes(all),
            };
            let args = abi::bytes_of_mut(&mut args);
            call::run(note.as_fd(), "note what kernel memory was found", args)?;
        }
        Ok(())
    }

    /// Charges that found no room: granted and not counted.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn unrecorded(&self) -> Result<u64, Error> {
        if !self.programs.has_core(Object::Rows) {
            return Ok(0);
        }
        let found = self
            .pins()
            .map("bill_facts")?
            .lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(Error::io("read facts of beancounters"))?;
        let facts = found.as_deref().and_then(abi::read::<bill_facts>);
        Ok(facts.map_or(0, |facts| facts.unrecorded))
    }

    /// Rows as wanted, and none beside them.
    fn write(&self, wanted: &Wanted, accounts: &AccountTable) -> Result<(), Error> {
        let set = self.pins().program("set_bill")?;
        let bills = self.mapped()?;
        // No account has a slot beyond.
        for slot in 0..accounts.slots() {
            let Some(bill) = made(&bills, slot) else {
                continue;
            };
            // A slot is given to somebody else once its account is closed.
            let is_his = bill.account_id == id_of(accounts, Slot(slot));
            if !is_his || !wanted.contains_key(&Slot(slot)) {
                self.forget(slot, bill_row::BILL_ROWS.0)?;
            }
        }
        let page = self.programs.options.page_size;
        for (slot, rows) in wanted {
            for &Row {
                resource, index, ..
            } in &ROWS
            {
                let bounds = rows.get(&resource).copied().unwrap_or_default();
                let is_counted = !bounds.is_unlimited() && self.enforcement(resource).refuses();
                let args = set_bill_args {
                    slot: slot.0,
                    row: index.0,
                    counted: is_counted.into(),
                    observed: bounds.mode().is_observed().into(),
                    account_id: id_of(accounts, *slot),
                    barrier: to_kernel(resource, bounds.barrier(), page),
                    limit: to_kernel(resource, bounds.limit(), page),
                };
                set_row(&set, args)?;
                if !is_counted {
                    self.forget(slot.0, index.0)?;
                }
            }
        }
        Ok(())
    }

    fn pins(&self) -> &Pins {
        &self.programs.pins
    }

    fn mapped(&self) -> Result<Mapped<bill>, Error> {
        Mapped::new(&self.pins().map("bills")?)
    }

    fn forget(&self, slot: u32, row: u32) -> Result<(), Error> {
        let mut args = forget_bill_args { slot, row };
        let calls = [
            (Object::Buffers, "forget_buffers"),
            (Object::Tcp, "forget_tcp"),
            (Object::Rows, "forget_bill"),
        ];
        for (_, name) in calls.into_iter().filter(|it| self.programs.has_core(it.0)) {
            let program = self.pins().program(name)?;
            let args = abi::bytes_of_mut(&mut args);
            call::run(program.as_fd(), "forget a row", args)?;
        }
        Ok(())
    }

    /// An attach that succeeds proves nothing (selftest.rs): a child that may hold no process makes one.
    fn try_once(&mut self, accounts: &AccountTable) {
        if matches!(self.trial, Some(Trial::Refused | Trial::Granted)) {
            return;
        }
        // Any LSM program of ours will do; this one is put up for the test where nobody wants it.
        let outcome = self.programs.with(&["bill_task_free", "bill_fork"], || {
            self.fork_selftest(accounts)
        });
        self.trial = Some(match outcome {
            Ok(true) => Trial::Refused,
            Ok(false) => Trial::Granted,
            Err(error) => Trial::Failed(format!("beancounters could not be tried: {error}")),
        });
    }

    fn fork_selftest(&self, accounts: &AccountTable) -> Result<bool, Error> {
        let set = self.pins().program("set_bill")?;
        selftest::with_account(accounts, |slot| {
            let none = set_bill_args {
                slot: slot.0,
                row: bill_row::BILL_NUMPROC.0,
                counted: 1,
                observed: 0,
                account_id: SELFTEST_ACCOUNT.get(),
                barrier: 0,
                limit: 0,
            };
            let refused =
                set_row(&set, none).and_then(|()| selftest::is_refused(run_forking_selftest));
            self.forget(slot.0, bill_row::BILL_ROWS.0)?;
            refused
        })
    }
}

fn set_row(program: &ProgramHandle, mut args: set_bill_args) -> Result<(), Error> {
    call::run(program.as_fd(), "set a row", abi::bytes_of_mut(&mut args))
}

/// The bill of the account in a slot, if it has one.
fn made(bills: &Mapped<bill>, slot: u32) -> Option<bill> {
    let found = bills.get(usize::try_from(slot).ok()?);
    found.filter(|it| it.state == bill_state::BILL_MADE)
}

/// The id of the account in a slot; the template's is 0.
fn id_of(accounts: &AccountTable, slot: Slot) -> u64 {
    match slot {
        Slot::TEMPLATE => 0,
        slot => accounts.account(slot).map_or(0, |account| account.id.get()),
    }
}

/// Bounds of pages are OpenVZ's, 4 KiB; the kernel half counts the machine's, rounded down.
fn to_kernel(resource: Resource, bound: Option<u64>, page: PageSize) -> i64 {
    let in_kernel = bound.map(|bound| match resource.unit() {
        Unit::Pages => {
            let bytes = bound.saturating_mul(Unit::PAGE_BYTES);
            page.pages_within(Bytes::new(bytes)).get()
        }
        Unit::Bytes | Unit::Items => bound,
    });
    abi::bound_to_pages(in_kernel.map(Pages::new))
}

/// In the child: true where a fork is refused as the row says.
fn run_forking_selftest() -> Result<bool, i32> {
    // SAFETY: plain system calls; a grandchild ends at once.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(0),
            -1 => match *libc::__errno_location() {
                libc::EAGAIN => Ok(true),
                errno => Err(errno),
            },
            child => {
                let mut status = 0;
                libc::waitpid(child, &mut status, 0);
                Ok(false)
            }
        }
    }
}
