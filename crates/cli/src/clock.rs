// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The caller's time: now, here.

use bursar_model::Until;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::style::Charset;

/// What the time is and how it is written where the caller lives.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    now: Timestamp,
    zone: TimeZone,
}

/// The machine's zone. To find its name in /usr/share/zoneinfo, as TimeZone::system() does, takes more time than all the
/// rest of a command, and nobody asks for the name.
fn zone_of_here() -> TimeZone {
    let of_file = || TimeZone::tzif("local", &std::fs::read("/etc/localtime").ok()?).ok();
    match std::env::var_os("TZ") {
        None => of_file().unwrap_or_else(TimeZone::system),
        Some(_) => TimeZone::system(),
    }
}

impl Clock {
    /// The machine's.
    pub(crate) fn here() -> Self {
        Self {
            now: Timestamp::now(),
            zone: zone_of_here(),
        }
    }

    /// One that stands still.
    #[cfg(test)]
    pub(crate) const fn stopped(now: Timestamp, zone: TimeZone) -> Self {
        Self { now, zone }
    }

    pub(crate) const fn now(&self) -> Timestamp {
        self.now
    }

    /// The same, on the clocks and calendars of here.
    pub(crate) fn here_and_now(&self) -> Zoned {
        self.now.to_zoned(self.zone.clone())
    }

    /// For a log line: `2026-11-21 06:12:03.004`. What is no time appears as it is.
    pub(crate) fn stamp(&self, rfc3339: &str, charset: Charset) -> String {
        self.local(rfc3339, "%Y-%m-%d %H:%M:%S%.3f")
            .unwrap_or_else(|| charset.shown(rfc3339))
    }

    /// Seconds since 1970 as strftime(3) has it, here.
    pub(crate) fn local_at(&self, seconds: u64, format: &str) -> String {
        let moment = timestamp(seconds).to_zoned(self.zone.clone());
        moment.strftime(format).to_string()
    }

    /// A moment in RFC 3339 as strftime(3) has it, here. What is no time appears as it is.
    pub(crate) fn local_of(&self, rfc3339: &str, format: &str) -> String {
        let shown = || Charset::Unicode.shown(rfc3339);
        self.local(rfc3339, format).unwrap_or_else(shown)
    }

    /// Seconds since 1970 in RFC 3339.
    pub(crate) fn moment(seconds: u64) -> String {
        timestamp(seconds).to_string()
    }

    /// For a screen: `06:12:03`.
    pub(crate) fn time(&self, rfc3339: &str, charset: Charset) -> String {
        self.local(rfc3339, "%H:%M:%S")
            .unwrap_or_else(|| charset.shown(rfc3339))
    }

    /// For a sentence: `3 minutes ago (2026-11-21 06:12:03 CET)`.
    pub(crate) fn told(&self, rfc3339: &str, charset: Charset) -> String {
        match (
            self.ago(rfc3339),
            self.local(rfc3339, "%Y-%m-%d %H:%M:%S %Z"),
        ) {
            (Some(ago), Some(local)) => format!("{ago} ({local})"),
            _ => charset.shown(rfc3339),
        }
    }

    /// For something to come: `today 17:30`, `tomorrow 09:00`, `2026-12-01 09:00`.
    pub(crate) fn coming(&self, until: Until) -> String {
        let (here, then) = (
            self.here_and_now(),
            until.moment().to_zoned(self.zone.clone()),
        );
        let is_whole = then.second() == 0;
        let time = then.strftime(if is_whole { "%H:%M" } else { "%H:%M:%S" });
        let tomorrow = here.date().tomorrow().ok();
        let day = match then.date() {
            day if day == here.date() => "today".to_owned(),
            day if Some(day) == tomorrow => "tomorrow".to_owned(),
            day => day.to_string(),
        };
        format!("{day} {time}")
    }

    fn local(&self, rfc3339: &str, format: &str) -> Option<String> {
        let time: Timestamp = rfc3339.parse().ok()?;
        Some(
            time.to_zoned(self.zone.clone())
                .strftime(format)
                .to_string(),
        )
    }

    fn ago(&self, rfc3339: &str) -> Option<String> {
        let time: Timestamp = rfc3339.parse().ok()?;
        let seconds = self.now.duration_since(time).as_secs();
        Some(match seconds {
            // A clock that was set back since, or two machines' clocks.
            ..0 => "in the future by this clock".into(),
            0..2 => "just now".into(),
            2..120 => format!("{seconds} seconds ago"),
            120..7_200 => format!("{} minutes ago", seconds / 60),
            7_200..172_800 => format!("{} hours ago", seconds / 3_600),
            _ => format!("{} days ago", seconds / 86_400),
        })
    }
}

/// What lies beyond what can be said is the last moment that can.
fn timestamp(seconds: u64) -> Timestamp {
    let moment = i64::try_from(seconds).map(Timestamp::from_second);
    moment.ok().and_then(Result::ok).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use jiff::tz::Offset;

    use super::*;

    fn told(time: &str) -> String {
        let zone = TimeZone::fixed(Offset::constant(1));
        let clock = Clock::stopped("2026-11-21T05:15:03Z".parse().unwrap(), zone);
        clock.told(time, Charset::Unicode)
    }

    #[test]
    fn a_time_to_come_is_told_by_its_day() {
        let zone = TimeZone::fixed(Offset::constant(1));
        let clock = Clock::stopped("2026-11-21T22:15:03Z".parse().unwrap(), zone);
        for (until, text) in [
            ("2026-11-21T22:59:59Z", "today 23:59:59"),
            ("2026-11-22T08:00:00Z", "tomorrow 09:00"),
            ("2026-12-01T08:00:00Z", "2026-12-01 09:00"),
        ] {
            assert_eq!(clock.coming(until.parse().unwrap()), text);
        }
    }

    #[test]
    fn a_time_is_told_from_now_and_from_here() {
        let table = [
            (
                "2026-11-21T05:15:02.5Z",
                "just now (2026-11-21 06:15:02 +01)",
            ),
            (
                "2026-11-21T05:14:13Z",
                "50 seconds ago (2026-11-21 06:14:13 +01)",
            ),
            (
                "2026-11-21T05:12:02.999996Z",
                "3 minutes ago (2026-11-21 06:12:02 +01)",
            ),
            (
                "2026-11-20T23:12:03Z",
                "6 hours ago (2026-11-21 00:12:03 +01)",
            ),
            (
                "2026-10-01T05:12:03Z",
                "51 days ago (2026-10-01 06:12:03 +01)",
            ),
            (
                "2026-11-21T05:16:00Z",
                "in the future by this clock (2026-11-21 06:16:00 +01)",
            ),
            ("yester\nday", r"yester\nday"),
        ];
        for (time, text) in table {
            assert_eq!(told(time), text);
        }
    }
}
