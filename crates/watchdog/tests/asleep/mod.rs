// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A sleep that no signal ends.

use std::io::PipeReader;
use std::os::fd::AsRawFd;

/// Waits, for no signal but SIGKILL, until a child has ended, as the kernel waits for a process's memory; the child
/// ends when something can be read.
pub(crate) fn sleep_soundly(reader: PipeReader) {
    let flags = libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: a child with a copy of our memory, which only reads and ends.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if child == 0 {
        let mut byte = 0u8;
        // SAFETY: writes a live local.
        unsafe { libc::read(reader.as_raw_fd(), (&raw mut byte).cast(), 1) };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: our own child; writes a live local.
    unsafe { libc::waitpid(child as i32, &mut status, 0) };
}
