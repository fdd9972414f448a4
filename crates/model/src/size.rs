// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SIZE as people write it: `512M`, `25%`, `none` (docs/reference/commands.md).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// A share in hundredths of a percent, 0 ..= 10,000 % (1,000,000).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u32);

impl Percent {
    /// `percent` whole percent; `None` above 10,000.
    pub const fn new(percent: u32) -> Option<Self> {
        if percent <= 10_000 {
            Some(Self(percent * 100))
        } else {
            None
        }
    }

    /// That share of `whole`, rounded down.
    pub fn of(self, whole: Bytes) -> Bytes {
        whole.scaled(u64::from(self.0), 10_000)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 100, self.0 % 100);
        match rest {
            0 => write!(f, "{whole}%"),
            _ if rest % 10 == 0 => write!(f, "{whole}.{}%", rest / 10),
            _ => write!(f, "{whole}.{rest:02}%"),
        }
    }
}

/// A size before it is known of what: an amount, a share, or no bound at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SizeSpec {
    /// So many bytes.
    Bytes(Bytes),
    /// A share: of RAM for a limit, of the limit for a notice or a barrier.
    Percent(Percent),
    /// No bound.
    None,
}

/// Why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Nothing there.
    #[error("a size is missing: write bytes with K, M, G or T (512M), a percentage (25%) or none")]
    Empty,
    /// A sign in front.
    #[error("{0:?} is negative: a size is 0 or more")]
    Negative(String),
    /// No number, or something behind it that is no unit.
    #[error(
        "{0:?} is not a valid size: write bytes with K, M, G or T (512M), a percentage (25%) or none"
    )]
    Malformed(String),
    /// Does not fit.
    #[error("{0:?} is too large: the largest size is 16E minus one byte, the largest share 10000%")]
    TooLarge(String),
}

impl SizeSpec {
    /// The amount meant, where a percentage is of `whole`; `None` for no bound.
    pub fn resolve(self, whole: Bytes) -> Option<Bytes> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Percent(percent) => Some(percent.of(whole)),
            Self::None => None,
        }
    }
}

/// Reads `digits[.digits]` as a number of ten-thousandths; `None` when it is something else.
fn ten_thousandths(text: &str) -> Option<Result<u128, ()>> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_digits(whole) || !is_digits(fraction) || text.ends_with('.') {
        return None;
    }
    if whole.len() > 20 || fraction.len() > 18 {
        return Some(Err(()));
    }
    let mut value: u128 = whole.parse().ok()?;
    value *= 10_000;
    let padded: String = fraction.chars().chain("0000".chars()).take(4).collect();
    value += padded.parse::<u128>().ok()?;
    Some(Ok(value))
}

impl FromStr for SizeSpec {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let trimmed = text.trim();
        let malformed = || SizeError::Malformed(text.to_owned());
        let too_large = || SizeError::TooLarge(text.to_owned());
        if trimmed.is_empty() {
            return Err(SizeError::Empty);
        }
        if trimmed.eq_ignore_ascii_case("none")
            || trimmed.eq_ignore_ascii_case("infinity")
            || trimmed.eq_ignore_ascii_case("unlimited")
        {
            return Ok(Self::None);
        }
        if trimmed.starts_with('-') {
            return Err(SizeError::Negative(text.to_owned()));
        }
        if let Some(number) = trimmed.strip_suffix('%') {
            let value = ten_thousandths(number.trim_end()).ok_or_else(malformed)?;
            let hundredths = value.map_err(|()| too_large())? / 100;
            let hundredths = u32::try_from(hundredths).map_err(|_| too_large())?;
            if hundredths > 1_000_000 {
                return Err(too_large());
            }
            return Ok(Self::Percent(Percent(hundredths)));
        }
        let upper = trimmed.to_ascii_uppercase();
        let unit_free = upper
            .strip_suffix("IB")
            .or_else(|| upper.strip_suffix('B'))
            .unwrap_or(&upper);
        let (number, shift) = match unit_free.as_bytes().last() {
            Some(b'K') => (&unit_free[..unit_free.len() - 1], 10),
            Some(b'M') => (&unit_free[..unit_free.len() - 1], 20),
            Some(b'G') => (&unit_free[..unit_free.len() - 1], 30),
            Some(b'T') => (&unit_free[..unit_free.len() - 1], 40),
            Some(b'P') => (&unit_free[..unit_free.len() - 1], 50),
            Some(b'E') => (&unit_free[..unit_free.len() - 1], 60),
            _ => (unit_free, 0),
        };
        // "512iB" and "1.5" are slips, not sizes.
        if shift == 0 && (upper.ends_with("IB") || number.contains('.')) {
            return Err(malformed());
        }
        let value = ten_thousandths(number.trim_end()).ok_or_else(malformed)?;
        let value = value.map_err(|()| too_large())?;
        let bytes = value
            .checked_shl(shift)
            .filter(|v| v >> shift == value)
            .ok_or_else(too_large)?;
        let bytes = u64::try_from(bytes / 10_000).map_err(|_| too_large())?;
        Ok(Self::Bytes(Bytes::new(bytes)))
    }
}

/// The shortest text that reads back as the same size.
impl fmt::Display for SizeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Percent(percent) => percent.fmt(f),
            Self::Bytes(bytes) => {
                let count = bytes.get();
                let units = [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')];
                for (shift, name) in units {
                    if count != 0 && count.trailing_zeros() >= shift {
                        return write!(f, "{}{name}", count >> shift);
                    }
                }
                write!(f, "{count}")
            }
        }
    }
}

impl TryFrom<String> for SizeSpec {
    type Error = SizeError;

    fn try_from(text: String) -> Result<Self, SizeError> {
        text.parse()
    }
}

impl From<SizeSpec> for String {
    fn from(size: SizeSpec) -> Self {
        size.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(count: u64) -> SizeSpec {
        SizeSpec::Bytes(Bytes::new(count))
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let table = [
            ("0", bytes(0)),
            ("4096", bytes(4096)),
            ("512M", bytes(512 << 20)),
            ("512m", bytes(512 << 20)),
            ("512MiB", bytes(512 << 20)),
            ("512 MB", bytes(512 << 20)),
            ("1.5G", bytes(3 << 29)),
            ("8T", bytes(8 << 40)),
            ("none", SizeSpec::None),
            ("infinity", SizeSpec::None),
            ("25%", SizeSpec::Percent(Percent(2500))),
            ("12.5%", SizeSpec::Percent(Percent(1250))),
            ("18446744073709551615", bytes(u64::MAX)),
        ];
        for (text, size) in table {
            assert_eq!(text.parse(), Ok(size), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_a_reason() {
        for text in ["", "  "] {
            assert_eq!(text.parse::<SizeSpec>(), Err(SizeError::Empty));
        }
        assert!(matches!(
            "-1".parse::<SizeSpec>(),
            Err(SizeError::Negative(_))
        ));
        for text in [
            "M", "1.5", "12X", "1e9", "0x10", "1..5G", "5 5M", ".5G", "5.G", "٥M", "%", "iB",
        ] {
            assert!(
                matches!(text.parse::<SizeSpec>(), Err(SizeError::Malformed(_))),
                "{text}"
            );
        }
        for text in [
            "18446744073709551616",
            "16E",
            "99999999999999999999999999T",
            "10001%",
        ] {
            assert!(
                matches!(text.parse::<SizeSpec>(), Err(SizeError::TooLarge(_))),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back_the_same(count: u64) {
            prop_assert_eq!(bytes(count).to_string().parse(), Ok(bytes(count)));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,24}") {
            let _ = text.parse::<SizeSpec>();
        }
    }
}
