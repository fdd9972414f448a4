// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file behind a mapping of a process that somebody else runs, asked for by root.
//!
//! Its name is its user's choice: it may by now be a link to anything. So nothing is opened before it is
//! known what it is: first a descriptor that only names the file (`O_PATH`), then its type, its inode and
//! the file system it is on, all without asking that file system, which may be a program of the user's
//! (FUSE) that never answers. Only files of file systems that our own mount namespace has are opened, and
//! none of FUSE: whatever a user mounts himself, overlays included, is seen in his own namespace only, or
//! mounted for him by fusermount(1).

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bursar_host::{Mount, Mounts, Proc};
use bursar_model::Pid;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat, openat2, statx,
};

use crate::mapped::Mapped;

/// A larger file is not read, bytes.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Bytes read between two looks at whether somebody wants an end.
const STEP: u64 = 4 << 20;

/// What is in the file behind a mapping; `None` where it cannot be had without waiting for somebody, or
/// `stops` says so. Read by steps.
pub(crate) fn read(pid: Pid, mapped: &Mapped, stops: &dyn Fn() -> bool) -> Option<Vec<u8>> {
    let found = of_mapping(pid, mapped).or_else(|| of_name(pid, mapped))?;
    // By its descriptor it is the same file. Not blocking: its owner may hold a lease on it.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", found.as_raw_fd()))
        .ok()?;
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < MAX_FILE_BYTES {
        let count = (&file).take(STEP).read_to_end(&mut bytes).ok()?;
        if stops() {
            return None;
        }
        if count == 0 {
            break;
        }
    }
    Some(bytes)
}

/// By the mapping itself: the file that is mapped, whatever its name is by now, and if it has none. Needs
/// CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE, and the process.
fn of_mapping(pid: Pid, mapped: &Mapped) -> Option<OwnedFd> {
    let link = format!("/proc/{pid}/map_files/{:x}-{:x}", mapped.start, mapped.end);
    let found = openat(CWD, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    is_fit(&found, pid, mapped, false).then_some(found)
}

/// By its name, in the process's tree of files and, since that goes with the process, in our own. The
/// kernel prints names without links, so none is followed, and directories are asked only for what the
/// kernel remembers: they may be a user's file server as well.
fn of_name(pid: Pid, mapped: &Mapped) -> Option<OwnedFd> {
    let trees = [format!("/proc/{pid}/root"), "/".to_owned()];
    trees.iter().find_map(|tree| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let tree = openat(CWD, tree, flags | OFlags::DIRECTORY, Mode::empty()).ok()?;
        let resolve = ResolveFlags::IN_ROOT
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::CACHED;
        let name = Path::new(&mapped.name);
        let found = openat2(tree, name, flags, Mode::empty(), resolve).ok()?;
        is_fit(&found, pid, mapped, true).then_some(found)
    })
}

/// Whether it is the file that was mapped, and can be read without waiting for anybody. `by_name`: then
/// the device must be the mapping's too; a mapping's own file may be an overlay's, whose mappings have
/// the device of what lies below.
fn is_fit(file: &OwnedFd, pid: Pid, mapped: &Mapped, by_name: bool) -> bool {
    let Some(known) = known_of(file) else {
        return false;
    };
    known_is_fit(&known, mapped) && {
        let Ok(proc) = Proc::host() else { return false };
        let Ok(ours) = Mounts::read(&proc) else {
            return false;
        };
        let own = Pid::new(std::process::id());
        // Mounts' numbers are given once at a time, whichever namespace they are in.
        let mount = [own, pid]
            .into_iter()
            .find_map(|pid| Mounts::find_of(&proc, pid, known.stx_mnt_id).ok()?);
        mount.is_some_and(|mount| {
            answers(&mount, &ours) && (!by_name || mount.device == mapped.device)
        })
    }
}

/// What the kernel knows of a file without asking its file system.
fn known_of(file: impl AsFd) -> Option<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::SIZE | StatxFlags::MNT_ID;
    let known = statx(file, c"", flags, wanted).ok()?;
    let mask = StatxFlags::from_bits_retain(known.stx_mask);
    mask.contains(wanted).then_some(known)
}

fn known_is_fit(known: &Statx, mapped: &Mapped) -> bool {
    FileType::from_raw_mode(known.stx_mode.into()) == FileType::RegularFile
        && known.stx_ino == mapped.inode
        && known.stx_size <= MAX_FILE_BYTES
}

/// Whether a file system can be asked: root's own tree has it, and it is no FUSE.
fn answers(mount: &Mount, ours: &Mounts) -> bool {
    let is_fuse = |kind: &str| kind.starts_with("fuse");
    let mut seen = ours.iter().filter(|it| it.device == mount.device);
    let first = seen.next();
    first.is_some_and(|it| !is_fuse(&it.filesystem)) && !is_fuse(&mount.filesystem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(line: &str) -> Mount {
        let mounts = Mounts::parse(line.as_bytes()).unwrap();
        mounts.iter().next().unwrap().clone()
    }

    #[test]
    fn only_file_systems_of_roots_own_tree_are_asked_and_no_fuse() {
        let ours = "27 1 254:0 / / rw - ext4 /dev/vda rw\n\
                    50 27 0:50 / /home/a/m rw - fuse.sshfs a rw\n\
                    51 27 0:51 / /mnt rw - fuseblk /dev/x rw\n";
        let ours = Mounts::parse(ours.as_bytes()).unwrap();
        let table = [
            ("27 1 254:0 / / rw - ext4 /dev/vda rw", true),
            ("90 80 254:0 /a /usr rw - ext4 /dev/vda rw", true),
            ("50 27 0:50 / /home/a/m rw - fuse.sshfs a rw", false),
            ("51 27 0:51 / /mnt rw - fuseblk /dev/x rw", false),
            ("91 80 0:60 / / rw - overlay overlay rw", false),
            ("92 80 0:61 / /m rw - fuse x rw", false),
        ];
        for (line, expected) in table {
            assert_eq!(answers(&mount(line), &ours), expected, "{line}");
        }
    }
}
