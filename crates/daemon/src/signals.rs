// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signals as something to wait for.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signalled {
    /// SIGTERM, SIGINT.
    End,
    /// SIGHUP.
    Reload,
}

/// The pipes that signals write to.
#[derive(Debug)]
pub(crate) struct Signals {
    end: UnixStream,
    reload: UnixStream,
    /// Readable when either is.
    either: rustix::fd::OwnedFd,
}

impl Signals {
    pub(crate) fn catch() -> Result<Self> {
        use rustix::event::epoll::{self, EventData, EventFlags};

        let (end, end_writer) = UnixStream::pair().context("make a pipe for signals")?;
        let (reload, reload_writer) = UnixStream::pair().context("make a pipe for signals")?;
        let either = epoll::create(epoll::CreateFlags::CLOEXEC).context("make an epoll")?;
        for stream in [&end, &reload] {
            stream
                .set_nonblocking(true)
                .context("make a pipe non-blocking")?;
            epoll::add(&either, stream, EventData::new_u64(0), EventFlags::IN)
                .context("watch a pipe for signals")?;
        }
        for signal in [SIGTERM, SIGINT] {
            let writer = end_writer.try_clone().context("share a pipe for signals")?;
            pipe::register(signal, writer).context("catch SIGTERM and SIGINT")?;
        }
        pipe::register(SIGHUP, reload_writer).context("catch SIGHUP")?;
        Ok(Self {
            end,
            reload,
            either,
        })
    }

    /// What was asked for, ending first.
    pub(crate) fn take(&self) -> Option<Signalled> {
        let came = |mut stream: &UnixStream| matches!(stream.read(&mut [0; 64]), Ok(1..));
        if came(&self.end) {
            return Some(Signalled::End);
        }
        came(&self.reload).then_some(Signalled::Reload)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.either.as_fd()
    }
}
