// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The malloc underneath. glibc exports it under names that nobody overrides, so that nothing has to be
//! looked up by dlsym, which itself allocates.

use libc::{c_int, c_void, size_t};

unsafe extern "C" {
    pub(crate) fn __libc_malloc(size: size_t) -> *mut c_void;
    pub(crate) fn __libc_calloc(count: size_t, size: size_t) -> *mut c_void;
    pub(crate) fn __libc_realloc(block: *mut c_void, size: size_t) -> *mut c_void;
    pub(crate) fn __libc_memalign(alignment: size_t, size: size_t) -> *mut c_void;
    pub(crate) fn __libc_free(block: *mut c_void);
    pub(crate) fn malloc_trim(pad: size_t) -> c_int;
}

/// What is known of a block without asking: glibc keeps its size and three flags in the word before it
/// (malloc/malloc.c "chunk"), unchanged since 2.3 and relied upon by debuggers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Bytes that the program may use.
    pub(crate) usable: usize,
    /// It is a mapping of its own.
    pub(crate) is_mapped: bool,
}

/// Looks at a block.
///
/// # Safety
/// `block` is not NULL and came from glibc's malloc.
pub(crate) unsafe fn look(block: *const c_void) -> Block {
    const FLAGS: usize = 7;
    const IS_MMAPPED: usize = 2;
    // SAFETY: the word before every block of glibc's is its header.
    let word = unsafe { block.cast::<usize>().sub(1).read() };
    let is_mapped = word & IS_MMAPPED != 0;
    let size = word & !FLAGS;
    // A mapped block has two words of header; of another's, the next one lends its first word.
    let header = if is_mapped { 2 } else { 1 } * size_of::<usize>();
    Block {
        usable: size.saturating_sub(header),
        is_mapped,
    }
}
