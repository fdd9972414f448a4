// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that hold memory, by name: so that a user who is over his limit because of them can be told
//! which. What they hold in all is the kernel half's to say (it meets every inode); this only looks
//! for names, as long as it may, and says when it stopped early.
//!
//! Places are chosen by users. No symbolic link is followed, nothing but tmpfs is walked, nothing is
//! opened but directories of it, and nothing that a user's own file server answers is asked.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bursar_model::{Bytes, Pid, Uid};
use rustix::fs::{AtFlags, Dir, FileType, MemfdFlags, Mode, OFlags, ResolveFlags, StatxFlags};

use crate::bytes::{number, words};
use crate::mounts::unescaped;
use crate::{HostError, Proc, ProcessQuery};

/// Directories below a mount that are followed down.
const DEEPEST: usize = 32;
/// Mount namespaces that are looked into.
const MOST_NAMESPACES: usize = 64;
/// Entries of one list of /proc, or of one directory, looked at between two looks at the clock.
const STRIDE: usize = 64;

/// A file that holds memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryFile {
    /// A path as seen in its mount namespace, `memfd:NAME (process N)`, `System V segment N`: bytes that
    /// its user chose.
    pub place: Vec<u8>,
    /// What it holds, in memory or swapped out.
    pub bytes: Bytes,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryFiles {
    /// The largest, largest first.
    pub largest: Vec<MemoryFile>,
    /// What all that were found hold.
    pub found: Bytes,
    /// How many were found.
    pub count: u64,
    /// Whether time ran out before everything had been looked at.
    pub is_partial: bool,
}

type Device = (u32, u32);

struct Search<'a> {
    proc: &'a Proc,
    is_theirs: &'a dyn Fn(Uid) -> bool,
    keep: usize,
    deadline: Instant,
    looked: usize,
    found: MemoryFiles,
    devices: BTreeSet<Device>,
    /// Device and inode of files without a name that were found already.
    seen: BTreeSet<(Device, u64)>,
}

/// One that a process has open and no directory has.
struct Unnamed {
    name: Vec<u8>,
    device: Device,
    inode: u64,
    owner: Uid,
    bytes: Bytes,
}

impl MemoryFiles {
    /// Looks for files of the users who are `theirs` for at most so long, and keeps the `keep` largest. With
    /// no tmpfs at all nothing is found.
    ///
    /// # Errors
    /// When /proc cannot be listed.
    pub fn of(
        proc: &Proc,
        is_theirs: &dyn Fn(Uid) -> bool,
        keep: usize,
        timeout: Duration,
        ask: &mut impl ProcessQuery,
    ) -> Result<Self, HostError> {
        let mut search = Search {
            proc,
            is_theirs,
            keep,
            deadline: Instant::now() + timeout,
            looked: 0,
            found: Self::default(),
            devices: BTreeSet::new(),
            seen: BTreeSet::new(),
        };
        search.segments();
        search.everywhere(ask)?;
        Ok(search.found)
    }
}

