// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the memory cgroups of this process leave it: versions 1 and 2, its own group and every one above
//! that can be seen from here. Locked memory cannot be reclaimed, so a group that is too small kills.

use std::ffi::CStr;

use crate::machine::{each_line, number};

/// A path of the kernel's is never longer (PATH_MAX).
const LONGEST: usize = 4096;

/// A hierarchy of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The files of a group, and what in its statistics is page cache. Of several limits the tightest counts.
struct Files {
    limits: &'static [&'static [u8]],
    usage: &'static [u8],
    cache: [&'static [u8]; 2],
}

impl Version {
    const fn files(self) -> Files {
        match self {
            Self::One => Files {
                limits: &[b"/memory.limit_in_bytes"],
                usage: b"/memory.usage_in_bytes",
                cache: [b"total_inactive_file ", b"total_active_file "],
            },
            Self::Two => Files {
                limits: &[b"/memory.max", b"/memory.high"],
                usage: b"/memory.current",
                cache: [b"inactive_file ", b"active_file "],
            },
        }
    }

    /// Whether a line of mountinfo, behind " - ", is a mount of it.
    fn is_mounted(self, kind: &[u8], options: &[u8]) -> bool {
        match self {
            Self::One => kind == b"cgroup" && options.split(|&it| it == b',').any(is_memory),
            Self::Two => kind == b"cgroup2",
        }
    }

    /// Whether a line of /proc/PID/cgroup is about it.
    fn is_listed(self, controllers: &[u8]) -> bool {
        match self {
            Self::One => controllers.split(|&it| it == b',').any(is_memory),
            Self::Two => controllers.is_empty(),
        }
    }
}

fn is_memory(name: &[u8]) -> bool {
    name == b"memory"
}

/// A path in the making, with room for the NUL.
struct Path {
    bytes: [u8; LONGEST],
    used: usize,
}

impl Path {
    const fn new() -> Self {
        Self {
            bytes: [0; LONGEST],
            used: 0,
        }
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or_default()
    }

    fn set(&mut self, text: &[u8]) -> bool {
        self.used = 0;
        self.push(text)
    }

    fn push(&mut self, text: &[u8]) -> bool {
        let end = self.used + text.len();
        let is_short = end < LONGEST;
        if let Some(place) = self.bytes.get_mut(self.used..end).filter(|_| is_short) {
            place.copy_from_slice(text);
            self.used = end;
        }
        is_short
    }

    /// Reads from the file of this name in the directory.
    fn with<T>(&mut self, name: &[u8], read: impl FnOnce(&CStr) -> Option<T>) -> Option<T> {
        let before = self.used;
        let is_whole = self.push(name);
        if let Some(end) = self.bytes.get_mut(self.used) {
            *end = 0;
        }
        let path = self.bytes.get(..=self.used)?;
        let found = CStr::from_bytes_with_nul(path).ok().filter(|_| is_whole);
        let result = found.and_then(read);
        self.used = before;
        result
    }

    /// The directory above, down to one of `least` bytes.
    fn ascend(&mut self, least: usize) -> bool {
        if self.used <= least {
            return false;
        }
        let slash = self.as_bytes().iter().rposition(|&byte| byte == b'/');
        self.used = slash.unwrap_or(0).max(least);
        true
    }
}

/// What this process's groups leave it, bytes; `None`: none of them has a limit.
pub(crate) fn available_bytes() -> Option<u64> {
    let rooms = [Version::One, Version::Two].into_iter();
    rooms.filter_map(room_in).min()
}

fn room_in(version: Version) -> Option<u64> {
    let mut directory = Path::new();
    let top = own_directory(version, &mut directory)?;
    let mut least: Option<u64> = None;
    loop {
        if let Some(room) = room_at(version, &mut directory) {
            least = Some(least.map_or(room, |least| least.min(room)));
        }
        if !directory.ascend(top) {
            return least;
        }
    }
}

/// The process's directory; returns the length of its hierarchy's mount point.
fn own_directory(version: Version, directory: &mut Path) -> Option<usize> {
    let (mut root, mut own) = (Path::new(), Path::new());
    let mut is_mounted = false;
    each_line(c"/proc/self/mountinfo", |line| {
        if !is_mounted && let Some((its_root, mount)) = mount_of(version, line) {
            is_mounted = root.set(its_root) && directory.set(mount);
        }
    });
    let mut is_listed = false;
    each_line(c"/proc/self/cgroup", |line| {
        if let Some(path) = listed(version, line) {
            is_listed = own.set(path);
        }
    });
    if !is_mounted || !is_listed {
        return None;
    }
    let top = directory.used;
    let inside = inside(root.as_bytes(), own.as_bytes());
    directory.push(inside).then_some(top)
}

