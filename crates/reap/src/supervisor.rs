// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sees to it that the pool gets on: has the place of a thread that is lost taken by another one, which goes on
//! with what the lost one has left.

use std::sync::Arc;
use std::time::Duration;

use bursar_host::Proc;
use bursar_model::Pid;

use crate::helper::Helper;
use crate::job::{Errand, Job, Victim};
use crate::pool::Parts;
use crate::report::News;
use crate::reporter::ReporterThread;
use crate::unblock;
use crate::worker::{BLOCKED, SHORT_PATIENCE_NS, Worker};
use bursar_watchdog::{Monitor, ThreadState};

/// Who sleeps so long in the kernel, in one call and without a moment of work, is lost: 2 GiB come back in 0.2 s, and
/// whoever takes more works.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks at who is at work.
const INTERVAL: Duration = Duration::from_millis(500);
/// A thread that could not be started is tried again after this.
const AGAIN: Duration = Duration::from_millis(100);

/// Somebody of the pool who asks for processes' memory.
pub(crate) trait Supervised {
    /// Whether it has something to do.
    fn is_busy(&self) -> bool;
}

/// A thread of the pool, and the monitor of its thread.
#[derive(Debug)]
pub(crate) struct Running<T> {
    pub(crate) thread_state: Arc<T>,
    pub(crate) monitor: Monitor,
}

/// What becomes of a place in the pool.
enum Place {
    /// To be looked at again after so long, if at all.
    Kept(Option<Duration>),
    /// Nobody has it: its thread was lost at this process, or no other could be had before.
    Empty(Option<Pid>),
}

impl Place {
    fn of<T: Supervised>(started: Option<&mut Running<T>>, proc: &Proc) -> Self {
        let Some(started) = started else {
            return Self::Empty(None);
        };
        if !started.thread_state.is_busy() {
            return Self::Kept(None);
        }
        match started.monitor.check(proc, PATIENCE) {
            ThreadState::Abandoned(pid) => Self::Empty(Some(pid)),
            ThreadState::InCall(left) => Self::Kept(Some(left.min(INTERVAL))),
            ThreadState::Idle => Self::Kept(Some(INTERVAL)),
        }
    }
}

/// After how long to look again once a place is to be taken, `soon` if it is.
fn taken(started: std::io::Result<()>, whose: &str, soon: Option<Duration>) -> Option<Duration> {
    match started {
        Ok(()) => soon,
        Err(error) => {
            tracing::error!(%error, "no thread takes a lost {whose}'s place");
            Some(AGAIN)
        }
    }
}

/// Done by the controller.
pub(crate) struct Supervisor {
    pub(crate) proc: Proc,
    pub(crate) parts: Arc<Parts>,
    pub(crate) worker: Option<Running<Worker>>,
    /// What nobody has gone on with yet.
    pub(crate) left: Option<Job>,
    pub(crate) helper: Option<Running<Helper>>,
    pub(crate) reporter_thread: Option<Running<ReporterThread>>,
}

impl Supervisor {
    /// Looks at everybody who is at work; after how long to look again, if at all.
    pub(crate) fn look(&mut self) -> Option<Duration> {
        let looks = [
            self.check_worker(),
            self.check_helper(),
            self.check_reporter(),
        ];
        looks.into_iter().flatten().min()
    }

    fn check_worker(&mut self) -> Option<Duration> {
        let lost = match Place::of(self.worker.as_mut(), &self.proc) {
            Place::Kept(again) => return again,
            Place::Empty(lost) => lost,
        };
        if let (Some(pid), Some(worker)) = (lost, self.worker.take()) {
            let worker = worker.thread_state;
            self.parts.dismiss(&worker.cpu_slot);
            self.left = worker.rest().map(|rest| self.part_with(rest, pid));
        }
        let started = self.parts.start_worker(self.left.take());
        let started = started.map(|worker| self.worker = Some(worker));
        let started = started.map_err(|(error, left)| {
            self.left = left;
            error
        });
        taken(started, "reaper", Some(INTERVAL))
    }

    /// The victim at which a reaper was lost is watched for a while and not waited for; the job without it.
    fn part_with(&self, mut job: Job, pid: Pid) -> Job {
        if job.errand == Errand::Kill {
            return job;
        }
        let place = job.victims.iter().position(|it| it.pidfd.pid() == pid);
        if let Some(place) = place {
            self.watch(job.victims.swap_remove(place));
        }
        job
    }

    fn watch(&self, victim: Victim) {
        let threads = unblock::threads(&self.parts.observer, &victim.pidfd);
        unblock::widen(&threads);
        self.parts.watch(victim, BLOCKED, SHORT_PATIENCE_NS);
    }

    fn check_helper(&mut self) -> Option<Duration> {
        if !self.parts.has_helper {
            return None;
        }
        let lost = match Place::of(self.helper.as_mut(), &self.proc) {
            Place::Kept(again) => return again,
            Place::Empty(lost) => lost,
        };
        if let (Some(_), Some(helper)) = (lost, self.helper.take()) {
            let helper = helper.thread_state;
            self.parts.dismiss(&helper.cpu_slot);
        }
        let started = self.parts.start_helper();
        taken(
            started.map(|helper| self.helper = Some(helper)),
            "reaper",
            None,
        )
    }

    fn check_reporter(&mut self) -> Option<Duration> {
        let lost = match Place::of(self.reporter_thread.as_mut(), &self.proc) {
            Place::Kept(again) => return again,
            Place::Empty(lost) => lost,
        };
        if let (Some(_), Some(reporter_thread)) = (lost, self.reporter_thread.take()) {
            let reporter_thread = reporter_thread.thread_state;
            // Without what it still lacks.
            if let Some(report) = reporter_thread.take() {
                self.parts.reporter.tell(News::Settled(Box::new(report)));
            }
        }
        let started = self.parts.start_reporter();
        let started = started.map(|reporter_thread| self.reporter_thread = Some(reporter_thread));
        taken(started, "reporter", Some(INTERVAL))
    }
}
