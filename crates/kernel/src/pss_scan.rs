// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PSS scans: how many pages of an account are counted more than once. The kernel half lists the
//! processes, whoever reads /proc says what they share, and the kernel half takes that off, for a while,
//! while it watches for copies being made (docs/design/7-shared-pages.md).

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bursar_model::{Pages, Pid};
use libbpf_rs::{MapCore, MapFlags, MapHandle, ProgramHandle, libbpf_sys};

use crate::abi::{
    self, abi_constant, account, begin_pss_scan_args, end_pss_scan_args, ledger_state, member,
    mm_record, sharer, trigger,
};
use crate::mapped;
use crate::mapped::Mapped;
use crate::pins::Pins;
use crate::{Error, Slot, call};

/// Where a record has the private pages in swap.
const SWAP: usize = member::MEMBER_SWAP.0 as usize;

/// Asks the kernel half for PSS scans and answers it; as many at a time as [`PssScans::PLACES`].
#[derive(Debug)]
pub struct PssScans {
    begin: ProgramHandle,
    end: ProgramHandle,
    killer: ProgramHandle,
    sharers: MapHandle,
    records: MapHandle,
    state: MapHandle,
    accounts: Arc<Mapped<account>>,
    known: Mapped<ledger_state>,
    /// What counts copies, where the kernel has such events, and where its links are pinned while it does: copies
    /// are counted when we are dead, too, so corrections in force need not end then.
    watch: Vec<(ProgramHandle, PathBuf)>,
}

/// Where what a PSS scan finds is written down; by whoever looks.
#[derive(Debug)]
pub struct ScanResults {
    sharers: MapHandle,
    records: MapHandle,
}

/// Where the kernel half learns that pages were given back: who may have some is looked at before it is killed.
#[derive(Debug)]
pub struct GivenBackNote(MapHandle);

impl GivenBackNote {
    /// So many have ever been, by anybody.
    ///
    /// # Errors
    /// When the map cannot be mapped.
    pub fn write(&self, pages: Pages) -> Result<(), Error> {
        let at = std::mem::offset_of!(ledger_state, lazyfree_pages);
        mapped::store(&self.0, at, pages.get())
    }
}

/// A PSS scan under way.
#[derive(Debug)]
pub struct PssScan {
    slot: Slot,
    place: u32,
    began_ns: u64,
    count: u32,
}

/// A process to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharer {
    /// A thread of it that lives.
    pub tid: Pid,
    /// Shared memory that it maps, exactly, at the beginning of the PSS scan or before.
    pub shmem: Pages,
    /// What it maps of the pools of huge pages, likewise.
    pub hugetlb: Pages,
}

/// What was found of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// Of its pages so many are mapped elsewhere too, at most.
    pub shared: Pages,
    /// Its RSS less its PSS, and what it maps of the pool less its part of that.
    pub duplicate: Pages,
    /// Its PSS, and its part of the pool.
    pub once: Pages,
    /// Of the duplicates, what is shared memory.
    pub duplicate_shmem: Pages,
}

/// What came of a PSS scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Is taken off from now on.
    pub correction: Pages,
    /// The sum of the resident sets.
    pub held: Pages,
    /// Whether the account is near a bound still.
    pub is_near: bool,
}

impl PssScans {
    /// Scans that can be under way at once, of different accounts.
    pub const PLACES: u32 = abi_constant::PSS_SCANS.0;

    pub(crate) fn open(pins: &Pins, accounts: Arc<Mapped<account>>) -> Result<Self, Error> {
        let sharers = pins.map("sharers")?;
        let state = pins.map("state")?;
        Ok(Self {
            accounts,
            known: Mapped::new(&state)?,
            state,
            begin: pins.program("begin_pss_scan")?,
            end: pins.program("end_pss_scan")?,
            killer: pins.program("run_oom_killer")?,
            sharers,
            records: pins.map("mms")?,
            watch: [
                // The first acts on what the others count.
                "on_page_alloc",
                "on_user_fault",
                "on_kernel_fault",
                "on_collapse",
            ]
            .iter()
            .filter(|name| pins.path(name).exists())
            .map(|name| Ok((pins.program(name)?, pins.path(&format!("link_{name}")))))
            .collect::<Result<_, Error>>()?,
        })
    }

