// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends SIGKILL where the kernel half asks us to, or where there is none.
//!
//! Somebody chose a victim a moment ago; it may be gone and its pid another's by now. So: take a hold
//! on the process with that pid *and* that start time, look once more whether it may be killed, and
//! signal through the hold.

use bursar_host::{HostError, Pidfd, Proc, Sent, StartTime, clock};
use bursar_model::{Nanos, Pid};
use rustix::process::Signal;

/// /proc counts in hundredths of a second whatever the kernel's own HZ (include/linux/jiffies.h
/// USER_HZ).
const TICK_NS: u64 = 10_000_000;
const UNTOUCHABLE: i16 = -1000;

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Execution {
    /// Its signal was sent, CLOCK_MONOTONIC.
    Signalled(Nanos),
    /// It has ended by itself.
    Gone,
    /// It must not be killed after all, or cannot be, and why.
    Spared(String),
}

impl Execution {
    /// When its signal was sent, if it was.
    pub(crate) const fn signalled(&self) -> Option<Nanos> {
        match self {
            Self::Signalled(at) => Some(*at),
            Self::Gone | Self::Spared(_) => None,
        }
    }
}

/// When a process began, in /proc's unit.
pub(crate) fn start_time(started: Nanos) -> StartTime {
    StartTime::new(started.get() / TICK_NS)
}

/// A hold on a process that was killed already, if it is still there.
pub(crate) fn hold(proc: &Proc, pid: Pid, started: Nanos) -> Option<Pidfd> {
    Pidfd::open_verified(proc, pid, start_time(started))
        .ok()
        .flatten()
}

/// Kills the process behind a hold.
pub(crate) fn execute(pidfd: &Pidfd) -> Execution {
    let at = clock::monotonic();
    match pidfd.send(Signal::KILL) {
        Ok(Sent::Done) => Execution::Signalled(at),
        Ok(Sent::Gone) => Execution::Gone,
        Err(error) => Execution::Spared(error.to_string()),
    }
}

/// Kills the process that was chosen; what it held is to be reaped through the hold.
pub(crate) fn execute_chosen(proc: &Proc, pid: Pid, started: Nanos) -> (Execution, Option<Pidfd>) {
    match seize(proc, pid, start_time(started)) {
        Ok(Ok(pidfd)) => (execute(&pidfd), Some(pidfd)),
        Ok(Err(execution)) => (execution, None),
        Err(error) => (Execution::Spared(error.to_string()), None),
    }
}

fn seize(proc: &Proc, pid: Pid, start: StartTime) -> Result<Result<Pidfd, Execution>, HostError> {
    let spared = |why: &str| Ok(Err(Execution::Spared(why.to_owned())));
    if pid.get() <= 1 || pid.get() == std::process::id() {
        return spared("it is pid 1 or bursard");
    }
    let Some(pidfd) = Pidfd::open_verified(proc, pid, start)? else {
        return Ok(Err(Execution::Gone));
    };
    let Some(process) = proc.process_since(pid, start)? else {
        return Ok(Err(Execution::Gone));
    };
    match process.oom_score_adj()? {
        None => Ok(Err(Execution::Gone)),
        Some(UNTOUCHABLE) => spared("its oom_score_adj is -1000"),
        Some(_) => Ok(Ok(pidfd)),
    }
}
