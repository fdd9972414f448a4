// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Beancounters that refuse (`bpf/bills.bpf.c`): loaded and attached when the first account gets a limit
//! on a row, taken away with the last, tried with a real child as the gate is.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use bursar_model::{PageSize, Resource, RowBounds};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Iter, MapCore, MapFlags, ProgramHandle};

use crate::abi::{self, Plain};
use crate::books::{Books, Slot};
use crate::load::{set_knobs, share_pinned};
use crate::mapped::Mapped;
use crate::pins::Pins;
use crate::skeleton::bills;
use crate::skeleton::bills::types::{
    bill, bill_facts, bill_row, bill_state, forget_bill_args, row, set_bill_args,
};
use crate::tester::{self, TESTER};
use crate::{Error, Look, Options, call};

/// A row as the kernel half has it, in the resource's unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowReading {
    /// Charged now.
    pub held: u64,
    /// The most ever charged.
    pub maxheld: u64,
    /// Requests refused.
    pub failcnt: u64,
}

/// What becomes of a limit on a row here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enforcement {
    /// No request passes the barrier unseen.
    Strict,
    /// Requests are refused, and some may slip through; the text says which.
    BestEffort(Cow<'static, str>),
    /// Nothing is refused; the text says why.
    None(String),
}

/// The rows of accounts: what each may hold.
pub type Wanted = BTreeMap<Slot, BTreeMap<Resource, RowBounds>>;

/// The beancounters of one kernel half.
#[derive(Debug)]
pub struct Bills {
    pins: Pins,
    options: Options,
    look: Option<Look>,
    /// What became of the rows that somebody has limited.
    rows: BTreeMap<Resource, Enforcement>,
    /// Nobody has asked while it is absent.
    trial: Option<Trial>,
}

/// What the child of the self-test saw.
#[derive(Debug)]
enum Trial {
    Refused,
    Granted,
    /// There was none, and why.
    Failed(String),
}

// SAFETY: integers only (bills.h).
unsafe impl Plain for bill {}
// SAFETY: as above.
unsafe impl Plain for bill_facts {}
// SAFETY: as above.
unsafe impl Plain for set_bill_args {}
// SAFETY: as above.
unsafe impl Plain for forget_bill_args {}

const PROGRAMS: [&str; 3] = ["set_bill", "forget_bill", "recount_bill"];
const WALKS: [&str; 3] = ["meet_tasks", "meet_locks", "meet_files"];
/// Of so many objects one may be a file that is locked.
const OBJECTS_A_LOCKED_FILE: u32 = 8;
const MAPS: [&str; 4] = ["bills", "charges", "locked_files", "bill_facts"];

/// The rows that the kernel half can refuse.
const ROWS: [(Resource, bill_row); 9] = [
    (Resource::Numproc, bill_row::BILL_NUMPROC),
    (Resource::Numfile, bill_row::BILL_NUMFILE),
    (Resource::Numtcpsock, bill_row::BILL_NUMTCPSOCK),
    (Resource::Numothersock, bill_row::BILL_NUMOTHERSOCK),
    (Resource::Numflock, bill_row::BILL_NUMFLOCK),
    (Resource::Numpty, bill_row::BILL_NUMPTY),
    (Resource::Numsiginfo, bill_row::BILL_NUMSIGINFO),
    (Resource::Shmpages, bill_row::BILL_SHMPAGES),
    (Resource::Lockedpages, bill_row::BILL_LOCKEDPAGES),
];

fn index_of(resource: Resource) -> Option<u32> {
    let found = ROWS.iter().find(|(it, _)| *it == resource)?;
    Some(found.1.0)
}

/// Which resource a row of the kernel half is.
pub(crate) fn resource_of(index: u32) -> Option<Resource> {
    let found = ROWS.iter().find(|(_, row)| row.0 == index)?;
    Some(found.0)
}

