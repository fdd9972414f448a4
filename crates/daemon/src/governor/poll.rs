// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The poll trigger: a look at all of /proc every 200 ms. It exists for machines without BPF and as
//! the comparison in the benchmarks: what S1 section 2.2 says of it holds.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use bursar_model::{AccountId, Bytes, KernelHalfStatus, Trigger, TriggerKind};
use bursar_policy::Plan;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::scan::Scan;
use super::{Governor, Reading};
use crate::fact::Fact;
use crate::scope::Scope;

/// A scan of /proc every so many milliseconds.
#[derive(Debug)]
pub(crate) struct PollGovernor {
    scan: Scan,
    timer: OwnedFd,
}

/// A timer that fires every `milliseconds`.
pub(super) fn ticking(milliseconds: u64) -> Result<OwnedFd> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags).context("make a timer")?;
    let every = Timespec {
        tv_sec: i64::try_from(milliseconds / 1000).unwrap_or(1),
        tv_nsec: i64::try_from(milliseconds % 1000).unwrap_or(0) * 1_000_000,
    };
    let schedule = Itimerspec {
        it_interval: every,
        it_value: every,
    };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &schedule).context("set a timer")?;
    Ok(timer)
}

impl PollGovernor {
    pub(crate) fn start(scope: Scope, counts_files: bool, milliseconds: u64) -> Result<Self> {
        let scan = Scan::new(scope, counts_files, Trigger::Poll)?;
        Ok(Self {
            scan,
            timer: ticking(milliseconds)?,
        })
    }
}

impl Governor for PollGovernor {
    fn apply(&mut self, plan: &Plan) -> Result<()> {
        self.scan.apply(plan);
        Ok(())
    }

    fn wake(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    fn drain(&mut self) -> Result<Vec<Fact>> {
        // Several ticks missed are one scan.
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        self.scan.run()
    }

    fn readings(&self) -> Vec<Reading> {
        self.scan.readings()
    }

    fn measure(&mut self, id: AccountId) -> Result<Bytes> {
        let users = self.scan.payers().payers_of(id);
        self.scan.measure(&users)
    }

    fn status(&self) -> KernelHalfStatus {
        KernelHalfStatus {
            trigger: Some(TriggerKind::Poll),
            timer: true,
            signals_others: true,
            resums: self.scan.scans,
            resum_ns: self.scan.scan_ns,
            resum_max_ns: self.scan.scan_max_ns,
            resum_processes: self.scan.processes,
            ..KernelHalfStatus::default()
        }
    }

    fn error_bound(&self) -> Bytes {
        // Nothing bounds what is allocated between two looks but the speed of the machine.
        Bytes::new(u64::MAX)
    }

    fn leave(&mut self, _release: bool) -> Result<()> {
        Ok(())
    }
}
