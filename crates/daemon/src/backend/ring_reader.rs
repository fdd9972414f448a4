// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the kernel half's events the moment they come, from a thread that waits for nobody: a victim
//! that is dying has to be held within microseconds or it is past holding, and one that the kernel half
//! could not reach grows on. The signal is sent at once; the news of it goes to the daemon's loop, in order,
//! and the victim to the reapers.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SendError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bursar_host::{Pidfd, Proc, Waker, clock, machine, thread};
use bursar_kernel::{EventRing, EventSource, KernelEvent, KernelEventKind, OomKiller};
use bursar_model::{Nanos, Pid};
use bursar_watchdog::TimedQuery;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::pss_scanner::ScanRequests;
use crate::killer::{Chosen, KillOutcome, hold, kill_chosen};
use crate::reaper::{Dying, ReapHandle};

/// Events that the loop has not taken yet.
const UNREAD: usize = 1024;

/// More that wait while the loop is busy, for a kill that is asked for waits for no loop. When they are too many as well
/// the ring buffer fills, and what does not fit that is counted by the kernel half.
const UNSENT: usize = 4096;

/// How often is looked whether the loop takes any again.
const LOOK_AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// The thread ends in less, whatever it does.
const TIMEOUT: Duration = Duration::from_secs(1);

/// So long a request to kill counts. Later the process may have executed another program, have become another user's or
/// be within its limit: `number` and `started` tell a process, no more. Where it still has to die the kernel half asks again
/// (kill.bpf.h `ASK_AGAIN_NS`).
const ASKED: Duration = Duration::from_secs(1);

/// What the thread acts through.
#[derive(Debug)]
pub(super) struct ReaderContext {
    pub(super) handle: ReapHandle,
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
    stop_pipe: Option<OwnedFd>,
}

