// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a mapping's pages fault, and what helps (S3 "Preventing pagefaults"). Pure.

use serde::Serialize;

use crate::{Mapping, MappingKind};

/// Why most of a mapping's faults come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The page was not there.
    FirstTouch,
    /// The page was there, shared with another process or only read so far, and was written.
    CopyOnWrite,
    /// The page of a shared file mapping was clean since its last writeback, and was written.
    Writeback,
    /// The page had to be read from a file.
    Disk,
    /// The page had to come back from swap.
    Swap,
    /// The kernel made it resident in a system call.
    Kernel,
    /// Nobody saw it.
    Unknown,
}

impl Cause {
    /// Of what was counted in a mapping.
    pub fn of(mapping: &Mapping) -> Self {
        let is_file = match mapping.kind {
            MappingKind::ByKernel => return Self::Kernel,
            MappingKind::Unknown | MappingKind::Overflow | MappingKind::Unseen => {
                return Self::Unknown;
            }
            MappingKind::File => true,
            MappingKind::Stack | MappingKind::Heap | MappingKind::Anon => false,
        };
        let is_shared = mapping.permissions.ends_with('s');
        if is_file && mapping.major > mapping.minor / 4 {
            Self::Disk
        } else if !is_file && mapping.major > 0 {
            Self::Swap
        } else if mapping.timed_protected.saturating_mul(2) <= mapping.timed {
            Self::FirstTouch
        } else if !is_shared {
            Self::CopyOnWrite
        } else if mapping.is_written_back {
            Self::Writeback
        } else {
            Self::FirstTouch
        }
    }

    /// What to do about it in such a mapping; empty where nothing is known.
    pub fn advice(self, mapping: &Mapping) -> &'static str {
        let is_shared = mapping.permissions.ends_with('s');
        let is_written = mapping.permissions.contains('w');
        match (self, mapping.kind) {
            (Self::Disk, _) => {
                "waits for the disk: read it ahead (MAP_POPULATE, madvise WILLNEED) or lock it"
            }
            (Self::Swap, _) => {
                "comes back from swap: lock it (bursar run --lock) or give the machine more memory"
            }
            (Self::Writeback, _) => WRITEBACK,
            (Self::CopyOnWrite, MappingKind::File) => COPIED,
            (Self::CopyOnWrite, _) => {
                "copy-on-write, after a fork() or when it was only read before; a lock does not help: start \
                 children by posix_spawn() or vfork(), keep the memory out of them (madvise \
                 MADV_DONTFORK), or write to each page again after the fork"
            }
            (Self::FirstTouch, MappingKind::Stack) => {
                "prefault the stack before the work begins (bursar run --lock --stack)"
            }
            (Self::FirstTouch, MappingKind::Heap) => {
                "prefault the heap and keep it (bursar run --lock --heap SIZE), or reuse memory from a pool"
            }
            (Self::FirstTouch, MappingKind::File) if is_shared && !mapping.is_written_back => {
                "shared memory, touched first by this process: MAP_POPULATE, or lock (bursar run --lock)"
            }
            (Self::FirstTouch, MappingKind::File) if is_shared && is_written => WRITEBACK,
            (Self::FirstTouch, MappingKind::File) if is_written => COPIED,
            (Self::FirstTouch, MappingKind::File) => {
                "mapped when first used: lock the program (bursar run --lock)"
            }
            (Self::FirstTouch, _) => {
                "map it once and reuse it (a pool); MAP_POPULATE or --lock; huge pages if it is large"
            }
            (Self::Kernel, _) => {
                "memory mapped or locked while working (populate, mlock): allocate during start"
            }
            (Self::Unknown, _) => "",
        }
    }
}

const COPIED: &str =
    "copied when first written: write to it during start, or lock (bursar run --lock)";
const WRITEBACK: &str = "each writeback makes its pages read-only again and the next write to one faults, \
                         locked or not: use a file without a disk (memfd_create, /dev/shm), or \
                         pwrite() from another thread";

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(kind: MappingKind, permissions: &str, minor: u64, major: u64) -> Mapping {
        Mapping {
            index: 1,
            process: 1,
            kind,
            start: 1,
            end: 2,
            permissions: permissions.to_owned(),
            file: None,
            inode: 0,
            device: String::new(),
            is_written_back: false,
            minor,
            major,
            timed: minor,
            timed_protected: 0,
        }
    }

    #[test]
    fn each_kind_of_fault_has_its_remedy() {
        let table = [
            (MappingKind::Stack, "rw-p", 0, "--stack"),
            (MappingKind::Heap, "rw-p", 0, "--heap"),
            (MappingKind::Anon, "rw-p", 0, "pool"),
            (MappingKind::Anon, "rw-p", 10, "swap"),
            (MappingKind::File, "r--p", 0, "first used"),
            (MappingKind::File, "rw-p", 0, "first written"),
            (MappingKind::File, "r--p", 10, "disk"),
            (MappingKind::File, "rw-s", 0, "shared memory"),
            (MappingKind::ByKernel, "", 0, "during start"),
        ];
        for (kind, permissions, major, word) in table {
            let mapping = mapping(kind, permissions, if major > 0 { 10 } else { 1000 }, major);
            let advice = Cause::of(&mapping).advice(&mapping);
            assert!(advice.contains(word), "{kind:?} {permissions}: {advice}");
        }
    }

    #[test]
    fn a_page_that_was_there_has_another_cause_than_one_that_was_not() {
        let table = [
            (MappingKind::Anon, "rw-p", false, Cause::CopyOnWrite),
            (MappingKind::Heap, "rw-p", false, Cause::CopyOnWrite),
            (MappingKind::File, "rw-p", true, Cause::CopyOnWrite),
            (MappingKind::File, "rw-s", true, Cause::Writeback),
            (MappingKind::File, "rw-s", false, Cause::FirstTouch),
        ];
        for (kind, permissions, is_written_back, cause) in table {
            let mut mapping = mapping(kind, permissions, 100, 0);
            mapping.is_written_back = is_written_back;
            assert_eq!(Cause::of(&mapping), Cause::FirstTouch);
            mapping.timed_protected = 51;
            assert_eq!(Cause::of(&mapping), cause, "{kind:?} {permissions}");
        }
    }

    #[test]
    fn no_lock_is_advised_against_writeback() {
        let mut mapping = mapping(MappingKind::File, "rw-s", 100, 0);
        mapping.is_written_back = true;
        assert!(
            Cause::of(&mapping)
                .advice(&mapping)
                .contains("locked or not")
        );
        mapping.timed_protected = 100;
        assert!(
            Cause::of(&mapping)
                .advice(&mapping)
                .contains("locked or not")
        );
    }
}
