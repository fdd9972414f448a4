// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /proc/meminfo (proc_meminfo(5)).

use bursar_model::Bytes;

use crate::Malformed;
use crate::bytes::{kilobytes_of, required};

/// The machine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemInfo {
    /// What the kernel manages: RAM without what firmware and the kernel's image took.
    pub total: Bytes,
    /// Used by nobody.
    pub free: Bytes,
    /// The kernel's estimate of what can be had without swapping.
    pub available: Bytes,
    /// Swap there is.
    pub swap_total: Bytes,
    /// Swap used by nobody.
    pub swap_free: Bytes,
    /// tmpfs, memfd and SysV shared memory, mapped or not.
    pub shmem: Bytes,
    /// Page cache that has to be written.
    pub dirty: Bytes,
    /// All huge pages of the pools, used or not; 0 where the kernel does not say (before 4.20).
    pub hugetlb: Bytes,
}

impl MemInfo {
    /// Reads the content of the file.
    ///
    /// # Errors
    /// When a key is missing or its value makes no sense.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let amount = |key| required(kilobytes_of(bytes, key)?, key);
        Ok(Self {
            total: amount("MemTotal")?,
            free: amount("MemFree")?,
            available: amount("MemAvailable")?,
            swap_total: amount("SwapTotal")?,
            swap_free: amount("SwapFree")?,
            shmem: amount("Shmem")?,
            dirty: amount("Dirty")?,
            hugetlb: kilobytes_of(bytes, "Hugetlb")?.unwrap_or(Bytes::ZERO),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = MemInfo::parse(&bytes);
        }
    }
}
