// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Some threads of a process: those that must answer in time, beside others that may fault.

use std::fs;

use bursar_host::{Proc, Stat};
use bursar_model::Pid;

use crate::{Error, Faults};

/// A process with more threads is looked at only so far.
const MAX_THREADS: usize = 1 << 16;

/// Threads of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Threads {
    process: Pid,
    ids: Vec<Pid>,
}

impl Threads {
    /// Their numbers.
    pub fn ids(&self) -> &[Pid] {
        &self.ids
    }

    /// Their faults so far, of those that have not ended.
    pub fn faults(&self) -> Faults {
        let stats = self.ids.iter().filter_map(|tid| {
            let bytes = fs::read(format!("/proc/{}/task/{tid}/stat", self.process)).ok()?;
            Stat::parse(&bytes).ok()
        });
        stats.fold(Faults::default(), |sum, stat| Faults {
            minor: sum.minor.saturating_add(stat.minor_faults),
            major: sum.major.saturating_add(stat.major_faults),
        })
    }
}

/// The threads of a process that are scheduled before ordinary ones: SCHED_FIFO, SCHED_RR,
/// SCHED_DEADLINE.
///
/// # Errors
/// When the threads cannot be listed.
pub fn real_time_threads(process: Pid) -> Result<Threads, Error> {
    let mut ids = Proc::host()?.threads(process, MAX_THREADS)?;
    ids.retain(|tid| is_real_time(*tid));
    Ok(Threads { process, ids })
}

fn is_real_time(tid: Pid) -> bool {
    let Ok(raw) = libc::pid_t::try_from(tid.get()) else {
        return false;
    };
    // SAFETY: a number only.
    let policy = unsafe { libc::sched_getscheduler(raw) };
    policy >= 0
        && matches!(
            policy & !libc::SCHED_RESET_ON_FORK,
            libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE
        )
}
