// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends SIGKILL where the kernel half asks us to, or where there is none.
//!
//! Somebody chose a victim a moment ago; it may be gone and its pid another's by now. So: take a hold
//! on the process with that pid *and* that start time, look once more whether it may be killed, and
//! signal through the hold.

use bursar_host::{HostError, Pidfd, Proc, Sent, Signal, StartTime};
use bursar_model::{Nanos, Pid};

use crate::fact::Victim;

/// /proc counts in hundredths of a second whatever the kernel's own HZ (include/linux/jiffies.h
/// USER_HZ).
const TICK_NS: u64 = 10_000_000;
const UNTOUCHABLE: i16 = -1000;

/// What became of it.
#[derive(Debug)]
pub(crate) enum Execution {
    /// The signal is on its way; the hold is for the reaper.
    Done(Pidfd),
    /// It has ended by itself.
    Gone,
    /// It must not be killed after all.
    Spared(&'static str),
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

/// Kills a victim.
pub(crate) fn execute(proc: &Proc, victim: &Victim) -> Result<Execution, HostError> {
    if victim.pid.get() <= 1 || victim.pid.get() == std::process::id() {
        return Ok(Execution::Spared("it is pid 1 or bursard"));
    }
    let start = start_time(victim.started);
    let Some(pidfd) = Pidfd::open_verified(proc, victim.pid, start)? else {
        return Ok(Execution::Gone);
    };
    let Some(process) = proc.process_since(victim.pid, start)? else {
        return Ok(Execution::Gone);
    };
    match process.oom_score_adj()? {
        None => return Ok(Execution::Gone),
        Some(UNTOUCHABLE) => return Ok(Execution::Spared("its oom_score_adj is -1000")),
        Some(_) => {}
    }
    Ok(match pidfd.send(Signal::KILL)? {
        Sent::Done => Execution::Done(pidfd),
        Sent::Gone => Execution::Gone,
    })
}
