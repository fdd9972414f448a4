// SPDX-License-Identifier: Apache-2.0 OR MIT
//! process_mrelease(2): take back a dying process's memory from outside (S2).

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// What became of it. Only private memory comes back this way; shared memory is its file's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// The memory is back (or somebody is giving it back right now).
    Freed,
    /// Its memory is gone already, or the process as a whole: the usual end of the race.
    Gone,
    /// It is not dying (SIGTERM is not dying), or a living process shares the memory (vfork,
    /// CLONE_VM).
    NotDying,
    /// Some of it could not be taken: the memory was being changed. Worth another try.
    Busy,
    /// This kernel (before 5.15) or its configuration does not have it.
    Unsupported,
    /// Seccomp or a security module forbids it.
    Denied,
}

/// Releases the memory of the process behind `pidfd`. `Err` is what the manual does not know.
pub(crate) fn process_mrelease(pidfd: BorrowedFd<'_>) -> Result<Release, Errno> {
    let flags: libc::c_uint = 0;
    // SAFETY: the call takes two integers and touches no memory of ours; the descriptor is open for
    // as long as it is borrowed.
    let done = unsafe { libc::syscall(libc::SYS_process_mrelease, pidfd.as_raw_fd(), flags) };
    if done == 0 {
        return Ok(Release::Freed);
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO) {
        Errno::SRCH => Ok(Release::Gone),
        Errno::INVAL => Ok(Release::NotDying),
        // EINTR: the wait for the memory's lock was cut short by a signal to us.
        Errno::AGAIN | Errno::INTR => Ok(Release::Busy),
        Errno::NOSYS => Ok(Release::Unsupported),
        Errno::PERM | Errno::ACCESS => Ok(Release::Denied),
        errno => Err(errno),
    }
}
