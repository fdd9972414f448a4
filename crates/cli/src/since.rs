// SPDX-License-Identifier: Apache-2.0 OR MIT
//! T of `--since`: a moment, a time of here, or how long ago.

use std::str::FromStr;
use std::time::Duration;

use jiff::civil::{Date, DateTime, Time};
use jiff::{SignedDuration, Timestamp, Zoned};

use crate::clock::Clock;

/// From when on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
    /// From this moment.
    Moment(Timestamp),
    /// From so long before now.
    Ago(SignedDuration),
    /// From the beginning of the day so many days ago.
    DaysAgo(i32),
    /// From the beginning of this day.
    Date(Date),
    /// From when the clocks of here showed this last.
    Clock(Time),
    /// From when the clocks and calendars of here showed this.
    Local(DateTime),
}

impl Since {
    /// RFC 3339 in UTC with microseconds, the form of an event's own time, so that whoever compares
    /// the two as text is right as well. Nothing was recorded before 1970.
    pub(crate) fn as_of(self, clock: &Clock) -> String {
        let now = clock.now();
        let here = || clock.here_and_now();
        let moment = match self {
            Self::Moment(moment) => Some(moment),
            Self::Ago(span) => now.checked_sub(span).ok(),
            Self::DaysAgo(days) => {
                day_before(&here(), days).and_then(|it| beginning_of(&here(), it))
            }
            Self::Date(day) => beginning_of(&here(), day),
            Self::Clock(time) => [0, 1].into_iter().find_map(|before| {
                let day = day_before(&here(), before)?;
                shown(&here(), day.to_datetime(time)).filter(|it| *it <= now)
            }),
            Self::Local(moment) => shown(&here(), moment),
        };
        let moment = moment.unwrap_or(Timestamp::UNIX_EPOCH);
        format!("{:.6}", moment.max(Timestamp::UNIX_EPOCH))
    }
}

fn day_before(here: &Zoned, days: i32) -> Option<Date> {
    here.date().checked_sub(jiff::Span::new().days(days)).ok()
}

/// Where clocks go forward at midnight it begins at one o'clock.
fn beginning_of(here: &Zoned, day: Date) -> Option<Timestamp> {
    let begins = day.to_zoned(here.time_zone().clone()).ok()?;
    Some(begins.timestamp())
}

/// Of two moments at which clocks showed it the earlier. Where they left it out, as if they had been put
/// forward already: rather too much is shown than too little.
fn shown(here: &Zoned, moment: DateTime) -> Option<Timestamp> {
    let moment = here.time_zone().to_ambiguous_timestamp(moment);
    moment.earlier().ok()
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        ago(trimmed)
            .map(Self::Ago)
            .or_else(|| days_ago(trimmed).map(Self::DaysAgo))
            .or_else(|| trimmed.parse().ok().map(Self::Moment))
            .or_else(|| local(trimmed))
            .ok_or_else(|| {
                "write how long ago (90s, 10m, 2h, 1d, 1h30m), a local time (09:30, today, yesterday, 2026-11-21, \
                 \"2026-11-21 09:30\") or a moment (RFC 3339: 2026-11-21T05:00:00Z)"
                    .into()
            })
    }
}

/// How long, as `--timeout` has it.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    let span = ago(text.trim()).and_then(|span| Duration::try_from(span).ok());
    span.ok_or_else(|| "write how long (90s, 10m, 2h, 1d, 1h30m)".into())
}

fn days_ago(text: &str) -> Option<i32> {
    match text {
        "today" => Some(0),
        "yesterday" => Some(1),
        _ => None,
    }
}

