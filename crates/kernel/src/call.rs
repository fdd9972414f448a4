// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs programs of the kernel half when we want it: `SEC("syscall")` ones, which are its system calls
//! (S1 section 4.1), and iterators.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use libbpf_rs::{Iter, Link, libbpf_sys};

use crate::abi::{self, abi_constant, run_killer_args, trigger};
use crate::{Error, Slot};

/// One read of an iterator, bytes: what the kernel has room for at once.
const A_READ: usize = 32 << 10;

/// Runs the program with `context` as its argument, which it may change. Its return value is 0 or a
/// negative errno.
pub(crate) fn run(
    program: BorrowedFd<'_>,
    what: &'static str,
    context: &mut [u8],
) -> Result<(), Error> {
    understood(what, returned(program, what, context)?).map(drop)
}

/// The same of a program that may change what an account's level asks for. `killer`, run_oom_killer, sees to that: it
/// alone decides, so that the others are small and load fast.
pub(crate) fn run_and_react(
    program: BorrowedFd<'_>,
    killer: BorrowedFd<'_>,
    (slot, by): (Slot, trigger),
    what: &'static str,
    context: &mut [u8],
) -> Result<(), Error> {
    const CHANGED: i32 = abi_constant::CALL_CHANGED_LEVEL.0.cast_signed();
    match understood(what, returned(program, what, context)?)? {
        CHANGED => {
            let mut args = run_killer_args {
                trigger: by.0,
                slot: slot.0,
                is_change: 1,
                ..run_killer_args::default()
            };
            run(killer, what, abi::bytes_of_mut(&mut args))
        }
        _ => Ok(()),
    }
}

/// A program's return value, unless it is a negative errno.
fn understood(what: &'static str, value: i32) -> Result<i32, Error> {
    match value {
        0.. => Ok(value),
        errno => Err(Error::Io {
            what,
            source: io::Error::from_raw_os_error(errno.saturating_neg()),
        }),
    }
}

/// Runs the program; what it returned is for the caller to understand.
pub(crate) fn returned(
    program: BorrowedFd<'_>,
    what: &'static str,
    context: &mut [u8],
) -> Result<i32, Error> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: std::mem::size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    if !context.is_empty() {
        options.ctx_in = context.as_ptr().cast();
        options.ctx_size_in = u32::try_from(context.len()).unwrap_or(u32::MAX);
    }
    // SAFETY: `program` is a live fd, `options` outlives the call, and ctx_in points to
    // ctx_size_in bytes that the kernel reads and, for syscall programs, writes back
    // (net/bpf/test_run.c bpf_prog_test_run_syscall()).
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    if result != 0 {
        let source = io::Error::last_os_error();
        return Err(Error::Io { what, source });
    }
    Ok(options.retval.cast_signed())
}

/// Has an iterator that writes nothing meet all there is: how much that is others choose.
///
/// # Errors
/// When it cannot be read, or has not met everything within `timeout`.
pub(crate) fn walk(iterator: &Link, what: &'static str, timeout: Duration) -> Result<(), Error> {
    let began = Instant::now();
    match read(iterator, what, || began.elapsed() > timeout, |_| {})? {
        true => Ok(()),
        false => Err(Error::Io {
            what,
            source: io::ErrorKind::TimedOut.into(),
        }),
    }
}

/// Reads an iterator to its end, or until `is_late`, which is asked after each part; `take` is given what was
/// written. Returns whether that was all.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn read(
    iterator: &Link,
    what: &'static str,
    is_late: impl Fn() -> bool,
    mut take: impl FnMut(&[u8]),
) -> Result<bool, Error> {
    let mut buffer = vec![0; A_READ];
    let mut iterator = Iter::new(iterator).map_err(Error::io(what))?;
    loop {
        match iterator.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(length) => take(buffer.get(..length).unwrap_or_default()),
            // A million objects met and nothing written: it goes on where it was (kernel/bpf/bpf_iter.c
            // bpf_seq_read()).
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(Error::Io { what, source }),
        }
        if is_late() {
            return Ok(false);
        }
    }
}
