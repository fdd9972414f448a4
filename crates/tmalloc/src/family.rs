// SPDX-License-Identifier: Apache-2.0 OR MIT
//! malloc's family, each under its own name and as t…: who links the library or is started with it in
//! LD_PRELOAD allocates here. The memory is glibc's, and what is freed needs no permission; free and
//! malloc_usable_size are defined all the same, because a program linked with another allocator (jemalloc's
//! library, say) would give that one's free blocks of ours. malloc_trim and mallinfo stay glibc's own.
//!
//! Small blocks (less than a page) only cost a subtraction. They are resident when glibc returns them: it
//! has written the header before the block and the one behind it, and a small block lies on no other page.
//! Of larger ones is noted which pages are not resident yet (credit.rs).

use libc::{c_int, c_void, size_t};

use bursar_reserve::set_errno;

use crate::credit::grant::{self, Taken};
use crate::glibc::{
    __libc_calloc, __libc_free, __libc_malloc, __libc_memalign, __libc_realloc, checks_alignment,
    is_mapped, look,
};
use crate::ranges::PAGE;
use crate::thread;
use crate::usage::{self, absent};

/// Header and padding of a block at most, bytes.
const OVERHEAD: usize = 32;
/// Up to here a block is resident as soon as it is there: from the header before it to the one behind it
/// are at most as many bytes as a page has.
const SMALL: usize = PAGE - size_of::<usize>();
/// From here on a block may be a mapping of its own, with a page before and one behind.
const LARGE: usize = 128 << 10;

/// No process has so much; what it costs is no number that a slice could lack.
const MOST: usize = 1 << 56;

/// Uses `cost` bytes of the thread's slice. False: it has not so much left.
#[inline(always)]
fn pay(cost: usize) -> bool {
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
        _ => size.saturating_add(OVERHEAD + 2 * PAGE),
    }
}

#[cold]
fn no_memory() -> *mut c_void {
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
unsafe fn note(block: *mut c_void, from: usize, size: usize) {
    // SAFETY: the caller's word.
    let known = unsafe { look(block) };
    let range = known.pages(block, from, size);
    if known.is_mapped {
        grant::mapped(block.addr(), range, cost_of(size - from.min(size)));
    } else if range.first < range.end {
        grant::handed_out(range);
    }
}

/// A block of `size` bytes by `allocate`.
///
/// # Safety
/// `allocate` returns a fresh block of glibc's of at least `size` bytes, or NULL.
unsafe fn obtain(size: usize, allocate: impl Fn() -> *mut c_void) -> *mut c_void {
    if size > MOST {
        return no_memory();
    }
    let mut taken = admit(size);
    if taken == Taken::Short {
        // SAFETY: as the caller's.
        match unsafe { reuse(size, &allocate) } {
            Ok(block) => return block,
            Err(faults) => taken = grant::ask(cost_of(size), faults),
        }
    }
    if taken == Taken::Refused {
        return no_memory();
    }
    let block = allocate();
    if size > SMALL && !block.is_null() {
        // SAFETY: fresh, of `size` bytes.
        unsafe { note(block, 0, size) };
    }
    block
}

/// A block of memory that the program has freed and that is still resident, so that nothing grows. If glibc
/// has none: how many page faults the look for one took, a page or two.
///
/// # Safety
/// As [`obtain`].
unsafe fn reuse(size: usize, allocate: impl Fn() -> *mut c_void) -> Result<*mut c_void, u64> {
    let before = usage::faults();
    let block = allocate();
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
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn malloc(size: size_t) -> *mut c_void {
    if size <= SMALL && pay(size + OVERHEAD) {
        // SAFETY: no pointers.
        return unsafe { __libc_malloc(size) };
    }
    // SAFETY: as ours.
    unsafe { malloc_with_leave(size) }
}

/// The rest of malloc. A function of its own, which is jumped to: the fast way saves no register.
#[inline(never)]
unsafe extern "C-unwind" fn malloc_with_leave(size: size_t) -> *mut c_void {
    // SAFETY: a fresh block of glibc's.
    unsafe { obtain(size, || __libc_malloc(size)) }
}

/// calloc(3).
///
/// # Safety
/// None needed; C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn calloc(count: size_t, size: size_t) -> *mut c_void {
    if let Some(whole) = count.checked_mul(size)
        && whole <= SMALL
        && pay(whole + OVERHEAD)
    {
        // SAFETY: no pointers.
        return unsafe { __libc_calloc(count, size) };
    }
    // SAFETY: as ours.
    unsafe { calloc_with_leave(count, size) }
}

/// The rest of calloc, as of malloc.
#[inline(never)]
unsafe extern "C-unwind" fn calloc_with_leave(count: size_t, size: size_t) -> *mut c_void {
    let Some(whole) = count.checked_mul(size) else {
        return no_memory();
    };
    // SAFETY: a fresh block of glibc's.
    unsafe { obtain(whole, || __libc_calloc(count, size)) }
}

/// realloc(3).
///
/// # Safety
/// `block` is NULL or a live block of malloc's family.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn realloc(block: *mut c_void, size: size_t) -> *mut c_void {
    if block.is_null() {
        // SAFETY: as malloc.
        return unsafe { malloc(size) };
    }
    // SAFETY: a live block of glibc's.
    let old = unsafe { look(block) };
    if size <= old.usable && !old.is_mapped {
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
    let place = old.is_mapped.then(|| grant::unmapping(block.addr()));
    let place = place.flatten();
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

/// As [`admit`], and asks if need be.
fn leave_for(size: usize) -> Taken {
    match admit(size) {
        Taken::Short => grant::ask(cost_of(size), 0),
        taken => taken,
    }
}

/// reallocarray(3).
///
/// # Safety
/// As [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn reallocarray(
    block: *mut c_void,
    count: size_t,
    size: size_t,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: as the caller's.
        Some(whole) => unsafe { realloc(block, whole) },
        None => no_memory(),
    }
}

