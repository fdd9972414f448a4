// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the kernel half's events the moment they come, from a thread that waits for nobody: a victim
//! that is dying has to be held within microseconds or it is past holding, and one that the kernel half
//! could not reach grows on. Both go to the reapers at once; everything else, and the news of these,
//! goes on to the daemon's loop, in order.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bursar_host::{Pidfd, Proc, Waker, machine, thread};
use bursar_kernel::{EventRing, EventSource, KernelEvent, KernelEventKind, OomKiller};
use bursar_model::Nanos;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::pss_scanner::ScanRequests;
use crate::killer::{Chosen, KillOutcome, hold, kill_chosen};
use crate::reaper::{Dying, ReapHandle};

/// Events that the loop has not taken yet. When it is full the ring buffer fills, and what does not fit
/// that is counted by the kernel half.
const UNREAD: usize = 1024;

/// The thread ends in less, whatever it does.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the thread does things by.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) hand: ReapHandle,
    pub(super) requests: ScanRequests,
    /// S1's second trigger.
    pub(super) killer: OomKiller,
}

/// An event, as the loop takes it.
#[derive(Debug)]
pub(super) struct RingEvent {
    pub(super) event: KernelEvent,
    /// Where a kill was asked for: what became of it.
    pub(super) outcome: Option<KillOutcome>,
    /// A bursard before us had taken it.
    pub(super) is_left: bool,
}

/// Nobody takes what we read: the daemon ends.
struct LoopGone;

/// The events that were read.
#[derive(Debug)]
pub(super) struct RingReader {
    events: Receiver<RingEvent>,
    waker: Waker,
    /// Gone with us: the thread ends.
    leash: Option<OwnedFd>,
}

impl RingReader {
    pub(super) fn start(mut source: EventSource, means: Means) -> Result<Self> {
        let waker = Waker::new().context("make an eventfd")?;
        let (held, leash) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context("make a pipe")?;
        let (outbox, events) = sync_channel(UNREAD);
        let waker_of_thread = waker.clone();
        let left = source.take_left();
        let work = move || match source.open() {
            Ok(event_ring) => {
                means.hand.priority().take();
                watch(&event_ring, left, &held, &means, &outbox, &waker_of_thread);
            }
            Err(error) => {
                thread::cannot_go_on(format!("the kernel half's events cannot be read: {error}"))
            }
        };
        thread::spawn("ring-reader", work)
            .context("start the thread that reads the kernel half's events")?;
        Ok(Self {
            events,
            waker,
            leash: Some(leash),
        })
    }

    pub(super) fn drain(&self) -> Vec<RingEvent> {
        self.waker.clear();
        let mut all = Vec::new();
        loop {
            match self.events.try_recv() {
                Ok(one) => all.push(one),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return all,
            }
        }
    }

    /// Reads no more, and returns what was read last. What comes from now on waits in the ring.
    pub(super) fn end(&mut self) -> Vec<RingEvent> {
        self.leash = None;
        let until = Instant::now() + PATIENCE;
        let mut all = Vec::new();
        while let Ok(one) = self
            .events
            .recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            all.push(one);
        }
        all
    }
}

impl AsFd for RingReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

/// First on its way to the loop, then to the reapers: so a kill is recorded before what follows from it.
fn see_to(
    event: KernelEvent,
    is_left: bool,
    proc: &Proc,
    means: &Means,
    outbox: &SyncSender<RingEvent>,
) -> Result<(), LoopGone> {
    match event.kind {
        KernelEventKind::PssScan => {
            means.requests.ask(event.slot);
            return Ok(());
        }
        KernelEventKind::RunKiller => {
            if let Err(error) = means.killer.run(event.slot) {
                tracing::error!(%error, "the kernel half was not told to kill");
            }
            return Ok(());
        }
        KernelEventKind::Notice => means.requests.note_given_back(event.slot),
        _ => {}
    }
    let (pid, uid) = (event.pid, event.uid);
    let chosen = Chosen {
        pid,
        started: Some(event.started),
        number: event.number,
    };
    let private = event.victim_private.to_bytes(machine::page_size());
    let is_hearsay = event.kind == KernelEventKind::Dying && chosen.is_unknown();
    let (outcome, pidfd, signalled) = match event.kind {
        KernelEventKind::Kill => {
            let signalled = Nanos::new(event.at.get().saturating_add(event.latency.get()));
            (None, hold(proc, chosen), Some(signalled))
        }
        // Whoever it is now: the reapers look whether it is dying.
        KernelEventKind::Dying if is_hearsay => {
            (None, Pidfd::open(pid).ok().flatten(), Some(event.at))
        }
        KernelEventKind::Dying => (None, hold(proc, chosen), Some(event.at)),
        KernelEventKind::KillAsked => {
            let (outcome, pidfd) = kill_chosen(proc, chosen);
            let signalled = outcome.signalled();
            (Some(outcome), pidfd, signalled)
        }
        _ => (None, None, None),
    };
    outbox
        .send(RingEvent {
            event,
            outcome,
            is_left,
        })
        .map_err(|_| LoopGone)?;
    if let Some(signalled) = signalled {
        means.hand.reap(Dying {
            pid,
            uid,
            pidfd,
            signalled,
            private: Some(private),
            is_hearsay,
        });
    }
    Ok(())
}

fn watch(
    event_ring: &EventRing,
    left: Vec<KernelEvent>,
    leash: &OwnedFd,
    means: &Means,
    outbox: &SyncSender<RingEvent>,
    waker: &Waker,
) {
    let proc = match Proc::host() {
        Ok(proc) => proc,
        Err(error) => thread::cannot_go_on(error),
    };
    for event in left {
        if see_to(event, true, &proc, means, outbox).is_err() {
            return;
        }
    }
    loop {
        match event_ring.drain() {
            Ok(events) => {
                for event in events {
                    if see_to(event, false, &proc, means, outbox).is_err() {
                        return;
                    }
                }
                waker.wake();
            }
            Err(error) => tracing::error!(%error, "the kernel half's events could not be read"),
        }
        let mut fds = [
            PollFd::new(event_ring, PollFlags::IN),
            PollFd::new(leash, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) if fds.iter().skip(1).any(|it| !it.revents().is_empty()) => return,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => thread::cannot_go_on(format!(
                "the kernel half's events cannot be awaited: {error}"
            )),
        }
    }
}
