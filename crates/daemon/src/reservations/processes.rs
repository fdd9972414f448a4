// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waits for the end of processes that have something reserved.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use bursar_model::Pid;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;

/// An epoll of pidfds.
#[derive(Debug)]
pub(super) struct Processes {
    epoll: OwnedFd,
}

impl Processes {
    pub(super) fn new() -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("make an epoll")?;
        Ok(Self { epoll })
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

    /// Numbers whose process has ended since they were last asked for; some of them, the others next time.
    pub(super) fn take_ended(&self) -> Vec<Pid> {
        let mut happened = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 64];
        let count = epoll::wait(&self.epoll, &mut happened, Some(&Timespec::default()));
        happened
            .iter()
            .take(count.unwrap_or(0))
            .filter_map(|event| u32::try_from(event.data.u64()).ok())
            .map(Pid::new)
            .collect()
    }
}

impl AsFd for Processes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
