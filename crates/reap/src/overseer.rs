// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sees to it that the crew gets on: has the place of a thread that is lost taken by another one, which goes on
//! with what the lost one has left.

use std::sync::Arc;
use std::time::Duration;

use bursar_host::{Proc, clock};
use bursar_model::{Nanos, Pid};

use crate::clerk::Scribe;
use crate::crew::Parts;
use crate::hands;
use crate::job::{Errand, Job, Victim};
use crate::lead::{BARRED, Lead, SHORT_PATIENCE_NS};
use crate::mate::Mate;
use crate::pacer::Awaited;
use crate::post::{Sight, Vigil};
use crate::report::{Fate, News, Report};

/// Who sleeps so long in the kernel, in one call and without a moment of work, is lost: 2 GiB come back in 0.2 s, and
/// whoever takes more works.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks at who is at work.
const INTERVAL: Duration = Duration::from_millis(500);
/// A thread that could not be started is tried again after this.
const AGAIN: Duration = Duration::from_millis(100);

/// A worker of the crew, and the vigil over its thread.
#[derive(Debug)]
pub(crate) struct Hired<T> {
    pub(crate) worker: Arc<T>,
    pub(crate) vigil: Vigil,
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
        let Some(lead) = &mut self.lead else {
            return self.hire_lead();
        };
        if !lead.worker.is_busy() {
            return None;
        }
        let pid = match lead
            .vigil
            .look(&self.proc, lead.worker.asker.post(), PATIENCE)
        {
            Sight::Lost(pid) => pid,
            sight => return Some(sight.next()),
        };
        let lost = self.lead.take()?;
        self.parts
            .dismiss(&lost.worker.asker, &lost.worker.seat, pid, &self.proc);
        self.left = lost.worker.rest().map(|rest| self.part_with(rest, pid));
        self.hire_lead()
    }

    fn hire_lead(&mut self) -> Option<Duration> {
        match self.parts.hire_lead(self.left.take()) {
            Ok(lead) => {
                self.lead = Some(lead);
                Some(INTERVAL)
            }
            Err((error, left)) => {
                tracing::error!(%error, "no thread takes a lost reaper's place");
                self.left = left;
                Some(AGAIN)
            }
        }
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
        let now = clock::monotonic();
        let report = Report {
            tag: victim.tag,
            pid: victim.pidfd.pid(),
            fate: Fate::Exited,
            signalled: victim.signalled,
            took: Nanos::new(0),
            freed: victim.private,
            stays: None,
            found: Vec::new(),
        };
        self.parts.pacer.watch(
            Awaited {
                pidfd: victim.pidfd,
                report,
                shared: None,
                was_raised: false,
                why: BARRED,
                deadline: Nanos::new(now.get().saturating_add(SHORT_PATIENCE_NS)),
            },
            &self.parts.clerk,
        );
    }

    fn look_at_mate(&mut self) -> Option<Duration> {
        if !self.parts.has_mate {
            return None;
        }
        let lost = match &mut self.mate {
            Some(mate) if !mate.worker.is_at_work() => return None,
            Some(mate) => match mate
                .vigil
                .look(&self.proc, mate.worker.asker.post(), PATIENCE)
            {
                Sight::Lost(pid) => Some(pid),
                sight => return Some(sight.next()),
            },
            None => None,
        };
        if let (Some(pid), Some(mate)) = (lost, self.mate.take()) {
            self.parts
                .dismiss(&mate.worker.asker, &mate.worker.seat, pid, &self.proc);
        }
        match self.parts.hire_mate() {
            Ok(mate) => {
                self.mate = Some(mate);
                None
            }
            Err(error) => {
                tracing::error!(%error, "no thread takes a lost reaper's place");
                Some(AGAIN)
            }
        }
    }

    fn look_at_scribe(&mut self) -> Option<Duration> {
        let lost = match &mut self.scribe {
            Some(scribe) if !scribe.worker.is_busy() => return None,
            Some(scribe) => {
                match scribe
                    .vigil
                    .look(&self.proc, scribe.worker.asker.post(), PATIENCE)
                {
                    Sight::Lost(pid) => Some(pid),
                    sight => return Some(sight.next()),
                }
            }
            None => None,
        };
        if let (Some(pid), Some(scribe)) = (lost, self.scribe.take()) {
            self.parts
                .barred
                .bar(&self.proc, scribe.worker.asker.post(), pid);
            // Without what it still lacks.
            if let Some(report) = scribe.worker.take() {
                self.parts.clerk.tell(News::Settled(Box::new(report)));
            }
        }
        match self.parts.hire_scribe() {
            Ok(scribe) => {
                self.scribe = Some(scribe);
                Some(INTERVAL)
            }
            Err(error) => {
                tracing::error!(%error, "no thread takes a lost clerk's place");
                Some(AGAIN)
            }
        }
    }
}

impl Sight {
    /// After how long to look again at who is at work.
    fn next(self) -> Duration {
        match self {
            Self::Asking(left) => left.min(INTERVAL),
            Self::Free | Self::Lost(_) => INTERVAL,
        }
    }
}
