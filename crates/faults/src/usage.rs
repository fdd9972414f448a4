// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel counts for us, and time.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Page faults, as getrusage(2) and /proc/PID/stat count them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Faults {
    /// Served without a disk.
    pub minor: u64,
    /// Waited for a disk.
    pub major: u64,
}

impl Faults {
    /// Both.
    pub const fn total(self) -> u64 {
        self.minor.saturating_add(self.major)
    }

    /// What came since `earlier`.
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            minor: self.minor.saturating_sub(earlier.minor),
            major: self.major.saturating_sub(earlier.major),
        }
    }

    pub(crate) fn of(usage: &libc::rusage) -> Self {
        Self {
            minor: u64::try_from(usage.ru_minflt).unwrap_or(0),
            major: u64::try_from(usage.ru_majflt).unwrap_or(0),
        }
    }

    /// Of the calling thread so far.
    pub(crate) fn ours() -> Self {
        // SAFETY: plain data that the call fills.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: a pointer to a live local.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
        Self::of(&usage)
    }
}

/// CLOCK_MONOTONIC, nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let now = Duration::try_from(now).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
