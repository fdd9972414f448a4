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

use std::sync::atomic::{AtomicU32, Ordering};

use bursar_reserve::{Ask, Contact, Refused, Silence, now_ns};

use crate::confined;
use crate::environment;
use crate::glibc::{malloc_trim, pthread_atfork, pthread_key_create};
use crate::process::{self, contact, with};
use crate::ranges::{Range, Ranges};
use crate::thread::{self, Thread};
use crate::untouched::{Place, Untouched};
use crate::usage::{self, PAGE};
use crate::verbose;

/// Asked for at first; a process that only starts and ends is not to keep much from others.
const FIRST: usize = 1 << 20;
/// Asked for at most. Each time twice as much, so that only who allocates much has much; the daemon
/// gives a sixteenth of what is free and no more.
const MOST: usize = 64 << 20;
/// A thread takes at most so much at once.
const SLICE: usize = 32 << 20;
/// What a process may have before it asks: most programs never need more.
const UNASKED: isize = 128 << 10;
/// Where nothing is reserved, a thread comes back after so much to see whether that still holds.
const SPARED: isize = 16 << 20;

/// How long an answer is waited for: the first time, and of a daemon that was silent lately.
const PATIENCE_NS: u64 = 20_000_000;
const SHORT_PATIENCE_NS: u64 = 2_000_000;
/// What was refused is still reported when the process ends, if the daemon answers within this.
const LAST_PATIENCE_NS: u64 = 200_000_000;
/// Who has no limit asks again after this; so does who found nobody to ask.
const PAUSE_NS: u64 = 1_000_000_000;
/// In an account that is full, no answer means that many ask, if there was one no longer ago than this.
const CROWDED_NS: u64 = 1_000_000_000;
/// Too many asked: again after this.
const BUSY_NS: u64 = 50_000_000;
/// Free memory is given back to the system at most so often: it walks the whole heap.
const TRIM_PAUSE_NS: u64 = 20_000_000;
/// A look for memory that can be used again may touch two pages; room for so many looks is asked for.
const TRY: usize = 2 * PAGE;
const TRIES: usize = 8;
/// A refusal stands for so long, the next one in a row for twice as long, unless the process shrinks.
const REFUSED_NS: u64 = 1_000_000;
const REFUSED_MOST_NS: u64 = 16_000_000;
/// Untouched memory is looked at when that is cheap, or has not been done for so many times what it took.
const CHEAP_LOOK: usize = 16 << 20;
const LOOK_PART: u64 = 32;
/// What a look at a page takes (mincore(2); 15 ns were measured), for the time before the first one.
const LOOK_NS: usize = 16;
/// More than this beyond what is needed is given back, at most so often.
const SURPLUS: usize = 2 * MOST;
const SURPLUS_PAUSE_NS: u64 = 2_000_000;

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
    /// Nothing is reserved until `spared_until`: no limit applies, or nobody answers.
    Spares,
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
    /// The account is nearly full: the last answer was no, or a grant smaller than the first one asked for.
    is_tight: bool,
    pid: libc::pid_t,
    /// The user for whom we asked: a program that becomes another's pays elsewhere from then on.
    user: libc::uid_t,
    spared_until: u64,
    /// What may be used beyond `base`, bytes.
    credit: usize,
    /// The potential at the last renewal.
    base: usize,
    slices: usize,
    taken: usize,
    /// Reserved at the daemon, page tables included.
    reserved: usize,
    next: usize,
    /// Counts renewals: what was paid for before is in `base`.
    epoch: u32,
    answered_at: u64,
    trimmed_at: u64,
    told_at: u64,
    look_again_at: u64,
    /// Of the last refusals in a row.
    refused_at: u64,
    refused_ns: u64,
    refused_cost: usize,
    /// The potential then.
    refused_base: usize,
    /// Refusals that the daemon has not heard of.
    refusals: u64,
    untouched: Untouched,
}

/// Why nothing was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// The daemon says that there is none.
    Room,
    /// So many ask that it did not come to us: as if there were none.
    Answer,
    /// Nothing is to be reserved for the moment: malloc is glibc's.
    Promise,
}