    /// Whether copies of shared pages can be watched for at all.
    pub const fn can_watch(&self) -> bool {
        !self.watch.is_empty()
    }

    /// Whether they are, perhaps since a bursard before.
    pub fn is_watching(&self) -> bool {
        self.can_watch() && self.watch.iter().all(|(_, link)| link.exists())
    }

    /// Has copies of shared pages counted from now on, or not any more.
    ///
    /// # Errors
    /// When the kernel refuses to attach a program.
    pub fn watch(&mut self, on: bool) -> Result<(), Error> {
        if !on {
            self.note_watching(false)?;
            for (_, link) in &self.watch {
                let _ = fs::remove_file(link);
            }
            return Ok(());
        }
        for (program, link) in self.watch.iter().filter(|(_, link)| !link.exists()) {
            attach(program, link)?;
        }
        self.note_watching(self.can_watch())
    }

    fn note_watching(&self, on: bool) -> Result<(), Error> {
        let at = std::mem::offset_of!(ledger_state, watching);
        mapped::store(&self.state, at, u64::from(on))
    }

    /// Says that questions will be answered from now on, until this process ends.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn be_there(&self) -> Result<(), Error> {
        let nobody = self.begin(Slot(0), 0)?;
        debug_assert!(nobody.is_none());
        Ok(())
    }

    /// Where it is said how many pages have been given back with MADV_FREE; by any thread.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn given_back(&self) -> Result<GivenBackNote, Error> {
        let state = MapHandle::try_from(&self.state);
        state
            .map(GivenBackNote)
            .map_err(Error::io("share the ledger's state"))
    }

    /// Whether so much has been given back on the machine since an account was last looked at that it matters there:
    /// a thirty-second of its limit (rules.h DOUBT_SHIFT). Only of one process: where several may share, a scan before
    /// they have touched what they share would be in the way of the one that is asked for at the crossing.
    pub fn may_have_given_back(&self, slot: Slot) -> bool {
        let machine = self.known.get(0).map_or(0, |it| it.lazyfree_pages);
        let account = self.accounts.get(slot.0 as usize);
        account.is_some_and(|it| {
            let since = machine.saturating_sub(it.lazyfree_pages);
            it.processes == 1 && i64::try_from(since).unwrap_or(i64::MAX) > it.limit_pages >> 5
        })
    }

    /// Whether any account is above its notice.
    pub fn is_anybody_noticed(&self) -> bool {
        let slots = self.known.get(0).map_or(0, |it| it.account_high_water);
        let accounts = (1..slots).filter_map(|slot| self.accounts.get(slot as usize));
        accounts
            .into_iter()
            .any(|it| it.noticed != 0 && it.limit_pages != i64::MAX)
    }

    /// Begins to look at an account, in a place that no other scan is in. `None`: there is none there any more.
    ///
    /// # Errors
    /// When the program cannot be run; EBUSY while another PSS scan of this account is under way.
    pub fn begin(&self, slot: Slot, place: u32) -> Result<Option<PssScan>, Error> {
        let mut args = begin_pss_scan_args {
            slot: slot.0,
            place,
            ..Default::default()
        };
        let what = "begin a PSS scan";
        match call::run(self.begin.as_fd(), what, abi::bytes_of_mut(&mut args)) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(()) => Ok(Some(PssScan {
                slot,
                place,
                began_ns: args.began_ns,
                count: args.count,
            })),
        }
    }

    /// The processes of a PSS scan, and where in a [`ScanResults`] what is found of each is written down.
    pub fn sharers(&self, pss_scan: &PssScan) -> impl Iterator<Item = (u32, Sharer)> + '_ {
        let first = pss_scan.place.saturating_mul(abi_constant::SHARERS.0);
        (first..first.saturating_add(pss_scan.count)).filter_map(|index| {
            let raw = listed(&self.sharers, index).ok()??;
            let sharer = Sharer {
                tid: Pid::new(raw.tid),
                shmem: Pages::new(raw.shmem_pages.into()),
                hugetlb: Pages::new(raw.hugetlb_pages.into()),
            };
            Some((index, sharer))
        })
    }

    /// For another thread, which looks.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn results(&self) -> Result<ScanResults, Error> {
        let copied = |map: &MapHandle| {
            MapHandle::try_from(map).map_err(Error::io("open a PSS scan's notes"))
        };
        Ok(ScanResults {
            sharers: copied(&self.sharers)?,
            records: copied(&self.records)?,
        })
    }

    /// Has what was found taken off for `lifetime` at most, and decides what waited for it. `None`: the
    /// account is not what it was, or another PSS scan of it has begun.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn end(&self, pss_scan: PssScan, lifetime: Duration) -> Result<Option<Outcome>, Error> {
        let mut args = end_pss_scan_args {
            slot: pss_scan.slot.0,
            place: pss_scan.place,
            count: pss_scan.count,
            began_ns: pss_scan.began_ns,
            lifetime_ns: u64::try_from(lifetime.as_nanos()).unwrap_or(u64::MAX),
            ..Default::default()
        };
        let what = "end a PSS scan";
        let decided = call::run_and_react(
            self.end.as_fd(),
            self.killer.as_fd(),
            (pss_scan.slot, trigger::TRIGGER_PSS_SCAN),
            what,
            abi::bytes_of_mut(&mut args),
        );
        match decided {
            Err(Error::Io { source, .. })
                if source.raw_os_error() == Some(libc::ESTALE)
                    || source.kind() == io::ErrorKind::NotFound =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
            Ok(()) => Ok(Some(Outcome {
                correction: abi::count(args.correction_pages),
                held: abi::count(args.held_pages),
                is_near: args.is_near != 0,
            })),
        }
    }
}

