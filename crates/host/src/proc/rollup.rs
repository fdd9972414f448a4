// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /proc/PID/smaps_rollup (proc_pid_smaps(5)): what a process has in memory, pages that it shares divided
//! by how many share them. The kernel walks all its page tables for this: tens of nanoseconds a page.

use bursar_model::Bytes;

use crate::Malformed;
use crate::bytes::{kilobytes_of, required};

/// What a process has in memory, in full and divided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rollup {
    /// Resident pages of all kinds.
    pub rss: Bytes,
    /// The same, each divided by how often it is mapped.
    pub pss: Bytes,
    /// Resident anonymous pages.
    pub anonymous: Bytes,
    /// The same, divided.
    pub pss_anon: Bytes,
    /// Resident shared memory (tmpfs, memfd, SysV), divided.
    pub pss_shmem: Bytes,
    /// Resident pages of any kind that are mapped more than once.
    pub shared: Bytes,
    /// Given back with MADV_FREE and not needed by anybody yet: the kernel may take these pages at any time.
    pub lazy_free: Bytes,
    /// Swapped out.
    pub swap: Bytes,
    /// The same, divided.
    pub swap_pss: Bytes,
}

impl Rollup {
    /// Reads the content of the file.
    ///
    /// # Errors
    /// When a key that every kernel from 6.1 on writes is missing or its value makes no sense.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let part = |key| required(kilobytes_of(bytes, key)?, key);
        Ok(Self {
            rss: part("Rss")?,
            pss: part("Pss")?,
            anonymous: part("Anonymous")?,
            pss_anon: part("Pss_Anon")?,
            pss_shmem: part("Pss_Shmem")?,
            shared: part("Shared_Clean")?.saturating_add(part("Shared_Dirty")?),
            lazy_free: part("LazyFree")?,
            swap: part("Swap")?,
            swap_pss: part("SwapPss")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "55d0-7ffd ---p 00000000 00:00 0    [rollup]\nRss:  100 kB\nPss:  40 kB\nPss_Dirty:  1 kB\nPss_Anon:  30 kB\nPss_File:  6 kB\nPss_Shmem:  4 kB\nShared_Clean:  50 kB\nShared_Dirty:  20 kB\nPrivate_Clean:  10 kB\nPrivate_Dirty:  20 kB\nReferenced:  1 kB\nAnonymous:  60 kB\nLazyFree:  5 kB\nSwap:  8 kB\nSwapPss:  2 kB\nLocked:  0 kB\n";

    #[test]
    fn each_key_is_taken_from_its_own_line() {
        let rollup = Rollup::parse(TEXT.as_bytes()).unwrap();
        let kib = |count: u64| Bytes::new(count * 1024);
        let expected = Rollup {
            rss: kib(100),
            pss: kib(40),
            anonymous: kib(60),
            pss_anon: kib(30),
            pss_shmem: kib(4),
            shared: kib(70),
            lazy_free: kib(5),
            swap: kib(8),
            swap_pss: kib(2),
        };
        assert_eq!(rollup, expected);
    }

    #[test]
    fn what_is_missing_or_absurd_is_refused_by_name() {
        for (old, new, reason) in [
            ("Pss_Anon:  30 kB\n", "", "no key Pss_Anon"),
            (
                "SwapPss:  2 kB",
                "SwapPss:  -2 kB",
                "SwapPss is no number of kB",
            ),
            ("Anonymous", "Anon", "no key Anonymous"),
        ] {
            let error = Rollup::parse(TEXT.replacen(old, new, 1).as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), reason);
        }
    }
}
