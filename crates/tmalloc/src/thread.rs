// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a thread has left of the credit that it took: the one thing that every malloc looks at.
//!
//! Rust's thread_local! in a shared library goes through __tls_get_addr, a call that costs as much as the
//! rest of the fast path. On x86-64 the variable is therefore reached as the compiler reaches one that is
//! there from the program's start ("initial exec": the offset from %fs is in a table). A library loaded
//! later by dlopen gets its few bytes from glibc's reserve for such libraries.

use crate::ranges::Ranges;

/// Blocks are expected where blocks lay, if that is no more than this: a look at it takes some µs.
const EXPECTED_PAGES: usize = 4096;

/// A thread's part.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Thread {
    /// Bytes that it may still allocate before it has to ask.
    pub(crate) left: isize,
    /// Bytes that it took last, which other threads cannot take.
    pub(crate) slice: usize,
    /// Its page faults until then.
    pub(crate) faults: u64,
    /// How often freed memory had been given back to the system until then.
    pub(crate) trims: u32,
    /// It is asking at the moment: what is allocated on the way is not counted.
    pub(crate) is_asking: bool,
    /// Its end will be noticed.
    pub(crate) is_watched: bool,
    /// How often the slice was used once more, without a look at the credit.
    pub(crate) rounds: u16,
    /// Bytes of the slice that went to blocks which may not be resident, and the largest of those.
    pub(crate) handed_bytes: usize,
    pub(crate) largest: usize,
    /// Where they lie.
    pub(crate) handed: Ranges,
    /// Where those lay that were accounted for when the slice was taken: all since memory was last given back.
    pub(crate) known: Ranges,
}

impl Thread {
    /// A new slice begins.
    pub(crate) fn begin_slice(&mut self, slice: usize, cost: usize) {
        self.slice = slice;
        self.handed = Ranges::of_one(
            self.known
                .widest()
                .filter(|it| it.pages() <= EXPECTED_PAGES),
        );
        self.begin_again(cost);
    }

    /// The same slice begins once more. Where its blocks lay the next ones will.
    pub(crate) fn begin_again(&mut self, cost: usize) {
        self.left = self.slice.saturating_sub(cost).cast_signed();
        self.handed_bytes = 0;
        self.largest = 0;
    }
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".globl bursar_tmalloc_thread",
    ".hidden bursar_tmalloc_thread",
    ".type bursar_tmalloc_thread, @tls_object",
    ".size bursar_tmalloc_thread, 256",
    ".p2align 6",
    "bursar_tmalloc_thread:",
    ".zero 256",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
const _: () = assert!(size_of::<Thread>() <= 256 && align_of::<Thread>() <= 16);

/// The calling thread's.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn own() -> *mut Thread {
    let at: *mut Thread;
    // SAFETY: reads %fs:0, the thread's own address (psABI), and a constant of the library.
    unsafe {
        std::arch::asm!(
            "mov {at}, qword ptr fs:[0]",
            "add {at}, qword ptr [rip + bursar_tmalloc_thread@GOTTPOFF]",
            at = out(reg) at,
            options(pure, readonly, nostack),
        );
    }
    at
}

/// The calling thread's.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn own() -> *mut Thread {
    use std::cell::UnsafeCell;
    thread_local! {
        static OWN: UnsafeCell<Thread> = const {
            UnsafeCell::new(Thread {
                left: 0,
                slice: 0,
                faults: 0,
                trims: 0,
                is_asking: false,
                is_watched: false,
                rounds: 0,
                handed_bytes: 0,
                largest: 0,
                handed: Ranges::NONE,
                known: Ranges::NONE,
            })
        };
    }
    OWN.with(UnsafeCell::get)
}
