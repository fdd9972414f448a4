// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When faults are looked at. Seeing one end costs more than seeing it begin, and that costs some 4 % of
//! the fault (docs/explanation/faults.md). So while faults are few each is seen and timed; in a storm ends are timed
//! in short windows only; and of a flood beginnings are seen a quarter of the time.

use std::time::Duration;

/// From so many faults per second on it is a storm.
const STORM_PER_SECOND: u64 = 20_000;
/// From so many on it is a flood: on the processor that takes them, seeing them begin costs more than half
/// a percent.
const FLOOD_PER_SECOND: u64 = 100_000;
/// A storm is timed so long …
const OPEN: Duration = Duration::from_millis(1);
/// … in each so long, plus that. The first half second of a flood is seen whole, too.
const CLOSED: Duration = Duration::from_millis(499);
/// After a window in a flood it is seen so long …
const GLIMPSE: Duration = Duration::from_millis(99);
/// … and then not for so long at least …
const AWAY: u64 = 200;
/// … and so much longer at most, milliseconds. Each time another length, lest the program's own beat be
/// met at the same place always.
const AWAY_MORE: u64 = 200;
/// The golden section of that: steps of it fall everywhere alike.
const AWAY_STEP: u64 = 124;
/// How long to wait for a storm to begin.
const CALM: Duration = Duration::from_millis(20);

/// What to do, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    /// Time all faults.
    Open(Duration),
    /// Time none, see all begin.
    Closed(Duration),
    /// Not even that.
    Away(Duration),
}

impl Window {
    /// How long it lasts.
    pub(crate) const fn length(self) -> Duration {
        match self {
            Self::Open(length) | Self::Closed(length) | Self::Away(length) => length,
        }
    }
}

/// What follows what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rhythm {
    window: Window,
    /// Timed windows in a row that met a flood.
    floods: u32,
    /// By how much the next [`Window::Away`] is longer than the shortest, milliseconds.
    more: u64,
}

impl Rhythm {
    /// How a watch begins.
    pub(crate) const FIRST: Self = Self {
        window: Window::Open(OPEN),
        floods: 0,
        more: 0,
    };

    /// The window that is.
    pub(crate) const fn window(&self) -> Window {
        self.window
    }

    /// Goes on, after a window in which so many faults were timed.
    pub(crate) fn step(&mut self, timed: u64) {
        self.window = match self.window {
            Window::Open(length) => self.after_timing(length, timed),
            Window::Closed(_) if self.floods > 1 => {
                self.more = (self.more + AWAY_STEP) % AWAY_MORE;
                Window::Away(Duration::from_millis(AWAY + self.more))
            }
            Window::Closed(_) | Window::Away(_) => Window::Open(OPEN),
        };
    }

    fn after_timing(&mut self, length: Duration, timed: u64) -> Window {
        let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let is_over = |rate: u64| timed.saturating_mul(1000) >= rate.saturating_mul(millis);
        self.floods = if is_over(FLOOD_PER_SECOND) {
            self.floods.saturating_add(1)
        } else {
            0
        };
        match self.floods {
            0 if !is_over(STORM_PER_SECOND) => Window::Open(CALM),
            0 | 1 => Window::Closed(CLOSED),
            _ => Window::Closed(GLIMPSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The windows that follow, each timed one of which meets faults at such a rate.
    fn windows(rate: u64, count: usize) -> Vec<Window> {
        let mut rhythm = Rhythm::FIRST;
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(rhythm.window());
            let millis = u64::try_from(rhythm.window().length().as_millis()).unwrap();
            rhythm.step(rate * millis / 1000);
        }
        all
    }

    #[test]
    fn calm_is_timed_all_the_time_and_a_storm_one_part_in_500() {
        let calm = [Window::Open(OPEN), Window::Open(CALM), Window::Open(CALM)];
        assert_eq!(windows(19_000, 3), calm);
        let storm = [Window::Open(OPEN), Window::Closed(CLOSED)].repeat(3);
        assert_eq!(windows(99_000, 6), storm);
        assert_eq!(
            CLOSED.as_millis() + OPEN.as_millis(),
            500 * OPEN.as_millis()
        );
    }

    #[test]
    fn a_flood_is_seen_whole_at_first_and_then_a_quarter_of_the_time() {
        let flood = windows(100_000, 3002);
        assert_eq!(flood[..2], [Window::Open(OPEN), Window::Closed(CLOSED)]);
        let mut seen = Duration::ZERO;
        let mut away = Vec::new();
        for three in flood[2..].chunks(3) {
            assert_eq!(three[..2], [Window::Open(OPEN), Window::Closed(GLIMPSE)]);
            let Window::Away(length) = three[2] else {
                panic!("{three:?}");
            };
            seen += OPEN + GLIMPSE;
            away.push(length);
        }
        let gone: Duration = away.iter().sum();
        assert_eq!(seen.as_millis() * 3, 300_000);
        assert!((290_000..=310_000).contains(&gone.as_millis()), "{gone:?}");
        away.dedup();
        assert_eq!(
            away.len(),
            1000,
            "no two of the same length follow each other"
        );
    }

    #[test]
    fn a_flood_that_is_over_is_seen_again() {
        let mut rhythm = Rhythm::FIRST;
        for _ in 0..2 {
            rhythm.step(1_000);
            rhythm.step(0);
        }
        assert!(matches!(rhythm.window(), Window::Away(_)));
        rhythm.step(0);
        assert_eq!(rhythm.window(), Window::Open(OPEN));
        rhythm.step(3);
        assert_eq!(rhythm.window(), Window::Open(CALM));
    }
}
