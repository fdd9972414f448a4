// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shared memory in /proc/PID/maps: what does not come back when one of its users dies.

use crate::bytes::words;

/// A piece of shared memory, named as the kernel does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedMemory {
    /// Device and inode: which memory it is, whatever its name.
    pub id: (String, u64),
    /// Its name: bytes that its maker chose.
    pub name: Vec<u8>,
    /// Whether it is there by name when nobody maps it: a file of a tmpfs, a SysV segment.
    pub is_named: bool,
}

/// A process that maps more has the others left out.
const MOST: usize = 64;

/// The shared writable mappings of tmpfs, memfd, SysV and anonymous shared memory; each once.
pub(super) fn parse(maps: &[u8]) -> Vec<SharedMemory> {
    let mut found: Vec<SharedMemory> = Vec::new();
    for line in maps.split(|&byte| byte == b'\n') {
        let mut fields = words(line);
        let (Some(_), Some(permissions), Some(_), Some(device), Some(inode)) = (
            fields.next(),
            fields.next(),
            fields.next(),
            fields.next(),
            fields.next(),
        ) else {
            continue;
        };
        let name = fields.next().unwrap_or_default();
        if permissions.get(3) != Some(&b's') || !is_memory(name) {
            continue;
        }
        let Some(inode) = crate::bytes::number(inode) else {
            continue;
        };
        let id = (String::from_utf8_lossy(device).into_owned(), inode);
        if found.iter().all(|it| it.id != id) {
            found.push(SharedMemory {
                id,
                name: name.to_vec(),
                is_named: name.starts_with(b"/SYSV")
                    || !(name.starts_with(b"/dev/zero")
                        || name.starts_with(b"/memfd:")
                        || line.ends_with(b" (deleted)")),
            });
        }
        if found.len() == MOST {
            break;
        }
    }
    found
}

/// `/dev/zero (deleted)` is what mmap(MAP_SHARED | MAP_ANONYMOUS) looks like.
fn is_memory(name: &[u8]) -> bool {
    [
        &b"/dev/zero"[..],
        b"/memfd:",
        b"/SYSV",
        b"/dev/shm/",
        b"/run/",
        b"/tmp/",
    ]
    .iter()
    .any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_shared_memory_is_found_and_each_once() {
        let maps = b"7f00-7f10 rw-s 00000000 00:01 1032 /dev/zero (deleted)\n\
            7f10-7f20 rw-s 00010000 00:01 1032 /dev/zero (deleted)\n\
            7f20-7f30 rw-p 00000000 00:00 0 [heap]\n\
            7f30-7f40 r--s 00000000 fd:01 77 /usr/share/cache\n\
            7f40-7f50 rw-s 00000000 00:16 5 /dev/shm/a b\n";
        let found = parse(maps);
        let ids: Vec<_> = found.iter().map(|it| it.id.1).collect();
        assert_eq!(ids, [1032, 5]);
        assert_eq!(found[0].name, b"/dev/zero");
        assert_eq!([found[0].is_named, found[1].is_named], [false, true]);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }
}
