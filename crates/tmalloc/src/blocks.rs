// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What malloc's family does: leave is got, glibc allocates, and what may not be resident is noted.
//!
//! Under names of our own. A function that C knows by name may be another one in a program (which has a
//! malloc of its own, say): a call to it goes to that one, or to ours where the compiler has put ours in its
//! place. Both names of a function (family.rs, own_names.rs) come here instead.
//!
//! Small blocks (less than a page) only cost a subtraction. They are resident when glibc returns them: it
//! has written the header before the block and the one behind it, and a small block lies on no other page.
//! Of larger ones is noted which pages are not resident yet (credit.rs).

use libc::c_void;

use bursar_reserve::set_errno;

use crate::credit::grant::{self, Taken};
use crate::glibc::{
    __libc_calloc, __libc_free, __libc_malloc, __libc_memalign, __libc_realloc, Block,
    checks_alignment, look,
};
use crate::ranges::{PAGE, Range, page};
use crate::thread;
use crate::untouched::Place;
use crate::usage::{self, absent};

/// Header and padding of a block at most, bytes.
pub(crate) const OVERHEAD: usize = 32;
/// Up to here a block is resident as soon as it is there: from the header before it to the one behind it
/// are at most as many bytes as a page has.
pub(crate) const SMALL: usize = PAGE - size_of::<usize>();
/// From here on a block may be a mapping of its own, with a page before and one behind.
const LARGE: usize = 128 << 10;

/// Every block begins at a multiple of it.
const ALIGNMENT: usize = 2 * size_of::<usize>();
/// Bits of an address that are zero where a mapping's block begins: at a page, or two words behind one.
pub(crate) const INSIDE_PAGE: usize = (PAGE - 1) & !ALIGNMENT;

/// No process has so much; what it costs is no number that a slice could lack.
const MOST: usize = 1 << 56;

/// Uses `cost` bytes of the thread's slice. False: it has not so much left.
#[inline(always)]
pub(crate) fn pay(cost: usize) -> bool {
    let own = thread::own();
    // SAFETY: the calling thread's own.
    unsafe {
        let left = (*own).left - cost.cast_signed();
        (*own).left = left;
        left >= 0
    }
}

/// What a block of `size` bytes may make resident. Of blocks cut from a heap one after the other each
/// shares its first and last page with its neighbours, and the page at the heap's end is among those
/// that come with each reservation; a mapping has its own.
fn cost_of(size: usize) -> usize {
    match size {
        0..LARGE => size + OVERHEAD,
        _ => size.saturating_add(OVERHEAD + 2 * page()),
    }
}

#[cold]
pub(crate) fn no_memory() -> *mut c_void {
    set_errno(libc::ENOMEM);
    std::ptr::null_mut()
}

/// Gets leave for `size` bytes.
fn admit(size: usize) -> Taken {
    let cost = cost_of(size);
    if pay(cost) {
        return Taken::Granted;
    }
    grant::take(cost)
}

/// Notes which pages of a block may not be resident: of those behind its first `from` bytes.
///
/// # Safety
/// A live block of glibc's of at least `size` bytes.
#[inline(always)]
unsafe fn note(block: *mut c_void, from: usize, size: usize) {
    // SAFETY: the caller's word.
    let known = unsafe { look(block) };
    let range = known.pages(block, from, size);
    if known.is_mapped {
        note_mapping(block, range, size - from.min(size));
    } else if range.first < range.end {
        grant::handed_out(range);
    }
}

#[cold]
#[inline(never)]
fn note_mapping(block: *mut c_void, range: Range, size: usize) {
    if block.addr() & INSIDE_PAGE == 0 {
        grant::mapped(block.addr(), range, cost_of(size));
    } else if range.first < range.end {
        grant::handed_out(range);
    }
}

/// What has to be in a new block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contents {
    Any,
    Zeroes,
}

