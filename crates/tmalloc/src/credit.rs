// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process's credit: what the daemon has reserved for it, and who may use how much of it.
//!
//! One equation holds whenever the lock is free:
//!
//! ```text
//! spent + Σ slices ≤ credit        spent = potential now − at the last renewal
//! potential = resident anonymous memory + what was granted and is not resident (untouched.rs)
//! ```
//!
//! The potential is what the process can come to hold without asking. A block of more than a page raises
//! it when it is granted, and touching it later changes nothing. Memory that was freed and is used again
//! raises nothing: a program in its steady state never asks. When memory is given back to the system, the
//! base follows it down, because another process may have been promised it since.
//!
//! `taken` is an upper bound of `spent`, counted without a look at /proc: what slices and mappings cost.

pub(crate) mod grant;
pub(crate) mod lifecycle;
mod request;

use std::sync::atomic::{AtomicU32, Ordering};

use bursar_reserve::now_ns;

use crate::glibc;
use crate::ranges::{Ranges, page};
use crate::thread::Thread;
use crate::untouched::{Place, Untouched};
use crate::usage;

/// Asked for at first; a process that only starts and ends is not to keep much from others.
const FIRST: usize = 1 << 20;
/// A program whose threads come for slices so many times, less than so long after each other, has too
/// small ones: a look at the credit takes some microseconds.
const VISITS: u32 = 16;
const OFTEN_NS: u64 = 500_000;
/// So much credit makes slices that last.
const AMPLE: usize = 32 << 20;

/// Less that a heap has shrunk by is not worth a look.
const SHRUNK: usize = 16 << 20;

/// Where nothing is reserved, a thread comes back after so much to see whether that still holds; sooner where bursard has
/// answered before: others of a full account have been promised what is left.
const UNCOUNTED: isize = 16 << 20;
const UNCOUNTED_BELOW_LIMIT: isize = 128 << 10;

/// How often freed memory has been given back to the system, so that pages in the middle of a heap may be gone,
/// or what was handed out has been forgotten.
static TRIMS: AtomicU32 = AtomicU32::new(0);

/// How it stands with the daemon. Zero is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Daemon {
    /// Not asked yet.
    Unknown,
    /// It reserves for us.
    Reserves,
    /// Nothing is reserved until `paused_until`: no limit applies, or nobody answers.
    Paused,
}

/// Valid when zero: nothing has begun.
#[derive(Debug)]
pub(crate) struct Credit {
    daemon: Daemon,
    has_begun: bool,
    /// A connection that is open is ours, and not our parent's.
    has_contact: bool,
    /// We were given less than we would have liked. Before 6.18 /proc's figure may be behind by a batch
    /// for each CPU (lib/percpu_counter.c): much, where little is left. So everything taken counts as
    /// spent.
    is_scarce: bool,
    /// By the last answer the account has one.
    has_limit: bool,
    /// The account is nearly full: the last answer was no, or a grant smaller than the first one asked for.
    is_tight: bool,
    pid: libc::pid_t,
    /// The user for whom we asked: a program that becomes another's pays elsewhere from then on.
    user: libc::uid_t,
    paused_until: u64,
    /// What may be used beyond `base`, bytes.
    credit: usize,
    /// The potential at the last renewal.
    base: usize,
    /// Writable memory since the last look, at most.
    writable: usize,
    slices: usize,
    taken: usize,
    /// Reserved at the daemon, page tables included.
    reserved: usize,
    /// It has become more since something was last given back.
    has_grown: bool,
    next: usize,
    /// Counts renewals: what was paid for before is in `base`.
    epoch: u32,
    answered_at: u64,
    trimmed_at: u64,
    told_at: u64,
    /// The last refusal said that so many pages stay reserved, which is less than we have said.
    is_cut: bool,
    kept: usize,
    /// Of threads that came for slices, and since when.
    visits: u32,
    visits_since: u64,
    /// The account had no more to spare; not tried again before.
    grow_again_at: u64,
    /// Of the last refusals in a row.
    refused_at: u64,
    refused_ns: u64,
    refused_cost: usize,
    /// The potential then.
    refused_base: usize,
    /// Refusals that the daemon has not heard of.
    refusals: u64,
    /// Bytes of mappings that went since the last look at /proc and may have been there at the last renewal.
    gone: usize,
    untouched: Untouched,
}

/// Gives free memory back to the system.
pub(crate) fn trim(pad: usize) -> libc::c_int {
    // Before, for whose slice ends meanwhile, and after, for whose slice begins meanwhile.
    TRIMS.fetch_add(1, Ordering::Relaxed);
    let was_given_back = glibc::trim(pad);
    TRIMS.fetch_add(1, Ordering::Relaxed);
    was_given_back
}

