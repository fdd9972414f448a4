// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection to bursard's socket, and how long an answer is waited for.
//!
//! Programs close descriptors that they did not open (daemons, shells), and open others under the same
//! number. So a descriptor is compared by its socket's cookie, which no other socket ever has, before
//! anything is sent or received.

use std::mem;

use crate::ask::{Ask, Grant, Refused, read_reply};
use crate::clock::now_ns;
use crate::errno;
use crate::inbox::Inbox;
use crate::text::Text;

/// Shells and daemons use low numbers themselves.
const LOWEST_FD: i32 = 200;
/// How long a reply is waited for awake. It is usually there after half of it.
const SPIN_NS: u64 = 50_000;
/// A daemon that waits for a processor is given so long in all.
const LONGEST_NS: u64 = 2_000_000_000;
/// One whose first thread sleeps while others are runnable is given so long: these may have nothing to do with the answer.
const OTHERS_NS: u64 = 200_000_000;

/// A connected socket. Not closed when dropped: a forked child must not end its parent's connection.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: i32,
    cookie: u64,
    /// The process that opened it.
    owner: libc::pid_t,
    /// The thread that did.
    thread: libc::pthread_t,
    /// The process that listens, in this process's numbers; 0: not to be seen from here.
    daemon: libc::pid_t,
    /// There is another processor for the daemon to answer on meanwhile.
    may_spin: bool,
}

