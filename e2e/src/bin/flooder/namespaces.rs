// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Namespaces, kept with no process in them where the kernel lets us: by a descriptor.

use std::ffi::CString;

use crate::{Kept, errno, or_errno};

/// What stays of one.
enum KeptBy {
    /// A descriptor of this file below /proc/self/ns.
    File(&'static str),
    /// A process: it is in it (`user`), or its children would be (`pid`).
    Child,
}

/// Its flag of unshare(2), and how it is kept.
fn kind(name: &str) -> Option<(i32, KeptBy)> {
    const CLONE_NEWTIME: i32 = 0x80;
    Some(match name {
        "net" => (libc::CLONE_NEWNET, KeptBy::File("net")),
        "mnt" => (libc::CLONE_NEWNS, KeptBy::File("mnt")),
        "ipc" => (libc::CLONE_NEWIPC, KeptBy::File("ipc")),
        "uts" => (libc::CLONE_NEWUTS, KeptBy::File("uts")),
        "cgroup" => (libc::CLONE_NEWCGROUP, KeptBy::File("cgroup")),
        "time" => (CLONE_NEWTIME, KeptBy::File("time_for_children")),
        "pid" => (libc::CLONE_NEWPID, KeptBy::Child),
        "user" => (libc::CLONE_NEWUSER, KeptBy::Child),
        _ => return None,
    })
}

/// One more of this kind.
pub(crate) fn keep_one(kept: &mut Kept, name: &str) -> Result<(), i32> {
    let (flag, kept_by) = kind(name).ok_or(libc::EINVAL)?;
    match kept_by {
        KeptBy::File(file) => {
            // SAFETY: plain numbers; we have one thread.
            or_errno(unsafe { libc::unshare(flag) })?;
            let path = CString::new(format!("/proc/self/ns/{file}")).unwrap_or_default();
            // SAFETY: a live string.
            let fd =
                or_errno(unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) })?;
            kept.files.push(fd);
            Ok(())
        }
        KeptBy::Child => child_in(kept, flag),
    }
}

/// A child that makes it and stays; what it was answered comes through a pipe.
fn child_in(kept: &mut Kept, flag: i32) -> Result<(), i32> {
    let mut pipe = [0; 2];
    let mut answer = 0_i32;
    let size = size_of::<i32>();
    // SAFETY: a live array of two; the child makes system calls only; live integers and their size.
    unsafe {
        or_errno(libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC))?;
        let child = libc::fork();
        if child == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            let answer = match libc::unshare(flag) {
                0 => 0,
                _ => errno(),
            };
            libc::write(pipe[1], (&raw const answer).cast(), size);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
            loop {
                libc::pause();
            }
        }
        libc::close(pipe[1]);
        let heard = or_errno(child)
            .map(|child| kept.children.push(child))
            .map(|()| libc::read(pipe[0], (&raw mut answer).cast(), size));
        libc::close(pipe[0]);
        heard?;
    }
    match answer {
        0 => Ok(()),
        errno => Err(errno),
    }
}

/// It goes with its namespace.
pub(crate) fn mount_one() -> Result<(), i32> {
    let place = c"/tmp".as_ptr();
    let (none, nothing) = (std::ptr::null(), std::ptr::null());
    // SAFETY: live strings; what is null may be.
    or_errno(unsafe { libc::mount(place, place, none, libc::MS_BIND, nothing) }).map(drop)
}