/// A block of `size` bytes by `allocate`.
///
/// # Safety
/// `allocate` returns a fresh block of glibc's of at least `size` bytes with these contents, or NULL.
unsafe fn obtain(
    size: usize,
    contents: Contents,
    allocate: impl Fn() -> *mut c_void,
) -> *mut c_void {
    if size > MOST {
        return no_memory();
    }
    if !pay(cost_of(size)) {
        match get_leave(size) {
            Leave::Granted => {}
            Leave::Reused(block) => {
                if contents == Contents::Zeroes {
                    // SAFETY: a block of ours of at least `size` bytes.
                    unsafe { block.cast::<u8>().write_bytes(0, size) };
                }
                return block;
            }
            Leave::Refused => return no_memory(),
        }
    }
    let block = allocate();
    if size > SMALL && !block.is_null() {
        // SAFETY: fresh, of `size` bytes.
        unsafe { note(block, 0, size) };
    }
    block
}

/// What became of a request for a block.
enum Leave {
    Granted,
    /// Here is one that was resident.
    Reused(*mut c_void),
    Refused,
}

/// Leave for what the thread's slice does not suffice for.
#[cold]
fn get_leave(size: usize) -> Leave {
    let mut taken = grant::take(cost_of(size));
    if taken == Taken::Short {
        match reuse(size) {
            Ok(block) => return Leave::Reused(block),
            Err(faults) => taken = grant::ask(cost_of(size), faults),
        }
    }
    match taken {
        Taken::Refused => Leave::Refused,
        _ => Leave::Granted,
    }
}

/// A block of memory that the program has freed and that is still resident, so that nothing grows. If glibc
/// has none: how many page faults the look for one took, a page or two. Always by malloc, which leaves alone what is in
/// the block: calloc would make all of it resident before there is leave, where the program has given it back to the
/// kernel (malloc_trim(3)).
fn reuse(size: usize) -> Result<*mut c_void, u64> {
    let before = usage::faults();
    // SAFETY: no pointers.
    let block = unsafe { __libc_malloc(size) };
    let faults = usage::faults().wrapping_sub(before);
    if block.is_null() {
        return Err(faults);
    }
    // SAFETY: a fresh block.
    let known = unsafe { look(block) };
    let is_there = !known.is_mapped
        && faults == 0
        && (size <= SMALL || absent(known.pages(block, 0, size)).pages == 0);
    if is_there {
        return Ok(block);
    }
    // SAFETY: a block of glibc's that nobody else knows.
    unsafe { __libc_free(block) };
    // A mapping is gone with what it made resident.
    Err(if known.is_mapped { 0 } else { faults })
}

/// malloc(3).
///
/// # Safety
/// None needed; C's.
#[inline(never)]
pub(crate) unsafe extern "C-unwind" fn allocate(size: usize) -> *mut c_void {
    // SAFETY: a fresh block of glibc's.
    unsafe { obtain(size, Contents::Any, || __libc_malloc(size)) }
}

/// calloc(3).
///
/// # Safety
/// None needed; C's.
#[inline(never)]
pub(crate) unsafe extern "C-unwind" fn allocate_zeroed(count: usize, size: usize) -> *mut c_void {
    let Some(whole) = count.checked_mul(size) else {
        return no_memory();
    };
    // SAFETY: a fresh block of glibc's.
    unsafe { obtain(whole, Contents::Zeroes, || __libc_calloc(count, size)) }
}

