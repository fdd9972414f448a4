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
use crate::reservations::Holdings;
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

impl Holdings for PollGovernor {
    /// The last look may be 200 ms old: a promise needs a look of its own.
    fn held_now(&mut self, id: AccountId) -> Result<Bytes> {
        self.measure(id)
    }

    fn slack(&self) -> Bytes {
        Bytes::ZERO
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
        self.scan.measure(id)
    }

    fn status(&self) -> KernelHalfStatus {
        KernelHalfStatus {
            timer: true,
            ..self.scan.status(TriggerKind::Poll)
        }
    }

    fn error_bound(&self) -> Bytes {
        // Nothing bounds what is allocated between two looks but the speed of the machine.
        Bytes::MAX
    }

    fn leave(&mut self, _release: bool) -> Result<()> {
        Ok(())
    }
}