/// The programs of a row, in the order of attaching: what ends a charge before what makes one. The first
/// set that this kernel takes is used.
fn programs_of(resource: Resource) -> &'static [(&'static [&'static str], Enforcement)] {
    use Enforcement::{BestEffort, Strict};
    const FORK: &[&str] = &["bill_task_free", "bill_fork", "bill_setuid"];
    match resource {
        Resource::Numproc => &[
            (
                &[
                    "bill_task_free",
                    "bill_task_gone",
                    "bill_fork",
                    "bill_setuid",
                ],
                Strict,
            ),
            (FORK, Strict),
        ],
        Resource::Numfile => &[
            (&["bill_file_free", "bill_file"], Strict),
            (
                &["bill_file_free", "bill_file_try"],
                BestEffort(Cow::Borrowed(
                    "a file may slip through where another call was preempted; it is counted at the \
                     next look",
                )),
            ),
        ],
        Resource::Numpty => &[(&["bill_file_free", "bill_open"], Strict)],
        Resource::Numflock => &[(&["bill_file_free", "bill_lock"], Strict)],
        Resource::Numtcpsock | Resource::Numothersock => &[
            (
                &[
                    "bill_socket_free",
                    "bill_socket_gone",
                    "bill_accepted",
                    "bill_socket",
                    "bill_connection",
                    "bill_unix_accepted",
                ],
                Strict,
            ),
            (
                &[
                    "bill_socket_free",
                    "bill_accepted",
                    "bill_socket",
                    "bill_connection",
                    "bill_unix_accepted",
                ],
                Strict,
            ),
        ],
        Resource::Numsiginfo => &[(&["bill_signal"], Strict)],
        Resource::Shmpages => &[(
            &[
                "bill_shared_free",
                "bill_shared",
                "bill_mapping",
                "bill_segment_ask",
            ],
            Strict,
        )],
        Resource::Lockedpages => &[(
            &["bill_mapping"],
            BestEffort(Cow::Borrowed(
                "mmap(MAP_LOCKED) is refused; mlock(2) asks nobody but RLIMIT_MEMLOCK, which holds for \
                 each process by itself",
            )),
        )],
        _ => &[],
    }
}

fn link(program: &str) -> String {
    format!("link_{program}")
}

impl Bills {
    pub(crate) fn new(pins: Pins, options: Options) -> Self {
        Self {
            pins,
            options,
            look: None,
            rows: BTreeMap::new(),
            trial: None,
        }
    }

    /// A look at all tasks and files, loaded at the first one.
    ///
    /// # Errors
    /// Where the kernel does not let us.
    pub fn look(&mut self) -> Result<&Look, Error> {
        if self.look.is_none() {
            self.look = Some(Look::load(&self.pins, &self.options)?);
        }
        self.look.as_ref().ok_or(Error::Unsupported {
            object: "a look at tasks and files",
            reason: "it is not loaded".to_owned(),
        })
    }

    /// What becomes of a limit on this row.
    pub fn enforcement(&self, resource: Resource) -> Enforcement {
        match self.rows.get(&resource) {
            Some(known) => known.clone(),
            None => match programs_of(resource) {
                [] => {
                    Enforcement::None("nothing in the kernel can refuse it to one user".to_owned())
                }
                _ => Enforcement::None("nobody has limited it yet".to_owned()),
            },
        }
    }

