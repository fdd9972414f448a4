// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's own shortage of memory, while which S1's last defence (3.4) is up. The kernel half tells that it may
//! be, and so does the kernel by a PSI trigger; what is available decides.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use bursar_config::{LastDefenceWhen, OomScoreConfig};
use bursar_host::Proc;
use bursar_model::Bytes;

const PRESSURE: &str = "/proc/pressure/memory";
/// Somebody waited for memory for so long of so long, microseconds. Without CAP_SYS_RESOURCE the kernel takes windows of
/// two seconds only (kernel/sched/psi.c).
const STALLS: [&str; 2] = ["some 20000 500000", "some 100000 2000000"];
/// How often it is looked whether the shortage goes on.
const LOOK: Duration = Duration::from_secs(1);
/// It has ended when for so long twice as much was available.
const CALM: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Shortage {
    when: Option<LastDefenceWhen>,
    adj: i16,
    short_below: Bytes,
    pressure: Option<File>,
    state: State,
}

#[derive(Debug)]
enum State {
    Down,
    Up {
        next_look: Instant,
        /// Since when there is enough again.
        calm: Option<Instant>,
    },
    /// Scores are being put back. As long as some are not, the kernel half must take none for its user's wish.
    Lowering {
        until: Instant,
    },
}

/// What follows from a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Raise,
    /// Those that have begun since.
    RaiseAgain,
    PutBack,
    /// All are as they were.
    Lowered,
}

/// The machine is short with less than this available: a sixteenth, but half a GiB, or a quarter, at least, for memory
/// may go at gigabytes a second; and 16 GiB at most.
fn short_below(total: Bytes) -> Bytes {
    let least = Bytes::from_mib(512).min(Bytes::new(total.get() / 4));
    Bytes::new(total.get() / 16)
        .max(least)
        .min(Bytes::from_mib(16 << 10))
}

impl Shortage {
    /// `acts`: it is no dry run. `is_left_raised`: a bursard before has not put back what it had raised, and that is
    /// done now.
    pub(crate) fn new(
        config: OomScoreConfig,
        total: Bytes,
        acts: bool,
        is_left_raised: bool,
    ) -> Self {
        let when = (config.enabled && acts).then_some(config.when);
        let pressure = match when {
            Some(LastDefenceWhen::Shortage) => pressure_trigger()
                .inspect_err(|error| tracing::debug!(%error, "no PSI trigger"))
                .ok(),
            _ => None,
        };
        Self {
            when,
            adj: config.oom_score_adj,
            short_below: short_below(total),
            pressure,
            state: match is_left_raised {
                true => State::Lowering {
                    until: Instant::now() + LOOK,
                },
                false => State::Down,
            },
        }
    }

    /// With less than this free the kernel half is to tell; `None`: nobody wants to know.
    pub(crate) fn told_below(&self) -> Option<Bytes> {
        (self.when == Some(LastDefenceWhen::Shortage)).then_some(self.short_below)
    }

    /// Has priority data when somebody waits for memory.
    pub(crate) fn pressure(&self) -> Option<BorrowedFd<'_>> {
        self.pressure.as_ref().map(AsFd::as_fd)
    }

    pub(crate) const fn is_raised(&self) -> bool {
        matches!(self.when, Some(LastDefenceWhen::Always)) || matches!(self.state, State::Up { .. })
    }

    /// What those are to have that had 0, for as long as some may have it.
    pub(crate) fn raised_adj(&self) -> Option<u16> {
        let is_down = !self.is_raised() && matches!(self.state, State::Down);
        u16::try_from(self.adj).ok().filter(|_| !is_down)
    }

    /// How long until [`Self::look`] is due.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let (State::Up { next_look: due, .. } | State::Lowering { until: due }) = self.state else {
            return None;
        };
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// Somebody says that memory may be short.
    pub(crate) fn hear(&mut self, proc: &Proc) -> Option<Change> {
        let short_below = self.told_below().filter(|_| !self.is_raised())?;
        let available = proc.meminfo().ok()?.available;
        if available >= short_below {
            return None;
        }
        tracing::warn!(
            "the machine is short of memory, {available} are available: its OOM killer is to choose among processes \
             with a limit first"
        );
        self.state = State::Up {
            next_look: Instant::now() + LOOK,
            calm: None,
        };
        Some(Change::Raise)
    }

    /// Whether the shortage goes on; nothing while there is none, or it was looked a moment ago.
    pub(crate) fn look(&mut self, proc: &Proc) -> Option<Change> {
        let now = Instant::now();
        let (next_look, calm) = match &mut self.state {
            State::Up { next_look, calm } if *next_look <= now => (next_look, calm),
            State::Lowering { until } if *until <= now => {
                self.state = State::Down;
                return Some(Change::Lowered);
            }
            _ => return None,
        };
        *next_look = now + LOOK;
        let available = proc.meminfo().map_or(Bytes::ZERO, |it| it.available);
        let enough = self.short_below.get().saturating_mul(2);
        if available.get() < enough {
            *calm = None;
            return Some(Change::RaiseAgain);
        }
        let since = *calm.get_or_insert(now);
        if now.saturating_duration_since(since) < CALM {
            return None;
        }
        tracing::info!(
            "the machine is short of memory no more, {available} are available: its OOM killer chooses as without bursar"
        );
        self.state = State::Lowering { until: now + LOOK };
        Some(Change::PutBack)
    }
}

fn pressure_trigger() -> io::Result<File> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for stall in STALLS {
        let mut file = File::options().read(true).write(true).open(PRESSURE)?;
        match file.write_all(format!("{stall}\0").as_bytes()) {
            Ok(()) => return Ok(file),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_is_a_sixteenth_within_bounds() {
        let of = |mib| short_below(Bytes::from_mib(mib));
        assert_eq!(of(1024), Bytes::from_mib(256));
        assert_eq!(of(4096), Bytes::from_mib(512));
        assert_eq!(of(64 << 10), Bytes::from_mib(4096));
        assert_eq!(of(4 << 20), Bytes::from_mib(16 << 10));
    }

    #[test]
    fn the_kernel_half_is_told_last_when_what_was_raised_is_put_back() {
        let total = Bytes::from_mib(1024);
        let mut shortage = Shortage::new(OomScoreConfig::default(), total, true, true);
        assert!(!shortage.is_raised());
        assert_eq!(shortage.raised_adj(), Some(900));
        let proc = Proc::host().unwrap();
        assert_eq!(shortage.look(&proc), None);
        shortage.state = State::Lowering {
            until: Instant::now(),
        };
        assert_eq!(shortage.look(&proc), Some(Change::Lowered));
        assert_eq!(shortage.raised_adj(), None);
    }
}
