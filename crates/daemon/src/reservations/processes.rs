// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waits for the end of processes that have something reserved, and says when to look at those that live.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_host::Timer;
use bursar_model::Pid;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;

use super::denied::Denied;
use super::{Holder, Reservations};
use crate::control::{RESERVING_PER_USER, Requester};

/// Processes with a reservation of their own.
const MOST_PROCESSES: usize = 4096;
/// Stands for the timer among process numbers.
const TIMER: u64 = u64::MAX;
/// How often processes that live are looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// An epoll of pidfds and of a timer, which runs while there are any.
#[derive(Debug)]
pub(super) struct Processes {
    epoll: OwnedFd,
    timer: Timer,
}

/// What has happened.
#[derive(Debug, Default)]
pub(super) struct Happened {
    /// Numbers whose process has ended; some of them, the others next time.
    pub(super) ended: Vec<Pid>,
    /// It is time to look at the others.
    pub(super) is_due: bool,
}

impl Processes {
    pub(super) fn new() -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("make an epoll")?;
        let timer = Timer::polled().context("make a timer")?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)
            .context("watch a timer")?;
        Ok(Self { epoll, timer })
    }

    /// Whether there are processes to be looked at from time to time.
    pub(super) fn look(&self, is_needed: bool) -> Result<()> {
        let period = if is_needed { PERIOD } else { Duration::ZERO };
        self.timer.set(period, period).context("set a timer")
    }

    pub(super) fn watch(&self, pid: Pid, process: impl AsFd) -> Result<()> {
        let token = EventData::new_u64(u64::from(pid.get()));
        epoll::add(&self.epoll, process, token, EventFlags::IN)
            .with_context(|| format!("watch process {pid}"))
    }

    /// Before its pidfd is closed.
    pub(super) fn forget(&self, process: impl AsFd) {
        let _ = epoll::delete(&self.epoll, process);
    }

    /// What has happened since this was last asked for.
    pub(super) fn take(&self) -> Happened {
        let mut happened = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 64];
        let count = epoll::wait(&self.epoll, &mut happened, Some(&Timespec::default()));
        let mut found = Happened::default();
        for event in happened.iter().take(count.unwrap_or(0)) {
            match event.data.u64() {
                TIMER => found.is_due = self.timer.take_expiry().is_ok(),
                pid => found.ended.extend(u32::try_from(pid).map(Pid::new)),
            }
        }
        found
    }
}

impl AsFd for Processes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Reservations {
    /// Whether there is room for one more process with a reservation of its own.
    pub(super) fn admit(&self, requester: Requester) -> Result<(), Denied> {
        let processes = self
            .by_holder
            .iter()
            .filter(|(holder, _)| matches!(holder, Holder::Process(_)));
        let own = processes
            .clone()
            .filter(|(_, it)| it.counts_as == requester.counts_as)
            .count();
        let is_root = requester.counts_as.get() == 0;
        if processes.count() >= MOST_PROCESSES || (own >= RESERVING_PER_USER && !is_root) {
            return Err(Denied::TooMany(format!(
                "{own} processes of this user have memory reserved, which is all that one may have, or there is \
                 no room for more"
            )));
        }
        Ok(())
    }
}