/// Where a group lies below a mount whose root it is below; elsewhere the mount is all that can be seen.
fn inside<'a>(root: &[u8], group: &'a [u8]) -> &'a [u8] {
    let rest = match root {
        b"/" => Some(group),
        root => group.strip_prefix(root),
    };
    match rest {
        Some(b"/") | None => b"",
        Some(rest) if rest.starts_with(b"/..") => b"",
        Some(rest) => rest,
    }
}

/// Root and mount point (proc_pid_mountinfo(5)).
fn mount_of(version: Version, line: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut fields = line.split(|&byte| byte == b' ');
    let (root, mount) = (fields.nth(3)?, fields.next()?);
    let mut rest = fields.skip_while(|&field| field != b"-").skip(1);
    let (kind, _, options) = (rest.next()?, rest.next()?, rest.next()?);
    version.is_mounted(kind, options).then_some((root, mount))
}

/// The group in a line of cgroups(7), "NUMBER:CONTROLLERS:PATH".
fn listed(version: Version, line: &[u8]) -> Option<&[u8]> {
    let mut parts = line.splitn(3, |&byte| byte == b':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    version.is_listed(controllers).then_some(path)
}

/// What one group leaves; page cache makes way.
fn room_at(version: Version, directory: &mut Path) -> Option<u64> {
    let files = version.files();
    let mut value = |name| directory.with(name, |path| number(path, b"", 10));
    let limits = files.limits.iter();
    let limit = limits.filter_map(|name| value(name)).min()?;
    let usage = value(files.usage)?;
    let cache = files.cache.map(|key| {
        let cached = directory.with(b"/memory.stat", |path| number(path, key, 10));
        cached.unwrap_or(0)
    });
    let held = usage.saturating_sub(cache.into_iter().fold(0, u64::saturating_add));
    Some(limit.saturating_sub(held))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_and_groups_are_found_in_both_versions() {
        let one = b"31 25 0:26 /docker/a /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory";
        let two = b"30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate";
        let cpu = b"31 25 0:26 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct";
        let found = mount_of(Version::One, one);
        assert_eq!(
            found,
            Some((&b"/docker/a"[..], &b"/sys/fs/cgroup/memory"[..]))
        );
        assert_eq!(
            mount_of(Version::Two, two),
            Some((&b"/"[..], &b"/sys/fs/cgroup"[..]))
        );
        assert_eq!(mount_of(Version::One, cpu), None);
        assert_eq!(mount_of(Version::Two, one), None);
        assert_eq!(mount_of(Version::One, b"31 25"), None);
        assert_eq!(listed(Version::One, b"4:memory:/a:b"), Some(&b"/a:b"[..]));
        assert_eq!(listed(Version::One, b"0::/a"), None);
        assert_eq!(
            listed(Version::Two, b"0::/user.slice"),
            Some(&b"/user.slice"[..])
        );
    }

    #[test]
    fn a_group_lies_below_the_root_of_its_mount() {
        assert_eq!(inside(b"/", b"/a/b"), b"/a/b");
        assert_eq!(inside(b"/", b"/"), b"");
        assert_eq!(inside(b"/docker/a", b"/docker/a"), b"");
        assert_eq!(inside(b"/docker/a", b"/docker/a/b"), b"/b");
        assert_eq!(inside(b"/docker/a", b"/elsewhere"), b"");
        assert_eq!(inside(b"/", b"/../outside"), b"");
    }

    #[test]
    fn the_tightest_level_counts_and_page_cache_makes_way() {
        let folder = std::env::temp_dir().join(format!("prefault-group-{}", std::process::id()));
        let deep = folder.join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        let write = |directory: &std::path::Path, max: &str, high: &str| {
            let files = [
                ("memory.max", max),
                ("memory.high", high),
                ("memory.current", "500\n"),
                (
                    "memory.stat",
                    "anon 1\ninactive_file 100\nactive_file 50\nslab 9\n",
                ),
            ];
            for (name, text) in files {
                std::fs::write(directory.join(name), text).unwrap();
            }
        };
        write(&deep, "max\n", "max\n");
        write(&folder.join("a"), "9000\n", "1000\n");
        let mut path = Path::new();
        assert!(path.set(deep.as_os_str().as_encoded_bytes()));
        assert_eq!(room_at(Version::Two, &mut path), None);
        let top = folder.as_os_str().len();
        assert!(path.ascend(top));
        assert_eq!(room_at(Version::Two, &mut path), Some(1000 - (500 - 150)));
        assert!(path.ascend(top));
        assert_eq!(room_at(Version::Two, &mut path), None);
        assert!(!path.ascend(top));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
