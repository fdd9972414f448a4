// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TIME of `--until`: a moment, or a time of here that is still to come.

use std::str::FromStr;
use std::time::Duration;

use bursar_model::Until;
use jiff::civil::{DateTime, Time};
use jiff::{SignedDuration, Timestamp, Zoned};

use crate::clock::Clock;
use crate::since::{Since, local};

/// When something ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// At this moment.
    Moment(Timestamp),
    /// When the clocks of here show this next.
    Next(Time),
    /// So many days from today, when the clocks of here show this.
    InDays(i32, Time),
    /// When the clocks and calendars of here show this.
    Local(DateTime),
}

impl End {
    /// The moment itself.
    ///
    /// # Errors
    /// When it is past, with what to do.
    pub(crate) fn as_of(self, clock: &Clock) -> Result<Until, String> {
        let here = clock.here_and_now();
        let on = |days: i32, time: Time| {
            let day = here.date().checked_add(jiff::Span::new().days(days)).ok()?;
            shown(&here, day.to_datetime(time))
        };
        let moment = match self {
            Self::Moment(moment) => Some(moment),
            Self::Next(time) => [0, 1]
                .into_iter()
                .find_map(|days| on(days, time).filter(|it| *it > clock.now())),
            Self::InDays(days, time) => on(days, time),
            Self::Local(moment) => shown(&here, moment),
        };
        let until = moment.map(Until::of);
        let to_come = until.filter(|it| !it.is_past(clock.now()));
        to_come.ok_or_else(|| {
            let is = until.map_or_else(|| "no time".to_owned(), |it| format!("{it}, and past"));
            format!("--until is {is}: choose a time to come")
        })
    }
}

/// So long from now.
pub(crate) fn after(span: Duration, clock: &Clock) -> Result<Until, String> {
    let span = SignedDuration::try_from(span).ok();
    let moment = span.and_then(|it| clock.now().checked_add(it).ok());
    let until = moment.map(Until::of);
    let to_come = until.filter(|it| !it.is_past(clock.now()));
    to_come.ok_or_else(|| "--for is zero or too long".into())
}

/// Of two moments at which clocks show it the later. Where they leave it out, as if they had not been put
/// forward yet: rather too long than too short.
fn shown(here: &Zoned, moment: DateTime) -> Option<Timestamp> {
    let moment = here.time_zone().to_ambiguous_timestamp(moment);
    moment.later().ok()
}

impl FromStr for End {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        in_days(text)
            .or_else(|| text.parse().ok().map(Self::Moment))
            .or_else(|| {
                Some(match local(text)? {
                    Since::Date(day) => Self::Local(day.to_datetime(Time::midnight())),
                    Since::Clock(time) => Self::Next(time),
                    Since::Local(moment) => Self::Local(moment),
                    _ => return None,
                })
            })
            .ok_or_else(|| {
                "write a local time (17:30, tomorrow, \"tomorrow 09:00\", 2026-12-01, \"2026-12-01 09:00\"; a day is \
                 its beginning) or a moment (RFC 3339: 2026-12-01T08:00:00Z)"
                    .into()
            })
    }
}

/// `tomorrow`, `today 17:30`.
fn in_days(text: &str) -> Option<End> {
    let (day, time) = text.split_once(' ').unwrap_or((text, "00:00"));
    let days = match day {
        "today" => 0,
        "tomorrow" => 1,
        _ => return None,
    };
    match local(time.trim_start())? {
        Since::Clock(time) => Some(End::InDays(days, time)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use proptest::prelude::*;

    use super::*;

    fn clock(now: &str) -> Clock {
        let berlin = "CET-1CEST,M3.5.0,M10.5.0/3";
        Clock::stopped(now.parse().unwrap(), TimeZone::posix(berlin).unwrap())
    }

    fn end(text: &str, now: &str) -> Result<String, String> {
        let end: End = text.parse()?;
        end.as_of(&clock(now)).map(|it| it.to_string())
    }

    #[test]
    fn times_of_here_are_those_to_come() {
        let now = "2026-11-24T08:45:10Z";
        for (text, moment) in [
            ("17:30", "2026-11-24T16:30:00Z"),
            ("09:45", "2026-11-25T08:45:00Z"),
            ("tomorrow", "2026-11-24T23:00:00Z"),
            ("tomorrow 09:00", "2026-11-25T08:00:00Z"),
            ("today 09:46", "2026-11-24T08:46:00Z"),
            ("2026-12-01", "2026-11-30T23:00:00Z"),
            ("2026-12-01 09:00", "2026-12-01T08:00:00Z"),
            ("2026-12-01T08:00:00.5Z", "2026-12-01T08:00:00Z"),
        ] {
            assert_eq!(end(text, now).as_deref(), Ok(moment), "{text}");
        }
        for text in [
            "today",
            "today 09:45",
            "2026-11-24",
            "2026-11-24T08:45:10Z",
            "2020-01-01 09:00",
        ] {
            let said = end(text, now).unwrap_err();
            assert!(said.contains("and past: choose"), "{text}: {said}");
        }
        // Clocks are put back at three: it is half past two twice.
        let autumn = "2026-10-24T20:00:00Z";
        assert_eq!(end("02:30", autumn).as_deref(), Ok("2026-10-25T01:30:00Z"));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "4h",
            "yesterday",
            "tomorrow 9",
            "tomorrow tomorrow",
            "soon",
            "09:30pm",
            "today 2026-12-01",
        ] {
            assert!(text.parse::<End>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_span_ends_so_long_from_now() {
        let clock = clock("2026-11-24T08:45:10Z");
        let after = |seconds| after(Duration::from_secs(seconds), &clock).map(|it| it.to_string());
        assert_eq!(after(4 * 3600).as_deref(), Ok("2026-11-24T12:45:10Z"));
        assert!(after(0).is_err() && after(u64::MAX).is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,16}") {
            let _ = text.parse::<End>().map(|it| it.as_of(&clock("2026-11-24T08:45:10Z")));
        }
    }
}
