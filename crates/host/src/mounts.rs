// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is mounted where (proc_pid_mountinfo(5)), and the two file systems we mount ourselves.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use bursar_model::Pid;
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::bytes::{number, words};
use crate::{HostError, Malformed, Proc};

/// statfs's f_type (include/uapi/linux/magic.h).
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
const TRACEFS_MAGIC: u64 = 0x7472_6163;

/// What is mounted in our mount namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mounts(Vec<Mount>);

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    id: u32,
    parent: u32,
    /// The file system's device, `8:1`; of all its mounts the same.
    pub device: String,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The file system's type: `bpf`, `tracefs`, `ext4`.
    pub filesystem: String,
}

/// What mounting did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounted {
    /// It is mounted now.
    Now,
    /// It was there before, and was left alone: a second one on top would hide what is pinned in the
    /// first.
    Before,
}

impl Mounts {
    /// What is mounted now.
    ///
    /// # Errors
    /// When it cannot be read or understood.
    pub fn read(proc: &Proc) -> Result<Self, HostError> {
        Ok(proc
            .parsed("self/mountinfo", Self::parse)?
            .unwrap_or_default())
    }

    /// Reads the content of a mountinfo file.
    ///
    /// # Errors
    /// When a line lacks a field.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let lines = bytes
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty());
        let mounts = lines.enumerate().map(|(index, line)| {
            let line_number = index.saturating_add(1);
            mount(line).ok_or_else(|| Malformed::new(format!("line {line_number} is no mount")))
        });
        mounts.collect::<Result<_, _>>().map(Self)
    }

    /// The mount with this number (statx(2), `stx_mnt_id`) in a process's mount namespace.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn find_of(proc: &Proc, pid: Pid, id: u64) -> Result<Option<Mount>, HostError> {
        let start = format!("{id} ");
        let find = |bytes: &[u8]| {
            let mut lines = bytes.split(|&byte| byte == b'\n');
            let line = lines.find(|line| line.starts_with(start.as_bytes()));
            Ok::<_, Malformed>(line.and_then(mount))
        };
        Ok(proc
            .parsed(&format!("{pid}/mountinfo"), find)?
            .unwrap_or_default())
    }

    /// All of them, those covered by others included.
    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.0.iter()
    }

    /// The mount seen at exactly this path: the topmost where several are stacked.
    pub fn at(&self, point: &Path) -> Option<&Mount> {
        let here = |mount: &&Mount| mount.point == point;
        let is_covered = |lower: &Mount| {
            let mut others = self.iter().filter(here);
            others.any(|upper| upper.parent == lower.id && upper.id != lower.id)
        };
        self.iter().filter(here).find(|mount| !is_covered(mount))
    }

    /// The mount that `path`, an absolute path without links, lies on.
    pub fn containing(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|ancestor| self.at(ancestor))
    }

    /// Whether `path` lies on a BPF file system.
    pub fn is_bpffs(&self, path: &Path) -> bool {
        self.containing(path)
            .is_some_and(|mount| mount.filesystem == "bpf")
    }
}

fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = words(line);
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let device = String::from_utf8_lossy(fields.next()?).into_owned();
    // Root within the file system.
    let point = unescaped(fields.nth(1)?);
    // Options, optional fields, a dash.
    fields.find(|field| *field == b"-")?;
    let filesystem = String::from_utf8_lossy(fields.next()?).into_owned();
    Some(Mount {
        id,
        parent,
        device,
        point: PathBuf::from(OsString::from_vec(point)),
        filesystem,
    })
}

/// Blanks, tabs, newlines and backslashes in paths are written as three octal digits.
pub(crate) fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [] => return out,
            [
                b'\\',
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                tail @ ..,
            ] => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                tail
            }
            [byte, tail @ ..] => {
                out.push(*byte);
                tail
            }
        };
    }
}

/// Mounts a BPF file system at `path`, for root only, unless one is there.
///
/// # Errors
/// [`HostError::Denied`] without CAP_SYS_ADMIN, [`HostError::Unsupported`] without BPF,
/// [`HostError::Failed`] when the directory is not there.
pub fn mount_bpffs(path: &Path) -> Result<Mounted, HostError> {
    mount_unless_there("bpf", BPF_FS_MAGIC, "mount a BPF file system at", path)
}

