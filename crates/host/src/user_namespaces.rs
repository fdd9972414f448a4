// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who owns a process in a user namespace, as the kernel half has it (its userns.bpf.h): the owner
//! of the first namespace below ours, from outside in, that is not root's (ioctl_ns(2)); in root's own he
//! himself. A rootless container's 65,536 users are one to the machine.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use bursar_model::{Pid, Uid};
use rustix::fs::{AtFlags, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::proc::UidMap;
use crate::{HostError, Peer, Proc, ProcessQuery};

/// include/uapi/linux/pidfd.h, since 6.11: _IO(0xff, 9).
const PIDFD_GET_USER_NAMESPACE: libc::c_ulong = 0xff09;
/// include/uapi/linux/nsfs.h: _IO(0xb7, 2) and _IO(0xb7, 4).
const NS_GET_PARENT: libc::c_ulong = 0xb702;
const NS_GET_OWNER_UID: libc::c_ulong = 0xb704;
/// kernel/user_namespace.c refuses deeper nesting than 32.
const DEEPEST: usize = 33;

/// Who owns a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsernsOwner {
    /// His uid outside.
    pub uid: Uid,
    /// One of a range that a namespace of root's shows as others: nobody has it outside.
    pub is_shifted: bool,
}

impl UsernsOwner {
    /// In no user namespace of another owner.
    pub const fn itself(uid: Uid) -> Self {
        Self {
            uid,
            is_shifted: false,
        }
    }
}

/// It was asked where it is, before 6.11, and has not said so in time; or there was no descriptor or memory to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unresponsive;

/// Who owns the first user namespace around somebody that is not root's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerOwner {
    /// This user.
    User(Uid),
    /// There is none below ours, or the kernel does not say.
    Nobody,
    /// It cannot be known any more: he has ended.
    Gone,
}

/// What a namespace says about those in it.
#[derive(Debug, Clone, Copy, Default)]
struct Around {
    /// Who made the outermost that is not root's; `None`: they are all root's.
    owner: Option<Uid>,
    /// The innermost of root's around who answers.
    home: Option<u64>,
}

/// Namespaces by inode. For one look at the machine: numbers come again.
#[derive(Debug)]
pub struct UserNamespaces {
    own: u64,
    known: BTreeMap<u64, Around>,
    /// `None`: nobody is in there by whom its map could be read.
    maps: BTreeMap<u64, Option<UidMap>>,
    /// What is said of uids in those.
    shifts_in_doubt: bool,
}

impl UserNamespaces {
    /// Nothing known yet but our own namespace.
    ///
    /// # Errors
    /// When /proc does not say which that is.
    pub fn new(proc: &Proc) -> Result<Self, HostError> {
        let name = "self/ns/user";
        let own = statat(proc.directory(), name, AtFlags::empty())
            .map_err(|errno| HostError::new("look at", &proc.path(name), errno))?;
        Ok(Self {
            own: own.st_ino,
            known: BTreeMap::new(),
            maps: BTreeMap::new(),
            shifts_in_doubt: false,
        })
    }

    /// Takes uids in a namespace of root's whose map cannot be read for shifted: for who is killed by it.
    #[must_use]
    pub const fn shifting_in_doubt(mut self) -> Self {
        self.shifts_in_doubt = true;
        self
    }

