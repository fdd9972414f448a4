// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends SIGKILL where the kernel half asks us to, or where there is none.
//!
//! Somebody chose a victim a moment ago; it may be gone and its pid another's by now. So: take a hold
//! on the process with that pid *and* that number in pidfs, or that start time, look once more whether it
//! may be killed, and signal through the hold.

use std::num::NonZeroU64;
use std::time::Duration;

use bursar_host::{HostError, Pidfd, Proc, Sent, StartTime, clock};
use bursar_model::{Nanos, Pid};
use rustix::process::Signal;

const UNTOUCHABLE: i16 = -1000;

/// A process that somebody chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) pid: Pid,
    /// When it began, CLOCK_BOOTTIME; `None` where nobody could look, and then it has a number.
    pub(crate) started: Option<Nanos>,
    /// In pidfs. Where there is none its /proc/PID/stat has to be read, which waits for who is in the middle of an
    /// execve and lets it last (exec_update_lock).
    pub(crate) number: Option<NonZeroU64>,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KillOutcome {
    /// Its signal was sent, CLOCK_MONOTONIC.
    Signalled(Nanos),
    /// It has ended by itself.
    Gone,
    /// It must not be killed after all, or cannot be, and why.
    Spared(String),
}

impl KillOutcome {
    /// When its signal was sent, if it was.
    pub(crate) const fn signalled(&self) -> Option<Nanos> {
        match self {
            Self::Signalled(at) => Some(*at),
            Self::Gone | Self::Spared(_) => None,
        }
    }
}

impl Chosen {
    /// A hold on it; `None` when it has ended.
    fn open(self, proc: &Proc) -> Result<Option<Pidfd>, HostError> {
        if let Some(number) = self.number {
            match Pidfd::open_numbered(self.pid, number) {
                Err(HostError::Unsupported { .. }) => {}
                held => return held,
            }
        }
        let Some(started) = self.started else {
            return Ok(None);
        };
        let start = StartTime::after_boot(started);
        Pidfd::open_verified(proc, self.pid, start)
    }

    /// Whether nobody could look at it: its pid may be another's.
    pub(crate) fn is_unknown(&self) -> bool {
        self.number.is_none() && self.started.is_none_or(|it| it.get() == 0)
    }

    /// Whether it is surely the same: pids come again, and of another process is said rather too much than nothing.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let alike = match (self.number, other.number) {
            (Some(own), Some(its)) => own == its,
            _ => self.started.is_some() && self.started == other.started,
        };
        alike && self.pid == other.pid
    }
}

/// A hold on a process that was killed already, if it is still there.
pub(crate) fn hold(proc: &Proc, killed: Chosen) -> Option<Pidfd> {
    killed.open(proc).ok().flatten()
}

/// Kills the process behind a hold.
pub(crate) fn kill(pidfd: &Pidfd) -> KillOutcome {
    let at = clock::monotonic();
    match pidfd.send(Signal::KILL) {
        Ok(Sent::Done) => KillOutcome::Signalled(at),
        Ok(Sent::Gone) => KillOutcome::Gone,
        Err(error) => KillOutcome::Spared(error.to_string()),
    }
}

/// Kills the process that was chosen; what it held is to be reaped through the hold.
pub(crate) fn kill_chosen(proc: &Proc, chosen: Chosen) -> (KillOutcome, Option<Pidfd>) {
    match seize(proc, chosen) {
        Ok(Ok(pidfd)) => (kill(&pidfd), Some(pidfd)),
        Ok(Err(outcome)) => (outcome, None),
        Err(error) => (KillOutcome::Spared(error.to_string()), None),
    }
}

fn seize(proc: &Proc, chosen: Chosen) -> Result<Result<Pidfd, KillOutcome>, HostError> {
    let spared = |why: &str| Ok(Err(KillOutcome::Spared(why.to_owned())));
    let pid = chosen.pid;
    if pid.get() <= 1 || pid.get() == std::process::id() {
        return spared("it is pid 1 or bursard");
    }
    let Some(pidfd) = chosen.open(proc)? else {
        return Ok(Err(KillOutcome::Gone));
    };
    let process = proc.process(pid)?;
    let adjusted = process.map(|it| it.oom_score_adj()).transpose()?.flatten();
    // As long as ours has not ended nobody else had its number.
    if pidfd.wait_readable(Some(Duration::ZERO))? {
        return Ok(Err(KillOutcome::Gone));
    }
    match adjusted {
        None => Ok(Err(KillOutcome::Gone)),
        Some(UNTOUCHABLE) => spared("its oom_score_adj is -1000"),
        Some(_) => Ok(Ok(pidfd)),
    }
}
