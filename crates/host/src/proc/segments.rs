// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /proc/sysvipc/shm: System V segments of our IPC namespace.

use bursar_model::{Bytes, Uid};

use crate::bytes::{number, words};

/// A System V shared memory segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Who made it.
    pub creator: Uid,
    /// Its size, touched or not.
    pub size: Bytes,
}

/// Lines that make no sense are left out: a field more or less is a kernel's choice.
pub(super) fn parse(text: &[u8]) -> Vec<Segment> {
    let lines = text.split(|&byte| byte == b'\n').skip(1);
    lines
        .filter_map(|line| {
            // key shmid perms size cpid lpid nattch uid gid cuid cgid …
            let fields: Vec<&[u8]> = words(line).collect();
            let size: u64 = number(fields.get(3)?)?;
            let creator: u32 = number(fields.get(9)?)?;
            Some(Segment {
                creator: Uid::new(creator),
                size: Bytes::new(size),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_its_creators() {
        let text = b"       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap\n         0          3   600               8388608  4211  4211      1 60001     0 60002     0 1700000000          0 1700000000                     0                     0\nx\n";
        assert_eq!(
            parse(text),
            [Segment {
                creator: Uid::new(60002),
                size: Bytes::from_mib(8)
            }]
        );
    }
}
