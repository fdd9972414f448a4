// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A descriptor that becomes readable when the caller's account comes to a level. It is the connection itself: what is
//! known of it is in bursard and in the socket's buffer, so that no lock and no memory of ours is needed.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bursar_model::WatchLevel;
use bursar_protocol::{Client, Operation, Reply};
use bursar_reserve::socket_path;

use crate::daemon::{Errno, of_error, of_refusal, to_c};

/// An answer is shorter.
const ANSWER: usize = 4 << 10;

/// Opens one; see bursar.h.
///
/// # Safety
/// `at` is NULL or a string that ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_watch(at: *const c_char) -> c_int {
    to_c(|| {
        if at.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: not NULL, and the caller's word.
        let at = unsafe { CStr::from_ptr(at) };
        let at: Option<WatchLevel> = at.to_str().ok().and_then(|it| it.parse().ok());
        let at = at.ok_or(Errno(libc::EINVAL))?;
        let path = Path::new(OsStr::from_bytes(socket_path()));
        let mut client = Client::connect(path).map_err(|error| of_error(&error))?;
        let asked = client.send(Operation::Wait { at, follow: true });
        asked.map_err(|error| of_error(&error))?;
        let stream = client.into_stream();
        let is_ready = stream.set_nonblocking(true);
        is_ready.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?;
        Ok(stream.into_raw_fd())
    })
}

/// Takes what made it readable; see bursar.h.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_watch_take(watch: c_int) -> c_int {
    to_c(|| {
        let mut answer = [0; ANSWER];
        let seen = receive(watch, &mut answer, libc::MSG_PEEK)?;
        let Some(seen) = seen else {
            return Ok(0);
        };
        let end = seen.iter().position(|&it| it == b'\n');
        let length = match end {
            Some(end) => end.saturating_add(1),
            // More of it is on its way.
            None if seen.len() < ANSWER => return Ok(0),
            None => return Err(Errno(libc::EPROTO)),
        };
        let line = answer.get_mut(..length).ok_or(Errno(libc::EPROTO))?;
        let Some(line) = receive(watch, line, 0)? else {
            // Another thread has taken it.
            return Ok(0);
        };
        match serde_json::from_slice(line) {
            Ok(Reply::Reached(_)) => Ok(1),
            Ok(Reply::Refused(refusal)) => Err(of_refusal(&refusal)),
            Ok(_) | Err(_) => Err(Errno(libc::EPROTO)),
        }
    })
}

/// What has come; `None`: nothing.
fn receive(socket: c_int, buffer: &mut [u8], flags: c_int) -> Result<Option<&mut [u8]>, Errno> {
    let flags = flags | libc::MSG_DONTWAIT;
    let count = loop {
        // SAFETY: the buffer is writable for its length.
        let count = unsafe { libc::recv(socket, buffer.as_mut_ptr().cast(), buffer.len(), flags) };
        let error = std::io::Error::last_os_error().raw_os_error();
        match (usize::try_from(count), error) {
            (Ok(count), _) => break count,
            (Err(_), Some(libc::EINTR)) => {}
            (Err(_), Some(libc::EAGAIN)) => return Ok(None),
            (Err(_), error) => return Err(Errno(error.unwrap_or(libc::EIO))),
        }
    };
    // bursard has ended, or is being restarted.
    if count == 0 {
        return Err(Errno(libc::ECONNRESET));
    }
    Ok(buffer.get_mut(..count))
}
