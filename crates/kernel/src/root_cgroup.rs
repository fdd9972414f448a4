// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The root of the hierarchy of control groups of version 2, where programs see the events of all sockets.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::Error;

/// kernel/cgroup/cgroup.c, `cgroup_setup_root()`.
const ROOT_INODE: u64 = 1;

const WHAT: &str = "programs of the root control group";

/// Opens it where it is mounted. A mount of our own would do as well, and our unit may not make any.
pub(crate) fn open() -> Result<File, Error> {
    let unsupported = |reason| Error::Unsupported {
        object: WHAT,
        reason,
    };
    let mounts = fs::read("/proc/self/mountinfo")
        .map_err(|error| unsupported(format!("read mountinfo: {error}")))?;
    let Some(path) = mounted_at(&mounts) else {
        let missing =
            "cgroup2 is mounted nowhere (mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified)";
        return Err(unsupported(missing.to_owned()));
    };
    let failed = |error| unsupported(format!("open {}: {error}", path.display()));
    let root = File::open(&path).map_err(failed)?;
    // In a namespace of control groups the mount's root is a group of the machine's.
    let is_the_machines = root.metadata().map_err(failed)?.ino() == ROOT_INODE;
    is_the_machines.then_some(root).ok_or_else(|| {
        unsupported(
            "the machine's root control group cannot be seen from here (a container)".to_owned(),
        )
    })
}

/// The first mount of its root in a mountinfo (proc_pid_mountinfo(5)).
fn mounted_at(mountinfo: &[u8]) -> Option<PathBuf> {
    const ROOT: usize = 3;
    const PATH: usize = 4;
    let lines = mountinfo.split(|&byte| byte == b'\n');
    lines
        .map(|line| line.split(|&byte| byte == b' ').collect::<Vec<_>>())
        .find(|fields| {
            let dash = fields.iter().position(|&it| it == b"-");
            let kind = dash.and_then(|at| fields.get(at.saturating_add(1)));
            kind == Some(&&b"cgroup2"[..]) && fields.get(ROOT) == Some(&&b"/"[..])
        })
        .and_then(|fields| {
            fields
                .get(PATH)
                .map(|it| PathBuf::from(OsStr::from_bytes(it)))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_found_beside_version_1() {
        let both = b"31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                     33 25 0:28 /part /mnt rw - cgroup2 cgroup2 rw\n\
                     32 25 0:28 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n";
        let found = mounted_at(both);
        assert_eq!(found, Some(PathBuf::from("/sys/fs/cgroup/unified")));
    }

    #[test]
    fn there_may_be_none() {
        let one = b"31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(mounted_at(one), None);
    }
}