/// Attaches a program and pins its link.
fn attach(program: &ProgramHandle, link: &Path) -> Result<(), Error> {
    let failed = || Error::Io {
        what: "watch for copies of shared pages",
        source: io::Error::last_os_error(),
    };
    // SAFETY: a live program; a tp_btf program knows its event itself and takes no name.
    let fd = unsafe {
        libbpf_sys::bpf_raw_tracepoint_open(std::ptr::null(), program.as_fd().as_raw_fd())
    };
    if fd < 0 {
        return Err(failed());
    }
    // SAFETY: a fresh descriptor that is nobody else's.
    let attached = unsafe { OwnedFd::from_raw_fd(fd) };
    let path = CString::new(link.as_os_str().as_bytes()).map_err(|_| failed())?;
    // SAFETY: a live descriptor and a path that ends with a zero.
    match unsafe { libbpf_sys::bpf_obj_pin(attached.as_raw_fd(), path.as_ptr()) } {
        0 => Ok(()),
        _ => Err(failed()),
    }
}

/// A process as a PSS scan has listed it. Read by system calls: the table of all places in memory would be two of
/// bursard's sixteen MiB.
fn listed(sharers: &MapHandle, index: u32) -> Result<Option<sharer>, Error> {
    let raw = sharers
        .lookup(&index.to_ne_bytes(), MapFlags::ANY)
        .map_err(Error::io("read whom a PSS scan has listed"))?;
    Ok(raw.as_deref().and_then(abi::read))
}

impl ScanResults {
    /// Records what was found of one process, by what it has in swap. Nothing is subtracted for a process without
    /// such a note.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub fn note(&self, index: u32, found: impl FnOnce(Pages) -> Found) -> Result<(), Error> {
        let Some(mut raw) = listed(&self.sharers, index)? else {
            return Ok(());
        };
        let pages = |count: Pages| i64::try_from(count.get()).unwrap_or(i64::MAX);
        let record = self.record(raw.record)?;
        let swap = record.map_or(0, |it| it.pages[SWAP]);
        let found = found(abi::count(swap));
        // What it gave up before it was looked at, others may have been found to share with it.
        let given_up = record.map_or(0, |it| it.given_up_pages.max(0));
        raw.shared_pages = pages(found.shared).saturating_add(given_up);
        raw.duplicate_pages = pages(found.duplicate);
        raw.once_pages = pages(found.once);
        raw.duplicate_shmem_pages = pages(found.duplicate_shmem);
        self.sharers
            .update(&index.to_ne_bytes(), abi::bytes_of(&raw), MapFlags::ANY)
            .map_err(Error::io("write down a PSS scan"))
    }

    fn record(&self, index: u32) -> Result<Option<mm_record>, Error> {
        let raw = self
            .records
            .lookup(&index.to_ne_bytes(), MapFlags::ANY)
            .map_err(Error::io("read a process's record"))?;
        Ok(raw.as_deref().and_then(abi::read))
    }
}
