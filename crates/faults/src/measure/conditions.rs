// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What has to hold of this process while it measures: small pages, locked memory, a child that shares it.

use crate::Error;
use crate::usage::{Faults, now_ns};

/// While it lives malloc's memory has small pages only, whatever the machine's default.
pub(super) struct SmallPages;

impl SmallPages {
    pub(super) fn only() -> Self {
        // SAFETY: numbers only. Where the kernel refuses, counts will differ and say so.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
        Self
    }

    /// Huge ones, too.
    pub(super) fn not_only() {
        // SAFETY: numbers only.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) };
    }
}

impl Drop for SmallPages {
    fn drop(&mut self) {
        Self::not_only();
    }
}

/// Writes to what this thread, or the kernel for it, will write to while it measures.
pub(super) fn settle() {
    let mut scratch = [0u8; 16 << 10];
    for byte in scratch.iter_mut().step_by(512) {
        // SAFETY: our own array.
        unsafe { std::ptr::from_mut(byte).write_volatile(1) };
    }
    // The kernel writes to a thread's rseq area when it was preempted (kernel/rseq.c), which glibc keeps
    // in its description of the thread, in one page or in two.
    // SAFETY: our own thread's description, 2304 bytes in glibc; each byte is written back as it is, by
    // the only thread that uses it.
    unsafe {
        let thread = libc::pthread_self() as *mut u8;
        for offset in [0, 2303] {
            let byte = thread.add(offset);
            byte.write_volatile(byte.read_volatile());
        }
    }
    for _ in 0..2 {
        let _ = (now_ns(), Faults::ours());
    }
}

/// mlockall, until dropped.
pub(super) struct LockAll;

impl LockAll {
    pub(super) fn now() -> Result<Self, Error> {
        // SAFETY: flags only.
        if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
            let error = Error::last_os("lock all memory (mlockall)");
            // SAFETY: no arguments. A failed mlockall may have marked some mappings.
            unsafe { libc::munlockall() };
            return Err(error);
        }
        Ok(Self)
    }
}

impl Drop for LockAll {
    fn drop(&mut self) {
        // SAFETY: no arguments.
        unsafe { libc::munlockall() };
    }
}

/// A child that shares our pages and does nothing.
pub(super) struct Sleeper(libc::pid_t);

impl Sleeper {
    pub(super) fn fork() -> Result<Self, Error> {
        // SAFETY: the child calls async-signal-safe functions only.
        match unsafe { libc::fork() } {
            -1 => Err(Error::last_os("fork")),
            0 => loop {
                // SAFETY: numbers only. If we die, so does it.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::pause();
                }
            },
            child => Ok(Self(child)),
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // SAFETY: our own child, not waited for before.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}
