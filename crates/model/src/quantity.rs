// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Amounts of memory: bytes for people, pages for the kernel, and the one way between them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An amount of memory in bytes, 0 ..= 2⁶⁴−1.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(u64);

/// An amount of memory in pages of this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pages(u64);

/// How many bytes a page of this machine has: a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSize {
    shift: u32,
}

impl Bytes {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// More than there can be: where a bound is asked for, that there is none.
    pub const MAX: Self = Self(u64::MAX);

    /// `count` bytes.
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// `count` mebibytes; saturates.
    pub const fn from_mib(count: u64) -> Self {
        Self(count.saturating_mul(1 << 20))
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Sum, or the largest amount there is.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Difference, or nothing.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `self × numerator / denominator` without overflow on the way; saturates. A zero denominator
    /// yields the largest amount.
    #[must_use]
    pub fn scaled(self, numerator: u64, denominator: u64) -> Self {
        let product = u128::from(self.0).saturating_mul(u128::from(numerator));
        let scaled = product
            .checked_div(u128::from(denominator))
            .unwrap_or(u128::MAX);
        Self(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

/// For people: three significant digits and a binary unit, `512 MiB`, `1.50 GiB`, `0 B`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        // Thousandths of the unit, rounded half up, in integers: no floats anywhere near a limit.
        let mut unit = 0;
        let mut scale: u128 = 1024;
        while unit + 1 < UNITS.len() && u128::from(self.0) >= scale * 1024 {
            scale *= 1024;
            unit += 1;
        }
        let thousandths = (u128::from(self.0) * 1000 + scale / 2) / scale;
        let (whole, rest) = (thousandths / 1000, thousandths % 1000);
        let name = UNITS.get(unit).copied().unwrap_or("EiB");
        let text = if rest == 0 || whole >= 100 {
            format!("{} {name}", (thousandths + 500) / 1000)
        } else if whole >= 10 {
            format!("{whole}.{} {name}", rest / 100)
        } else {
            format!("{whole}.{:02} {name}", rest / 10)
        };
        f.pad(&text)
    }
}

impl Pages {
    /// `count` pages.
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// The number of pages.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// In bytes; saturates.
    pub const fn to_bytes(self, size: PageSize) -> Bytes {
        Bytes(self.0.saturating_mul(1 << size.shift))
    }
}

impl PageSize {
    /// A page of `bytes` bytes; `None` unless that is a power of two.
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_power_of_two() {
            Some(Self {
                shift: bytes.trailing_zeros(),
            })
        } else {
            None
        }
    }

    /// Binary logarithm of the size in bytes.
    pub const fn shift(self) -> u32 {
        self.shift
    }

    /// Whole pages in `bytes`, rounded down: a limit is never rounded up.
    pub const fn pages_within(self, bytes: Bytes) -> Pages {
        Pages(bytes.0 >> self.shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_with_three_digits_and_a_binary_unit() {
        let table = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.50 KiB"),
            (512 << 20, "512 MiB"),
            ((1 << 30) + (1 << 29), "1.50 GiB"),
            (10 * (1 << 20) + (1 << 19), "10.5 MiB"),
            (u64::MAX, "16 EiB"),
        ];
        for (bytes, text) in table {
            assert_eq!(Bytes::new(bytes).to_string(), text);
        }
    }

    #[test]
    fn scaling_does_not_overflow_on_the_way() {
        assert_eq!(
            Bytes::new(u64::MAX).scaled(9, 10),
            Bytes::new(u64::MAX / 10 * 9 + 4)
        );
        assert_eq!(Bytes::new(5).scaled(1, 0), Bytes::new(u64::MAX));
    }

    #[test]
    fn a_page_size_that_is_no_power_of_two_is_none() {
        assert_eq!(PageSize::new(4097), None);
        assert_eq!(
            PageSize::new(4096).unwrap().pages_within(Bytes::new(8191)),
            Pages::new(1)
        );
    }
}
