// SPDX-License-Identifier: Apache-2.0 OR MIT
//! malloc's family under names of its own, tmalloc.h's: for programs that link the library and say what they
//! want. They work on each other's blocks also in a program whose malloc is another one.

use libc::{c_void, size_t};

use crate::blocks::{
    allocate, allocate_aligned_strictly, allocate_zeroed, no_memory, release, resize,
};

/// malloc(3).
///
/// # Safety
/// None needed; C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn tmalloc(size: size_t) -> *mut c_void {
    // SAFETY: no pointers.
    unsafe { allocate(size) }
}

/// calloc(3).
///
/// # Safety
/// None needed; C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn tcalloc(count: size_t, size: size_t) -> *mut c_void {
    // SAFETY: no pointers.
    unsafe { allocate_zeroed(count, size) }
}

/// realloc(3).
///
/// # Safety
/// `block` is NULL or a live block of glibc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn trealloc(block: *mut c_void, size: size_t) -> *mut c_void {
    // SAFETY: as the caller's.
    unsafe { resize(block, size) }
}

/// reallocarray(3).
///
/// # Safety
/// As [`trealloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn treallocarray(
    block: *mut c_void,
    count: size_t,
    size: size_t,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: as the caller's.
        Some(whole) => unsafe { resize(block, whole) },
        None => no_memory(),
    }
}

/// aligned_alloc(3).
///
/// # Safety
/// None needed; C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn taligned_alloc(alignment: size_t, size: size_t) -> *mut c_void {
    // SAFETY: no pointers.
    unsafe { allocate_aligned_strictly(alignment, size) }
}

/// free(3).
///
/// # Safety
/// As [`trealloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn tfree(block: *mut c_void) {
    // SAFETY: as the caller's.
    unsafe { release(block) };
}