impl Search<'_> {
    /// One entry more was looked at. Once time has run out nothing more is.
    fn may_go_on(&mut self) -> bool {
        self.looked = self.looked.wrapping_add(1);
        if self.looked.is_multiple_of(STRIDE) && Instant::now() > self.deadline {
            self.found.is_partial = true;
        }
        !self.found.is_partial
    }

    fn text(&self, name: &str) -> Option<Vec<u8>> {
        self.proc.parsed(name, |bytes| Ok(bytes.to_vec())).ok()?
    }

    fn add(&mut self, place: impl FnOnce() -> Vec<u8>, bytes: Bytes) {
        if bytes == Bytes::ZERO {
            return;
        }
        let found = &mut self.found;
        found.count = found.count.saturating_add(1);
        found.found = found.found.saturating_add(bytes);
        let at = found.largest.partition_point(|it| it.bytes >= bytes);
        if at < self.keep {
            let place = place();
            found.largest.insert(at, MemoryFile { place, bytes });
            found.largest.truncate(self.keep);
        }
    }

    /// System V segments: by who made them.
    fn segments(&mut self) {
        let Some(text) = self.text("sysvipc/shm") else {
            return;
        };
        for line in text.split(|&byte| byte == b'\n').skip(1) {
            let fields: Vec<&[u8]> = words(line).collect();
            let field = |index: usize| fields.get(index).and_then(|text| number::<u64>(text));
            // key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime rss swap
            let (Some(id), Some(maker), Some(rss), Some(swap)) =
                (field(1), field(9), field(14), field(15))
            else {
                continue;
            };
            let is_his = u32::try_from(maker).is_ok_and(|uid| (self.is_theirs)(Uid::new(uid)));
            if is_his {
                let place = || format!("System V segment {id} (ipcrm -m {id})").into_bytes();
                self.add(place, Bytes::new(rss.saturating_add(swap)));
            }
        }
    }

    /// The tmpfs of every mount namespace, and what these users' processes have open without a name.
    fn everywhere(&mut self, ask: &mut impl ProcessQuery) -> Result<(), HostError> {
        // Where memfd and the like are: no mount shows it.
        if let Ok(own) = rustix::fs::memfd_create("bursar", MemfdFlags::CLOEXEC)
            && let Ok(stat) = rustix::fs::statx(&own, c"", AtFlags::EMPTY_PATH, StatxFlags::empty())
        {
            self.devices
                .insert((stat.stx_dev_major, stat.stx_dev_minor));
        }
        let (mut theirs, mut others) = (Vec::new(), Vec::new());
        for pid in self.proc.pids()?.flatten() {
            if !self.may_go_on() {
                return Ok(());
            }
            let name = pid.to_string();
            let stat = rustix::fs::statat(self.proc.directory(), name, AtFlags::empty());
            let owner = stat.ok().map(|stat| Uid::new(stat.st_uid));
            if owner.is_some_and(self.is_theirs) {
                theirs.push(pid);
            } else {
                others.push(pid);
            }
        }
        // Ours and theirs first: others may take as long as there is time.
        let mut namespaces = BTreeSet::new();
        let own = Pid::new(std::process::id());
        let first = [&[own], &theirs[..]].concat();
        self.namespaces(first, &mut namespaces, ask);
        let deadline = self.deadline;
        for pid in theirs {
            // Each may keep us for as long as one may.
            self.found.is_partial |= Instant::now() > self.deadline;
            if self.found.is_partial {
                return Ok(());
            }
            let files = ask.ask(pid, move |proc, pid| unnamed(proc, pid, deadline));
            for file in files.into_iter().flatten() {
                self.add_unnamed(pid, &file);
            }
        }
        self.namespaces(others, &mut namespaces, ask);
        Ok(())
    }

    /// Those that these processes are in and nobody has been met in.
    fn namespaces(
        &mut self,
        pids: Vec<Pid>,
        known: &mut BTreeSet<Vec<u8>>,
        ask: &mut impl ProcessQuery,
    ) {
        let deadline = self.deadline;
        for (pid, namespace) in ask.ask_each(pids, move |proc, pid| namespace(proc, pid, deadline))
        {
            if namespace.is_some_and(|it| known.len() < MOST_NAMESPACES && known.insert(it))
                && let Some(Some((text, root))) = ask.ask(pid, mounts)
            {
                self.mounts(&text, &root);
            }
        }
    }

    /// What is mounted in a namespace, and its root.
    fn mounts(&mut self, text: &[u8], root: &OwnedFd) {
        for line in text.split(|&byte| byte == b'\n') {
            if !self.may_go_on() {
                return;
            }
            let Some(TmpfsMount { id, device, point }) = TmpfsMount::parse(line) else {
                continue;
            };
            if self.devices.contains(&device) {
                continue;
            }
            let resolve =
                ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            // Whatever lies on top may be a FUSE or a dead NFS: nothing is asked of it. The way to a
            // mount point is in the cache.
            let resolve = resolve | ResolveFlags::CACHED;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = rustix::fs::openat2(root, &point[..], flags, Mode::empty(), resolve);
            // Covered by another mount, perhaps of the same device (PrivateTmp= of systemd, as in our own unit): then
            // it is looked for in other namespaces, and beyond that its files are found only by who has them open.
            if let Ok(directory) = opened
                && mount_id_of(&directory) == Some(id)
                && let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC
                && let Ok(directory) = rustix::fs::openat(&directory, ".", flags, Mode::empty())
            {
                self.devices.insert(device);
                self.walk(directory, device, &point, 0);
            }
        }
    }

    fn walk(&mut self, directory: OwnedFd, device: Device, path: &[u8], depth: usize) {
        let Ok(entries) = Dir::read_from(&directory) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if !self.may_go_on() {
                return;
            }
            let place = || [path, b"/", name.to_bytes()].concat();
            match entry.file_type() {
                FileType::Directory if depth < DEEPEST => {
                    let flags =
                        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let resolve =
                        ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
                    let opened =
                        rustix::fs::openat2(&directory, name, flags, Mode::empty(), resolve);
                    if let Ok(below) = opened {
                        self.walk(below, device, &place(), depth.saturating_add(1));
                    }
                }
                FileType::RegularFile => {
                    let wanted = StatxFlags::UID | StatxFlags::BLOCKS;
                    let how = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
                    let Ok(stat) = rustix::fs::statx(&directory, name, how, wanted) else {
                        continue;
                    };
                    if (stat.stx_dev_major, stat.stx_dev_minor) == device
                        && (self.is_theirs)(Uid::new(stat.stx_uid))
                    {
                        self.add(place, held(stat.stx_blocks));
                    }
                }
                _ => {}
            }
        }
    }

    fn add_unnamed(&mut self, pid: Pid, file: &Unnamed) {
        if self.devices.contains(&file.device)
            && (self.is_theirs)(file.owner)
            && self.seen.insert((file.device, file.inode))
        {
            let name = file.name.strip_prefix(b"/memfd").map_or_else(
                || [b"removed ", &file.name[..]].concat(),
                |rest| [b"memfd", rest].concat(),
            );
            let place = || [&name[..], format!(" (process {pid})").as_bytes()].concat();
            self.add(place, file.bytes);
        }
    }
}

