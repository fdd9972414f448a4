// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a thread is granted of the process's credit: its slice, and the blocks out of it.

use std::sync::atomic::Ordering;

use super::request::{Missing, TRY_PAGES};
use super::{Credit, Daemon, TRIMS, UNCOUNTED, UNCOUNTED_BELOW_LIMIT, lifecycle};
use crate::confined::{self, Confined};
use crate::process::{self, child_sharing_memory, with};
use crate::ranges::{Range, Ranges, page};
use crate::thread::{self, Thread};
use crate::untouched::Place;
use crate::usage;

/// A thread takes at most so much at once.
const SLICE: usize = 32 << 20;

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

impl Credit {
    /// A slice for the thread, of which `cost` bytes are used at once.
    fn give_slice(&mut self, own: &mut Thread, cost: usize, key: libc::pthread_key_t, faults: u64) {
        // Half for the others; a large block takes what it needs and no more.
        let slice = (self.free() / 2).min(SLICE).max(cost);
        lifecycle::watch(own, key);
        own.faults = faults;
        own.begin_slice(slice, cost);
        self.slices = self.slices.saturating_add(slice);
    }

    /// Notes that a mapping of so many pages has gone.
    fn has_gone(&mut self, place: Option<Place>, pages: usize) {
        let unknown = match place.filter(|place| place.cost > 0) {
            Some(place) if place.epoch == self.epoch => {
                self.taken = self.taken.saturating_sub(place.cost);
                return;
            }
            // What was not resident is still reserved.
            Some(place) => pages.saturating_sub(place.pages),
            None => pages,
        };
        self.gone = self.gone.saturating_add(unknown.saturating_mul(page()));
    }

    /// Nothing is counted, for this thread and others, until the pause is over.
    fn leave_uncounted(&self, own: &mut Thread) {
        process::leave_uncounted(self.paused_until, self.uncounted());
        leave_uncounted(own, self.uncounted());
    }
}

/// A slice that is whole again is used so often before the credit is looked at.
const ROUNDS: u16 = 16;

/// Mappings of so much have to go before it is looked at /proc for what is left: a thousandth of the time that touching and
/// unmapping them takes.
const WORTH_A_LOOK: usize = 16 << 20;

/// Nothing is counted for the thread until it has used so much.
fn leave_uncounted(own: &mut Thread, bytes: isize) {
    own.begin_slice(0, 0);
    own.left = bytes;
}