impl Socket {
    /// Connects to who listens at `path`, without waiting.
    ///
    /// # Errors
    /// [`Refused::Silent`]: ENOENT or ECONNREFUSED when nobody listens, EACCES when we may not ask,
    /// ENAMETOOLONG, EAGAIN when too many others wait, EMFILE.
    pub(crate) fn connect(path: &[u8]) -> Result<Self, Refused> {
        // SAFETY: plain data, valid when zero.
        let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        if path.len() >= address.sun_path.len() {
            return Err(Refused::Silent(libc::ENAMETOOLONG));
        }
        for (place, &byte) in address.sun_path.iter_mut().zip(path) {
            *place = libc::c_char::from_ne_bytes([byte]);
        }
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
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
            // SAFETY: no arguments.
            thread: unsafe { libc::pthread_self() },
            daemon: listener_of(fd),
            may_spin: has_several_processors(),
        })
    }

    /// Sends a request. It always fits a socket's buffer.
    ///
    /// # Errors
    /// [`Refused::Silent`]: EBADF when the program closed the descriptor, else send(2)'s.
    pub(crate) fn send(&self, ask: Ask) -> Result<(), Refused> {
        let text = ask.to_text();
        let mut bytes = text.as_bytes();
        while !bytes.is_empty() {
            if !self.is_ours() {
                return Err(Refused::Silent(libc::EBADF));
            }
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

    /// As [`Self::send`]. Who is turned away (too many connections) is told so before anything was asked, and cannot
    /// send any more: that is a daemon that is busy, not one that is gone.
    ///
    /// # Errors
    /// As [`Self::send`], and [`Refused::Busy`].
    pub(crate) fn send_or_hear_why(&self, ask: Ask) -> Result<(), Refused> {
        let sent = self.send(ask);
        if let Err(Refused::Silent(libc::EPIPE | libc::ECONNRESET)) = sent
            && let Some(Err(Refused::Busy)) = self.receive_now(&mut Inbox::new())
        {
            return Err(Refused::Busy);
        }
        sent
    }

    /// The next reply. A daemon that sleeps, or is stopped, for `timeout_ns` is taken for dead. One
    /// that only waits for a processor is given more time.
    ///
    /// # Errors
    /// [`Refused::Silent`]: ETIMEDOUT, ECONNRESET, EBADF; and what the reply says.
    pub(crate) fn receive(&self, inbox: &mut Inbox, timeout_ns: u64) -> Result<Grant, Refused> {
        let began = now_ns();
        let awake_until = began + if self.may_spin { SPIN_NS } else { 0 };
        let mut until = began.saturating_add(timeout_ns);
        loop {
            if let Some(answer) = inbox.take_line(read_reply) {
                return answer;
            }
            if !self.is_ours() {
                return Err(Refused::Silent(libc::EBADF));
            }
            let room = inbox.room();
            // SAFETY: a live buffer and its length; the socket does not block.
            let got = unsafe { libc::recv(self.fd, room.as_mut_ptr().cast(), room.len(), 0) };
            match usize::try_from(got) {
                Ok(0) => return Err(Refused::Silent(libc::ECONNRESET)),
                Ok(count) => inbox.put(count),
                Err(_) if errno() == libc::EAGAIN => {
                    let now = now_ns();
                    if now >= until {
                        let waited = now - began;
                        if waited > LONGEST_NS || !waits_for_processor(self.daemon, waited) {
                            return Err(Refused::Silent(libc::ETIMEDOUT));
                        }
                        until = now.saturating_add(timeout_ns);
                    }
                    if now >= awake_until {
                        self.wait(until - now)?;
                    }
                }
                Err(_) if errno() == libc::EINTR => {}
                Err(_) => return Err(Refused::Silent(errno())),
            }
        }
    }

    /// The next reply if it has come as a whole; `None`: not yet.
    pub(crate) fn receive_now(&self, inbox: &mut Inbox) -> Option<Result<Grant, Refused>> {
        if !self.is_ours() {
            return Some(Err(Refused::Silent(libc::EBADF)));
        }
        let room = inbox.room();
        // SAFETY: a live buffer and its length; the socket does not block.
        let got = unsafe { libc::recv(self.fd, room.as_mut_ptr().cast(), room.len(), 0) };
        match usize::try_from(got) {
            Ok(0) => Some(Err(Refused::Silent(libc::ECONNRESET))),
            Ok(count) => {
                inbox.put(count);
                // The daemon writes a reply at once.
                let whole = inbox.take_line(read_reply);
                Some(whole.unwrap_or(Err(Refused::Foreign)))
            }
            Err(_) if matches!(errno(), libc::EAGAIN | libc::EINTR) => None,
            Err(_) => Some(Err(Refused::Silent(errno()))),
        }
    }

    /// Sleeps until there is something to receive, or so long.
    fn wait(&self, most_ns: u64) -> Result<(), Refused> {
        let mut fds = libc::pollfd {
            fd: self.fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let ms = i32::try_from(most_ns.div_ceil(1_000_000)).unwrap_or(i32::MAX);
        // SAFETY: one live pollfd.
        let got = unsafe { libc::poll(&raw mut fds, 1, ms) };
        // A child that a signal handler made meanwhile must not read its parent's answer.
        // SAFETY: no arguments.
        if got < 0 && unsafe { libc::getpid() } != self.owner {
            return Err(Refused::Silent(libc::EINTR));
        }
        Ok(())
    }

    /// Whether the daemon runs or waits for a processor.
    pub(crate) fn daemon_is_runnable(&self) -> bool {
        waits_for_processor(self.daemon, 0)
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.name().is_open()
    }

    /// The calling thread has another table than the one that opened it (unshare(2), CLONE_FILES), or the
    /// program has closed the descriptor.
    pub(crate) fn is_elsewhere(&self) -> bool {
        // SAFETY: no arguments.
        let thread = unsafe { libc::pthread_self() };
        self.thread != thread && !self.is_ours()
    }

    /// What to know it by once it is closed.
    pub(crate) const fn name(&self) -> Name {
        Name {
            fd: self.fd,
            cookie: self.cookie,
        }
    }

    /// Ends it, unless the program has closed the descriptor and uses its number for something else.
    pub(crate) fn close(self) {
        self.name().close();
    }
}

/// A socket under a number; each table of descriptors may have it there, or something else.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Name {
    fd: i32,
    cookie: u64,
}

impl Name {
    fn is_open(self) -> bool {
        cookie_of(self.fd) == Some(self.cookie)
    }

    /// Closes it, if the calling thread's table has it.
    pub(crate) fn close(self) {
        if self.is_open() {
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
    option(fd, libc::SO_COOKIE, 0u64)
}

/// SO_PEERCRED of a client's end: who called listen(2).
fn listener_of(fd: i32) -> libc::pid_t {
    let none = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    option(fd, libc::SO_PEERCRED, none).map_or(0, |peer| peer.pid)
}

fn option<T: Copy>(fd: i32, name: i32, mut value: T) -> Option<T> {
    let mut size = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: plain data and its size.
    let got = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &raw mut size,
        )
    };
    (got == 0).then_some(value)
}

/// On one processor the daemon could not answer while we spin. sysconf(3) would open a file.
fn has_several_processors() -> bool {
    // SAFETY: plain data, valid when zero.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: a live set and its size.
    let got = unsafe { libc::sched_getaffinity(0, mem::size_of_val(&set), &raw mut set) };
    // SAFETY: a live set.
    got == 0 && unsafe { libc::CPU_COUNT(&set) } > 1
}

/// Whether a thread of a process is runnable. It is its first thread that answers, but it may wait for another one to
/// have had a processor. One that is stopped, asleep, waits for a device or has ended does not answer by being waited
/// for.
fn waits_for_processor(pid: libc::pid_t, waited_ns: u64) -> bool {
    let Ok(pid @ 1..) = u64::try_from(pid) else {
        return false;
    };
    if is_runnable(Text::new().word("/proc/").number(pid).word("/stat\0")) {
        return true;
    }
    if waited_ns > OTHERS_NS {
        return false;
    }
    let mut path = Text::new();
    path.word("/proc/").number(pid).word("/task\0");
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a C string, ended above.
    let fd = unsafe { libc::open(path.as_bytes().as_ptr().cast(), flags) };
    if fd < 0 {
        return false;
    }
    let mut entries = Entries([0; ENTRIES]);
    // opendir(3) allocates. One call has as many threads as bursard has.
    // SAFETY: a live buffer and its length.
    let got = unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            fd,
            entries.0.as_mut_ptr(),
            entries.0.len(),
        )
    };
    close(fd);
    let got = usize::try_from(got).unwrap_or(0);
    let entries = entries.0.get(..got).unwrap_or_default();
    threads(entries).any(|thread| {
        let mut path = Text::new();
        path.word("/proc/").number(pid).word("/task/");
        is_runnable(path.number(thread).word("/stat\0"))
    })
}