    /// Who owns `pid`, or a thread, whose uid outside is `uid`. Who is gone, or of whom the kernel does not
    /// say where he is, owns itself. From 6.11 on nobody has to be asked.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn owner_of(
        &mut self,
        proc: &Proc,
        pid: Pid,
        uid: Uid,
        ask: &mut impl ProcessQuery,
    ) -> Result<UsernsOwner, Unresponsive> {
        let around = self.around(pid, ask)?;
        let uid = around.owner.unwrap_or(uid);
        let is_shifted = around
            .home
            .is_some_and(|home| self.is_shifted(proc, home, pid, uid, ask));
        Ok(UsernsOwner { uid, is_shifted })
    }

    /// Who owns the first user namespace around who connected that is not root's.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn owner_of_peer(
        &mut self,
        proc: &Proc,
        peer: &Peer,
        ask: &mut impl ProcessQuery,
    ) -> Result<PeerOwner, Unresponsive> {
        let Some(namespace) = namespace_of_peer(proc, peer, ask)? else {
            return Ok(PeerOwner::Gone);
        };
        let owner = self.around_namespace(Some(namespace))?.owner;
        Ok(owner.map_or(PeerOwner::Nobody, PeerOwner::User))
    }

    fn around(&mut self, pid: Pid, ask: &mut impl ProcessQuery) -> Result<Around, Unresponsive> {
        let namespace = namespace_of(pid, ask)?;
        self.around_namespace(namespace)
    }

    fn around_namespace(&mut self, namespace: Option<OwnedFd>) -> Result<Around, Unresponsive> {
        let inode = namespace.as_ref().and_then(|it| fstat(it).ok());
        let inode = inode.map(|it| it.st_ino).filter(|&it| it != self.own);
        let (Some(namespace), Some(inode)) = (namespace, inode) else {
            return Ok(Around::default());
        };
        if let Some(known) = self.known.get(&inode) {
            return Ok(*known);
        }
        let around = self.look_outwards(namespace, inode)?.unwrap_or_default();
        self.known.insert(inode, around);
        Ok(around)
    }

    /// `None`: the kernel does not say.
    fn look_outwards(
        &self,
        mut namespace: OwnedFd,
        mut inode: u64,
    ) -> Result<Option<Around>, Unresponsive> {
        let mut around = Around {
            owner: None,
            home: Some(inode),
        };
        for _ in 0..DEEPEST {
            let owner = owner_of_peer(&namespace);
            let parent = unless_short(parent_of(&namespace))?;
            let stat = parent.as_ref().and_then(|it| fstat(it).ok());
            let (Some(owner), Some(parent), Some(stat)) = (owner, parent, stat) else {
                return Ok(None);
            };
            (namespace, inode) = (parent, stat.st_ino);
            if owner.get() != 0 {
                around.owner = Some(owner);
                around.home = Some(inode);
            }
            if inode == self.own {
                around.home = around.home.filter(|&home| home != self.own);
                return Ok(Some(around));
            }
        }
        Ok(None)
    }

    fn is_shifted(
        &mut self,
        proc: &Proc,
        home: u64,
        pid: Pid,
        uid: Uid,
        ask: &mut impl ProcessQuery,
    ) -> bool {
        let map = self.maps.entry(home).or_insert_with(|| {
            let others = || proc.pids().into_iter().flatten().filter_map(Result::ok);
            std::iter::once(pid)
                .chain(others())
                .find_map(|pid| map_of(proc, pid, home, ask))
        });
        map.as_ref()
            .map_or(self.shifts_in_doubt, |map| map.shifts(uid))
    }
}

fn inode_of(pid: Pid, ask: &mut impl ProcessQuery) -> Option<u64> {
    let namespace = namespace_of(pid, ask).ok()??;
    Some(fstat(namespace).ok()?.st_ino)
}

/// The map of the namespace `inode`, if `pid` is in that.
fn map_of(proc: &Proc, pid: Pid, inode: u64, ask: &mut impl ProcessQuery) -> Option<UidMap> {
    let mut is_there = || inode_of(pid, ask) == Some(inode);
    let map = is_there().then(|| proc.uid_map(pid).ok().flatten())??;
    is_there().then_some(map)
}

/// `None`: it is gone.
fn namespace_of(pid: Pid, ask: &mut impl ProcessQuery) -> Result<Option<OwnedFd>, Unresponsive> {
    or_by_link(by_pidfd(pid), pid, ask)
}

