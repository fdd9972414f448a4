// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An epoll loop: each source registers its descriptor and what is done when that is readable. Nothing runs while
//! nothing happens.

use std::ops::ControlFlow;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

/// What a source does; `Break` ends the loop.
pub(crate) type Handler<T> = fn(&mut T) -> Result<ControlFlow<()>>;

/// Sources whose handlers work on a `T`.
pub(crate) struct EventLoop<T> {
    epoll: OwnedFd,
    handlers: Vec<Handler<T>>,
}

impl<T> EventLoop<T> {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).context("make an epoll")?,
            handlers: Vec::new(),
        })
    }

    /// `handler` runs whenever `fd` is readable.
    pub(crate) fn register(&mut self, fd: BorrowedFd<'_>, handler: Handler<T>) -> Result<()> {
        self.register_for(EventFlags::IN, fd, handler)
    }

    /// `handler` runs whenever `fd` has priority data: that is how PSI triggers tell.
    pub(crate) fn register_priority(
        &mut self,
        fd: BorrowedFd<'_>,
        handler: Handler<T>,
    ) -> Result<()> {
        self.register_for(EventFlags::PRI, fd, handler)
    }

    fn register_for(
        &mut self,
        flags: EventFlags,
        fd: BorrowedFd<'_>,
        handler: Handler<T>,
    ) -> Result<()> {
        let token = EventData::new_u64(self.handlers.len() as u64);
        epoll::add(&self.epoll, fd, token, flags).context("watch a descriptor")?;
        self.handlers.push(handler);
        Ok(())
    }

    /// Runs until a handler breaks. `timeout`: how long to wait at most. `between`: done after each time something
    /// happened.
    pub(crate) fn run(
        &self,
        state: &mut T,
        timeout: impl Fn(&T) -> Option<Duration>,
        between: impl Fn(&mut T),
    ) -> Result<()> {
        let mut happened = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 16];
        loop {
            let timeout = timeout(state);
            let timeout = timeout.map(|it| Timespec::try_from(it).unwrap_or_default());
            let count = match epoll::wait(&self.epoll, &mut happened, timeout.as_ref()) {
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error).context("wait for events"),
            };
            for event in happened.iter().take(count) {
                let index = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                if let Some(handler) = self.handlers.get(index)
                    && handler(state)?.is_break()
                {
                    return Ok(());
                }
            }
            between(state);
        }
    }
}
