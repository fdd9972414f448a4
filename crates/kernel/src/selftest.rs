// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The self-test: a child of ours that asks for what must be refused.
//!
//! An attach that succeeds proves nothing: where `bpf` is not among the active security modules LSM
//! programs attach and are never called. So a child in a tiny account asks.

use std::io;

use bursar_model::Pages;

use crate::Error;
use crate::account::{History, PageBounds, Slot};
use crate::accounts::AccountTable;
use crate::selftest_account::{SELFTEST_ACCOUNT, SELFTEST_UID};

/// What is said where LSM programs refuse nothing.
pub(crate) const NOT_CALLED: &str =
    "LSM programs attach and are never called: is bpf in /sys/kernel/security/lsm?";

/// Opens the self-test's account for as long as `ask` lasts.
pub(crate) fn with_account<T>(
    accounts: &AccountTable,
    ask: impl FnOnce(Slot) -> Result<T, Error>,
) -> Result<T, Error> {
    let slot = accounts.open_account(SELFTEST_ACCOUNT, false, false, History::default())?;
    let seen = ask(slot);
    accounts.close_account(slot)?;
    seen
}

/// As [`is_refused`], while its account has a barrier of one page.
pub(crate) fn is_refused_at_barrier(
    accounts: &AccountTable,
    ask: fn() -> Result<bool, i32>,
) -> Result<bool, Error> {
    let bounds = PageBounds {
        barrier: Some(Pages::new(1)),
        ..PageBounds::default()
    };
    with_account(accounts, |slot| {
        accounts.set_bounds(slot, bounds)?;
        is_refused(ask)
    })
}

/// Has a child of ours, who is in the self-test's account, ask for something; whether it was refused. The child makes
/// system calls only; an error is its errno.
pub(crate) fn is_refused(ask: fn() -> Result<bool, i32>) -> Result<bool, Error> {
    const WHAT: &str = "try the gate with a child";
    let failed = |source| Error::Io { what: WHAT, source };
    // SAFETY: the child makes system calls only, then ends without unwinding or exit handlers: nothing
    // another thread may have been holding at the fork is touched.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            run_selftest(ask);
        }
        child
    };
    if child < 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    let mut status = 0;
    // SAFETY: waits for our own child; `status` is ours to write.
    while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(failed(error));
        }
    }
    if !libc::WIFEXITED(status) {
        return Err(failed(io::Error::other("the child was killed")));
    }
    said_by(libc::WEXITSTATUS(status)).map_err(failed)
}

/// What the child exits with. Errnos come last: the largest is 133, a status 255.
const REFUSED: i32 = 0;
const GRANTED: i32 = 1;
const MAY_NOT_BECOME: i32 = 2;
const ERRNO_0: i32 = 3;

const fn status_of(answer: Result<bool, i32>) -> i32 {
    match answer {
        Ok(true) => REFUSED,
        Ok(false) => GRANTED,
        Err(errno) => ERRNO_0.saturating_add(errno),
    }
}

fn said_by(status: i32) -> io::Result<bool> {
    match status {
        REFUSED => Ok(true),
        GRANTED => Ok(false),
        MAY_NOT_BECOME => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it may not become another user; does bursard have CAP_SETUID?",
        )),
        status => Err(io::Error::from_raw_os_error(status.saturating_sub(ERRNO_0))),
    }
}

/// In the child.
fn run_selftest(ask: fn() -> Result<bool, i32>) -> ! {
    let uid = SELFTEST_UID.get();
    // SAFETY: plain system calls on numbers. The raw setresuid, for libc's would signal threads that a
    // forked child does not have.
    unsafe {
        let status = if libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0 {
            status_of(ask())
        } else {
            match *libc::__errno_location() {
                libc::EPERM => MAY_NOT_BECOME,
                errno => status_of(Err(errno)),
            }
        };
        libc::_exit(status)
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    #[test]
    fn what_the_child_meets_arrives_as_it_is() {
        for refused in [true, false] {
            assert_eq!(said_by(status_of(Ok(refused))).unwrap(), refused);
        }
        for errno in 1..=libc::EHWPOISON {
            let status = status_of(Err(errno));
            assert!(status <= 255, "{errno} does not fit");
            assert_eq!(said_by(status).unwrap_err().raw_os_error(), Some(errno));
        }
    }

    #[test]
    fn a_child_that_may_not_become_another_user_says_what_is_missing() {
        // A thread's capabilities are its own, and its children's.
        let asking = std::thread::spawn(|| {
            let mut own = capabilities(None).unwrap();
            own.effective.remove(CapabilitySet::SETUID);
            set_capabilities(None, own).unwrap();
            is_refused(|| Ok(true))
        });
        let error = asking.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("CAP_SETUID"), "{error}");
    }
}
