// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time: what the kernel half stamps its events with, and what people read and write.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bursar_model::Nanos;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// 9999-12-31T23:59:59Z, the last second that RFC 3339 can say, seconds since 1970.
const LAST_SECOND: u64 = 253_402_300_799;

/// Why a text is no moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a valid time; write RFC 3339 (2026-11-21T05:00:00Z) or how long ago (10m, 2h, 1d)"
)]
pub struct SinceError(String);

/// Nanoseconds since boot, sleep aside: CLOCK_MONOTONIC, the clock of bpf_ktime_get_ns().
pub fn monotonic() -> Nanos {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// The time on all CPUs that this process has used so far.
pub fn self_cpu_time() -> Nanos {
    nanos(clock_gettime(ClockId::ProcessCPUTime))
}

/// The time on a CPU that the calling thread has used so far: what others take from it meanwhile is not in it.
pub fn thread_cpu_time() -> Nanos {
    nanos(clock_gettime(ClockId::ThreadCPUTime))
}

fn nanos(time: Timespec) -> Nanos {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    Nanos::new(seconds.saturating_mul(1_000_000_000).saturating_add(rest))
}

/// When a moment of the monotonic clock was on the wall.
///
/// The difference of the two clocks is taken now, each time: one taken at start would carry every
/// later jump of the wall clock into all times. A jump between the moment and now shows as it must:
/// on the clock that is right now.
pub fn to_wall(moment: Nanos) -> SystemTime {
    wall_at(moment, monotonic(), SystemTime::now())
}

fn wall_at(moment: Nanos, monotonic: Nanos, wall: SystemTime) -> SystemTime {
    let shifted = if moment <= monotonic {
        wall.checked_sub(Duration::from_nanos(
            monotonic.get().saturating_sub(moment.get()),
        ))
    } else {
        wall.checked_add(Duration::from_nanos(
            moment.get().saturating_sub(monotonic.get()),
        ))
    };
    shifted.unwrap_or(wall)
}

/// RFC 3339 in UTC with microseconds, `2026-11-21T05:00:00.000000Z`. What lies outside the years 1970
/// to 9999 (a machine without a clock) is shown as the nearest moment inside.
pub fn rfc3339(time: SystemTime) -> String {
    let last = UNIX_EPOCH + Duration::from_secs(LAST_SECOND);
    humantime::format_rfc3339_micros(time.clamp(UNIX_EPOCH, last)).to_string()
}

/// The moment that `--since` means: RFC 3339 (UTC where no offset is given; a date alone is its
/// beginning), or a span before `now` (`10m`, `2h`, `1d`, `1h 30m`).
///
/// # Errors
/// When it is neither.
pub fn parse_since(text: &str, now: SystemTime) -> Result<SystemTime, SinceError> {
    let trimmed = text.trim();
    if let Ok(span) = humantime::parse_duration(trimmed) {
        return Ok(now.checked_sub(span).unwrap_or(UNIX_EPOCH).max(UNIX_EPOCH));
    }
    moment(trimmed).ok_or_else(|| SinceError(text.chars().take(80).collect()))
}

/// humantime reads UTC only; RFC 3339 also has offsets.
fn moment(text: &str) -> Option<SystemTime> {
    let upper = text.to_ascii_uppercase();
    if upper.len() == "2026-11-21".len() {
        return humantime::parse_rfc3339_weak(&format!("{upper}T00:00:00Z")).ok();
    }
    let split = upper
        .len()
        .checked_sub("+02:00".len())
        .and_then(|at| upper.split_at_checked(at));
    if let Some((local, offset)) = split
        && let [sign @ (b'+' | b'-'), hours @ .., b':', _, _] = offset.as_bytes()
        // A time of day stands before it: "-21" of a date is no offset.
        && local.contains(':')
    {
        let two_digits = |part: &[u8]| match part {
            [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => {
                Some(u64::from(tens - b'0') * 10 + u64::from(ones - b'0'))
            }
            _ => None,
        };
        let hours = two_digits(hours).filter(|&hours| hours < 24)?;
        let minutes = two_digits(offset.as_bytes().get(4..)?).filter(|&minutes| minutes < 60)?;
        let offset = Duration::from_secs(hours * 3600 + minutes * 60);
        let local = humantime::parse_rfc3339_weak(local).ok()?;
        return match sign {
            b'+' => local.checked_sub(offset).map(|utc| utc.max(UNIX_EPOCH)),
            _ => local.checked_add(offset),
        };
    }
    humantime::parse_rfc3339_weak(&upper).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn moments_are_read_in_every_form() {
        let now = at(1_795_237_200);
        let table = [
            ("2026-11-21T05:00:00Z", at(1_795_237_200)),
            ("2026-11-21t05:00:00z", at(1_795_237_200)),
            ("2026-11-21T05:00:00.000000Z", at(1_795_237_200)),
            ("2026-11-21 05:00:00", at(1_795_237_200)),
            ("2026-11-21T07:30:00+02:30", at(1_795_237_200)),
            ("2026-11-21T00:00:00-05:00", at(1_795_237_200)),
            ("2026-11-21", at(1_795_219_200)),
            ("10m", at(1_795_236_600)),
            ("2h", at(1_795_230_000)),
            ("1d", at(1_795_150_800)),
            (" 1h 30m ", at(1_795_231_800)),
            ("0s", now),
            ("1000y", UNIX_EPOCH),
        ];
        for (text, moment) in table {
            assert_eq!(parse_since(text, now), Ok(moment), "{text}");
        }
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in [
            "",
            "yesterday",
            "5",
            "-5m",
            "2026-13-01",
            "2026-11-21T05:00:00+25:00",
            "2026-11-21T05:00:00+02:60",
            "25:00:00",
            "é+02:00",
        ] {
            assert!(parse_since(text, at(5)).is_err(), "{text}");
        }
        assert_eq!(
            parse_since("soon\n", at(5)).unwrap_err().to_string(),
            r#""soon\n" is not a valid time; write RFC 3339 (2026-11-21T05:00:00Z) or how long ago (10m, 2h, 1d)"#
        );
    }

    #[test]
    fn moments_are_shown_with_microseconds_and_absurd_ones_too() {
        let table = [
            (
                at(1_795_237_200) + Duration::from_nanos(1_500),
                "2026-11-21T05:00:00.000001Z",
            ),
            (
                UNIX_EPOCH - Duration::from_secs(5),
                "1970-01-01T00:00:00.000000Z",
            ),
            (at(u64::from(u32::MAX) << 10), "9999-12-31T23:59:59.000000Z"),
        ];
        for (time, text) in table {
            assert_eq!(rfc3339(time), text);
        }
    }

    #[test]
    fn a_jump_of_the_wall_clock_moves_all_moments_with_it() {
        let (moment, later) = (Nanos::new(5_000_000_000), Nanos::new(8_000_000_000));
        assert_eq!(wall_at(moment, later, at(1000)), at(997));
        assert_eq!(wall_at(moment, later, at(5000)), at(4997));
        assert_eq!(wall_at(later, moment, at(1000)), at(1003));
    }

    #[test]
    fn now_is_now_on_both_clocks() {
        let before = SystemTime::now();
        let wall = to_wall(monotonic());
        let slack = Duration::from_secs(5);
        assert!(wall + slack > before && wall < SystemTime::now() + slack);
    }

    #[test]
    fn work_takes_cpu_time() {
        let before = self_cpu_time();
        let mut sum = 0_u64;
        while self_cpu_time() <= before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            let _ = parse_since(&text, at(1_000_000));
        }

        #[test]
        fn no_near_miss_panics(text in "[0-9]{1,4}-[0-9]{2}-[0-9]{2}[T ]?[0-9:.]{0,12}[-+Zé]?[0-9:]{0,6}") {
            let _ = parse_since(&text, at(1_000_000));
        }

        #[test]
        fn what_is_shown_reads_back(seconds in 0..LAST_SECOND, micros in 0_u32..1_000_000) {
            let time = at(seconds) + Duration::from_micros(micros.into());
            prop_assert_eq!(parse_since(&rfc3339(time), at(0)), Ok(time));
        }
    }
}