    /// Makes the rows what is wanted, of these accounts and no others. Limits hold when this returns, where
    /// they can; where not [`Self::enforcement`] says why.
    ///
    /// # Errors
    /// When a map or a program of ours cannot be used.
    pub fn apply(&mut self, wanted: &Wanted, books: &Books) -> Result<(), Error> {
        let limited: BTreeSet<Resource> = wanted
            .values()
            .flat_map(|rows| rows.iter())
            .filter(|(_, bounds)| !bounds.is_unlimited())
            .map(|(resource, _)| *resource)
            .filter(|resource| index_of(*resource).is_some())
            .collect();
        self.rows.retain(|resource, _| limited.contains(resource));
        if !limited.is_empty()
            && let Err(error) = self.provide_core()
        {
            for resource in limited {
                self.rows
                    .insert(resource, Enforcement::None(error.to_string()));
            }
            return Ok(());
        }
        let mut needed = BTreeSet::new();
        for &resource in &limited {
            let enforcement = self.provide(resource, &mut needed);
            self.rows.insert(resource, enforcement);
        }
        self.detach_all_but(&needed);
        if !self.has_core() {
            return Ok(());
        }
        if !needed.is_empty() {
            self.try_once(books);
        }
        match &self.trial {
            None | Some(Trial::Refused) => {}
            Some(Trial::Granted) => {
                for enforcement in self.rows.values_mut() {
                    *enforcement = Enforcement::None(tester::NOT_CALLED.to_owned());
                }
                self.detach_all_but(&BTreeSet::new());
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
        self.write(wanted, books)?;
        self.meet_everybody()
    }

    /// Charges what was there before its account had a limit, and what slipped through.
    ///
    /// # Errors
    /// When an iterator cannot be read.
    pub fn meet_everybody(&self) -> Result<(), Error> {
        if !self.has_core() || !self.is_counting() {
            return Ok(());
        }
        let what = "charge what is there already";
        for walk in WALKS {
            let mut nothing = Vec::new();
            Iter::new(&self.pins.link(&link(walk))?)
                .map_err(Error::io(what))?
                .read_to_end(&mut nothing)
                .map_err(|source| Error::Io { what, source })?;
        }
        Ok(())
    }

    /// Whether anything is charged by hooks.
    pub fn is_counting(&self) -> bool {
        self.rows
            .values()
            .any(|it| !matches!(it, Enforcement::None(_)))
    }

    /// The rows of an account that are charged.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn read(&self, slot: Slot) -> Result<BTreeMap<Resource, RowReading>, Error> {
        if !self.has_core() {
            return Ok(BTreeMap::new());
        }
        let mut args = forget_bill_args {
            slot: slot.0,
            row: bill_row::BILL_ROWS.0,
        };
        let recount = self.pins.program("recount_bill")?;
        let what = "count file locks";
        call::run(recount.as_fd(), what, abi::bytes_of_mut(&mut args))?;
        let Some(raw) = made(&self.mapped()?, slot.0) else {
            return Ok(BTreeMap::new());
        };
        let rows = ROWS.iter().filter_map(|(resource, index)| {
            let row = raw.rows.get(usize::try_from(index.0).ok()?)?;
            let is_known = !matches!(self.enforcement(*resource), Enforcement::None(_));
            (row.counted != 0 && is_known).then(|| (*resource, RowReading::new(row)))
        });
        Ok(rows.collect())
    }

    /// Charges that found no room: granted and not counted.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn unrecorded(&self) -> Result<u64, Error> {
        if !self.has_core() {
            return Ok(0);
        }
        let found = self
            .pins
            .map("bill_facts")?
            .lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(Error::io("read facts of beancounters"))?;
        let facts = found.as_deref().and_then(abi::read::<bill_facts>);
        Ok(facts.map_or(0, |facts| facts.unrecorded))
    }

    fn has_core(&self) -> bool {
        // What is pinned last.
        self.pins.has_all([link("meet_files")])
    }

    fn provide_core(&self) -> Result<(), Error> {
        if self.has_core() {
            return Ok(());
        }
        let names: Vec<&str> = PROGRAMS.iter().chain(&WALKS).copied().collect();
        // Half of it, left by a crash.
        self.pins.unlink(MAPS.iter().chain(&PROGRAMS));
        self.pins.unlink(WALKS.map(link));
        self.load(&names, true)
    }

