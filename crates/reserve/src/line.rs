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
/// How long a reply is waited for awake, ns. It is usually there after half of it.
const SPIN_NS: u64 = 50_000;
/// A reply is read as far as this; what a refusal says beyond it is for people.
const LONGEST_REPLY: usize = 512;

/// A connection to bursard. Not closed when dropped: who forks must not end it for his parent.
#[derive(Debug)]
pub struct Line {
    fd: i32,
    cookie: u64,
    /// The process that opened it.
    owner: libc::pid_t,
    /// Pages granted and not given back.
    reserved: u64,
    /// The reply to what was given back is not read yet.
    has_unread: bool,
    /// There is another processor for the daemon to answer on meanwhile.
    may_spin: bool,
}

/// Where the daemon listens: `BURSAR_SOCKET`, which set-uid programs do not look at.
pub fn socket_path() -> &'static [u8] {
    variable(c"BURSAR_SOCKET").map_or(DEFAULT_SOCKET, CStr::to_bytes)
}

/// An environment variable; none in set-uid programs, whose environment is somebody else's. Not for
/// inside malloc: it races with setenv(3).
pub fn variable(name: &CStr) -> Option<&'static CStr> {
    unsafe extern "C" {
        fn secure_getenv(name: *const libc::c_char) -> *mut libc::c_char;
    }
    // SAFETY: a C string; the result is NULL or a C string of the environment.
    let found = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: a C string of the environment; as with getenv(3), nobody may change it meanwhile.
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
        Ok(Self {
            fd,
            cookie,
            // SAFETY: no arguments.
            owner: unsafe { libc::getpid() },
            reserved: 0,
            has_unread: false,
            // SAFETY: no pointers.
            may_spin: unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } > 1,
        })
    }

    /// Asks and waits for the answer: the pages granted or given back.
    ///
    /// # Errors
    /// See [`Refused`]. After [`Refused::Silent`] and [`Refused::Foreign`] the connection is of no use
    /// any more, and nothing is reserved.
    pub fn ask(&mut self, ask: Ask) -> Result<u64, Refused> {
        self.say(ask)?;
        let mut inbox = Inbox::new();
        self.hear_what_is_unread(&mut inbox)?;
        let answer = self.hear(&mut inbox);
        match (ask, answer) {
            (Ask::Reserve { commit, .. }, Ok(pages)) => {
                self.reserved = self.reserved.saturating_sub(commit).saturating_add(pages);
            }
            // What was to be given back first has been.
            (Ask::Reserve { commit, .. }, Err(Refused::Full)) => {
                self.reserved = self.reserved.saturating_sub(commit);
            }
            (Ask::Commit { .. }, Ok(pages)) => self.reserved = self.reserved.saturating_sub(pages),
            (_, Err(_)) => {}
        }
        answer
    }

    /// Gives back what was granted, and does not wait for the answer: there is only one, and the daemon
    /// reads this before anything that is said later.
    ///
    /// # Errors
    /// [`Refused::Senseless`] for nothing, and for more than is reserved; else as [`Line::ask`].
    pub fn give_back(&mut self, pages: u64) -> Result<(), Refused> {
        if pages == 0 || pages > self.reserved {
            return Err(Refused::Senseless);
        }
        self.hear_what_is_unread(&mut Inbox::new())?;
        self.say(Ask::Commit { pages })?;
        self.has_unread = true;
        self.reserved -= pages;
        Ok(())
    }

    fn hear_what_is_unread(&mut self, inbox: &mut Inbox) -> Result<(), Refused> {
        if !self.has_unread {
            return Ok(());
        }
        self.has_unread = false;
        match self.hear(inbox) {
            Ok(_) => Ok(()),
            Err(Refused::Silent(errno)) => Err(Refused::Silent(errno)),
            // It was reserved, by our own books: a daemon that says no has others.
            Err(_) => Err(Refused::Foreign),
        }
    }

    fn say(&self, ask: Ask) -> Result<(), Refused> {
        if cookie_of(self.fd) != Some(self.cookie) {
            return Err(Refused::Silent(libc::EBADF));
        }
        self.send(ask.to_text().as_bytes())
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

    /// The next reply.
    fn hear(&self, inbox: &mut Inbox) -> Result<u64, Refused> {
        let mut spinning = Spinning::new(if self.may_spin { SPIN_NS } else { 0 });
        loop {
            if let Some(answer) = inbox.take_line(read_reply) {
                return answer;
            }
            let flags = if spinning.goes_on() {
                libc::MSG_DONTWAIT
            } else {
                0
            };
            let room = inbox.room();
            // SAFETY: a live buffer and its length.
            let got = unsafe { libc::recv(self.fd, room.as_mut_ptr().cast(), room.len(), flags) };
            match usize::try_from(got) {
                Ok(0) => return Err(Refused::Silent(libc::ECONNRESET)),
                Ok(count) => inbox.filled += count,
                // A child that a signal handler made meanwhile must not read its parent's answer.
                // SAFETY: no arguments.
                Err(_) if errno() == libc::EINTR && unsafe { libc::getpid() } == self.owner => {}
                Err(_) if errno() == libc::EAGAIN && flags != 0 => {}
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

/// What has come of replies and is not yet read. Empty between two questions: nothing comes unasked.
struct Inbox {
    bytes: [u8; 2 * LONGEST_REPLY],
    filled: usize,
}

impl Inbox {
    const fn new() -> Self {
        Self {
            bytes: [0; 2 * LONGEST_REPLY],
            filled: 0,
        }
    }

    /// Reads the first line, if it has come as a whole, and drops it.
    fn take_line<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let known = self.bytes.get(..self.filled)?;
        let end = known.iter().position(|&byte| byte == b'\n')?;
        let answer = read(known.get(..end.min(LONGEST_REPLY))?);
        self.bytes.copy_within(end + 1..self.filled, 0);
        self.filled -= end + 1;
        Some(answer)
    }

    /// Where more is put. The end of a line that is too long is dropped.
    fn room(&mut self) -> &mut [u8] {
        if self.filled == self.bytes.len() {
            self.filled = LONGEST_REPLY;
        }
        self.bytes.get_mut(self.filled..).unwrap_or_default()
    }
}

/// Asking again and again for a short while: on a machine that is not busy the daemon answers sooner than
/// this process could fall asleep and be woken, which on a virtual machine is most of the way.
struct Spinning {
    until_ns: Option<u64>,
}

impl Spinning {
    fn new(patience_ns: u64) -> Self {
        let until_ns = (patience_ns > 0).then(|| now_ns() + patience_ns);
        Self { until_ns }
    }

    fn goes_on(&mut self) -> bool {
        if self.until_ns.is_some_and(|until| now_ns() >= until) {
            self.until_ns = None;
        }
        self.until_ns.is_some()
    }
}

fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn put(inbox: &mut Inbox, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = inbox.room();
            let count = bytes.len().min(room.len());
            room[..count].copy_from_slice(&bytes[..count]);
            inbox.filled += count;
            bytes = &bytes[count..];
        }
    }

    #[test]
    fn lines_come_one_by_one_however_they_were_received() {
        let mut inbox = Inbox::new();
        put(&mut inbox, b"first\nsec");
        assert_eq!(inbox.take_line(<[u8]>::to_vec), Some(b"first".to_vec()));
        assert_eq!(inbox.take_line(<[u8]>::to_vec), None);
        put(&mut inbox, b"ond\n");
        assert_eq!(inbox.take_line(<[u8]>::to_vec), Some(b"second".to_vec()));
        assert_eq!(inbox.filled, 0);
    }

    #[test]
    fn of_a_line_that_is_too_long_the_head_is_read() {
        let mut inbox = Inbox::new();
        let mut line = vec![b'x'; 5 * LONGEST_REPLY];
        line.extend(b"\nnext\n");
        put(&mut inbox, &line);
        let head = inbox.take_line(<[u8]>::to_vec).unwrap();
        assert_eq!(head, [b'x'; LONGEST_REPLY]);
        assert_eq!(inbox.take_line(<[u8]>::to_vec), Some(b"next".to_vec()));
    }
}
