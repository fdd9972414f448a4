// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who shares a session with whom: where the kernel has autogroups it shares CPUs by sessions (sched(7)), and nice
//! values count within one only.

use anyhow::{Context, Result};
use clap::ValueEnum;

/// In which sessions reapers, victim, busy loops and neighbours are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sessions {
    /// All in one, as beside `bursar kill` in the shell that everything was started from
    One,
    /// The reapers in one of their own, as bursard is; everybody else in another one, as one user's programs are
    Two,
    /// The reapers in one of their own, as bursard is; everybody else each in one of his own
    Each,
}

impl Sessions {
    pub(crate) const fn are_several(self) -> bool {
        !matches!(self, Self::One)
    }

    /// Victims, loops and neighbours have one of their own.
    pub(crate) const fn are_apart(self) -> bool {
        matches!(self, Self::Each)
    }
}

/// Into a session of its own.
pub(crate) fn part() -> Result<()> {
    rustix::process::setsid().context("begin a session")?;
    Ok(())
}