/// Room for some 60 threads.
const ENTRIES: usize = 2048;

/// As getdents64(2) writes them.
#[repr(align(8))]
struct Entries([u8; ENTRIES]);

/// The numbers among the names of a directory: behind an inode, an offset, a length of two bytes and a type.
fn threads(entries: &[u8]) -> impl Iterator<Item = u64> {
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let mut rest = entries;
    std::iter::from_fn(move || {
        let &[low, high] = rest.get(LENGTH..LENGTH + 2)? else {
            return None;
        };
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let name = rest.get(NAME..length)?;
        rest = rest.get(length..)?;
        let digits = name.iter().take_while(|byte| byte.is_ascii_digit());
        let number = digits.fold(0u64, |sum, byte| {
            sum.wrapping_mul(10).wrapping_add((byte - b'0').into())
        });
        Some(number)
    })
    .filter(|&number| number > 0)
}

/// proc_pid_stat(5): the state stands behind the name in brackets.
fn is_runnable(path: &Text) -> bool {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a C string, ended by the caller.
    let fd = unsafe { libc::open(path.as_bytes().as_ptr().cast(), flags) };
    if fd < 0 {
        return false;
    }
    let mut stat = [0u8; 128];
    // SAFETY: a live buffer and its length.
    let got = unsafe { libc::read(fd, stat.as_mut_ptr().cast(), stat.len()) };
    close(fd);
    let Some(stat) = usize::try_from(got).ok().and_then(|got| stat.get(..got)) else {
        return false;
    };
    let name = stat.iter().rposition(|&byte| byte == b')');
    name.and_then(|at| stat.get(at.saturating_add(2))) == Some(&b'R')
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// The test's own thread sleeps, as a bursard that waits for its query thread does.
    #[test]
    fn a_process_of_which_any_thread_is_runnable_waits_for_a_processor() {
        static ENOUGH: AtomicBool = AtomicBool::new(false);
        let own = i32::try_from(std::process::id()).unwrap();
        let busy = std::thread::spawn(|| {
            while !ENOUGH.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        assert!(waits_for_processor(own, 0));
        ENOUGH.store(true, Ordering::Relaxed);
        busy.join().unwrap();
        assert!(!waits_for_processor(0, 0));
    }

    #[test]
    fn the_threads_of_a_directory_are_its_numbers() {
        let mut entries = Vec::new();
        for name in [".", "..", "17", "4194304"] {
            let length = (19 + name.len() + 1).next_multiple_of(8);
            let mut entry = vec![0u8; length];
            entry[16..18].copy_from_slice(&u16::try_from(length).unwrap().to_ne_bytes());
            entry[19..19 + name.len()].copy_from_slice(name.as_bytes());
            entries.extend(entry);
        }
        assert_eq!(threads(&entries).collect::<Vec<_>>(), [17, 4_194_304]);
        entries.truncate(70);
        assert_eq!(threads(&entries).count(), 0);
    }
}