    /// The best that this kernel allows for a row; `needed` grows by its programs.
    fn provide(&self, resource: Resource, needed: &mut BTreeSet<&'static str>) -> Enforcement {
        let mut reasons = Vec::new();
        let sets = programs_of(resource);
        // What a bursard before us has put up is as good as what we would.
        let is_up = |name: &&str| self.pins.has_all([link(name)]);
        let up = sets.iter().find(|(names, _)| names.iter().all(is_up));
        for (names, enforcement) in up.into_iter().chain(sets) {
            let missing: Vec<&str> = names.iter().copied().filter(|name| !is_up(name)).collect();
            match self.load(&missing, false) {
                Ok(()) => {
                    needed.extend(names.iter().copied());
                    return enforcement.clone();
                }
                Err(error) => {
                    self.pins.unlink(missing.into_iter().map(link));
                    reasons.push(error.to_string());
                }
            }
        }
        reasons.dedup();
        Enforcement::None(reasons.join("; "))
    }

    fn detach_all_but(&self, needed: &BTreeSet<&'static str>) {
        let all = ROWS
            .iter()
            .flat_map(|(resource, _)| programs_of(*resource))
            .flat_map(|(names, _)| names.iter().copied());
        // What makes charges goes first: the lists have it last.
        let unneeded: Vec<&str> = all.filter(|name| !needed.contains(name)).collect();
        self.pins.unlink(unneeded.into_iter().rev().map(link));
    }

    /// Loads these programs, attaches and pins them; `core`: the maps, and programs that are run by us.
    fn load(&self, names: &[&str], core: bool) -> Result<(), Error> {
        if names.is_empty() {
            return Ok(());
        }
        let unsupported = Error::unsupported("beancounters (LSM programs)");
        let pinning = || Error::io("pin a beancounter");
        let mut storage = MaybeUninit::uninit();
        let mut open = bills::BillsSkelBuilder::default()
            .open(&mut storage)
            .map_err(unsupported)?;
        set_knobs!(open, "bills", self.options, {});
        let objects = self.options.max_objects;
        for (map, entries) in [
            (&mut open.maps.bills, self.options.max_accounts),
            (&mut open.maps.charges, objects),
            (&mut open.maps.locked_files, objects / OBJECTS_A_LOCKED_FILE),
        ] {
            map.set_max_entries(entries)
                .map_err(Error::io("size a map"))?;
        }
        share_pinned!(open, self.pins, {
            accounts: "accounts",
            payers: "payers",
            mms: "mms",
            events: "events",
            state_map: "state",
            members: "members",
        });
        if !core {
            share_pinned!(open, self.pins, {
                bills: "bills",
                charges: "charges",
                locked_files: "locked_files",
                bill_facts: "bill_facts",
            });
        }
        for mut program in open.open_object_mut().progs_mut() {
            let is_one = program
                .name()
                .to_str()
                .is_some_and(|it| names.contains(&it));
            program.set_autoload(is_one);
        }
        let mut loaded = open.load().map_err(unsupported)?;
        if core {
            let maps = &mut loaded.maps;
            for (map, name) in [
                (&mut maps.bills, "bills"),
                (&mut maps.charges, "charges"),
                (&mut maps.locked_files, "locked_files"),
                (&mut maps.bill_facts, "bill_facts"),
            ] {
                map.pin(self.pins.path(name)).map_err(pinning())?;
            }
        }
        // In the order of the names.
        for name in names {
            let mut programs = loaded.object_mut().progs_mut();
            let Some(mut program) = programs.find(|it| it.name().to_str() == Some(name)) else {
                continue;
            };
            if PROGRAMS.contains(name) {
                program.pin(self.pins.path(name)).map_err(pinning())?;
            } else {
                let mut attached = program.attach().map_err(unsupported)?;
                attached
                    .pin(self.pins.path(&link(name)))
                    .map_err(pinning())?;
            }
        }
        Ok(())
    }

