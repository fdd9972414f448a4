// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What changes when the number of huge pages does (S4 "Doing more"): they are part of a zone's
//! managed pages, so a factor that is right without them keeps too much of the rest free.

/// The largest factor, so that the same share of what is not huge pages stays free.
pub(crate) fn highest_scale(configured: u32, managed_pages: u64, huge_pages_total: u64) -> u32 {
    if managed_pages == 0 {
        return configured;
    }
    let rest = managed_pages.saturating_sub(huge_pages_total);
    let scaled = u128::from(configured) * u128::from(rest) / u128::from(managed_pages);
    u32::try_from(scaled).unwrap_or(configured).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_memory_in_huge_pages_halves_the_factor_and_back_again() {
        assert_eq!(highest_scale(1000, 100_000, 0), 1000);
        assert_eq!(highest_scale(1000, 100_000, 50_000), 500);
        assert_eq!(highest_scale(1000, 100_000, 100_000), 1);
        assert_eq!(highest_scale(1000, 100_000, 0), 1000);
    }

    #[test]
    fn absurd_numbers_do_no_harm() {
        assert_eq!(highest_scale(1000, 0, 5), 1000);
        assert_eq!(highest_scale(3000, u64::MAX, u64::MAX), 1);
        assert_eq!(highest_scale(1000, 10, u64::MAX), 1);
    }
}
