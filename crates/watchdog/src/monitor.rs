// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a thread hangs: it has slept in one call for so long, in the kernel and for no signal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bursar_host::{Proc, sched};
use bursar_model::{Nanos, Pid};

use crate::blocklist::Blocklist;
use crate::guard::Guard;
use crate::heartbeat::{Beat, Heartbeat};

/// What a check of a thread found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadState {
    /// It is in no call.
    Idle,
    /// It is in a call, and may be worth another check after so long.
    InCall(Duration),
    /// It hung in a call to this process, which is blocked, and is abandoned from now on.
    Abandoned(Pid),
}

/// Monitors one thread.
#[derive(Debug)]
pub struct Monitor {
    thread: Pid,
    heartbeat: Arc<Heartbeat>,
    blocklist: Arc<Blocklist>,
    /// The call it was in, the processor time it had used, and since when both have been so.
    beat: Beat,
    work: Option<Nanos>,
    since: Instant,
}

impl Monitor {
    /// Of a thread of this process that calls through `guard`.
    pub fn of(thread: Pid, guard: &Guard) -> Self {
        Self {
            thread,
            heartbeat: Arc::clone(guard.heartbeat()),
            blocklist: Arc::clone(guard.blocklist()),
            beat: Beat::default(),
            work: None,
            since: Instant::now(),
        }
    }

    /// Whether the kernel has ended the thread, as after an oops: nothing has unwound, and nobody was told.
    pub(crate) fn is_gone(&self, proc: &Proc) -> bool {
        proc.stat(self.thread).is_ok_and(|it| it.is_none())
    }

    /// Checks the thread. One that has slept uninterruptibly in one call for `timeout` is abandoned; one that works
    /// or waits for a CPU is not, however long that takes.
    pub fn check(&mut self, proc: &Proc, timeout: Duration) -> ThreadState {
        let beat = self.heartbeat.now();
        let Some(pid) = beat.pid() else {
            self.beat = beat;
            return ThreadState::Idle;
        };
        let now = Instant::now();
        if beat != self.beat {
            self.beat = beat;
            self.work = sched::work_of(self.thread);
            self.since = now;
        }
        let waited = now.saturating_duration_since(self.since);
        if let Some(left) = timeout.checked_sub(waited)
            && left > Duration::ZERO
        {
            return ThreadState::InCall(left);
        }
        let work = sched::work_of(self.thread);
        let stat = proc.stat(self.thread).ok().flatten();
        if work != self.work || !stat.is_some_and(|it| it.state.is_uninterruptible()) {
            self.work = work;
            self.since = now;
            return ThreadState::InCall(timeout);
        }
        let owner = self.heartbeat.owner();
        if !self.heartbeat.abandon(beat) {
            // It has come back at the last moment.
            return ThreadState::Idle;
        }
        self.blocklist.add(proc, &self.heartbeat, pid, owner);
        ThreadState::Abandoned(pid)
    }
}
