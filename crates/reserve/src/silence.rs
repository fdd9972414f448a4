// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon that does not answer (stopped, hung) is left alone for a while, by all processes of a user
//! together: one of them waits, the others need not.
//!
//! What they share is an empty file of the user's own in /dev/shm: its times say since when and until
//! when nobody asks. Nobody else's file counts, so nobody can silence another user. Each silence lasts
//! twice as long as the one before, up to a bound.

use std::mem;

use crate::clock::{ns_of, timespec_of, wall_ns};
use crate::text::Text;

const FIRST_NS: u64 = 50_000_000;
const LONGEST_NS: u64 = 10_000_000_000;
/// A silence that ended less than so many times its length ago is the one before the next.
const MEMORY: u64 = 4;

/// The silence of one user towards one socket.
#[derive(Debug)]
pub struct Silence {
    name: Text,
    since_ns: u64,
    until_ns: u64,
    now_ns: u64,
}

impl Silence {
    /// As it stands for the calling process's user and the daemon at `socket`.
    pub fn look(socket: &[u8]) -> Self {
        let mut name = Text::new();
        // SAFETY: no arguments.
        let user = unsafe { libc::geteuid() };
        name.word("/dev/shm/bursar-silent-").number(user.into());
        name.word("-").number(hash(socket)).word("\0");
        let (since_ns, until_ns) = times(&name, user).unwrap_or((0, 0));
        Self {
            name,
            since_ns,
            until_ns,
            now_ns: wall_ns(),
        }
    }

    /// For how much longer nobody asks; `None`: ask.
    pub fn rest_ns(&self) -> Option<u64> {
        let rest = self.until_ns.checked_sub(self.now_ns)?;
        // What lies farther ahead comes of a clock that was set back.
        (1..=LONGEST_NS).contains(&rest).then_some(rest)
    }

    /// Whether the daemon has been silent lately: it is not waited for as long as a first time.
    pub fn is_recent(&self) -> bool {
        self.length_ns() > 0
    }

    /// How long the one before lasted, if it counts.
    fn length_ns(&self) -> u64 {
        let length = self.until_ns.saturating_sub(self.since_ns);
        let since = self.now_ns.saturating_sub(self.until_ns);
        let is_known = self.until_ns > 0 && length <= LONGEST_NS;
        if is_known && since <= length.saturating_mul(MEMORY) {
            length
        } else {
            0
        }
    }

    /// The daemon has not answered. Returns for how long nobody asks from now on.
    pub fn begin(&self) -> u64 {
        let length = self
            .length_ns()
            .saturating_mul(2)
            .clamp(FIRST_NS, LONGEST_NS);
        let now = wall_ns();
        let times = [timespec_of(now), timespec_of(now.saturating_add(length))];
        let flags = libc::O_WRONLY
            | libc::O_CREAT
            | libc::O_NOFOLLOW
            | libc::O_NONBLOCK
            | libc::O_NOCTTY
            | libc::O_CLOEXEC;
        // SAFETY: a C string, ended in `look`.
        let fd = unsafe { libc::open(self.path(), flags, 0o600) };
        if fd >= 0 {
            // Of a file that is another's this fails.
            // SAFETY: our own descriptor and two times.
            unsafe { libc::futimens(fd, times.as_ptr()) };
            // SAFETY: our own descriptor.
            unsafe { libc::close(fd) };
        }
        length
    }

    /// The daemon has answered.
    pub fn end(&self) {
        if self.until_ns > 0 {
            // SAFETY: a C string, ended in `look`.
            unsafe { libc::unlink(self.path()) };
        }
    }

    fn path(&self) -> *const libc::c_char {
        self.name.as_bytes().as_ptr().cast()
    }
}

/// Since when and until when, of a file that is the user's own.
fn times(name: &Text, user: libc::uid_t) -> Option<(u64, u64)> {
    // SAFETY: plain data, valid when zero.
    let mut found: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: a C string and a live stat.
    let got = unsafe { libc::lstat(name.as_bytes().as_ptr().cast(), &raw mut found) };
    let is_file = found.st_mode & libc::S_IFMT == libc::S_IFREG;
    if got != 0 || found.st_uid != user || !is_file {
        return None;
    }
    let time = |seconds, nanoseconds| {
        ns_of(libc::timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds,
        })
    };
    Some((
        time(found.st_atime, found.st_atime_nsec),
        time(found.st_mtime, found.st_mtime_nsec),
    ))
}

/// FNV-1a: names a socket; who makes two that collide has made both.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(since_ns: u64, until_ns: u64, now_ns: u64) -> Silence {
        Silence {
            name: Text::new(),
            since_ns,
            until_ns,
            now_ns,
        }
    }

    #[test]
    fn a_silence_is_kept_by_all_processes_and_doubles() {
        let socket = format!("/nonexistent/{}", std::process::id());
        let first = Silence::look(socket.as_bytes());
        assert_eq!((first.rest_ns(), first.is_recent()), (None, false));
        assert_eq!(first.begin(), FIRST_NS);
        let other = Silence::look(socket.as_bytes());
        assert!(other.rest_ns().is_some_and(|rest| rest <= FIRST_NS));
        assert_eq!(other.begin(), 2 * FIRST_NS);
        Silence::look(socket.as_bytes()).end();
        assert_eq!(Silence::look(socket.as_bytes()).rest_ns(), None);
    }

    #[test]
    fn a_silence_has_a_bound_and_is_forgotten() {
        let length = LONGEST_NS;
        assert_eq!(at(10, 10 + length, 20 + length).length_ns(), length);
        assert_eq!(at(10, 10 + length, 20 + 6 * length).length_ns(), 0);
        // The clock was set back by years.
        assert_eq!(at(1 << 60, (1 << 60) + 9, 5).rest_ns(), None);
    }
}