/// Mounts a tracefs at `path`, for root only, unless one is there.
///
/// # Errors
/// As [`mount_bpffs`].
pub fn mount_tracefs(path: &Path) -> Result<Mounted, HostError> {
    mount_unless_there("tracefs", TRACEFS_MAGIC, "mount a tracefs at", path)
}

fn mount_unless_there(
    filesystem: &str,
    magic: u64,
    action: &'static str,
    path: &Path,
) -> Result<Mounted, HostError> {
    let failed = |errno: Errno| HostError::new(action, path, errno);
    // Of the path, not of its text: links count, and mountinfo may name another place.
    let there = rustix::fs::statfs(path).map_err(failed)?;
    if u64::try_from(there.f_type).is_ok_and(|kind| kind == magic) {
        return Ok(Mounted::Before);
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount(
        filesystem,
        path.as_os_str().as_bytes(),
        filesystem,
        flags,
        c"mode=700",
    )
    .map_err(failed)?;
    Ok(Mounted::Now)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SNIPPET: &[u8] = b"\
23 27 0:22 / /sys rw,relatime - sysfs sysfs rw
26 24 0:24 / /dev/pts rw,relatime shared:5 master:2 - devpts devpts rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
29 26 0:26 / /dev/pts rw,relatime - tmpfs tmpfs rw
42 23 0:39 / /sys/fs/bpf rw,relatime - bpf bpf rw
43 23 0:13 / /sys/kernel/tracing rw,nosuid - tracefs tracefs rw
44 27 0:40 / /mnt/a\\040b\\134c rw - bpf bpf rw
45 27 0:41 / /mnt/- rw propagate_from:3 - tmpfs - rw
";

    #[test]
    fn a_path_lies_on_the_topmost_of_the_deepest_mounts() {
        let mounts = Mounts::parse(SNIPPET).unwrap();
        let table = [
            ("/", "ext4"),
            ("/etc/bursar", "ext4"),
            ("/sys/fs/bpf/bursar", "bpf"),
            ("/sys/fs/bpfx", "sysfs"),
            ("/sys/kernel/tracing/events", "tracefs"),
            ("/dev/pts/0", "tmpfs"),
            ("/mnt/a b\\c/pins", "bpf"),
            ("/mnt/-/x", "tmpfs"),
        ];
        for (path, filesystem) in table {
            assert_eq!(
                mounts.containing(Path::new(path)).unwrap().filesystem,
                filesystem,
                "{path}"
            );
        }
        assert!(mounts.is_bpffs(Path::new("/sys/fs/bpf")) && !mounts.is_bpffs(Path::new("/sys")));
        assert_eq!(mounts.at(Path::new("/sys/fs")), None);
    }

    #[test]
    fn a_line_that_is_cut_off_is_refused() {
        let error =
            Mounts::parse(b"23 27 0:22 / /sys rw - sysfs x rw\n26 24 0:24 / /dev").unwrap_err();
        assert_eq!(error.to_string(), "line 2 is no mount");
    }

    #[test]
    fn this_machine_has_a_root() {
        let mounts = Mounts::read(&Proc::host().unwrap()).unwrap();
        assert!(mounts.at(Path::new("/")).is_some());
        let found = mounts.containing(Path::new("/proc/self")).unwrap();
        assert_eq!(found.filesystem, "proc");
        let (proc, pid) = (Proc::host().unwrap(), Pid::new(std::process::id()));
        let again = Mounts::find_of(&proc, pid, u64::from(found.id)).unwrap();
        assert_eq!(again.as_ref(), Some(found));
        assert_eq!(Mounts::find_of(&proc, pid, u64::MAX).unwrap(), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Mounts::parse(&bytes);
        }

        #[test]
        fn no_shape_hangs(ids in prop::collection::vec((0_u32..4, 0_u32..4), 0..8)) {
            let lines: String = ids.iter().map(|(id, parent)| format!("{id} {parent} 0:1 / /a rw - t t rw\n")).collect();
            let mounts = Mounts::parse(lines.as_bytes()).unwrap();
            let _ = (mounts.at(Path::new("/a")), mounts.containing(Path::new("/a/b")));
        }
    }
}
