// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a thread of ours is at while it asks for another process's memory, and whether it is coming back.
//!
//! Whoever wants a process's memory (process_mrelease, /proc/PID/smaps_rollup, maps, kcmp) waits for a lock
//! of that process, and a process can see to it that this lock is never free: one of its threads holds it and
//! waits for a file server of its owner's. Nothing but SIGKILL ends such a wait of ours, and that would end all
//! of us. So the thread is given up: another one takes its place, and it ends when it comes back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bursar_host::{Proc, sched};
use bursar_model::{Nanos, Pid};

use crate::blocklist::Payer;

const LOST: u64 = 1 << 32;
const NUMBER_SHIFT: u32 = 33;

/// Shared by a thread and whoever keeps watch over it.
#[derive(Debug, Default)]
pub struct Heartbeat {
    /// The number of the call, whether its thread was given up, and whose memory it asks for: 0 between calls.
    at: AtomicU64,
    /// Who pays for that process, if that is known.
    payer: AtomicU64,
}

/// The thread was given up: another one has its place and has seen to its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost;

/// What a look at a thread found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadState {
    /// It asks for nobody's memory.
    Idle,
    /// It may be worth another look after so long.
    Waiting(Duration),
    /// It is given up, from now on: it waits for this process's memory.
    Lost(Pid),
}

/// Watches one thread.
#[derive(Debug)]
pub struct Monitor {
    thread: Pid,
    /// The call it was in, the processor time it had had, and since when both have been so.
    call: u64,
    work: Option<Nanos>,
    since: Instant,
}

impl Heartbeat {
    /// Does something that asks for the memory of `pid`.
    ///
    /// # Errors
    /// [`Lost`]: it lasted so long that another thread has taken over. The calling one is to end.
    pub fn ask<T>(&self, pid: Pid, call: impl FnOnce() -> T) -> Result<T, Lost> {
        // Between calls nobody else writes it.
        let number = (self.at.load(Ordering::Relaxed) >> NUMBER_SHIFT).wrapping_add(1);
        let free = number << NUMBER_SHIFT;
        self.at
            .store(free | u64::from(pid.get()), Ordering::Release);
        let answer = call();
        if self.at.swap(free, Ordering::AcqRel) & LOST == 0 {
            Ok(answer)
        } else {
            Err(Lost)
        }
    }

    /// Who pays for the process of the next call: read by who finds the thread lost in it.
    pub fn say(&self, payer: Option<Payer>) {
        let number = payer.map_or(0, Payer::to_number);
        self.payer.store(number, Ordering::Relaxed);
    }

    pub(crate) fn payer(&self) -> Option<Payer> {
        Payer::from_number(self.payer.load(Ordering::Relaxed))
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.at.load(Ordering::Acquire) & LOST != 0
    }
}

impl Monitor {
    /// Over a thread of ours.
    pub fn over(thread: Pid) -> Self {
        Self {
            thread,
            call: 0,
            work: None,
            since: Instant::now(),
        }
    }

    /// Looks at the thread. One that has slept in one call for `patience`, in the kernel and for no signal, is lost.
    /// Whoever works is not, however long that takes, nor who waits for a CPU.
    pub fn look(&mut self, proc: &Proc, heartbeat: &Heartbeat, patience: Duration) -> ThreadState {
        let call = heartbeat.at.load(Ordering::Acquire);
        let Some(pid) = u32::try_from(call & (LOST - 1)).ok().filter(|&it| it > 0) else {
            self.call = call;
            return ThreadState::Idle;
        };
        let now = Instant::now();
        if call != self.call {
            self.call = call;
            self.work = sched::work_of(self.thread);
            self.since = now;
        }
        let waited = now.saturating_duration_since(self.since);
        if let Some(left) = patience.checked_sub(waited)
            && left > Duration::ZERO
        {
            return ThreadState::Waiting(left);
        }
        let work = sched::work_of(self.thread);
        let stat = proc.stat(self.thread).ok().flatten();
        if work != self.work || !stat.is_some_and(|it| it.state.is_uninterruptible()) {
            self.work = work;
            self.since = now;
            return ThreadState::Waiting(patience);
        }
        let given_up =
            heartbeat
                .at
                .compare_exchange(call, call | LOST, Ordering::AcqRel, Ordering::Acquire);
        match given_up {
            Ok(_) => ThreadState::Lost(Pid::new(pid)),
            // Back at the last moment.
            Err(_) => ThreadState::Idle,
        }
    }
}
