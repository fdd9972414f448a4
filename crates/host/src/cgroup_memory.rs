// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A user's part of the kernel's memory as the memory controller of version 2 counts it (`memory.stat` of systemd's slice
//! for that user): what is put into namespaces is in it, routes and packet filters too.
//!
//! No other group is an account's: a user can make groups, and memory stays with the group in which it was made, whoever
//! is in it later.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bursar_model::{Bytes, Uid};

use crate::bytes::{number, words};

/// What is counted in `user.slice/user-UID.slice` below a mount of the unified hierarchy; `None` where root has made no
/// such group, or nothing is counted there.
pub fn kernel_memory_of_slice(mount: &Path, user: Uid) -> Option<Bytes> {
    let slice = mount
        .join("user.slice")
        .join(format!("user-{}.slice", user.get()));
    let about = fs::symlink_metadata(&slice).ok()?;
    (about.is_dir() && about.uid() == 0).then_some(())?;
    kernel_memory_of(&fs::read(slice.join("memory.stat")).ok()?)
}

/// `kernel` (5.18) less what the kernel gives back when memory is short: names and inodes of files that were looked at
/// are no reason to refuse anybody anything.
fn kernel_memory_of(stat: &[u8]) -> Option<Bytes> {
    let of = |key: &[u8]| {
        stat.split(|&byte| byte == b'\n').find_map(|line| {
            let mut words = words(line);
            (words.next()? == key).then_some(())?;
            number::<u64>(words.next()?)
        })
    };
    let all = of(b"kernel")?;
    Some(Bytes::new(all.saturating_sub(of(b"slab_reclaimable")?)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    const STAT: &str = "anon 7\nkernel_stack 1\nkernel 3000\nslab_reclaimable 1000\nslab 5\n";

    #[test]
    fn what_can_be_given_back_is_not_counted() {
        assert_eq!(kernel_memory_of(STAT.as_bytes()), Some(Bytes::new(2000)));
        assert_eq!(kernel_memory_of(b"anon 4096\nslab 5\n"), None);
    }

    #[test]
    fn a_slice_is_its_users_where_root_has_made_it() {
        let mount = tempfile::tempdir().unwrap();
        let make = |path: &str, owner: u32| {
            let path = mount.path().join(path);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("memory.stat"), STAT).unwrap();
            chown(&path, Some(owner), None).is_ok()
        };
        let of = |uid| kernel_memory_of_slice(mount.path(), Uid::new(uid));
        if !make("user.slice/user-1000.slice", 0) {
            return; // only root can make groups that are root's
        }
        // One that a user has made, there and elsewhere.
        make("user.slice/user-1001.slice", 1001);
        make("user.slice/user-1000.slice/user-1002.slice", 0);
        assert_eq!(of(1000), Some(Bytes::new(2000)));
        assert_eq!([of(1001), of(1002), of(1003)], [None; 3]);
    }
}