    /// Rows as wanted, and none beside them.
    fn write(&self, wanted: &Wanted, books: &Books) -> Result<(), Error> {
        let set = self.pins.program("set_bill")?;
        let bills = self.mapped()?;
        // No account has a slot beyond.
        for slot in 0..books.slots() {
            let Some(bill) = made(&bills, slot) else {
                continue;
            };
            // A slot is given to somebody else once its account is closed.
            let is_his = bill.account_id == id_of(books, Slot(slot));
            if !is_his || !wanted.contains_key(&Slot(slot)) {
                self.forget(slot, bill_row::BILL_ROWS.0)?;
            }
        }
        let page = self.options.page_size;
        for (slot, rows) in wanted {
            for (resource, index) in ROWS {
                let bounds = rows.get(&resource).copied().unwrap_or_default();
                let is_kept = !matches!(self.enforcement(resource), Enforcement::None(_));
                let is_counted = !bounds.is_unlimited() && is_kept;
                let args = set_bill_args {
                    slot: slot.0,
                    row: index.0,
                    counted: is_counted.into(),
                    account_id: id_of(books, *slot),
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

    fn mapped(&self) -> Result<Mapped<bill>, Error> {
        Mapped::new(&self.pins.map("bills")?)
    }

    fn forget(&self, slot: u32, row: u32) -> Result<(), Error> {
        let mut args = forget_bill_args { slot, row };
        let program = self.pins.program("forget_bill")?;
        call::run(
            program.as_fd(),
            "forget a row",
            abi::bytes_of_mut(&mut args),
        )
    }

    /// An attach that succeeds proves nothing (tester.rs): a child that may hold no process makes one.
    fn try_once(&mut self, books: &Books) {
        if matches!(self.trial, Some(Trial::Refused | Trial::Granted)) {
            return;
        }
        // Any LSM program of ours will do; this one is put up for the test where nobody wants it.
        const FORK: [&str; 2] = ["bill_task_free", "bill_fork"];
        let fresh: Vec<&str> = FORK
            .into_iter()
            .filter(|name| !self.pins.has_all([link(name)]))
            .collect();
        let outcome = self
            .load(&fresh, false)
            .and_then(|()| self.fork_as_tester(books));
        self.pins.unlink(fresh.into_iter().rev().map(link));
        self.trial = Some(match outcome {
            Ok(true) => Trial::Refused,
            Ok(false) => Trial::Granted,
            Err(error) => Trial::Failed(format!("beancounters could not be tried: {error}")),
        });
    }

    fn fork_as_tester(&self, books: &Books) -> Result<bool, Error> {
        let set = self.pins.program("set_bill")?;
        tester::with_account(books, |slot| {
            let none = set_bill_args {
                slot: slot.0,
                row: bill_row::BILL_NUMPROC.0,
                counted: 1,
                account_id: TESTER.get(),
                barrier: 0,
                limit: 0,
            };
            let refused = set_row(&set, none).and_then(|()| tester::is_refused(be_forking_tester));
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

impl RowReading {
    fn new(raw: &row) -> Self {
        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        Self {
            held: count(raw.held),
            maxheld: count(raw.maxheld),
            failcnt: raw.failcnt,
        }
    }
}

/// The number of the account in a slot; the template's is 0.
fn id_of(books: &Books, slot: Slot) -> u32 {
    match slot {
        Slot::TEMPLATE => 0,
        slot => books.account(slot).map_or(0, |account| account.id.get()),
    }
}

/// Bounds of pages are OpenVZ's, 4 KiB; the kernel half counts the machine's, rounded down.
fn to_kernel(resource: Resource, bound: Option<u64>, page: PageSize) -> i64 {
    let in_kernel = bound.map(|bound| match resource.unit() {
        bursar_model::Unit::Pages => {
            let bytes = bound.saturating_mul(bursar_model::Unit::PAGE_BYTES);
            page.pages_within(bursar_model::Bytes::new(bytes)).get()
        }
        bursar_model::Unit::Bytes | bursar_model::Unit::Items => bound,
    });
    abi::bound_to_pages(in_kernel.map(bursar_model::Pages::new))
}

/// In the child: true where a fork is refused as the row says.
fn be_forking_tester() -> Result<bool, i32> {
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
