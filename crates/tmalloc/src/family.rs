// SPDX-License-Identifier: Apache-2.0 OR MIT
//! malloc's family under its own names: who links the library or is started with it in LD_PRELOAD allocates
//! here. The memory is glibc's, and what is freed needs no permission; free and malloc_usable_size are
//! defined all the same, because a program linked with another allocator (jemalloc's library, say) would
//! give that one's free blocks of ours. malloc_trim is on its way to glibc's, and mallinfo stays glibc's own.
//!
//! None calls another by its name (blocks.rs says why), but for reallocarray, as glibc's does.

use libc::{c_int, c_void, size_t};

#[cfg(target_arch = "x86_64")]
use crate::blocks::{INSIDE_PAGE, release_at_page};
use crate::blocks::{
    OVERHEAD, SMALL, allocate, allocate_aligned, allocate_aligned_strictly, allocate_zeroed,
    no_memory, pay, release, resize,
};
use crate::credit;
use crate::glibc::{__libc_calloc, __libc_realloc, look};
use crate::ranges::page;

/// malloc(3).
///
/// By hand, for it is called more often than anything else: each instruction is a part in a hundred of a
/// malloc that finds a block in glibc's cache. `pay` is the same in Rust.
///
/// # Safety
/// None needed; C's.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[unsafe(link_section = ".text.bursar.malloc")]
pub unsafe extern "C-unwind" fn malloc(size: size_t) -> *mut c_void {
    std::arch::naked_asm!(
        "cmp rdi, {small}",
        "ja {rest}",
        "mov rax, qword ptr [rip + bursar_tmalloc_thread@GOTTPOFF]",
        // Four bytes longer than it has to be: a jump that crosses 32 bytes is decoded anew each time on Intel's
        // processors from 2015 to 2019 ("Jump Conditional Code Erratum", SKX102).
        ".byte 0x3e, 0x48, 0x8d, 0x8f",
        ".long {overhead}",
        "sub qword ptr fs:[rax + {left}], rcx",
        "js {rest}",
        "jmp qword ptr [rip + __libc_malloc@GOTPCREL]",
        // Alone in its section, it begins where a cache line does.
        ".balign 64",
        small = const SMALL,
        overhead = const OVERHEAD,
        left = const std::mem::offset_of!(crate::thread::Thread, left),
        rest = sym allocate,
    )
}

/// malloc(3).
///
/// # Safety
/// None needed; C's.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn malloc(size: size_t) -> *mut c_void {
    if size <= SMALL && pay(size + OVERHEAD) {
        // SAFETY: no pointers.
        return unsafe { crate::glibc::__libc_malloc(size) };
    }
    // SAFETY: no pointers.
    unsafe { allocate(size) }
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
    // SAFETY: no pointers.
    unsafe { allocate_zeroed(count, size) }
}

/// realloc(3).
///
/// # Safety
/// `block` is NULL or a live block of malloc's family.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn realloc(block: *mut c_void, size: size_t) -> *mut c_void {
    if !block.is_null() {
        // SAFETY: a live block of glibc's.
        let old = unsafe { look(block) };
        if !old.is_mapped && (size <= old.usable || size <= SMALL && pay(size + OVERHEAD)) {
            // SAFETY: as the caller's.
            return unsafe { __libc_realloc(block, size) };
        }
    }
    // SAFETY: as the caller's.
    unsafe { resize(block, size) }
}

/// What the process calls realloc: the linker fills it in.
#[used]
static REALLOC: unsafe extern "C-unwind" fn(*mut c_void, size_t) -> *mut c_void = realloc;

/// reallocarray(3). As glibc's it goes to whatever the process calls realloc: a program with a malloc of its
/// own seldom has this one, too, and blocks of its own go through it.
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
        // Read, not known: the compiler would put ours in its place.
        // SAFETY: a static of ours; the rest as the caller's.
        Some(whole) => unsafe { (&raw const REALLOC).read_volatile()(block, whole) },
        None => no_memory(),
    }
}

/// memalign(3).
///
/// # Safety
/// None needed; C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memalign(alignment: size_t, size: size_t) -> *mut c_void {
    // SAFETY: no pointers.
    unsafe { allocate_aligned(alignment, size) }
}

/// aligned_alloc(3).
///
/// # Safety
/// None needed; C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn aligned_alloc(alignment: size_t, size: size_t) -> *mut c_void {
    // SAFETY: no pointers.
    unsafe { allocate_aligned_strictly(alignment, size) }
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
    let block = unsafe { allocate_aligned(alignment, size) };
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
    unsafe { allocate_aligned(page(), size) }
}

/// pvalloc(3).
///
/// # Safety
/// None needed; C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pvalloc(size: size_t) -> *mut c_void {
    match size.checked_next_multiple_of(page()) {
        // SAFETY: no pointers.
        Some(whole) => unsafe { allocate_aligned(page(), whole) },
        None => no_memory(),
    }
}

/// free(3): a jump to glibc's, but for mappings, which are told by where they begin, and for NULL.
///
/// # Safety
/// `block` is NULL or a live block of malloc's family.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[unsafe(link_section = ".text.bursar.free")]
pub unsafe extern "C-unwind" fn free(block: *mut c_void) {
    std::arch::naked_asm!(
        "test edi, {inside}",
        "je {rest}",
        "jmp qword ptr [rip + __libc_free@GOTPCREL]",
        ".balign 64",
        inside = const INSIDE_PAGE,
        rest = sym release_at_page,
    )
}

/// free(3).
///
/// # Safety
/// `block` is NULL or a live block of malloc's family.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn free(block: *mut c_void) {
    // SAFETY: as the caller's.
    unsafe { release(block) };
}

/// free_sized(3) of C23. Defined as free is: another allocator's library may have one, and this libc none.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn free_sized(block: *mut c_void, _size: size_t) {
    // SAFETY: as the caller's.
    unsafe { release(block) };
}

/// free_aligned_sized(3) of C23.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn free_aligned_sized(
    block: *mut c_void,
    _alignment: size_t,
    _size: size_t,
) {
    // SAFETY: as the caller's.
    unsafe { release(block) };
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

/// malloc_trim(3). What it gives back a block allocated later may lie on, without a page fault at its header:
/// the pages of headers stay. So it is noted that memory was given back.
///
/// # Safety
/// None needed; C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn malloc_trim(pad: size_t) -> c_int {
    credit::trim(pad)
}
