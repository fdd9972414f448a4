// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much of a core a pagemap scan takes.

use std::time::{Duration, Instant};

/// Work so long, then rest so many times as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    work: Duration,
    rest: u32,
}

/// Keeps a pace.
#[derive(Debug)]
pub(crate) struct Clock {
    pace: Pace,
    since: Instant,
    worked: Duration,
}

impl Pace {
    /// A quarter of one core, in slices of 5 ms: a machine of 16 GiB in 4 KiB pages takes about a second.
    pub const QUARTER: Self = Self {
        work: Duration::from_millis(5),
        rest: 3,
    };
    /// As fast as it goes.
    pub const FULL: Self = Self {
        work: Duration::MAX,
        rest: 0,
    };
}

impl Clock {
    pub(crate) fn start(pace: Pace) -> Self {
        Self {
            pace,
            since: Instant::now(),
            worked: Duration::ZERO,
        }
    }

    /// Rests when it is time to.
    pub(crate) fn tick(&mut self) {
        let spent = self.since.elapsed();
        if spent >= self.pace.work {
            self.worked += spent;
            // A slice that others made longer is no work of ours, and is rested for all the same.
            std::thread::sleep(spent.saturating_mul(self.pace.rest));
            self.since = Instant::now();
        }
    }

    pub(crate) fn worked(&self) -> Duration {
        self.worked + self.since.elapsed()
    }
}
