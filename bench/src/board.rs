// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the bench, its growing processes and the observer share (bpf/board.h), in a page that all of
//! them map.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::AtomicU64;

pub(crate) const SLOTS: usize = 16;
pub(crate) const KILLS: usize = 64;

/// One growing process; written by itself.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) pid: AtomicU64,
    /// What it holds, as bursar counts.
    pub(crate) pages: AtomicU64,
    /// SIGKILL is on its way; written by the observer.
    pub(crate) is_dead: AtomicU64,
    _pad: [u64; 5],
}

/// One SIGKILL that the observer saw.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Killed {
    /// CLOCK_MONOTONIC.
    pub(crate) time_ns: AtomicU64,
    /// Of all that live, the victim included.
    pub(crate) held_pages: AtomicU64,
    pub(crate) pid: AtomicU64,
    pub(crate) victim_pages: AtomicU64,
}

/// The shared page.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) go: AtomicU64,
    pub(crate) limit_pages: AtomicU64,
    /// When one of them first saw the sum above the limit; 0: nobody yet.
    pub(crate) crossed_ns: AtomicU64,
    pub(crate) kills: AtomicU64,
    _pad: [u64; 4],
    pub(crate) slots: [Slot; SLOTS],
    pub(crate) killed: [Killed; KILLS],
}

impl Board {
    /// The board behind a descriptor, for as long as this process lives.
    pub(crate) fn map(fd: BorrowedFd<'_>) -> std::io::Result<&'static Self> {
        // SAFETY: a fresh shared mapping of one page wherever the kernel likes; never unmapped.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: a page, aligned, of atomics for which every bit pattern is a value.
        Ok(unsafe { &*at.cast::<Self>() })
    }
}

/// CLOCK_MONOTONIC, nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a pointer to a live local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