fn widen(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn getpid() -> libc::pid_t {
    // SAFETY: no arguments.
    unsafe { libc::getpid() }
}

impl Credit {
    /// Of a process that has not asked yet.
    fn begin(&mut self) {
        if !self.has_begun {
            self.has_begun = true;
            self.pid = getpid();
            self.base = usize::MAX;
            self.next = FIRST;
        }
    }

    fn free(&self) -> usize {
        self.credit
            .saturating_sub(self.taken)
            .saturating_sub(self.slices)
    }

    /// What the process can come to hold; `None` where that is not to be relied upon.
    fn potential(&mut self) -> Option<usize> {
        let mut memory = usage::memory()?;
        if self.has_shrunk(memory.writable) {
            self.untouched.look_if(true);
            // After the look: what comes between counts twice, not never.
            memory = usage::memory()?;
        }
        Some(memory.anonymous.saturating_add(self.untouched.bytes()))
    }

    /// Whether so much was unmapped since the last look that the daemon may have seen it, too, and given what
    /// nobody can touch any more to others (growth.rs there). Less is hidden by what comes after it; as much
    /// as the credit stays reserved for that.
    fn has_shrunk(&mut self, writable: usize) -> bool {
        let has_shrunk =
            self.writable.saturating_sub(writable) > SHRUNK && self.untouched.bytes() > SHRUNK;
        if has_shrunk || writable > self.writable {
            self.writable = writable;
        }
        has_shrunk
    }

    /// Counts as spent what the potential has grown by.
    fn measure(&mut self, potential: Option<usize>) {
        self.gone = 0;
        if let Some(potential) = potential.filter(|_| !self.is_scarce) {
            self.base = self.base.min(potential);
            self.taken = potential.saturating_sub(self.base);
        }
    }

    /// Ends the slice of a thread that has had so many page faults: what came of it counts by itself.
    fn end_slice(&mut self, own: &mut Thread, faults: u64) {
        let faults = faults.wrapping_sub(own.faults);
        let trims = TRIMS.load(Ordering::Relaxed);
        // A block that is new ground was met by a page fault, at the header before or behind it; the others
        // are resident, or in `untouched`. Unless memory was given back in between.
        let fresh = usize::try_from(faults)
            .unwrap_or(usize::MAX)
            .saturating_add(1);
        let most = match trims == own.trims {
            true => own.handed_bytes.min(own.largest.saturating_mul(fresh)),
            false => own.handed_bytes,
        };
        let mut pages = most.div_ceil(page());
        let handed = if pages > 0 { own.handed } else { Ranges::NONE };
        for range in handed.iter() {
            let part = range.pages().min(pages);
            pages -= part;
            self.untouched.insert(Place {
                range,
                pages: part,
                block: 0,
                cost: 0,
                epoch: 0,
            });
        }
        self.slices = self.slices.saturating_sub(own.slice);
        self.taken = self.taken.saturating_add(own.slice);
        if trims != own.trims {
            own.known = Ranges::NONE;
        }
        for range in handed.iter() {
            own.known.add(range);
        }
        own.trims = trims;
        own.begin_slice(0, 0);
    }

    /// What of the credit can be used for `cost` bytes without asking; `None`: too little.
    fn local(&mut self, cost: usize) -> Option<usize> {
        let enough = match self.is_scarce {
            true => cost,
            false => cost.max(self.next / 4),
        };
        if self.free() < enough && !self.is_scarce {
            let potential = self.potential();
            self.measure(potential);
            if self.free() < enough && self.untouched.pages() > 0 {
                self.untouched.look_if(false);
                let potential = self.potential();
                self.measure(potential);
            }
        }
        Some(self.free()).filter(|&free| free >= enough)
    }

    /// Whether threads come for slices so often that larger ones are worth asking for. Counts `visits` more.
    fn is_busy(&mut self, visits: u32) -> bool {
        self.visits = self.visits.saturating_add(visits);
        if self.visits < VISITS {
            return false;
        }
        let now = now_ns();
        let each = now.saturating_sub(self.visits_since) / u64::from(self.visits);
        (self.visits, self.visits_since) = (0, now);
        each < OFTEN_NS && !self.is_scarce && self.credit < AMPLE && now >= self.grow_again_at
    }

    /// From now on `free` bytes can be used beyond the potential.
    fn settle(&mut self, potential: usize, free: usize) {
        self.credit = self.slices.saturating_add(free);
        self.base = potential;
        self.taken = 0;
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Nothing is reserved. What threads hold is theirs all the same, until they have used it.
    fn forget(&mut self) {
        self.suspend();
        self.reserved = 0;
        self.untouched.clear();
    }

    /// Nothing is reserved for the moment. What was granted and is not resident is still to be: a bursard that was
    /// stopped or busy keeps it reserved until we say otherwise, and one that was started anew hears of it.
    fn suspend(&mut self) {
        self.credit = 0;
        self.taken = 0;
        // Of blocks that nobody counts meanwhile it is not known where they lie.
        TRIMS.fetch_add(1, Ordering::Relaxed);
    }

    /// What a thread may use before it looks again whether something is to be reserved.
    fn uncounted(&self) -> isize {
        if self.has_limit {
            UNCOUNTED_BELOW_LIMIT
        } else {
            UNCOUNTED
        }
    }

    /// Whether nothing is to be reserved for the moment.
    fn is_paused(&self) -> bool {
        self.daemon == Daemon::Paused && now_ns() < self.paused_until
    }
}
