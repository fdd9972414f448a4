// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sees to it that the crew gets on: has the place of a thread that is lost taken by another one, which goes on
//! with what the lost one has left.

use std::sync::Arc;
use std::time::Duration;

use bursar_host::Proc;
use bursar_model::Pid;

use crate::barred::Asker;
use crate::clerk::Scribe;
use crate::crew::Parts;
use crate::hands;
use crate::job::{Errand, Job, Victim};
use crate::lead::{BARRED, Lead, SHORT_PATIENCE_NS};
use crate::mate::Mate;
use crate::post::{Sight, Vigil};
use crate::report::News;

/// Who sleeps so long in the kernel, in one call and without a moment of work, is lost: 2 GiB come back in 0.2 s, and
/// whoever takes more works.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks at who is at work.
const INTERVAL: Duration = Duration::from_millis(500);
/// A thread that could not be started is tried again after this.
const AGAIN: Duration = Duration::from_millis(100);

/// Somebody of the crew who asks for processes' memory.
pub(crate) trait Worker {
    /// What it asks by.
    fn asker(&self) -> &Asker;
    /// Whether it has something to do.
    fn is_busy(&self) -> bool;
}

/// A worker of the crew, and the vigil over its thread.
#[derive(Debug)]
pub(crate) struct Hired<T> {
    pub(crate) worker: Arc<T>,
    pub(crate) vigil: Vigil,
}

/// What becomes of a place in the crew.
enum Place {
    /// To be looked at again after so long, if at all.
    Kept(Option<Duration>),
    /// Nobody has it: its thread was lost at this process, or no other could be had before.
    Empty(Option<Pid>),
}

impl Place {
    fn of<T: Worker>(hired: Option<&mut Hired<T>>, proc: &Proc) -> Self {
        let Some(hired) = hired else {
            return Self::Empty(None);
        };
        if !hired.worker.is_busy() {
            return Self::Kept(None);
        }
        let post = hired.worker.asker().post();
        match hired.vigil.look(proc, post, PATIENCE) {
            Sight::Lost(pid) => Self::Empty(Some(pid)),
            Sight::Asking(left) => Self::Kept(Some(left.min(INTERVAL))),
            Sight::Free => Self::Kept(Some(INTERVAL)),
        }
    }
}

/// After how long to look again once a place is to be taken, `soon` if it is.
fn taken(hired: std::io::Result<()>, whose: &str, soon: Option<Duration>) -> Option<Duration> {
    match hired {
        Ok(()) => soon,
        Err(error) => {
            tracing::error!(%error, "no thread takes a lost {whose}'s place");
            Some(AGAIN)
        }
    }
}

/// Done by the pacer.
pub(crate) struct Overseer {
    pub(crate) proc: Proc,
    pub(crate) parts: Arc<Parts>,
    pub(crate) lead: Option<Hired<Lead>>,
    /// What nobody has gone on with yet.
    pub(crate) left: Option<Job>,
    pub(crate) mate: Option<Hired<Mate>>,
    pub(crate) scribe: Option<Hired<Scribe>>,
}

impl Overseer {
    /// Looks at everybody who is at work; after how long to look again, if at all.
    pub(crate) fn look(&mut self) -> Option<Duration> {
        let looks = [
            self.look_at_lead(),
            self.look_at_mate(),
            self.look_at_scribe(),
        ];
        looks.into_iter().flatten().min()
    }

    fn look_at_lead(&mut self) -> Option<Duration> {
        let lost = match Place::of(self.lead.as_mut(), &self.proc) {
            Place::Kept(again) => return again,
            Place::Empty(lost) => lost,
        };
        if let (Some(pid), Some(lead)) = (lost, self.lead.take()) {
            let lead = lead.worker;
            self.parts.dismiss(&lead.asker, &lead.seat, pid, &self.proc);
            self.left = lead.rest().map(|rest| self.part_with(rest, pid));
        }
        let hired = self.parts.hire_lead(self.left.take());
        let hired = hired.map(|lead| self.lead = Some(lead));
        let hired = hired.map_err(|(error, left)| {
            self.left = left;
            error
        });
        taken(hired, "reaper", Some(INTERVAL))
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
        let threads = hands::threads(&self.parts.looker, &victim.pidfd);
        hands::widen(&threads);
        self.parts.watch(victim, BARRED, SHORT_PATIENCE_NS);
    }

    fn look_at_mate(&mut self) -> Option<Duration> {
        if !self.parts.has_mate {
            return None;
        }
        let lost = match Place::of(self.mate.as_mut(), &self.proc) {
            Place::Kept(again) => return again,
            Place::Empty(lost) => lost,
        };
        if let (Some(pid), Some(mate)) = (lost, self.mate.take()) {
            let mate = mate.worker;
            self.parts.dismiss(&mate.asker, &mate.seat, pid, &self.proc);
        }
        let hired = self.parts.hire_mate();
        taken(hired.map(|mate| self.mate = Some(mate)), "reaper", None)
    }

    fn look_at_scribe(&mut self) -> Option<Duration> {
        let lost = match Place::of(self.scribe.as_mut(), &self.proc) {
            Place::Kept(again) => return again,
            Place::Empty(lost) => lost,
        };
        if let (Some(pid), Some(scribe)) = (lost, self.scribe.take()) {
            let scribe = scribe.worker;
            self.parts.barred.bar(&self.proc, scribe.asker.post(), pid);
            // Without what it still lacks.
            if let Some(report) = scribe.take() {
                self.parts.clerk.tell(News::Settled(Box::new(report)));
            }
        }
        let hired = self.parts.hire_scribe();
        let hired = hired.map(|scribe| self.scribe = Some(scribe));
        taken(hired, "clerk", Some(INTERVAL))
    }
}
