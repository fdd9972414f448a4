// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The malloc underneath. glibc exports it under names that nobody overrides, so that nothing has to be
//! looked up by dlsym, which itself allocates.

use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, c_void, size_t};

use crate::ranges::Range;
use crate::ranges::page;

unsafe extern "C" {
    pub(crate) fn __libc_malloc(size: size_t) -> *mut c_void;
    pub(crate) fn __libc_calloc(count: size_t, size: size_t) -> *mut c_void;
    pub(crate) fn __libc_realloc(block: *mut c_void, size: size_t) -> *mut c_void;
    pub(crate) fn __libc_memalign(alignment: size_t, size: size_t) -> *mut c_void;
    pub(crate) fn __libc_free(block: *mut c_void);
    fn gnu_get_libc_version() -> *const libc::c_char;
    // As in the libc crate, but for functions of ours (lib.rs says why).
    pub(crate) fn pthread_key_create(
        key: *mut libc::pthread_key_t,
        at_end: Option<unsafe extern "C-unwind" fn(*mut c_void)>,
    ) -> c_int;
    pub(crate) fn pthread_atfork(
        before: Option<unsafe extern "C-unwind" fn()>,
        in_parent: Option<unsafe extern "C-unwind" fn()>,
        in_child: Option<unsafe extern "C-unwind" fn()>,
    ) -> c_int;
}

type Trim = unsafe extern "C-unwind" fn(size_t) -> c_int;

/// malloc_trim(3) has no name that nobody overrides: it is the next one of that name behind ours. Looked for
/// in the constructor, before anybody holds a lock: who looks may wait for whoever loads a library.
static TRIM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Finds glibc's malloc_trim(3).
pub(crate) fn find_trim() {
    // SAFETY: a C string literal.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"malloc_trim".as_ptr()) };
    TRIM.store(found, Ordering::Relaxed);
}

/// glibc's malloc_trim(3). 0 where there is none: nothing was given back.
pub(crate) fn trim(pad: size_t) -> c_int {
    let trim = TRIM.load(Ordering::Relaxed);
    if trim.is_null() {
        return 0;
    }
    // SAFETY: glibc's function of that name has this type.
    let trim = unsafe { std::mem::transmute::<*mut c_void, Trim>(trim) };
    // SAFETY: no pointers; locks glibc's arenas, never ours.
    unsafe { trim(pad) }
}

/// Whether aligned_alloc(3) refuses an alignment that is no power of two: from 2.38 on. Before, it was
/// memalign(3), which rounds up.
pub(crate) fn checks_alignment() -> bool {
    // SAFETY: a C string that stays.
    let version = unsafe { std::ffi::CStr::from_ptr(gnu_get_libc_version()) };
    let minor = version.to_bytes().strip_prefix(b"2.").unwrap_or_default();
    let digits = minor.iter().take_while(|byte| byte.is_ascii_digit());
    let number = |sum: u32, byte: &u8| sum.wrapping_mul(10).wrapping_add((byte - b'0').into());
    digits.fold(0, number) >= 38
}

/// A flag in the word before a block.
const IS_MMAPPED: u8 = 2;

/// What is known of a block without asking: glibc keeps its size and three flags in the word before it
/// (malloc/malloc.c "chunk"), unchanged since 2.3 and relied upon by debuggers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Bytes that the program may use.
    pub(crate) usable: usize,
    /// It is a mapping of its own.
    pub(crate) is_mapped: bool,
}

impl Block {
    /// The whole pages of a block of `size` bytes behind its first `from`, except those that hold the words
    /// before and behind it, which are resident: glibc has written them.
    pub(crate) fn pages(self, block: *const c_void, from: usize, size: usize) -> Range {
        // Where a block lies there are no addresses that could not be counted.
        let start = block.addr();
        let end = if self.is_mapped {
            start.wrapping_add(size).wrapping_add(page() - 1)
        } else {
            start.wrapping_add(self.usable)
        } & !(page() - 1);
        let first = start.wrapping_add(from).wrapping_add(page() - 1) & !(page() - 1);
        Range {
            first: first.min(end),
            end,
        }
    }
}

/// Looks at a block.
///
/// # Safety
/// `block` is not NULL and came from glibc's malloc.
pub(crate) unsafe fn look(block: *const c_void) -> Block {
    const FLAGS: usize = 7;
    // SAFETY: the word before every block of glibc's is its header.
    let word = unsafe { block.cast::<usize>().sub(1).read() };
    let is_mapped = word & usize::from(IS_MMAPPED) != 0;
    let size = word & !FLAGS;
    // A mapped block has two words of header; of another's, the next one lends its first word.
    let header = if is_mapped { 2 } else { 1 } * size_of::<usize>();
    Block {
        usable: size.wrapping_sub(header),
        is_mapped,
    }
}
