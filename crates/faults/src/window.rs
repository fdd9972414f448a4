// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When the end of faults is watched. Seeing a fault end costs more than counting it (docs/FAULTS.md),
//! so in a storm it is done in short windows only; while faults are few, each is timed.

use std::time::Duration;

/// From so many faults per second on it is a storm.
const STORM_PER_SECOND: u64 = 20_000;
/// A storm is looked at so long …
const OPEN: Duration = Duration::from_millis(1);
/// … in each so long, plus that.
const CLOSED: Duration = Duration::from_millis(499);
/// How long to wait for a storm to begin.
const CALM: Duration = Duration::from_millis(20);

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    /// Time all faults for so long, then ask again.
    Open(Duration),
    /// Time none for so long, then ask again.
    Closed(Duration),
}

impl Window {
    /// How a watch begins.
    pub(crate) const FIRST: Self = Self::Open(OPEN);

    /// What comes after this one, in which so many faults were timed.
    pub(crate) fn next(self, timed: u64) -> Self {
        match self {
            Self::Closed(_) => Self::Open(OPEN),
            Self::Open(length) => {
                let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
                if timed.saturating_mul(1000) >= STORM_PER_SECOND.saturating_mul(millis) {
                    Self::Closed(CLOSED)
                } else {
                    Self::Open(CALM)
                }
            }
        }
    }

    /// How long it lasts.
    pub(crate) const fn length(self) -> Duration {
        match self {
            Self::Open(length) | Self::Closed(length) => length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calm_is_timed_all_the_time_and_a_storm_one_part_in_500() {
        let calm = Window::FIRST.next(3);
        assert_eq!(calm, Window::Open(CALM));
        assert_eq!(calm.next(399), Window::Open(CALM));
        let storm = calm.next(400);
        assert_eq!(storm, Window::Closed(CLOSED));
        assert_eq!(storm.next(0), Window::Open(OPEN));
        assert_eq!(storm.next(0).next(800), Window::Closed(CLOSED));
        assert_eq!(
            CLOSED.as_millis() + OPEN.as_millis(),
            500 * OPEN.as_millis()
        );
    }
}