/// `None`: he is gone. Unlike by a number, nobody else is asked in his place.
fn namespace_of_peer(
    proc: &Proc,
    peer: &Peer,
    ask: &mut impl ProcessQuery,
) -> Result<Option<OwnedFd>, Unresponsive> {
    let found = match peer.pidfd() {
        Ok(Some(pidfd)) => ask_pidfd(pidfd),
        Ok(None) => by_pidfd(peer.pid()),
        Err(errno) => Err(errno),
    };
    let namespace = or_by_link(found, peer.pid(), ask)?;
    Ok(namespace.filter(|_| peer.has_his_number(proc)))
}

fn or_by_link(
    found: Result<OwnedFd, Errno>,
    pid: Pid,
    ask: &mut impl ProcessQuery,
) -> Result<Option<OwnedFd>, Unresponsive> {
    match found {
        Err(Errno::NOTTY | Errno::INVAL | Errno::OPNOTSUPP) => {
            unless_short(ask.ask(pid, by_link).ok_or(Unresponsive)?)
        }
        found => unless_short(found),
    }
}

/// `None`: it is gone. That there was no descriptor or memory to ask says nothing of it.
fn unless_short(found: Result<OwnedFd, Errno>) -> Result<Option<OwnedFd>, Unresponsive> {
    match found {
        Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Err(Unresponsive),
        found => Ok(found.ok()),
    }
}

/// Unlike a link of /proc it does not wait for one in the middle of an execve.
fn by_pidfd(pid: Pid) -> Result<OwnedFd, Errno> {
    let number = i32::try_from(pid.get())
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    // PIDFD_THREAD, since 6.9, which is O_EXCL: a first thread may have ended before the others.
    let flags = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());
    let pidfd = pidfd_open(number.ok_or(Errno::SRCH)?, flags)?;
    ask_pidfd(pidfd.as_fd())
}

fn ask_pidfd(pidfd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: takes no argument and returns a descriptor or -1.
    opened(unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_USER_NAMESPACE, 0) })
}

fn by_link(proc: &Proc, pid: Pid) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let name = format!("{pid}/ns/user");
    openat(proc.directory(), name, flags, Mode::empty())
}

fn opened(fd: libc::c_int) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    // SAFETY: fresh, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn parent_of(namespace: &OwnedFd) -> Result<OwnedFd, Errno> {
    // SAFETY: takes no argument and returns a descriptor or -1.
    opened(unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) })
}