/// memalign(3).
///
/// # Safety
/// None needed; C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memalign(alignment: size_t, size: size_t) -> *mut c_void {
    // What is in front of the block goes back to the heap; it may have become resident with a page.
    let whole = size.saturating_add(alignment.min(PAGE));
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

/// aligned_alloc(3).
///
/// # Safety
/// None needed; C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn aligned_alloc(alignment: size_t, size: size_t) -> *mut c_void {
    if !alignment.is_power_of_two() && checks_alignment() {
        set_errno(libc::EINVAL);
        return std::ptr::null_mut();
    }
    // SAFETY: no pointers.
    unsafe { memalign(alignment, size) }
}

/// posix_memalign(3): EINVAL or ENOMEM as result. Where there is no memory errno is ENOMEM, too, as glibc
/// leaves it.
///
/// # Safety
/// `result` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_memalign(
    result: *mut *mut c_void,
    alignment: size_t,
    size: size_t,
) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    // SAFETY: no pointers.
    let block = unsafe { memalign(alignment, size) };
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's word.
    unsafe { result.write(block) };
    0
}

/// valloc(3).
///
/// # Safety
/// None needed; C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn valloc(size: size_t) -> *mut c_void {
    // SAFETY: no pointers.
    unsafe { memalign(page(), size) }
}

/// pvalloc(3).
///
/// # Safety
/// None needed; C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pvalloc(size: size_t) -> *mut c_void {
    match size.max(1).checked_next_multiple_of(page()) {
        // SAFETY: no pointers.
        Some(whole) => unsafe { memalign(page(), whole) },
        None => no_memory(),
    }
}

/// free(3): a jump to glibc's, but for mappings.
///
/// # Safety
/// `block` is NULL or a live block of malloc's family.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn free(block: *mut c_void) {
    // SAFETY: a live block.
    if !block.is_null() && unsafe { is_mapped(block) } {
        // SAFETY: as the caller's.
        return unsafe { unmap(block) };
    }
    // SAFETY: as the caller's.
    unsafe { __libc_free(block) };
}

/// The rest of free, as of malloc.
#[inline(never)]
unsafe extern "C-unwind" fn unmap(block: *mut c_void) {
    let place = grant::unmapping(block.addr());
    // SAFETY: as the caller's.
    unsafe { __libc_free(block) };
    if let Some(place) = place {
        grant::unmapped(place);
    }
}

/// malloc_usable_size(3).
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn malloc_usable_size(block: *mut c_void) -> size_t {
    if block.is_null() {
        return 0;
    }
    // SAFETY: as the caller's.
    unsafe { look(block) }.usable
}

fn page() -> usize {
    // SAFETY: no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE)
}

/// [`malloc`], for programs that link the library and say what they want.
///
/// # Safety
/// None needed; C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn tmalloc(size: size_t) -> *mut c_void {
    // SAFETY: no pointers.
    unsafe { malloc(size) }
}

/// [`calloc`].
///
/// # Safety
/// None needed; C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn tcalloc(count: size_t, size: size_t) -> *mut c_void {
    // SAFETY: no pointers.
    unsafe { calloc(count, size) }
}

/// [`realloc`].
///
/// # Safety
/// As [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn trealloc(block: *mut c_void, size: size_t) -> *mut c_void {
    // SAFETY: as the caller's.
    unsafe { realloc(block, size) }
}

/// [`reallocarray`].
///
/// # Safety
/// As [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn treallocarray(
    block: *mut c_void,
    count: size_t,
    size: size_t,
) -> *mut c_void {
    // SAFETY: as the caller's.
    unsafe { reallocarray(block, count, size) }
}

/// [`aligned_alloc`].
///
/// # Safety
/// None needed; C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn taligned_alloc(alignment: size_t, size: size_t) -> *mut c_void {
    // SAFETY: no pointers.
    unsafe { aligned_alloc(alignment, size) }
}

/// [`free`].
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn tfree(block: *mut c_void) {
    // SAFETY: as the caller's.
    unsafe { free(block) };
}