/// What became of a request for credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Granted.
    Granted,
    /// There is little room: to be had from the daemon, if at all. Before, the program's own may do.
    Short,
    /// Over the barrier.
    Refused,
}

/// Page tables and what else comes with memory: a page for each 512 and each level, and one for the
/// arena that a new thread gets.
const fn with_tables(pages: usize) -> usize {
    pages.saturating_add(pages / 512).saturating_add(4)
}

fn without_tables(pages: usize) -> usize {
    let pages = pages.saturating_sub(4);
    pages.saturating_sub(pages.div_ceil(512))
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
    fn begin(&mut self, pid: libc::pid_t) {
        if !self.has_begun {
            self.has_begun = true;
            self.pid = pid;
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
    fn potential(&self) -> Option<usize> {
        let resident = usage::anonymous()?;
        Some(resident.saturating_add(self.untouched.bytes()))
    }

    /// Counts as spent what the potential has grown by.
    fn measure(&mut self, potential: Option<usize>) {
        if let Some(potential) = potential.filter(|_| !self.is_scarce) {
            self.base = self.base.min(potential);
            self.taken = potential.saturating_sub(self.base);
        }
    }

    /// Looks what of the untouched memory is resident by now, where that does not cost more than it is
    /// worth.
    fn look(&mut self, is_needed: bool) {
        let extent = self.untouched.extent();
        let began = now_ns();
        if self.look_again_at == 0 && extent > CHEAP_LOOK {
            let estimate = widen((extent / PAGE).saturating_mul(LOOK_NS));
            self.look_again_at = began.saturating_add(estimate.saturating_mul(LOOK_PART));
        }
        if extent == 0 || !(is_needed || extent <= CHEAP_LOOK || began >= self.look_again_at) {
            return;
        }
        self.untouched.look();
        let now = now_ns();
        self.look_again_at = now.saturating_add((now - began).saturating_mul(LOOK_PART));
    }

    /// Ends the thread's slice: what came of it counts by itself.
    fn end_slice(&mut self, own: &mut Thread) {
        let faults = if own.handed_bytes > 0 {
            usage::faults().wrapping_sub(own.faults)
        } else {
            0
        };
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
        let mut pages = most.div_ceil(PAGE);
        for range in own.handed.iter() {
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
        for range in own.handed.iter() {
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
            self.measure(self.potential());
            if self.free() < enough && self.untouched.pages() > 0 {
                self.look(false);
                self.measure(self.potential());
            }
        }
        Some(self.free()).filter(|&free| free >= enough)
    }

    /// Whether a refusal of as much stands, which the process has done nothing about since.
    fn is_refused(&mut self, cost: usize) -> bool {
        let stands = self.refused_ns > 0
            && cost >= self.refused_cost
            && now_ns().saturating_sub(self.refused_at) < self.refused_ns;
        stands && self.potential().is_some_and(|now| now >= self.refused_base)
    }

    /// Gets what is missing for `cost` bytes from the daemon, and more if there is plenty.
    fn ask(&mut self, cost: usize) -> Result<(), Missing> {
        if self.free() < cost && self.is_refused(cost) {
            self.refusals = self.refusals.saturating_add(1);
            return Err(Missing::Room);
        }
        let now = now_ns();
        let may_trim = now.saturating_sub(self.trimmed_at) >= TRIM_PAUSE_NS;
        let answer = self.renew(cost, may_trim && self.free() < cost);
        match answer {
            Err(Missing::Room) if may_trim && self.free() < cost => {
                // What the program freed may be what is missing.
                self.trimmed_at = now;
                // SAFETY: no pointers; locks glibc's arenas, never ours.
                unsafe { malloc_trim(0) };
                TRIMS.fetch_add(1, Ordering::Relaxed);
                self.renew(cost, false)
            }
            answer => answer,
        }
    }

    /// Asks the daemon: what is granted and not resident stays reserved, what has become resident needs no
    /// promise any more, and for what is to come more is wanted.
    fn renew(&mut self, cost: usize, is_tentative: bool) -> Result<(), Missing> {
        // SAFETY: no arguments.
        let user = unsafe { libc::geteuid() };
        if user != self.user {
            self.user = user;
            self.forget();
        }
        self.hear_overdue(0);
        self.look(self.is_scarce);
        // Before the daemon looks: what comes between counts twice, not never.
        let potential = self.potential();
        self.measure(potential);
        let potential = potential.unwrap_or(usize::MAX);
        let free = self.free();
        let keep = self.needed(free);
        let missing = cost.saturating_sub(free).div_ceil(PAGE);
        let least = match missing {
            0 => 1,
            missing if self.is_scarce => with_tables(missing + TRIES * TRY / PAGE),
            missing => with_tables(missing),
        };
        let wanted = least.max(self.next / PAGE);
        let granted = self.say(Ask::Renew {
            keep: widen(keep),
            pages: widen(wanted),
            at_least: widen(least),
            is_tentative,
            refused: self.refusals,
        });
        match granted {
            Ok(granted) => {
                self.refusals = 0;
                self.refused_ns = 0;
                let fresh = without_tables(granted).max(missing).saturating_mul(PAGE);
                self.settle(potential, free.saturating_add(fresh));
                self.reserved = keep.saturating_add(granted).saturating_mul(PAGE);
                let is_plenty = granted >= wanted;
                self.is_scarce = !is_plenty;
                self.is_tight = !is_plenty && granted < FIRST / PAGE;
                self.next = if is_plenty {
                    self.next.saturating_mul(2).min(MOST)
                } else {
                    FIRST
                };
                Ok(())
            }
            Err(Missing::Room) => {
                self.refusals = 0;
                self.settle(potential, free);
                self.reserved = keep.saturating_mul(PAGE);
                self.is_scarce = true;
                self.is_tight = true;
                self.next = FIRST;
                if !is_tentative && free < cost {
                    self.refused_at = now_ns();
                    self.refused_ns = self
                        .refused_ns
                        .saturating_mul(2)
                        .clamp(REFUSED_NS, REFUSED_MOST_NS);
                    self.refused_cost = cost;
                    self.refused_base = potential;
                }
                Err(Missing::Room)
            }
            Err(Missing::Answer) => Err(Missing::Answer),
            Err(Missing::Promise) => {
                self.forget();
                Err(Missing::Promise)
            }
        }
    }

    /// Pages that have to stay reserved when `free` bytes of the credit are kept.
    fn needed(&self, free: usize) -> usize {
        let credit = self.slices.saturating_add(free).div_ceil(PAGE);
        match credit.saturating_add(self.untouched.pages()) {
            0 => 0,
            pages => with_tables(pages),
        }
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
        self.credit = 0;
        self.taken = 0;
        self.reserved = 0;
        self.untouched.clear();
        TRIMS.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks, and sees to who does not answer.
    fn say(&mut self, ask: Ask) -> Result<usize, Missing> {
        let socket = environment::socket_path();
        let mut silence = None;
        if self.daemon != Daemon::Reserves {
            if self.daemon == Daemon::Unknown && confined::is_confined_from_the_start() {
                return Err(self.spare(PAUSE_NS));
            }
            let known = Silence::look(socket);
            if let Some(rest) = known.rest_ns() {
                return Err(self.spare(rest));
            }
            silence = Some(known);
        }
        let patience = match &silence {
            Some(silence) if silence.is_recent() => SHORT_PATIENCE_NS,
            _ => PATIENCE_NS,
        };
        // Where there is hardly any room, the next request follows soon.
        let keeps_open = self.is_tight;
        let answer = self.contact().ask(socket, ask, patience, keeps_open);
        match answer {
            Ok(grant) => {
                self.answered_at = now_ns();
                if let Some(silence) = silence {
                    silence.end();
                }
                if grant.is_unlimited {
                    return Err(self.spare(PAUSE_NS));
                }
                self.daemon = Daemon::Reserves;
                Ok(usize::try_from(grant.pages).unwrap_or(0))
            }
            Err(Refused::Full) => {
                self.answered_at = now_ns();
                self.daemon = Daemon::Reserves;
                Err(Missing::Room)
            }
            // Too many ask, and each has to wait: without an answer there is no room.
            Err(Refused::Busy | Refused::Silent(libc::ETIMEDOUT | libc::EAGAIN))
                if self.is_tight && now_ns().saturating_sub(self.answered_at) < CROWDED_NS =>
            {
                self.refusals = self.refusals.saturating_add(1);
                Err(Missing::Answer)
            }
            Err(refused @ Refused::Silent(libc::ETIMEDOUT | libc::EAGAIN)) => {
                self.contact().close();
                let silence = silence.unwrap_or_else(|| Silence::look(socket));
                let pause = silence.begin();
                verbose::say_once(refused.errno());
                Err(self.spare(pause))
            }
            Err(Refused::Busy) => {
                verbose::say_once(libc::EAGAIN);
                Err(self.spare(BUSY_NS))
            }
            Err(refused) => {
                verbose::say_once(refused.errno());
                Err(self.spare(PAUSE_NS))
            }
        }
    }

    /// An answer that came too late: what the daemon has counted is not counted by us.
    fn hear_overdue(&mut self, patience_ns: u64) {
        if let Some((asked, answer @ (Ok(_) | Err(Refused::Full)))) =
            self.contact().overdue_answer(patience_ns)
            && let Ask::Renew {
                is_tentative,
                refused,
                ..
            } = asked
        {
            let own = u64::from(answer.is_err() && !is_tentative);
            self.refusals = self.refusals.saturating_sub(refused.saturating_add(own));
        }
    }

    fn contact(&mut self) -> &'static mut Contact {
        // SAFETY: whoever has us has the lock, and the reference ends before the next one.
        let contact = unsafe { contact() };
        if !self.has_contact {
            contact.close();
            self.has_contact = true;
        }
        contact
    }

    fn spare(&mut self, pause_ns: u64) -> Missing {
        self.daemon = Daemon::Spares;
        self.spared_until = now_ns().saturating_add(pause_ns);
        Missing::Promise
    }

    /// Whether nothing is to be reserved for the moment.
    fn spares(&self) -> bool {
        self.daemon == Daemon::Spares && now_ns() < self.spared_until
    }

    /// Gives back what is reserved far beyond need: others find it sooner than when this process asks again.
    fn give_back_surplus(&mut self) {
        let free = self.free();
        let surplus = self
            .reserved
            .saturating_sub(self.needed(free).saturating_mul(PAGE))
            .saturating_add(free.saturating_sub(MOST));
        let now = now_ns();
        if self.daemon != Daemon::Reserves
            || surplus <= SURPLUS
            || now.saturating_sub(self.told_at) < SURPLUS_PAUSE_NS
        {
            return;
        }
        self.told_at = now;
        self.look(false);
        let Some(potential) = self.potential() else {
            return;
        };
        let free = free.min(MOST);
        let keep = self.needed(free);
        let (socket, report) = (environment::socket_path(), self.report(keep));
        let told = self.contact().tell(socket, report);
        if told.is_ok() {
            self.refusals = 0;
            self.settle(potential, free);
            self.reserved = keep.saturating_mul(PAGE);
        }
    }

    /// Says how many pages stay reserved, and what was refused.
    fn report(&self, keep: usize) -> Ask {
        Ask::Renew {
            keep: widen(keep),
            pages: 0,
            at_least: 0,
            is_tentative: false,
            refused: self.refusals,
        }
    }

    /// A slice for the thread, of which `cost` bytes are used at once.
    fn give_slice(&mut self, own: &mut Thread, cost: usize, key: libc::pthread_key_t) {
        // Half for the others; a large block takes what it needs and no more.
        let slice = (self.free() / 2).min(SLICE).max(cost);
        watch(own, key);
        own.faults = usage::faults();
        own.begin_slice(slice, cost);
        self.slices = self.slices.saturating_add(slice);
    }
}

/// Nothing is counted for the thread until it has used so much.
fn spare(own: &mut Thread) {
    own.begin_slice(0, 0);
    own.left = SPARED;
}

/// Whether the slice can be used once more: nothing of it has become resident, or could.
fn is_whole_again(own: &Thread, cost: usize) -> bool {
    cost <= own.slice
        && own.known.contains(&own.handed)
        && own.trims == TRIMS.load(Ordering::Relaxed)
        && usage::faults() == own.faults
}

/// Gets leave for `cost` bytes that the thread has not left.
#[cold]
#[inline(never)]
pub(crate) fn take(cost: usize) -> Taken {
    serve(cost, None)
}

/// The same, after a look for memory that could be used again, which took so many page faults: asks the
/// daemon if need be.
pub(crate) fn ask(cost: usize, faults: u64) -> Taken {
    serve(cost, Some(faults))
}

fn serve(cost: usize, tried: Option<u64>) -> Taken {
    let thread = thread::own();
    // SAFETY: the calling thread's own, which nobody else uses.
    let own = unsafe { &mut *thread };
    if own.is_asking {
        return Taken::Granted;
    }
    if confined::is_confined() {
        own.left = isize::MAX / 2;
        return Taken::Granted;
    }
    if is_whole_again(own, cost) {
        let slice = own.slice;
        own.begin_slice(slice, cost);
        return Taken::Granted;
    }
    let key = key();
    let taken = with(|credit| {
        // SAFETY: the calling thread's own; the borrow above is over.
        let own = unsafe { &mut *thread };
        let pid = getpid();
        credit.begin(pid);
        // A child that shares our memory (vfork, clone) allocates for us, and another one is asked about it.
        if credit.pid != pid {
            spare(own);
            return Taken::Granted;
        }
        credit.end_slice(own);
        let faults = usize::try_from(tried.unwrap_or(0)).unwrap_or(usize::MAX);
        credit.taken = credit.taken.saturating_add(faults.saturating_mul(PAGE));
        if credit.spares() {
            spare(own);
            return Taken::Granted;
        }
        let answer = match credit.local(cost) {
            Some(_) => Ok(()),
            None if tried.is_none() && credit.is_scarce && credit.free() >= TRY => {
                return Taken::Short;
            }
            None => credit.ask(cost),
        };
        match answer {
            Ok(()) => credit.give_slice(own, cost, key),
            // What there is suffices, only more was wanted.
            Err(Missing::Room | Missing::Answer) if credit.free() >= cost => {
                credit.give_slice(own, cost, key);
            }
            Err(Missing::Room | Missing::Answer) => return Taken::Refused,
            Err(Missing::Promise) => spare(own),
        }
        if tried.is_some() {
            // The look has taken the page faults of a block that comes now and may be new ground, even where
            // one was before that has been given back since.
            own.known = Ranges::NONE;
        }
        Taken::Granted
    });
    taken.unwrap_or_else(|| {
        spare(own);
        Taken::Granted
    })
}

/// A block was granted out of the thread's slice, of which `range` may not be resident.
pub(crate) fn handed_out(range: Range) {
    // SAFETY: the calling thread's own.
    let own = unsafe { &mut *thread::own() };
    // Nothing is counted.
    if own.slice == 0 {
        return;
    }
    let bytes = range.end - range.first;
    own.handed_bytes = own.handed_bytes.saturating_add(bytes);
    own.largest = own.largest.max(bytes);
    own.handed.add(range);
}

/// A block that is a mapping was granted for `cost` bytes of the thread's slice. It is counted by itself,
/// and no more when it goes.
pub(crate) fn mapped(block: usize, range: Range, cost: usize) {
    // SAFETY: the calling thread's own.
    let own = unsafe { &mut *thread::own() };
    if own.slice == 0 || own.is_asking {
        return;
    }
    with(|credit| {
        let moved = cost.min(own.slice);
        own.slice -= moved;
        credit.slices = credit.slices.saturating_sub(moved);
        credit.taken = credit.taken.saturating_add(moved);
        credit.untouched.insert(Place {
            range,
            pages: range.pages(),
            block,
            cost: moved,
            epoch: credit.epoch,
        });
    });
}

/// What is known of a block that is a mapping and is about to go or to move.
pub(crate) fn unmapping(block: usize) -> Option<Place> {
    // SAFETY: the calling thread's own.
    let is_asking = unsafe { (*thread::own()).is_asking };
    if is_asking || confined::is_confined() {
        return None;
    }
    with(|credit| {
        (credit.daemon == Daemon::Reserves)
            .then(|| credit.untouched.remove(block))
            .flatten()
    })
    .flatten()
}

/// It has gone: what it cost can be used again.
pub(crate) fn unmapped(place: Place) {
    with(|credit| {
        if place.epoch == credit.epoch {
            credit.taken = credit.taken.saturating_sub(place.cost);
        }
        // Nobody is refused because of what was refused before.
        credit.refused_ns = 0;
        credit.give_back_surplus();
    });
}

/// It is another one now, `growth` bytes larger.
pub(crate) fn moved(place: Place, block: usize, range: Range, growth: usize) {
    // SAFETY: the calling thread's own.
    let own = unsafe { &mut *thread::own() };
    with(|credit| {
        let (before, after) = (place.range.pages(), range.pages());
        let paid = growth.min(own.slice);
        own.slice -= paid;
        credit.slices = credit.slices.saturating_sub(paid);
        credit.taken = credit.taken.saturating_add(paid);
        let is_paid = place.epoch == credit.epoch;
        credit.untouched.insert(Place {
            range,
            pages: place
                .pages
                .saturating_add(after.saturating_sub(before))
                .min(after),
            block,
            cost: paid.saturating_add(if is_paid { place.cost } else { 0 }),
            epoch: credit.epoch,
        });
    });
}

/// It is still there.
pub(crate) fn remap(place: Place) {
    with(|credit| credit.untouched.insert(place));
}

/// Of the key whose destructor notices a thread's end, one more; 0: there is none.
static KEY: AtomicU32 = AtomicU32::new(0);

fn key() -> libc::pthread_key_t {
    KEY.load(Ordering::Relaxed).wrapping_sub(1)
}

/// A thread's end gives its slice back.
fn watch(own: &mut Thread, key: libc::pthread_key_t) {
    if !own.is_watched {
        own.is_watched = true;
        // SAFETY: a key that we made; the value is only ever tested for being there.
        unsafe { libc::pthread_setspecific(key, (&raw const KEY).cast()) };
    }
}

extern "C-unwind" fn thread_ends(_: *mut libc::c_void) {
    // SAFETY: the ending thread's own.
    let own = unsafe { &mut *thread::own() };
    if own.slice > 0 && !confined::is_confined() {
        with(|credit| {
            let unused = usize::try_from(own.left).unwrap_or(0).min(own.slice);
            credit.end_slice(own);
            credit.taken = credit.taken.saturating_sub(unused);
        });
    }
    own.begin_slice(0, 0);
    // What its later destructors allocate makes it take again, and be watched again.
    own.is_watched = false;
}

/// A child of fork(2) finds the process's pages wiped; of its thread it has a copy.
extern "C-unwind" fn in_child() {
    // SAFETY: of the child's only thread.
    let own = unsafe { &mut *thread::own() };
    if !own.is_asking {
        // Ours is a copy of our parent's.
        // SAFETY: in a child of fork(2), outside `with`.
        unsafe { contact() }.close();
    }
    own.begin_slice(0, 0);
    own.left = UNASKED;
}

/// What the daemon has not heard of yet.
extern "C-unwind" fn at_exit() {
    // SAFETY: the calling thread's own.
    if unsafe { (*thread::own()).is_asking } || confined::is_confined() {
        return;
    }
    with(|credit| {
        if credit.refusals > 0 && credit.pid == getpid() {
            credit.hear_overdue(LAST_PATIENCE_NS);
            let (socket, ask) = (environment::socket_path(), credit.report(0));
            // Nobody is left to be told of a failure.
            let _ = credit.contact().ask(socket, ask, LAST_PATIENCE_NS, false);
            credit.refusals = 0;
        }
    });
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C-unwind" fn() = at_exit;

/// Once, when the library is loaded. Until then, and if it fails, everything is plain malloc.
pub(crate) fn begin() {
    environment::look();
    let mut key = 0;
    // SAFETY: a key of our own and functions that stay as long as the process (the library is linked
    // with -z nodelete by build.rs).
    let failed = unsafe {
        pthread_key_create(&raw mut key, Some(thread_ends)) != 0
            || pthread_atfork(None, None, Some(in_child)) != 0
    };
    if failed {
        return;
    }
    KEY.store(key.wrapping_add(1), Ordering::Relaxed);
    process::begin();
    // What was allocated before us is as it is; from now on it counts.
    // SAFETY: the calling thread's own.
    unsafe { (*thread::own()).left = UNASKED };
}