/// Which mount namespace a process is in; `None` when it is gone, or time has run out.
fn namespace(proc: &Proc, pid: Pid, deadline: Instant) -> Option<Vec<u8>> {
    if Instant::now() > deadline {
        return None;
    }
    let name = format!("{pid}/ns/mnt");
    let link = rustix::fs::readlinkat(proc.directory(), name, Vec::new());
    link.ok().map(CString::into_bytes)
}

/// The mounts that a process sees, and the kernel's own link to its root.
fn mounts(proc: &Proc, pid: Pid) -> Option<(Vec<u8>, OwnedFd)> {
    let text = proc.parsed(&format!("{pid}/mountinfo"), |bytes| Ok(bytes.to_vec()));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let name = format!("{pid}/root");
    let root = rustix::fs::openat(proc.directory(), name, flags, Mode::empty());
    Some((text.ok()??, root.ok()?))
}

/// memfd and unlinked files that a process has open, as far as time allows.
fn unnamed(proc: &Proc, pid: Pid, deadline: Instant) -> Vec<Unnamed> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let name = format!("{pid}/fd");
    let Ok(list) = rustix::fs::openat(proc.directory(), name, flags, Mode::empty()) else {
        return Vec::new();
    };
    let Ok(entries) = Dir::read_from(&list) else {
        return Vec::new();
    };
    let in_time = entries.flatten().enumerate().map_while(|(place, entry)| {
        (place % STRIDE != 0 || Instant::now() <= deadline).then_some(entry)
    });
    let look = |entry: rustix::fs::DirEntry| {
        let target = rustix::fs::readlinkat(&list, entry.file_name(), Vec::new()).ok()?;
        let name = target.to_bytes().strip_suffix(b" (deleted)")?;
        // What a user's own file server would be asked is known without it, or not at all.
        let how = AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::UID | StatxFlags::BLOCKS | StatxFlags::INO;
        let stat = rustix::fs::statx(&list, entry.file_name(), how, wanted).ok()?;
        Some(Unnamed {
            name: name.to_vec(),
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            owner: Uid::new(stat.stx_uid),
            bytes: held(stat.stx_blocks),
        })
    };
    in_time.filter_map(look).collect()
}

fn held(blocks: u64) -> Bytes {
    Bytes::new(blocks.saturating_mul(512))
}

