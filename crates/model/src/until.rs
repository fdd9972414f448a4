// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When a temporary limit ends.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A moment, to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Until(Timestamp);

/// Why a text is no moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a valid moment: write it with its offset from UTC, 2026-12-01T09:00:00+01:00, or in UTC, \
     2026-12-01T08:00:00Z"
)]
pub struct UntilError(String);

impl Until {
    /// The second in which this moment is.
    pub fn of(moment: Timestamp) -> Self {
        Self(Timestamp::from_second(moment.as_second()).unwrap_or(moment))
    }

    /// The moment when it ends.
    pub const fn moment(self) -> Timestamp {
        self.0
    }

    /// Whether it has come.
    pub fn is_past(self, now: Timestamp) -> bool {
        self.0 <= now
    }
}

impl FromStr for Until {
    type Err = UntilError;

    fn from_str(text: &str) -> Result<Self, UntilError> {
        let moment = text.trim().parse();
        moment
            .map(Self::of)
            .map_err(|_| UntilError(text.chars().take(80).collect()))
    }
}

impl TryFrom<String> for Until {
    type Error = UntilError;

    fn try_from(text: String) -> Result<Self, UntilError> {
        text.parse()
    }
}

impl From<Until> for String {
    fn from(until: Until) -> Self {
        until.to_string()
    }
}

/// RFC 3339 in UTC.
impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_an_offset_and_is_said_in_utc() {
        for text in [
            "2026-12-01T09:00:00+01:00",
            "2026-12-01 09:00+01",
            " 2026-12-01T08:00:00.9Z ",
        ] {
            let until: Until = text.parse().unwrap();
            assert_eq!(until.to_string(), "2026-12-01T08:00:00Z", "{text}");
        }
        // By whose clock is not for us to guess.
        for text in ["2026-12-01T09:00:00", "2026-12-01", "tomorrow", "", "09:00"] {
            assert!(text.parse::<Until>().is_err(), "{text}");
        }
    }

    #[test]
    fn it_is_past_from_its_own_second_on() {
        let until: Until = "2026-12-01T08:00:00Z".parse().unwrap();
        let at = |text: &str| until.is_past(text.parse().unwrap());
        assert!(!at("2026-12-01T07:59:59.999Z"));
        assert!(at("2026-12-01T08:00:00Z"));
    }
}