/// A date, a time of day, or both. Not whatever else jiff would take: what ends in a `Z` or in an offset is no
/// local time.
pub(crate) fn local(text: &str) -> Option<Since> {
    let is_plain = |it: &str, extra: &[u8]| {
        it.bytes()
            .all(|it| it.is_ascii_digit() || extra.contains(&it))
    };
    let date = |it: &str| {
        let is_date = it.len() == "2026-11-21".len() && is_plain(it, b"-");
        is_date.then(|| it.parse::<Date>().ok()).flatten()
    };
    let time = |it: &str| {
        let is_time = it.as_bytes().get(2) == Some(&b':') && is_plain(it, b":.");
        is_time.then(|| it.parse::<Time>().ok()).flatten()
    };
    if let Some((day, clock)) = text.split_once([' ', 'T', 't']) {
        return Some(Since::Local(
            date(day)?.to_datetime(time(clock.trim_start())?),
        ));
    }
    let day = date(text).map(Since::Date);
    day.or_else(|| time(text).map(Since::Clock))
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
    use jiff::tz::TimeZone;
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
        let clock = clock("2026-11-21T05:00:00Z", "CET-1");
        for (text, moment) in table {
            let since: Since = text.parse().unwrap();
            assert_eq!(since.as_of(&clock), moment, "{text}");
        }
    }

    fn clock(now: &str, zone: &str) -> Clock {
        Clock::stopped(now.parse().unwrap(), TimeZone::posix(zone).unwrap())
    }

    const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";

    #[test]
    fn times_of_here_are_read_by_the_clocks_and_calendars_of_here() {
        let clock = clock("2026-11-24T08:45:00Z", BERLIN);
        for (text, moment) in [
            ("today", "2026-11-23T23:00:00.000000Z"),
            ("yesterday", "2026-11-22T23:00:00.000000Z"),
            ("09:30", "2026-11-24T08:30:00.000000Z"),
            ("09:45:00", "2026-11-24T08:45:00.000000Z"),
            // It has not been that late yet today.
            ("09:45:01", "2026-11-23T08:45:01.000000Z"),
            ("22:00", "2026-11-23T21:00:00.000000Z"),
            ("2026-11-24", "2026-11-23T23:00:00.000000Z"),
            ("2026-07-01", "2026-06-30T22:00:00.000000Z"),
            ("2026-07-01 09:30", "2026-07-01T07:30:00.000000Z"),
            ("2026-07-01T09:30:15.5", "2026-07-01T07:30:15.500000Z"),
            ("2026-11-24 09:30:15", "2026-11-24T08:30:15.000000Z"),
            ("2026-11-24 09:30:15Z", "2026-11-24T09:30:15.000000Z"),
        ] {
            let since: Since = text.parse().unwrap();
            assert_eq!(since.as_of(&clock), moment, "{text}");
        }
    }

    #[test]
    fn where_clocks_are_put_forward_or_back_rather_too_much_is_meant_than_too_little() {
        // At two o'clock on 29 March, at three on 25 October; at midnight in the last.
        let midnight = "AAA3BBB,M3.5.0/0,M10.5.0/0";
        for (now, zone, text, moment) in [
            (
                "2026-10-25T10:00:00Z",
                BERLIN,
                "02:30",
                "2026-10-25T00:30:00.000000Z",
            ),
            (
                "2026-10-25T10:00:00Z",
                BERLIN,
                "today",
                "2026-10-24T22:00:00.000000Z",
            ),
            (
                "2026-10-26T10:00:00Z",
                BERLIN,
                "yesterday",
                "2026-10-24T22:00:00.000000Z",
            ),
            (
                "2026-03-29T10:00:00Z",
                BERLIN,
                "02:30",
                "2026-03-29T00:30:00.000000Z",
            ),
            (
                "2026-03-29T10:00:00Z",
                BERLIN,
                "03:00",
                "2026-03-29T01:00:00.000000Z",
            ),
            (
                "2026-03-29T10:00:00Z",
                midnight,
                "today",
                "2026-03-29T03:00:00.000000Z",
            ),
            (
                "2026-03-30T10:00:00Z",
                midnight,
                "2026-03-29",
                "2026-03-29T03:00:00.000000Z",
            ),
        ] {
            let since: Since = text.parse().unwrap();
            assert_eq!(since.as_of(&clock(now, zone)), moment, "{now} {text}");
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
            "tomorrow",
            "Today",
            "9:30",
            "25:00",
            "09:30pm",
            "0930",
            "20261121",
            "2026-13-01",
            "2026-11-21 9h",
            "2026-W47-6",
            "21.11.2026",
            "99999999999999999999s",
            "٣m",
        ] {
            assert!(text.parse::<Since>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_span_is_how_long_and_no_moment() {
        assert_eq!(span("1h30m"), Ok(Duration::from_secs(5400)));
        for text in ["", "today", "09:30", "-5s", "5"] {
            assert!(span(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,16}") {
            let _ = text.parse::<Since>();
        }
    }
}
