// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file that a process runs: /proc/PID/exe.

use std::fs;
use std::os::unix::fs::MetadataExt;

use bursar_model::Pid;
use rustix::fs::{AtFlags, StatxFlags, makedev, statx};

use crate::Proc;

/// The file that a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Executable {
    /// Of its file system, as `st_dev` has it.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// It is root's, and nobody else may write to it.
    pub is_roots: bool,
    /// The process is in our user namespace.
    pub in_our_user_namespace: bool,
}

impl Proc {
    /// The file that a process runs; `None` when that cannot be told. The process can make it last for ever
    /// ([`crate::ProcessQuery`]); no file server is asked (`AT_STATX_DONT_SYNC`), for it may be gone, or the user's own.
    pub fn executable(&self, pid: Pid) -> Option<Executable> {
        let name = format!("{pid}/exe");
        let how = AtFlags::STATX_DONT_SYNC;
        let found = statx(self.directory(), name, how, StatxFlags::BASIC_STATS).ok()?;
        Some(Executable {
            device: makedev(found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            is_roots: found.stx_uid == 0 && found.stx_mode & 0o022 == 0,
            in_our_user_namespace: is_in_our_user_namespace(pid),
        })
    }
}

fn is_in_our_user_namespace(pid: Pid) -> bool {
    let namespace = |whose: &str| fs::metadata(format!("/proc/{whose}/ns/user")).map(|it| it.ino());
    let (Ok(its), Ok(ours)) = (namespace(&pid.to_string()), namespace("self")) else {
        return false;
    };
    its == ours
}