/// realloc(3).
///
/// # Safety
/// `block` is NULL or a live block of glibc's.
#[inline(never)]
pub(crate) unsafe extern "C-unwind" fn resize(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        // SAFETY: no pointers.
        return unsafe { allocate(size) };
    }
    // SAFETY: a live block of glibc's.
    let old = unsafe { look(block) };
    if !old.is_mapped && size <= old.usable {
        // SAFETY: as the caller's.
        return unsafe { __libc_realloc(block, size) };
    }
    // A mapping is extended where it is or moved without being copied; another block may be copied,
    // and is then there twice for a moment.
    let growth = if old.is_mapped {
        size.saturating_sub(old.usable)
    } else {
        size
    };
    if size > MOST {
        return no_memory();
    }
    if growth > 0 && leave_for(growth) == Taken::Refused {
        return no_memory();
    }
    let place = old.is_mapped.then(|| going(block, old)).flatten();
    // SAFETY: as the caller's.
    let moved = unsafe { __libc_realloc(block, size) };
    if moved.is_null() {
        // Still there, unless it was freed.
        match place {
            Some(place) if size > 0 => grant::remap(place),
            Some(place) => grant::unmapped(place),
            None => {}
        }
        return moved;
    }
    // SAFETY: a live block of `size` bytes.
    let new = unsafe { look(moved) };
    match place {
        Some(place) if new.is_mapped => {
            grant::moved(place, moved.addr(), new.pages(moved, 0, size), growth);
        }
        Some(place) => grant::unmapped(place),
        None if size > SMALL => {
            // SAFETY: what was in the old block is kept, and resident.
            unsafe { note(moved, old.usable.min(size), size) };
        }
        None => {}
    }
    moved
}

/// A block that is a mapping is about to go or to move: what is known of it.
fn going(block: *const c_void, known: Block) -> Option<Place> {
    grant::unmapping(block.addr(), known.pages(block, 0, known.usable))
}

/// As [`admit`], and asks if need be.
fn leave_for(size: usize) -> Taken {
    match admit(size) {
        Taken::Short => grant::ask(cost_of(size), 0),
        taken => taken,
    }
}

/// memalign(3).
///
/// # Safety
/// None needed; C's.
pub(crate) unsafe fn allocate_aligned(alignment: usize, size: usize) -> *mut c_void {
    // A mapping's block lies where free expects it: at a page, unless malloc's own alignment suffices.
    let is_mapping = size >= LARGE && alignment > ALIGNMENT;
    let alignment = alignment.max(if is_mapping { page() } else { 0 });
    // What is in front of the block goes back to the heap; it may have become resident with a page.
    let whole = size.saturating_add(alignment.min(page()));
    // What no process can have glibc refuses, some of it for its alignment (EINVAL).
    if whole <= MOST && leave_for(whole) == Taken::Refused {
        return no_memory();
    }
    // SAFETY: no pointers.
    let block = unsafe { __libc_memalign(alignment, size) };
    if size > 0 && !block.is_null() {
        // SAFETY: fresh, of `size` bytes.
        unsafe { note(block, 0, size) };
    }
    block
}

/// aligned_alloc(3), as the glibc that is there has it.
///
/// # Safety
/// None needed; C's.
pub(crate) unsafe fn allocate_aligned_strictly(alignment: usize, size: usize) -> *mut c_void {
    if !alignment.is_power_of_two() && checks_alignment() {
        set_errno(libc::EINVAL);
        return std::ptr::null_mut();
    }
    // SAFETY: no pointers.
    unsafe { allocate_aligned(alignment, size) }
}

/// free(3).
///
/// # Safety
/// `block` is NULL or a live block of glibc's.
pub(crate) unsafe fn release(block: *mut c_void) {
    if block.addr() & INSIDE_PAGE == 0 {
        // SAFETY: as the caller's.
        return unsafe { release_at_page(block) };
    }
    // SAFETY: as the caller's.
    unsafe { __libc_free(block) };
}

/// Where a block begins as a mapping's does, and NULL.
///
/// # Safety
/// As [`release`].
#[inline(never)]
pub(crate) unsafe extern "C-unwind" fn release_at_page(block: *mut c_void) {
    let known = if block.is_null() {
        None
    } else {
        // SAFETY: a live block.
        Some(unsafe { look(block) })
    };
    let known = known.filter(|known| known.is_mapped);
    let place = known.and_then(|known| going(block, known));
    // SAFETY: as the caller's.
    unsafe { __libc_free(block) };
    if let Some(known) = known {
        grant::freed(place, known.pages(block, 0, known.usable));
    }
}
