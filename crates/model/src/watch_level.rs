// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A level of an account's memory that somebody waits for: `notice`, `barrier` or a part of the limit (`80%`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Bounds, Bytes};

/// Which level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum WatchLevel {
    /// The account's notice.
    #[default]
    Notice,
    /// Its barrier. A request refused there counts as well: held may stay below the barrier because of it.
    Barrier,
    /// So many hundredths of its limit, 1 ..= 100.
    Percent(u8),
}

/// Why a text is no level.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a valid level: write notice, barrier, or a part of the limit from 1% to 100%"
)]
pub struct WatchLevelError(String);

impl WatchLevel {
    /// Where it is in an account with these bounds; `None` where the bound is missing that it takes.
    pub fn bytes(self, bounds: &Bounds) -> Option<Bytes> {
        match self {
            Self::Notice => bounds.notice(),
            Self::Barrier => bounds.barrier(),
            Self::Percent(part) => bounds.limit().map(|limit| {
                let bytes = u128::from(limit.get()) * u128::from(part) / 100;
                Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
            }),
        }
    }

    /// The bound that it takes.
    pub const fn bound(self) -> &'static str {
        match self {
            Self::Notice => "notice",
            Self::Barrier => "barrier",
            Self::Percent(_) => "limit",
        }
    }
}

impl FromStr for WatchLevel {
    type Err = WatchLevelError;

    fn from_str(text: &str) -> Result<Self, WatchLevelError> {
        let percent = |text: &str| {
            let is_number = text.bytes().all(|it| it.is_ascii_digit());
            text.parse().ok().filter(|_| is_number)
        };
        match text {
            "notice" => Ok(Self::Notice),
            "barrier" => Ok(Self::Barrier),
            _ => match text.strip_suffix('%').and_then(percent) {
                Some(part @ 1..=100) => Ok(Self::Percent(part)),
                _ => Err(WatchLevelError(text.chars().take(64).collect())),
            },
        }
    }
}

impl fmt::Display for WatchLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Notice | Self::Barrier => f.write_str(self.bound()),
            Self::Percent(part) => write!(f, "{part}%"),
        }
    }
}

impl TryFrom<String> for WatchLevel {
    type Error = WatchLevelError;

    fn try_from(text: String) -> Result<Self, WatchLevelError> {
        text.parse()
    }
}

impl From<WatchLevel> for String {
    fn from(level: WatchLevel) -> Self {
        level.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_reads_as_it_is_written() {
        let table = [
            ("notice", WatchLevel::Notice),
            ("barrier", WatchLevel::Barrier),
            ("1%", WatchLevel::Percent(1)),
            ("80%", WatchLevel::Percent(80)),
            ("100%", WatchLevel::Percent(100)),
        ];
        for (text, level) in table {
            assert_eq!(text.parse(), Ok(level), "{text}");
            assert_eq!(level.to_string(), text);
        }
        for text in [
            "", "%", "0%", "101%", "+5%", "-5%", "5", "limit", "8G", "5 %", "999%",
        ] {
            assert!(text.parse::<WatchLevel>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_level_needs_its_bound() {
        let [low, high] = [900, 1000].map(Bytes::from_mib);
        let bounds = Bounds::new(Some(low), None, Some(high)).unwrap();
        assert_eq!(WatchLevel::Notice.bytes(&bounds), Some(low));
        assert_eq!(WatchLevel::Barrier.bytes(&bounds), None);
        assert_eq!(
            WatchLevel::Percent(80).bytes(&bounds),
            Some(Bytes::from_mib(800))
        );
        assert_eq!(WatchLevel::Percent(80).bytes(&Bounds::default()), None);
        let huge = Bounds::new(None, None, Some(Bytes::new(u64::MAX))).unwrap();
        assert_eq!(
            WatchLevel::Percent(100).bytes(&huge),
            Some(Bytes::new(u64::MAX))
        );
    }
}
