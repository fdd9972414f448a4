// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One question to bursard, and what can go wrong as errno.

use std::ffi::{OsStr, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bursar_protocol::{Client, ClientError, ErrorKind, Operation, Refusal, Reply};
use bursar_reserve::{set_errno, socket_path, uncancelled};

/// Why a function returns -1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

/// Asks over a connection of its own.
pub(crate) fn ask(ask: Operation) -> Result<Reply, Errno> {
    let path = Path::new(OsStr::from_bytes(socket_path()));
    let reply = Client::connect(path).and_then(|mut client| client.ask(ask));
    match reply {
        Ok(Reply::Refused(refusal)) => Err(of_refusal(&refusal)),
        Ok(reply) => Ok(reply),
        Err(error) => Err(of_error(&error)),
    }
}

pub(crate) fn of_refusal(refusal: &Refusal) -> Errno {
    Errno(match refusal.kind {
        ErrorKind::BadRequest => libc::EINVAL,
        ErrorKind::NotPermitted => libc::EPERM,
        ErrorKind::NotFound => libc::ESRCH,
        ErrorKind::Refused => libc::EBUSY,
        ErrorKind::Failed => libc::EIO,
    })
}

pub(crate) fn of_error(error: &ClientError) -> Errno {
    Errno(match error {
        ClientError::Foreign { .. } => libc::EPROTO,
        ClientError::Unreachable { source, .. } | ClientError::Broken { source, .. } => {
            match source.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => libc::ETIMEDOUT,
                _ => source.raw_os_error().unwrap_or(libc::EIO),
            }
        }
    })
}

/// C's way to say it. Nothing unwinds into C, and nothing is left halfway by pthread_cancel(3), which
/// glibc does by an unwinding that may not be caught.
pub(crate) fn to_c(act: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    let result = uncancelled(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)));
    match result.unwrap_or(Err(Errno(libc::EIO))) {
        Ok(value) => value,
        Err(Errno(errno)) => {
            set_errno(errno);
            -1
        }
    }
}