/// Whether the slice can be used once more: nothing of it has become resident, or could.
fn is_whole_again(own: &Thread, cost: usize, faults: u64) -> bool {
    cost <= own.slice
        && faults == own.faults
        && own.trims == TRIMS.load(Ordering::Relaxed)
        && own.known.contains(&own.handed)
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

/// Whether the thread has leave without a look at the credit.
fn is_nothing_asked(own: &mut Thread) -> bool {
    if own.is_asking {
        return true;
    }
    match confined::look() {
        Confined::No => {}
        Confined::Yes => {
            own.left = isize::MAX / 2;
            return true;
        }
        // What is left of the slice is for the thread that waits for the child.
        Confined::Child => return true,
    }
    // Where nothing is reserved it costs nothing: where there was a limit, each thread comes for 128 KiB.
    let uncounted = if own.slice == 0 {
        process::uncounted()
    } else {
        None
    };
    match uncounted {
        Some(bytes) => {
            own.left = bytes;
            true
        }
        None => false,
    }
}

fn serve(cost: usize, tried: Option<u64>) -> Taken {
    let thread = thread::own();
    // SAFETY: the calling thread's own, which nobody else uses.
    let own = unsafe { &mut *thread };
    if is_nothing_asked(own) {
        return Taken::Granted;
    }
    let rounds = own.rounds;
    // Once for all: what comes between counts twice, not never.
    let faults = usage::faults();
    if is_whole_again(own, cost, faults) && rounds < ROUNDS {
        own.rounds += 1;
        own.begin_again(cost);
        return Taken::Granted;
    }
    // A child that shares our memory (vfork, clone) allocates for us, and another one is asked about it. Before
    // the lock: a child that is killed would keep it. A slice is that of the thread which waits for the child.
    if child_sharing_memory().is_some() {
        if own.slice == 0 {
            own.left = UNCOUNTED_BELOW_LIMIT;
        }
        return Taken::Granted;
    }
    let key = lifecycle::key();
    let taken = with(|credit| {
        // SAFETY: the calling thread's own; the borrow above is over.
        let own = unsafe { &mut *thread };
        credit.begin();
        credit.end_slice(own, faults);
        own.rounds = 0;
        let touched = usize::try_from(tried.unwrap_or(0)).unwrap_or(usize::MAX);
        credit.taken = credit.taken.saturating_add(touched.saturating_mul(page()));
        if credit.is_paused() {
            credit.leave_uncounted(own);
            return Taken::Granted;
        }
        let answer = match credit.local(cost) {
            Some(_) if credit.is_busy(u32::from(rounds) + 1) => credit.grow(cost),
            Some(_) => Ok(()),
            None if tried.is_none() && credit.is_scarce && credit.free() >= TRY_PAGES * page() => {
                return Taken::Short;
            }
            None => credit.ask(cost),
        };
        match answer {
            Ok(()) => credit.give_slice(own, cost, key, faults),
            // What there is suffices, only more was wanted.
            Err(Missing::Room | Missing::Answer) if credit.free() >= cost => {
                credit.give_slice(own, cost, key, faults);
            }
            Err(Missing::Room | Missing::Answer) => return Taken::Refused,
            Err(Missing::Promise) => credit.leave_uncounted(own),
        }
        if tried.is_some() {
            // The look has taken the page faults of a block that comes now and may be new ground, even where
            // one was before that has been given back since.
            own.known = Ranges::NONE;
        }
        Taken::Granted
    });
    taken.unwrap_or_else(|| {
        leave_uncounted(own, UNCOUNTED);
        Taken::Granted
    })
}

/// A block was granted out of the thread's slice, of which `range` may not be resident.
#[inline(always)]
pub(crate) fn handed_out(range: Range) {
    // SAFETY: the calling thread's own.
    let own = unsafe { &mut *thread::own() };
    // Nothing is counted.
    if own.slice == 0 {
        return;
    }
    let bytes = range.end - range.first;
    own.handed_bytes = own.handed_bytes.wrapping_add(bytes);
    own.largest = own.largest.max(bytes);
    own.handed.add(range);
}

/// Whether nothing is noted of the caller's mappings. A child that shares our memory (vfork) may be killed at any time
/// and would keep the lock, where glibc takes none to unmap a block. What it unmaps the next look finds gone.
fn is_left_alone() -> bool {
    // SAFETY: the calling thread's own.
    let is_asking = unsafe { (*thread::own()).is_asking };
    is_asking || confined::is_confined() || child_sharing_memory().is_some()
}

/// A block that is a mapping was granted for `cost` bytes of the thread's slice. It is counted by itself,
/// and no more when it goes.
pub(crate) fn mapped(block: usize, range: Range, cost: usize) {
    // SAFETY: the calling thread's own.
    let own = unsafe { &mut *thread::own() };
    if own.slice == 0 || is_left_alone() {
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

/// What is known of a block that is a mapping, has these pages, and is about to go or to move.
pub(crate) fn unmapping(block: usize, pages: Range) -> Option<Place> {
    // Where nothing is reserved nothing is known. A place that comes of an old slice the next look removes.
    if process::uncounted().is_some() || is_left_alone() {
        return None;
    }
    with(|credit| {
        // Known without a look.
        credit.writable = credit.writable.saturating_sub(pages.end - pages.first);
        (credit.daemon == Daemon::Reserves)
            .then(|| credit.untouched.remove(block, pages))
            .flatten()
    })
    .flatten()
}

/// A mapping with these pages has gone, and what it cost can be used again. Others may be promised it from now on: what
/// was there at the last renewal must not hide as much growth.
pub(crate) fn freed(place: Option<Place>, pages: Range) {
    if (place.is_none() && process::uncounted().is_some()) || is_left_alone() {
        return;
    }
    with(|credit| {
        if credit.daemon != Daemon::Reserves {
            return;
        }
        credit.has_gone(place, pages.pages());
        if credit.gone >= WORTH_A_LOOK && !credit.is_scarce {
            let potential = credit.potential();
            credit.measure(potential);
        }
        // Nobody is refused because of what was refused before.
        credit.refused_ns = 0;
        credit.give_back_surplus();
    });
}

/// It has gone, or its block lies in a heap now.
pub(crate) fn unmapped(place: Place) {
    freed(Some(place), place.range);
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
