// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows of a bill that no kernel counts by user: worked out from what is counted. And OpenVZ's sums over
//! all bills (vzcalc, vzmemcheck).

use bursar_model::{Bytes, Unit};

/// What an account's kernel memory is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Objects {
    /// Processes and threads.
    pub tasks: u64,
    /// Address spaces.
    pub spaces: u64,
    /// Mappings.
    pub areas: u64,
    /// Page tables: counted by the kernel.
    pub tables: Bytes,
    /// Open files.
    pub files: u64,
    /// Inodes among their files, each once.
    pub inodes: u64,
    /// Ends of pipes.
    pub pipe_ends: u64,
    /// TCP sockets.
    pub tcp: u64,
    /// Datagram sockets.
    pub datagram: u64,
    /// All other sockets.
    pub other_sockets: u64,
    /// Namespaces, which the kernel counts by user and kind (`bursar_model::namespace_bytes`).
    pub namespaces: Bytes,
}

/// Bytes of kernel memory for each, measured against a cgroup's `memory.stat` on 7.2.
const TASK: u64 = 26_500;
const SPACE: u64 = 9_000;
const AREA: u64 = 220;
const FILE: u64 = 210;
const INODE: u64 = 900;
const PIPE_END: u64 = 1_300;
const TCP: u64 = 3_800;
const DATAGRAM: u64 = 2_700;
const OTHER_SOCKET: u64 = 2_500;

/// The kernel's memory for an account's objects. Off by a third for what was measured, and by more for
/// programs that use what is not listed here.
pub fn kmemsize(objects: &Objects) -> Bytes {
    let parts = [
        (objects.tasks, TASK),
        (objects.spaces, SPACE),
        (objects.areas, AREA),
        (objects.files, FILE),
        (objects.inodes, INODE),
        (objects.pipe_ends, PIPE_END),
        (objects.tcp, TCP),
        (objects.datagram, DATAGRAM),
        (objects.other_sockets, OTHER_SOCKET),
    ];
    let counted = objects.tables.saturating_add(objects.namespaces);
    parts.iter().fold(counted, |sum, (count, each)| {
        sum.saturating_add(Bytes::new(count.saturating_mul(*each)))
    })
}

/// Names and inodes that stay because the account's files are open.
pub fn dcachesize(objects: &Objects) -> Bytes {
    Bytes::new(objects.inodes.saturating_mul(INODE))
}

/// What accounts hold together, in OpenVZ's terms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Utilisation {
    /// kmemsize and all buffers.
    pub kernel: Bytes,
    /// physpages.
    pub resident_pages: u64,
    /// oomguarpages: resident and swapped.
    pub kept_pages: u64,
    /// privvmpages.
    pub private_pages: u64,
}

impl Utilisation {
    /// Of memory, thousandths.
    pub fn of_ram(&self, ram: Bytes) -> u64 {
        self.share(self.resident_pages, ram)
    }

    /// Of memory and swap, thousandths.
    pub fn of_memory_and_swap(&self, all: Bytes) -> u64 {
        self.share(self.kept_pages, all)
    }

    /// What is allocated, touched or not, of memory and swap, thousandths. Above 1000: more was promised
    /// than there is.
    pub fn allocated(&self, all: Bytes) -> u64 {
        self.share(self.private_pages, all)
    }

    fn share(&self, pages: u64, whole: Bytes) -> u64 {
        let bytes = Bytes::new(pages.saturating_mul(Unit::PAGE_BYTES)).saturating_add(self.kernel);
        match whole.get() {
            0 => 0,
            whole => bytes.scaled(1000, whole).get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_memory_is_the_sum_of_its_parts() {
        let shell = Objects {
            tasks: 1,
            spaces: 1,
            areas: 40,
            tables: Bytes::new(60_000),
            files: 4,
            inodes: 2,
            namespaces: Bytes::new(190_000),
            ..Objects::default()
        };
        assert_eq!(
            kmemsize(&shell).get(),
            26_500 + 9_000 + 40 * 220 + 60_000 + 4 * 210 + 2 * 900 + 190_000
        );
        assert_eq!(dcachesize(&shell).get(), 1_800);
        let endless = Objects {
            tasks: u64::MAX,
            ..shell
        };
        assert_eq!(kmemsize(&endless).get(), u64::MAX);
    }

    #[test]
    fn shares_are_of_what_there_is() {
        let all = Utilisation {
            kernel: Bytes::from_mib(1),
            resident_pages: 256,
            kept_pages: 512,
            private_pages: 1024,
        };
        assert_eq!(all.of_ram(Bytes::from_mib(4)), 500);
        assert_eq!(all.of_memory_and_swap(Bytes::from_mib(6)), 500);
        assert_eq!(all.allocated(Bytes::from_mib(4)), 1250);
        assert_eq!(all.of_ram(Bytes::ZERO), 0);
    }
}
