// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who answers for a process in a user namespace: the owner of the outermost one below ours
//! (ioctl_ns(2)). A rootless container's 65,536 users are one to the machine.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use bursar_model::{Pid, Uid};
use rustix::fs::{AtFlags, Mode, OFlags, fstat, statat};
use rustix::io::Errno;

use crate::{HostError, Proc};

/// include/uapi/linux/nsfs.h: _IO(0xb7, 2) and _IO(0xb7, 4).
const NS_GET_PARENT: libc::c_ulong = 0xb702;
const NS_GET_OWNER_UID: libc::c_ulong = 0xb704;
/// kernel/user_namespace.c refuses deeper nesting than 32.
const DEEPEST: usize = 33;

/// Owners of namespaces by inode. For one look at the machine: numbers come again.
#[derive(Debug)]
pub struct UserNamespaces {
    own: u64,
    owners: BTreeMap<u64, Option<Uid>>,
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
            owners: BTreeMap::new(),
        })
    }

    /// Who owns the outermost user namespace that `pid` is in, below ours. `None`: it is in ours, or
    /// gone, or the kernel does not say.
    pub fn owner_of(&mut self, proc: &Proc, pid: Pid) -> Option<Uid> {
        let name = format!("{pid}/ns/user");
        let inode = statat(proc.directory(), &name, AtFlags::empty())
            .ok()?
            .st_ino;
        if inode == self.own {
            return None;
        }
        if let Some(known) = self.owners.get(&inode) {
            return *known;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let namespace = rustix::fs::openat(proc.directory(), &name, flags, Mode::empty()).ok()?;
        // It may have moved on between the two.
        let inode = fstat(&namespace).ok()?.st_ino;
        let owner = self.outermost(namespace);
        self.owners.insert(inode, owner);
        owner
    }

    fn outermost(&self, mut namespace: OwnedFd) -> Option<Uid> {
        for _ in 0..DEEPEST {
            let parent = parent_of(&namespace).ok()?;
            if fstat(&parent).ok()?.st_ino == self.own {
                return owner_of(&namespace);
            }
            namespace = parent;
        }
        None
    }
}

fn parent_of(namespace: &OwnedFd) -> Result<OwnedFd, Errno> {
    // SAFETY: takes no argument and returns a descriptor or -1.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    // SAFETY: fresh, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn owner_of(namespace: &OwnedFd) -> Option<Uid> {
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
    use super::*;

    #[test]
    fn our_own_namespace_has_no_owner_to_speak_of() {
        let proc = Proc::host().unwrap();
        let mut namespaces = UserNamespaces::new(&proc).unwrap();
        assert_eq!(
            namespaces.owner_of(&proc, Pid::new(std::process::id())),
            None
        );
        assert_eq!(namespaces.owner_of(&proc, Pid::new(1 << 30)), None);
        let of_our_own = proc.has_our_users(Pid::new(std::process::id()));
        assert_eq!(of_our_own.unwrap(), Some(true));
        assert_eq!(proc.has_our_users(Pid::new(1 << 30)).unwrap(), None);
        assert!(namespaces.owners.is_empty());
    }

    #[test]
    fn a_namespace_of_ours_is_ours() {
        let mut child = std::process::Command::new("unshare")
            .args(["--user", "sleep", "60"])
            .spawn()
            .unwrap();
        let proc = Proc::host().unwrap();
        let pid = Pid::new(child.id());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        let owner = loop {
            let found = UserNamespaces::new(&proc).unwrap().owner_of(&proc, pid);
            if found.is_some() || std::time::Instant::now() > deadline {
                break found;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        assert_eq!(proc.has_our_users(pid).unwrap(), Some(false));
        let _ = child.kill();
        child.wait().unwrap();
        let own = Uid::new(rustix::process::getuid().as_raw());
        assert_eq!(owner, Some(own));
    }
}
