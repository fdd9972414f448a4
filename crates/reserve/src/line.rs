// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The connection that a process keeps open.
//!
//! Programs close descriptors that they did not open (daemons, shells), and open others under the same
//! number. So a descriptor is compared by its socket's cookie, which no other socket ever has, before
//! anything is sent.

use std::ffi::CStr;
use std::mem;

use crate::ask::{Ask, Refused, read_reply};
use crate::errno;

/// A daemon that does not answer within this is taken for dead, seconds.
const PATIENCE_S: i64 = 2;
/// Low numbers are what shells and daemons play with.
const LOWEST_FD: i32 = 200;
/// Where the daemon listens unless `BURSAR_SOCKET` says otherwise.
const DEFAULT_SOCKET: &[u8] = b"/run/bursar/bursar.sock";
/// A reply is read as far as this; what a refusal says beyond it is for people.
const LONGEST_REPLY: usize = 512;

/// A connection to bursard. Not closed when dropped: who forks must not end it for his parent.
#[derive(Debug)]
pub struct Line {
    fd: i32,
    cookie: u64,
}

/// Where the daemon listens: `BURSAR_SOCKET`, which set-uid programs do not look at.
pub fn socket_path() -> &'static [u8] {
    variable(c"BURSAR_SOCKET").map_or(DEFAULT_SOCKET, CStr::to_bytes)
}

/// An environment variable; none in set-uid programs, whose environment is somebody else's.
pub fn variable(name: &CStr) -> Option<&'static CStr> {
    unsafe extern "C" {
        fn secure_getenv(name: *const libc::c_char) -> *mut libc::c_char;
    }
    // SAFETY: a C string; the result is NULL or a C string of the environment.
    let found = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: a C string of the environment, which is looked at before the program can change it.
    (!found.is_null()).then(|| unsafe { CStr::from_ptr(found) })
}

impl Line {
    /// Connects to the daemon that listens at `path`.
    ///
    /// # Errors
    /// [`Refused::Silent`] with ENOENT or ECONNREFUSED when nobody listens, EACCES when we may not ask,
    /// ENAMETOOLONG.
    pub fn connect(path: &[u8]) -> Result<Self, Refused> {
        // SAFETY: plain data, valid when zero.
        let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        if path.len() >= address.sun_path.len() {
            return Err(Refused::Silent(libc::ENAMETOOLONG));
        }
        for (place, &byte) in address.sun_path.iter_mut().zip(path) {
            *place = byte.cast_signed();
        }
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let low = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
        if low < 0 {
            return Err(Refused::Silent(errno()));
        }
        // SAFETY: our own descriptor.
        let high = unsafe { libc::fcntl(low, libc::F_DUPFD_CLOEXEC, LOWEST_FD) };
        let fd = if high >= 0 {
            close(low);
            high
        } else {
            low
        };
        let wait = libc::timeval {
            tv_sec: PATIENCE_S,
            tv_usec: 0,
        };
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            let size = mem::size_of_val(&wait) as libc::socklen_t;
            // SAFETY: a timeval and its size. Where it fails, waiting is not bounded.
            unsafe {
                libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const wait).cast(), size)
            };
        }
        let size = mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: an address and its size.
        let connected = unsafe { libc::connect(fd, (&raw const address).cast(), size) };
        if connected != 0 {
            let refused = Refused::Silent(errno());
            close(fd);
            return Err(refused);
        }
        let Some(cookie) = cookie_of(fd) else {
            close(fd);
            return Err(Refused::Silent(libc::ENOPROTOOPT));
        };
        Ok(Self { fd, cookie })
    }

    /// Asks and waits for the answer: the pages granted or given back.
    ///
    /// # Errors
    /// See [`Refused`]. After [`Refused::Silent`] and [`Refused::Foreign`] the connection is of no use
    /// any more, and nothing is reserved.
    pub fn ask(&mut self, ask: Ask) -> Result<u64, Refused> {
        if cookie_of(self.fd) != Some(self.cookie) {
            return Err(Refused::Silent(libc::EBADF));
        }
        let text = ask.to_text();
        self.send(text.as_bytes())?;
        let mut reply = [0; LONGEST_REPLY];
        let length = self.receive(&mut reply)?;
        read_reply(reply.get(..length).unwrap_or_default())
    }

    fn send(&self, mut bytes: &[u8]) -> Result<(), Refused> {
        while !bytes.is_empty() {
            // SAFETY: a live buffer and its length.
            let sent = unsafe {
                libc::send(
                    self.fd,
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    libc::MSG_NOSIGNAL,
                )
            };
            match usize::try_from(sent) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(_) if errno() == libc::EINTR => {}
                Err(_) => return Err(Refused::Silent(errno())),
            }
        }
        Ok(())
    }

    /// Reads a line; what does not fit is read and dropped.
    fn receive(&self, reply: &mut [u8; LONGEST_REPLY]) -> Result<usize, Refused> {
        let mut length = 0;
        let mut spill = [0u8; LONGEST_REPLY];
        loop {
            let is_full = length == reply.len();
            let room = match reply.get_mut(length..) {
                Some(room) if !is_full => room,
                _ => &mut spill[..],
            };
            // SAFETY: a live buffer and its length.
            let got = unsafe { libc::recv(self.fd, room.as_mut_ptr().cast(), room.len(), 0) };
            match usize::try_from(got) {
                Ok(0) => return Err(Refused::Silent(libc::ECONNRESET)),
                Ok(count) => {
                    let ends = room.get(..count).is_some_and(|it| it.contains(&b'\n'));
                    if !is_full {
                        length += count;
                    }
                    if ends {
                        return Ok(length);
                    }
                }
                Err(_) if errno() == libc::EINTR => {}
                Err(_) => return Err(Refused::Silent(errno())),
            }
        }
    }

    /// Ends it, unless the program has closed the descriptor and uses its number for something else.
    pub fn close(self) {
        if cookie_of(self.fd) == Some(self.cookie) {
            close(self.fd);
        }
    }
}

fn close(fd: i32) {
    // SAFETY: a descriptor of our own.
    unsafe { libc::close(fd) };
}

/// socket(7), SO_COOKIE (Linux 4.14): a number that no other socket of this boot has.
fn cookie_of(fd: i32) -> Option<u64> {
    let mut cookie = 0u64;
    let mut size = mem::size_of::<u64>() as libc::socklen_t;
    // SAFETY: a u64 and its size.
    let got = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut size,
        )
    };
    (got == 0).then_some(cookie)
}
