// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Locking what some threads use, and nothing else (S3: "mlock() allows to lock only a range of addresses").

use std::ffi::{c_int, c_void};

use crate::account::Reservation;
use crate::act;
use crate::machine;

/// The whole pages of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pages {
    start: *mut u8,
    bytes: usize,
}

impl Pages {
    fn around(address: *mut u8, bytes: usize) -> Self {
        let page = machine::page_bytes();
        let before = address.addr() % page;
        Self {
            start: address.wrapping_sub(before),
            bytes: before.saturating_add(bytes).next_multiple_of(page),
        }
    }

    fn start(&self) -> *mut c_void {
        self.start.cast()
    }

    /// Whether there is a mapping everywhere. mlock marks what lies before a hole, and then fails.
    fn are_mapped(&self) -> bool {
        // SAFETY: MS_ASYNC alone does nothing but look for holes (mm/msync.c).
        unsafe { libc::msync(self.start(), self.bytes, libc::MS_ASYNC) == 0 }
    }
}

/// Locks the pages of a range.
///
/// # Safety
/// `bytes` from `address` are writable memory.
pub(crate) unsafe fn lock(address: *mut u8, bytes: usize) -> Result<(), c_int> {
    let pages = Pages::around(address, bytes);
    let asked = pages.bytes as u64;
    // Looked at before anything is touched: overcommit would say yes, and the OOM killer no.
    act::has_room_for(asked).map_err(|refusal| refusal.errno)?;
    if !machine::may_lock_anything() && machine::memlock_limit() == 0 {
        return Err(libc::EPERM);
    }
    if !pages.are_mapped() {
        return Err(libc::ENOMEM);
    }
    let _reservation = Reservation::of(asked).ok_or(libc::ENOMEM)?;
    // khugepaged collapses locked pages, too. A kernel without huge pages refuses, which is as well.
    // SAFETY: advice for memory of the caller's; it changes no content.
    unsafe { libc::madvise(pages.start(), pages.bytes, libc::MADV_NOHUGEPAGE) };
    let before = machine::locked_bytes();
    // SAFETY: asks the kernel to keep pages of the caller's.
    if unsafe { libc::mlock(pages.start(), pages.bytes) } != 0 {
        let errno = last_errno();
        // RLIMIT_MEMLOCK is looked at before anything is marked: what was locked stays so. Otherwise the range was
        // marked, and could not be filled.
        if machine::locked_bytes() > before {
            let _ = unlock(address, bytes);
        }
        return Err(errno);
    }
    // A shared mapping has been filled for reading only.
    // SAFETY: as the caller promises.
    unsafe { act::touch(address, bytes) };
    Ok(())
}

/// Ends it.
pub(crate) fn unlock(address: *mut u8, bytes: usize) -> Result<(), c_int> {
    let pages = Pages::around(address, bytes);
    // SAFETY: asks the kernel not to keep these pages; it changes no content.
    match unsafe { libc::munlock(pages.start(), pages.bytes) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Locks the calling thread's stack, so deep below the caller.
pub(crate) fn lock_stack(bytes: usize) -> Result<(), c_int> {
    act::stack(bytes).map_err(|refusal| refusal.errno)?;
    let mut here = 0u8;
    let top = &raw mut here;
    // SAFETY: the stack below, which act::stack() has just made resident, and this frame's page.
    unsafe { lock(top.wrapping_sub(bytes), bytes) }
}

fn last_errno() -> c_int {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::ENOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fresh memory of so many pages.
    fn memory(pages: usize) -> *mut u8 {
        let (rights, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        let bytes = pages * machine::page_bytes();
        // SAFETY: a new mapping where the kernel likes.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at.cast()
    }

    /// Whether the page there is locked: only then does the kernel refuse to drop it.
    fn is_locked(page: *mut u8) -> bool {
        // SAFETY: our own memory, in which there is nothing.
        unsafe { libc::madvise(page.cast(), machine::page_bytes(), libc::MADV_DONTNEED) != 0 }
    }

    #[test]
    fn what_was_locked_before_a_refusal_stays_locked() {
        let page = machine::page_bytes();
        let at = memory(3);
        // SAFETY: our own memory.
        unsafe { lock(at, page) }.unwrap();
        // SAFETY: the last page, which nobody uses.
        unsafe { libc::munmap(at.wrapping_add(2 * page).cast(), page) };
        // SAFETY: refused before it is touched.
        let refused = unsafe { lock(at, 3 * page) };
        assert_eq!(refused, Err(libc::ENOMEM));
        assert!(is_locked(at), "it was unlocked");
        assert!(!is_locked(at.wrapping_add(page)), "it was left locked");
        // SAFETY: our own memory, which nobody uses any more.
        unsafe { libc::munmap(at.cast(), 2 * page) };
    }

    #[test]
    fn whole_pages_are_locked() {
        let page = machine::page_bytes();
        let at = |address: usize| std::ptr::null_mut::<u8>().wrapping_add(address);
        let table = [
            ((page, page), (page, page)),
            ((page + 1, page - 1), (page, page)),
            ((page + 1, page), (page, 2 * page)),
            ((page, 1), (page, page)),
            ((page, 0), (page, 0)),
        ];
        for ((address, bytes), (start, whole)) in table {
            let pages = Pages::around(at(address), bytes);
            assert_eq!((pages.start.addr(), pages.bytes), (start, whole));
        }
    }
}
