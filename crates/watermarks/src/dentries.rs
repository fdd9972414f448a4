// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Negative dentries: remembered names of files that do not exist. A program that keeps asking for such
//! files fills memory with them (memoptimizer caps them, too).

use std::path::Path;

/// What a dentry takes, bytes: 192 on 64-bit kernels (/proc/slabinfo).
const DENTRY_BYTES: u64 = 192;

/// How many there are: the fifth number of /proc/sys/fs/dentry-state (5.0); `None` where it says 0 for
/// "not counted", or nothing.
pub(crate) fn negative(proc: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(proc.join("sys/fs/dentry-state")).ok()?;
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    numbers.nth(4)?.ok()
}

/// The most there should be, when they may take `permille` of the memory that is not huge pages.
pub(crate) fn cap(permille: u32, managed_bytes: u64, huge_bytes: u64) -> u64 {
    let rest = managed_bytes.saturating_sub(huge_bytes);
    let bytes = u128::from(rest) * u128::from(permille) / 1000;
    u64::try_from(bytes / u128::from(DENTRY_BYTES)).unwrap_or(u64::MAX)
}

/// What `fs.negative-dentry-limit` is set to: thousandths of all memory, of which `permille` is meant
/// without huge pages; 1 to 100.
pub(crate) fn limit_permille(permille: u32, managed_bytes: u64, huge_bytes: u64) -> i64 {
    let rest = u128::from(managed_bytes.saturating_sub(huge_bytes));
    let share = rest * u128::from(permille) / u128::from(managed_bytes.max(1));
    i64::try_from(share).unwrap_or(100).clamp(1, 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cap_follows_memory_and_huge_pages() {
        assert_eq!(cap(15, 192_000, 0), 15);
        assert_eq!(cap(15, 192_000, 96_000), 7);
        assert_eq!(cap(15, 5, 10), 0);
        assert_eq!(limit_permille(15, 1 << 30, 0), 15);
        assert_eq!(limit_permille(15, 1 << 30, 1 << 29), 7);
        assert_eq!(limit_permille(15, 0, 0), 1);
    }
}
