// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty page cache by who dirtied it (`bpf/pagecache/dirty.bpf.c`): loaded beside the kernel half when somebody
//! first asks, and pinned with it.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use bursar_model::{AccountId, Pages};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, ProgramHandle};

use crate::abi::{self, dirty_facts, dirty_sum};
use crate::load::{set_knobs, share_pinned};
use crate::pins::Pins;
use crate::skeleton::dirty;
use crate::{Error, KernelHalf, Options, call};

/// How dirty pages are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirtyMode {
    /// Each from when it becomes dirty until it is clean.
    Exact,
    /// Only how many became dirty: this kernel does not tell of clean ones.
    Cumulative,
}

/// What one payer has dirtied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtySum {
    /// `None`: the kernel itself.
    pub payer: Option<AccountId>,
    /// Dirty now; 0 in [`DirtyMode::Cumulative`].
    pub dirty: Pages,
    /// Became dirty since somebody first asked.
    pub dirtied: Pages,
    /// Of these, went to be written.
    pub written: Pages,
    /// Of these, were given up before.
    pub cancelled: Pages,
}

/// What was not seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirtyFacts {
    /// Folios for which there was no room: nobody's.
    pub folios_lost: u64,
    /// The same for who dirtied them.
    pub payers_lost: u64,
    /// Folios that were clean when we looked and had not told.
    pub forgotten: u64,
}

/// The count of dirty pages.
#[derive(Debug)]
pub struct DirtyPages {
    mode: DirtyMode,
    sums: MapHandle,
    facts: MapHandle,
    forget: ProgramHandle,
}

/// No account's number: the kernel's own threads (payer.bpf.h).
const NOBODY: u64 = u64::MAX;

impl KernelHalf {
    /// Counts dirty pages from now on, or goes on with a count begun earlier.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the kernel has no event that tells of dirty pages.
    pub fn dirty_pages(&self, options: &Options) -> Result<DirtyPages, Error> {
        let pins = self.pins();
        if !is_begun(pins) {
            match load(pins, options, DirtyMode::Exact) {
                Err(Error::Unsupported { reason, .. }) => {
                    tracing::info!(reason, "clean pages cannot be seen");
                    load(pins, options, DirtyMode::Cumulative)?;
                }
                done => done?,
            }
        }
        DirtyPages::open(pins)
    }

    /// A count begun earlier; `None`: nobody has asked yet.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn dirty_pages_begun(&self) -> Result<Option<DirtyPages>, Error> {
        let pins = self.pins();
        is_begun(pins).then(|| DirtyPages::open(pins)).transpose()
    }
}

fn is_begun(pins: &Pins) -> bool {
    pins.has_all(["forget_cleaned"])
}

fn load(pins: &Pins, options: &Options, mode: DirtyMode) -> Result<(), Error> {
    let unsupported = Error::unsupported("dirty");
    // A crash may have left some.
    pins.unlink([
        "link_folio_dirtied",
        "link_folio_cleaned",
        "link_folio_cancelled",
        "dirty_sums",
        "dirty_facts",
    ]);
    let is_exact = mode == DirtyMode::Exact;
    let mut storage = MaybeUninit::uninit();
    let mut open = dirty::DirtySkelBuilder::default()
        .open(&mut storage)
        .map_err(unsupported)?;
    set_knobs!(open, "dirty", options, { sees_cleaning: is_exact });
    share_pinned!(open, pins, {accounts: "accounts", payers: "payers", mm_index: "mm_index", mms: "mms",
        events: "events", state_map: "state", cpu_offsets: "cpu_offsets", sharers: "sharers", members: "members",
        subordinates: "subordinates", exempt_cgroups: "exempt_cgroups"});
    open.progs.folio_cleaned.set_autoload(is_exact);
    open.progs.folio_cancelled.set_autoload(is_exact);
    let mut loaded = open.load().map_err(unsupported)?;
    // What ends a charge before what makes one; nothing is pinned before all are there.
    let mut links = Vec::new();
    if is_exact {
        links.push((loaded.progs.folio_cleaned.attach(), "link_folio_cleaned"));
        links.push((
            loaded.progs.folio_cancelled.attach(),
            "link_folio_cancelled",
        ));
    }
    links.push((loaded.progs.folio_dirtied.attach(), "link_folio_dirtied"));
    let mut attached = Vec::new();
    for (link, name) in links {
        attached.push((link.map_err(unsupported)?, name));
    }
    let failed = || Error::io("pin the count of dirty pages");
    for (mut link, name) in attached {
        link.pin(pins.path(name)).map_err(failed())?;
    }
    let maps = &mut loaded.maps;
    maps.dirty_sums
        .pin(pins.path("dirty_sums"))
        .map_err(failed())?;
    maps.dirty_facts
        .pin(pins.path("dirty_facts"))
        .map_err(failed())?;
    // Last: where this one is, the others are.
    let forget = &mut loaded.progs.forget_cleaned;
    forget.pin(pins.path("forget_cleaned")).map_err(failed())
}

impl DirtyPages {
    fn open(pins: &Pins) -> Result<Self, Error> {
        let is_exact = pins.has_all(["link_folio_cleaned"]);
        Ok(Self {
            mode: if is_exact {
                DirtyMode::Exact
            } else {
                DirtyMode::Cumulative
            },
            sums: pins.map("dirty_sums")?,
            facts: pins.map("dirty_facts")?,
            forget: pins.program("forget_cleaned")?,
        })
    }

    /// How they are known.
    pub const fn mode(&self) -> DirtyMode {
        self.mode
    }

    /// Who has dirtied what.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn sums(&self) -> Result<(Vec<DirtySum>, DirtyFacts), Error> {
        const WHAT: &str = "read who has dirtied pages";
        if self.mode == DirtyMode::Exact {
            call::run(self.forget.as_fd(), "look for cleaned pages", &mut [])?;
        }
        let mut found = Vec::new();
        for key in self.sums.keys() {
            let value = self
                .sums
                .lookup(&key, MapFlags::ANY)
                .map_err(Error::io(WHAT))?;
            let id = key.as_slice().try_into().ok().map(u64::from_ne_bytes);
            let sum = value.as_deref().and_then(abi::read::<dirty_sum>);
            if let (Some(id), Some(sum)) = (id, sum) {
                found.push(DirtySum {
                    payer: (id != NOBODY).then(|| AccountId::new(id)),
                    dirty: abi::count(sum.dirty_pages),
                    dirtied: Pages::new(sum.dirtied_pages),
                    written: Pages::new(sum.written_pages),
                    cancelled: Pages::new(sum.cancelled_pages),
                });
            }
        }
        let facts = self
            .facts
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(Error::io(WHAT))?;
        let facts = facts
            .as_deref()
            .and_then(abi::read::<dirty_facts>)
            .unwrap_or_default();
        Ok((
            found,
            DirtyFacts {
                folios_lost: facts.folios_lost,
                payers_lost: facts.payers_lost,
                forgotten: facts.forgotten,
            },
        ))
    }
}