/// As mountinfo has it; `None` before 5.8, where [`ResolveFlags::CACHED`] is not known either.
fn mount_id_of(file: &OwnedFd) -> Option<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(file, c"", flags, StatxFlags::MNT_ID).ok()?;
    let known = StatxFlags::from_bits_retain(stat.stx_mask);
    known
        .contains(StatxFlags::MNT_ID)
        .then_some(stat.stx_mnt_id)
}

/// A tmpfs, seen from its own root.
#[derive(Debug, PartialEq, Eq)]
struct TmpfsMount {
    id: u64,
    device: Device,
    point: Vec<u8>,
}

impl TmpfsMount {
    /// Of a line of mountinfo, if it is one.
    fn parse(line: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = words(line).collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        if *fields.get(dash.checked_add(1)?)? != b"tmpfs" || *fields.get(3)? != b"/" {
            return None;
        }
        let device = fields.get(2)?;
        let colon = device.iter().position(|&byte| byte == b':')?;
        let (major, minor) = device.split_at_checked(colon)?;
        Some(Self {
            id: number(fields.first()?)?,
            device: (number(major)?, number(minor.get(1..)?)?),
            point: unescaped(fields.get(4)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::Patient;

    #[test]
    fn only_tmpfs_seen_from_its_root_is_walked() {
        let line = b"29 26 0:26 / /mnt/a\\040b rw,relatime shared:4 - tmpfs tmpfs rw";
        let expected = TmpfsMount {
            id: 29,
            device: (0, 26),
            point: b"/mnt/a b".to_vec(),
        };
        assert_eq!(TmpfsMount::parse(line), Some(expected));
        for other in [
            &b"29 26 0:26 /sub /mnt rw - tmpfs tmpfs rw"[..],
            b"29 26 0:26 / /mnt rw - ext4 /dev/vda rw",
            b"29 26 0 / /mnt rw - tmpfs tmpfs rw",
            b"29 26 0:26 / /mnt rw",
            b"",
        ] {
            assert_eq!(TmpfsMount::parse(other), None);
        }
    }

    #[test]
    fn a_file_without_a_name_is_found_by_who_has_it_open() {
        let own = rustix::fs::memfd_create("found-by-test", MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(own);
        file.write_all(&vec![1; 3 << 20]).unwrap();
        let own = Uid::new(rustix::process::getuid().as_raw());
        let timeout = Duration::from_secs(10);
        let proc = Proc::host().unwrap();
        let found =
            MemoryFiles::of(&proc, &|uid| uid == own, 64, timeout, &mut Patient(&proc)).unwrap();
        let it = found
            .largest
            .iter()
            .find(|it| it.place.starts_with(b"memfd:found-by-test"));
        assert_eq!(it.map(|it| it.bytes), Some(Bytes::from_mib(3)), "{found:?}");
    }

    fn search(proc: &Proc, timeout: Duration) -> Search<'_> {
        Search {
            proc,
            is_theirs: &|uid| uid == Uid::new(0),
            keep: 1,
            deadline: Instant::now() + timeout,
            looked: 0,
            found: MemoryFiles::default(),
            devices: BTreeSet::new(),
            seen: BTreeSet::new(),
        }
    }

    /// As where systemd has bound a directory of /tmp over it: the device is the same.
    #[test]
    fn what_is_covered_by_a_mount_of_the_same_device_is_not_taken_for_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        let point = directory.path().canonicalize().unwrap();
        let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let there =
            rustix::fs::open(&point, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let stat = rustix::fs::statx(&there, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).unwrap();
        let proc = Proc::host().unwrap();
        for (id, is_seen) in [(stat.stx_mnt_id, true), (u64::MAX, false)] {
            let mut search = search(&proc, Duration::from_secs(10));
            let device = (stat.stx_dev_major, stat.stx_dev_minor);
            let (major, minor) = device;
            let line = format!(
                "{id} 1 {major}:{minor} / {} rw - tmpfs tmpfs rw",
                point.display()
            );
            search.mounts(line.as_bytes(), &root);
            assert_eq!(search.devices.contains(&device), is_seen, "{line}");
        }
    }

    #[test]
    fn time_that_ran_out_is_said() {
        let proc = Proc::host().unwrap();
        let mut search = search(&proc, Duration::ZERO);
        std::thread::sleep(Duration::from_millis(1));
        while search.may_go_on() {}
        assert!(search.found.is_partial && search.looked == STRIDE);
    }
}
