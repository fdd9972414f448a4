// SPDX-License-Identifier: Apache-2.0 OR MIT
//! T of `--since`: a moment, or how long ago.

use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};

/// From when on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
    /// From this moment.
    Moment(Timestamp),
    /// From so long before now.
    Ago(SignedDuration),
}

impl Since {
    /// RFC 3339 in UTC with microseconds, the form of an event's own time, so that whoever compares
    /// the two as text is right as well. Nothing was recorded before 1970.
    pub(crate) fn as_of(self, now: Timestamp) -> String {
        let moment = match self {
            Self::Moment(moment) => moment,
            Self::Ago(span) => now.checked_sub(span).unwrap_or(Timestamp::UNIX_EPOCH),
        };
        format!("{:.6}", moment.max(Timestamp::UNIX_EPOCH))
    }
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        ago(trimmed)
            .map(Self::Ago)
            .or_else(|| trimmed.parse().ok().map(Self::Moment))
            .ok_or_else(|| {
                "write a moment (RFC 3339: 2026-11-21T05:00:00Z) or how long ago (90s, 10m, 2h, 1d, 1h30m)"
                    .into()
            })
    }
}

/// `1h30m` and the like; `None` when it is something else or longer than time has been recorded.
fn ago(text: &str) -> Option<SignedDuration> {
    let mut rest = text;
    let mut seconds: i64 = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = rest.split_at(digits);
        let scale = match unit.bytes().next()? {
            b's' => 1,
            b'm' => 60,
            b'h' => 3_600,
            b'd' => 86_400,
            b'w' => 604_800,
            _ => return None,
        };
        seconds = number
            .parse::<i64>()
            .ok()?
            .checked_mul(scale)?
            .checked_add(seconds)?;
        rest = unit.get(1..)?;
    }
    if text.is_empty() {
        None
    } else {
        Some(SignedDuration::from_secs(seconds))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn moments_and_spans_are_read_as_people_write_them() {
        let table = [
            ("10m", "2026-11-21T04:50:00.000000Z"),
            ("90s", "2026-11-21T04:58:30.000000Z"),
            ("1h30m", "2026-11-21T03:30:00.000000Z"),
            ("1d", "2026-11-20T05:00:00.000000Z"),
            ("2w", "2026-11-07T05:00:00.000000Z"),
            ("0s", "2026-11-21T05:00:00.000000Z"),
            ("9000000000000s", "1970-01-01T00:00:00.000000Z"),
            ("2026-11-21T05:00:00Z", "2026-11-21T05:00:00.000000Z"),
            (
                "2026-11-21T06:00:00.25+01:00",
                "2026-11-21T05:00:00.250000Z",
            ),
            ("1700-01-01T00:00:00Z", "1970-01-01T00:00:00.000000Z"),
        ];
        let now = "2026-11-21T05:00:00Z".parse().unwrap();
        for (text, moment) in table {
            assert_eq!(text.parse::<Since>().unwrap().as_of(now), moment, "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "m",
            "10",
            "10x",
            "-10m",
            "1.5h",
            "10m ago",
            "99999999999999999999s",
            "٣m",
        ] {
            assert!(text.parse::<Since>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,16}") {
            let _ = text.parse::<Since>();
        }
    }
}