impl RingReader {
    pub(super) fn start(mut source: EventSource, context: ReaderContext) -> Result<Self> {
        let waker = Waker::new().context("make an eventfd")?;
        let (held, stop_pipe) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context("make a pipe")?;
        let (outbox, events) = sync_channel(UNREAD);
        let waker_of_thread = waker.clone();
        let left = source.take_left();
        let work = move || match source.open() {
            Ok(event_ring) => {
                context.handle.priority().take();
                watch(
                    &event_ring,
                    left,
                    &held,
                    &context,
                    &outbox,
                    &waker_of_thread,
                );
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
            stop_pipe: Some(stop_pipe),
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
        self.stop_pipe = None;
        let until = Instant::now() + TIMEOUT;
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

/// What was done about an event, and what is to be told of it.
struct Handled<T> {
    told: T,
    /// Its memory is taken as soon as the loop has been told: so a kill is recorded before what follows from it.
    dying: Option<Dying>,
}

/// What the loop has no room for yet, in order.
struct Unsent<T>(VecDeque<Handled<T>>);

impl<T> Unsent<T> {
    /// Sends what there is room for, and waits for room as long as more than `most` are left.
    fn send(
        &mut self,
        most: usize,
        outbox: &SyncSender<T>,
        mut reap: impl FnMut(Dying),
    ) -> Result<(), LoopGone> {
        while let Some(Handled { told, dying }) = self.0.pop_front() {
            let sent = if self.0.len() >= most {
                let sent = outbox.send(told);
                sent.map_err(|SendError(told)| TrySendError::Disconnected(told))
            } else {
                outbox.try_send(told)
            };
            match sent {
                Ok(()) => dying.into_iter().for_each(&mut reap),
                Err(TrySendError::Full(told)) => {
                    self.0.push_front(Handled { told, dying });
                    return Ok(());
                }
                Err(TrySendError::Disconnected(_)) => return Err(LoopGone),
            }
        }
        Ok(())
    }
}

/// Whether a request to kill comes too late to be carried out.
fn is_too_late(asked: Nanos, now: Nanos) -> bool {
    Duration::from_nanos(now.get().saturating_sub(asked.get())) > ASKED
}

/// Sends the signal that is asked for, and holds who is dying. Nothing here waits, but before 6.9 a tenth of a second for a
/// process that lets an execve last. `None`: nothing is told.
fn see_to(
    event: KernelEvent,
    is_left: bool,
    proc: &Proc,
    query: &mut TimedQuery,
    context: &ReaderContext,
) -> Option<Handled<RingEvent>> {
    match event.kind {
        KernelEventKind::PssScan => {
            context.requests.ask(event.slot);
            return None;
        }
        KernelEventKind::RunKiller => {
            if let Err(error) = context.killer.run(event.slot) {
                tracing::error!(%error, "the kernel half was not told to kill");
            }
            return None;
        }
        KernelEventKind::Notice => context.requests.note_given_back(event.slot),
        _ => {}
    }
    let (pid, uid) = (event.pid, event.uid);
    let chosen = Chosen {
        pid,
        uid,
        started: Some(event.started),
        number: event.number,
    };
    let private = event.victim_private.to_bytes(machine::page_size());
    // When it was signalled, or asked for.
    let tried = Nanos::new(event.at.get().saturating_add(event.latency.get()));
    let is_unverified = event.kind == KernelEventKind::Dying && chosen.is_unknown();
    let (outcome, pidfd, signalled) = match event.kind {
        KernelEventKind::Kill => (None, hold(proc, query, chosen), Some(tried)),
        // Whoever it is now: the reapers look whether it is dying.
        KernelEventKind::Dying if is_unverified => {
            (None, Pidfd::open(pid).ok().flatten(), Some(event.at))
        }
        KernelEventKind::Dying => (None, hold(proc, query, chosen), Some(event.at)),
        KernelEventKind::KillAsked if is_too_late(tried, clock::monotonic()) => {
            let outcome = match hold(proc, query, chosen) {
                Some(_) => KillOutcome::NotKilled(
                    "the request is older than a second, and it may be another program by now; the kernel half asks again if it still \
                     has to die"
                        .to_owned(),
                ),
                None => KillOutcome::Gone,
            };
            (Some(outcome), None, None)
        }
        KernelEventKind::KillAsked => {
            let (outcome, pidfd) = kill_chosen(proc, query, chosen);
            let signalled = outcome.signalled();
            (Some(outcome), pidfd, signalled)
        }
        _ => (None, None, None),
    };
    Some(Handled {
        told: RingEvent {
            event,
            outcome,
            is_left,
        },
        dying: signalled.map(|signalled| Dying {
            pid,
            uid,
            pidfd,
            signalled,
            private: Some(private),
            is_unverified,
        }),
    })
}

/// Before 6.9, where processes are asked, its worker is there before memory is short.
fn ring_query(context: &ReaderContext) -> Result<(Proc, TimedQuery)> {
    let query = context.handle.timed_query("ring-query")?;
    let own = Pidfd::open(Pid::new(std::process::id()))?;
    let has_numbers = own.and_then(|it| it.number().ok().flatten()).is_some();
    let query = match has_numbers {
        true => query,
        false => query.ready()?,
    };
    Ok((Proc::host()?, query))
}

fn watch(
    event_ring: &EventRing,
    left: Vec<KernelEvent>,
    stop_pipe: &OwnedFd,
    context: &ReaderContext,
    outbox: &SyncSender<RingEvent>,
    waker: &Waker,
) {
    let (proc, mut query) = match ring_query(context) {
        Ok(both) => both,
        Err(error) => thread::cannot_go_on(format!("{error:#}")),
    };
    let mut unsent = Unsent(VecDeque::new());
    let mut handle = |event, is_left| see_to(event, is_left, &proc, &mut query, context);
    let reap = |dying| context.handle.reap(dying);
    unsent
        .0
        .extend(left.into_iter().filter_map(|it| handle(it, true)));
    loop {
        match event_ring.drain() {
            Ok(events) => unsent
                .0
                .extend(events.into_iter().filter_map(|it| handle(it, false))),
            Err(error) => tracing::error!(%error, "the kernel half's events could not be read"),
        }
        if unsent.send(UNSENT, outbox, reap).is_err() {
            return;
        }
        waker.wake();
        let mut fds = [
            PollFd::new(event_ring, PollFlags::IN),
            PollFd::new(stop_pipe, PollFlags::IN),
        ];
        let look_again = (!unsent.0.is_empty()).then_some(&LOOK_AGAIN);
        match poll(&mut fds, look_again) {
            // What has been read is taken until nobody waits for it any more (see `end`).
            Ok(_) if fds.iter().skip(1).any(|it| !it.revents().is_empty()) => {
                let _ = unsent.send(0, outbox, reap);
                return;
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => thread::cannot_go_on(format!(
                "the kernel half's events cannot be awaited: {error}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsent(all: std::ops::Range<u32>) -> Unsent<u32> {
        let none = |told| Handled { told, dying: None };
        Unsent(all.map(none).collect())
    }

    #[test]
    fn a_request_to_kill_is_carried_out_within_a_second_or_not() {
        let asked = Nanos::new(5_000_000_000);
        let after = |ms: u64| Nanos::new(asked.get() + ms * 1_000_000);
        assert!(!is_too_late(asked, after(1000)));
        assert!(is_too_late(asked, after(1001)));
        // Asked on one CPU, read on another.
        assert!(!is_too_late(asked, Nanos::new(asked.get() - 1)));
    }

    #[test]
    fn who_sends_waits_for_no_room_and_keeps_the_order() {
        let (outbox, events) = sync_channel(2);
        let mut unsent = unsent(0..5);
        let mut taken = Vec::new();
        while !unsent.0.is_empty() {
            assert!(unsent.send(5, &outbox, |_| ()).is_ok());
            taken.extend(events.try_iter());
        }
        assert_eq!(taken, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn who_has_too_many_waits_until_they_are_few_enough() {
        let (outbox, events) = sync_channel(1);
        let mut unsent = unsent(0..8);
        let (stay, stays) = sync_channel::<()>(0);
        let taker = std::thread::spawn(move || {
            let taken: Vec<_> = events.iter().take(6).collect();
            // Who reads no more is there until then all the same.
            let _ = stays.recv();
            taken
        });
        assert!(unsent.send(3, &outbox, |_| ()).is_ok());
        assert!(unsent.0.len() <= 3, "{}", unsent.0.len());
        drop(stay);
        let _ = unsent.send(0, &outbox, |_| ());
        assert_eq!(taker.join().ok(), Some(vec![0, 1, 2, 3, 4, 5]));
    }

    #[test]
    fn nobody_sends_to_a_loop_that_is_gone() {
        let (outbox, events) = sync_channel(2);
        drop(events);
        assert!(unsent(0..3).send(5, &outbox, |_| ()).is_err());
    }
}
