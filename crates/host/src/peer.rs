// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who connected to a local socket (unix(7)): the kernel's word. He may have ended since and left the connection to
//! another, and his number may be somebody else's by now.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use bursar_model::{Pid, Uid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;

use crate::Proc;

/// include/uapi/asm-generic/socket.h, Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

/// As of connecting.
#[derive(Debug)]
pub struct Peer {
    uid: Uid,
    pid: Pid,
    hold: Hold,
}

/// What tells him from the next one with his number.
#[derive(Debug)]
enum Hold {
    /// A pidfd of him.
    Process(OwnedFd),
    /// He has ended.
    Gone,
    /// Nothing, before 6.5.
    Number,
}

impl Peer {
    /// Who made the connection that was accepted as `socket`.
    ///
    /// # Errors
    /// What getsockopt(2) says of what is no connection.
    pub fn of(socket: impl AsFd) -> Result<Self, Errno> {
        let socket = socket.as_fd();
        let credentials = socket_peercred(socket)?;
        let pid = u32::try_from(credentials.pid.as_raw_nonzero().get()).unwrap_or(0);
        let hold = match pidfd_of(socket) {
            Ok(pidfd) => Hold::Process(pidfd),
            Err(Errno::NOPROTOOPT) => Hold::Number,
            Err(_) => Hold::Gone,
        };
        Ok(Self {
            uid: Uid::new(credentials.uid.as_raw()),
            pid: Pid::new(pid),
            hold,
        })
    }

    /// His effective uid.
    pub const fn uid(&self) -> Uid {
        self.uid
    }

    /// The number that he had.
    pub const fn pid(&self) -> Pid {
        self.pid
    }

    /// He himself; `Err`: he has ended, `Ok(None)`: this kernel knows his number only.
    pub(crate) fn pidfd(&self) -> Result<Option<BorrowedFd<'_>>, Errno> {
        match &self.hold {
            Hold::Process(pidfd) => Ok(Some(pidfd.as_fd())),
            Hold::Gone => Err(Errno::SRCH),
            Hold::Number => Ok(None),
        }
    }

    /// Whether he still runs, so that what was asked by his number before was said of him. Where there is nothing but
    /// the number: whether it is that of a process whose real user he was.
    pub(crate) fn has_his_number(&self, proc: &Proc) -> bool {
        match &self.hold {
            Hold::Process(pidfd) => {
                let at_once = Timespec::default();
                let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
                poll(&mut fds, Some(&at_once)) == Ok(0)
            }
            Hold::Gone => false,
            Hold::Number => {
                let status = proc.status(self.pid).ok().flatten();
                status.is_some_and(|it| !it.is_dead && it.uid == self.uid)
            }
        }
    }
}

fn pidfd_of(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut pidfd: libc::c_int = -1;
    let mut size = libc::socklen_t::try_from(size_of_val(&pidfd)).unwrap_or(0);
    // SAFETY: a live descriptor, a live integer of that size and its size.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut size,
        )
    };
    if done != 0 || pidfd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    // SAFETY: fresh, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};

    use super::*;

    /// A connection that a child made, which executes `program` then; both ends of it are ours.
    pub(crate) fn made_by_a_child(name: &str, program: &[&str]) -> (UnixStream, OwnedFd, Child) {
        let path = std::env::temp_dir().join(format!("bursar-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let theirs = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let address = SocketAddrUnix::new(&path).unwrap();
        let shared = theirs.try_clone().unwrap();
        let mut command = Command::new(program[0]);
        command.args(&program[1..]);
        // SAFETY: one system call in the child.
        unsafe { command.pre_exec(move || Ok(connect(&shared, &address)?)) };
        let child = command.spawn().unwrap();
        let (stream, _) = listener.accept().unwrap();
        std::fs::remove_file(&path).unwrap();
        (stream, theirs, child)
    }

    #[test]
    fn who_connected_and_ended_has_his_number_no_more_though_the_connection_lives() {
        let proc = Proc::host().unwrap();
        let (stream, _theirs, mut child) = made_by_a_child("peer", &["sleep", "60"]);
        let peer = Peer::of(&stream).unwrap();
        assert_eq!(peer.pid(), Pid::new(child.id()));
        assert!(peer.has_his_number(&proc));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!peer.has_his_number(&proc));
        let later = Peer::of(&stream).unwrap();
        assert_eq!(later.pid(), peer.pid());
        assert!(!later.has_his_number(&proc));
    }

    #[test]
    fn where_there_is_only_a_number_it_is_his_if_its_user_is() {
        let proc = Proc::host().unwrap();
        let own = Uid::new(rustix::process::getuid().as_raw());
        let other = Uid::new(own.get() + 1);
        let here = Pid::new(std::process::id());
        for (pid, uid, expected) in [
            (here, own, true),
            (here, other, false),
            (Pid::new(1 << 30), own, false),
        ] {
            let hold = Hold::Number;
            let peer = Peer { uid, pid, hold };
            assert_eq!(peer.has_his_number(&proc), expected, "{peer:?}");
        }
    }
}