fn owner_of_peer(namespace: &OwnedFd) -> Option<Uid> {
    let mut uid: libc::uid_t = 0;
    // SAFETY: writes one uid_t to a live local.
    let done = unsafe {
        libc::ioctl(
            namespace.as_raw_fd(),
            NS_GET_OWNER_UID,
            std::ptr::from_mut(&mut uid),
        )
    };
    (done == 0).then(|| Uid::new(uid))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::Patient;
    use crate::peer::tests::made_by_a_child;

    const SOMEBODY: Uid = Uid::new(60_001);

    /// Ended with the test.
    struct Unshared(Child);

    impl Drop for Unshared {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    impl Unshared {
        fn new(arguments: &[&str]) -> Self {
            let mut command = Command::new("unshare");
            command.args(arguments).args(["--user", "sleep", "60"]);
            Self(command.spawn().unwrap())
        }

        /// Once it is in there.
        fn owner_of(&self, proc: &Proc) -> UsernsOwner {
            let pid = Pid::new(self.0.id());
            let own = UserNamespaces::new(proc).unwrap().own;
            let deadline = Instant::now() + Duration::from_secs(5);
            let is_in = || {
                let comm = proc.comm(pid).unwrap().unwrap();
                comm.as_bytes() == b"sleep" && inode_of(pid, &mut Patient(proc)) != Some(own)
            };
            while !is_in() {
                assert!(Instant::now() < deadline);
                std::thread::sleep(Duration::from_millis(5));
            }
            UserNamespaces::new(proc)
                .unwrap()
                .owner_of(proc, pid, SOMEBODY, &mut Patient(proc))
                .unwrap()
        }
    }

    /// Nobody answers him.
    struct Unheard;

    impl ProcessQuery for Unheard {
        fn ask_each<T, Q>(&mut self, _: Vec<Pid>, _: Q) -> Vec<(Pid, T)>
        where
            T: Send + 'static,
            Q: Fn(&Proc, Pid) -> T + Send + Sync + 'static,
        {
            Vec::new()
        }
    }

    #[test]
    fn who_does_not_say_where_he_is_is_not_taken_for_one_who_is_gone() {
        let own = Pid::new(std::process::id());
        let before_6_11 = || Err(Errno::NOTTY);
        let silent = or_by_link(before_6_11(), own, &mut Unheard);
        assert_eq!(silent.map(|_| ()), Err(Unresponsive));
        let proc = Proc::host().unwrap();
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            let short = or_by_link(Err(errno), own, &mut Patient(&proc));
            assert_eq!(short.map(|_| ()), Err(Unresponsive), "{errno}");
        }
        let of = |pid| or_by_link(before_6_11(), pid, &mut Patient(&proc)).unwrap();
        assert!(of(own).is_some());
        assert!(of(Pid::new(1 << 30)).is_none());
        assert!(
            or_by_link(Err(Errno::SRCH), own, &mut Unheard)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn our_own_namespace_has_no_owner_to_speak_of() {
        let proc = Proc::host().unwrap();
        let mut namespaces = UserNamespaces::new(&proc).unwrap();
        for pid in [std::process::id(), 1 << 30] {
            let pid = Pid::new(pid);
            let mut ask = Patient(&proc);
            let answer = namespaces.owner_of(&proc, pid, SOMEBODY, &mut ask);
            assert_eq!(answer, Ok(UsernsOwner::itself(SOMEBODY)));
        }
        let of_our_own = proc.has_our_users(Pid::new(std::process::id()));
        assert_eq!(of_our_own.unwrap(), Some(true));
        assert_eq!(proc.has_our_users(Pid::new(1 << 30)).unwrap(), None);
        assert!(namespaces.known.is_empty());
    }

    #[test]
    fn who_connected_and_is_gone_is_not_taken_for_one_in_no_namespace() {
        let proc = Proc::host().unwrap();
        let mut ask = Patient(&proc);
        let mut namespaces = UserNamespaces::new(&proc).unwrap();
        let (stream, _theirs, mut child) = made_by_a_child("owner", &["sleep", "60"]);
        let before = Peer::of(&stream).unwrap();
        let mut owner_of_peer = |peer| namespaces.owner_of_peer(&proc, peer, &mut ask);
        assert_eq!(owner_of_peer(&before), Ok(PeerOwner::Nobody));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(owner_of_peer(&before), Ok(PeerOwner::Gone));
        assert_eq!(
            owner_of_peer(&Peer::of(&stream).unwrap()),
            Ok(PeerOwner::Gone)
        );
    }

    #[test]
    fn a_namespace_of_ours_is_ours_and_in_roots_everybody_answers_for_himself() {
        let proc = Proc::host().unwrap();
        let child = Unshared::new(&[]);
        let own = Uid::new(rustix::process::getuid().as_raw());
        let expected = if own.get() == 0 { SOMEBODY } else { own };
        let answer = child.owner_of(&proc);
        assert_eq!((answer.uid, answer.is_shifted), (expected, false));
        let pid = Pid::new(child.0.id());
        assert_eq!(proc.has_our_users(pid).unwrap(), Some(false));
        let inode = |it: Result<OwnedFd, Errno>| fstat(it.unwrap()).unwrap().st_ino;
        let namespace = by_pidfd(pid);
        if !matches!(namespace, Err(Errno::NOTTY | Errno::INVAL)) {
            assert_eq!(inode(namespace), inode(by_link(&proc, pid)));
        }
    }
}
