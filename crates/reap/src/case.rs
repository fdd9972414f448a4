// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One victim on its way from the signal to its report.

use std::sync::Arc;

use bursar_host::{Pidfd, SharedMemory, clock};
use bursar_model::{Bytes, Nanos, Pid};
use bursar_policy::{Doing, Peculiarity, ReapPlan};

use crate::job::Victim;
use crate::observer::Seen;
use crate::report::{Fate, Report};

/// One that exits by itself is watched for so long.
const TIMEOUT: Nanos = Nanos::new(30_000_000_000);
/// One that cannot run is not: it is in the hands of a device, of a debugger, or of its owner's file server.
const SHORT_TIMEOUT: Nanos = Nanos::new(1_000_000_000);

/// A victim that was signalled.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) id: u64,
    pub(crate) victim: Victim,
    /// What was seen of it; `None` where nobody looked, or nobody was to.
    pub(crate) seen: Option<Seen>,
    pub(crate) plan: ReapPlan,
    /// Who had the same memory before the signal.
    pub(crate) mm_sharer: Option<Pid>,
    pub(crate) stage: Stage,
    pub(crate) was_raised: bool,
}

/// What it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The worker is to observe it.
    Observed,
    /// It exits by itself, and is late at this moment (CLOCK_MONOTONIC).
    Exiting(Nanos),
    /// The worker is to take its memory.
    Taken,
    /// Nothing more can be done: it is given up at this moment, for this reason.
    Leaving(Nanos, &'static str),
}

/// Shared memory of a victim, for a report.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) pieces: Vec<SharedMemory>,
    pub(crate) bytes: Bytes,
}

impl Case {
    pub(crate) fn pidfd(&self) -> &Arc<Pidfd> {
        &self.victim.pidfd
    }

    /// Whether its end is waited for.
    pub(crate) const fn is_watched(&self) -> bool {
        !matches!(self.stage, Stage::Taken)
    }

    /// When something is to be done about it if it has not ended by then.
    pub(crate) const fn deadline(&self) -> Option<Nanos> {
        match self.stage {
            Stage::Observed | Stage::Taken => None,
            Stage::Exiting(at) | Stage::Leaving(at, _) => Some(at),
        }
    }

    /// It cannot be helped any further.
    pub(crate) fn leave(&mut self, now: Nanos, is_short: bool, why: &'static str) {
        let facts = self.seen.as_ref().map(|it| &it.facts);
        let cannot_run = facts.is_some_and(|it| it.doing == Doing::Uninterruptible);
        let timeout = match is_short || cannot_run {
            true => SHORT_TIMEOUT,
            false => TIMEOUT,
        };
        self.stage = Stage::Leaving(sum(now, timeout), why);
    }

    /// Its own memory when it was signalled, as far as known.
    pub(crate) fn private(&self) -> Option<Bytes> {
        let seen = self.seen.as_ref().filter(|it| it.has_memory);
        seen.map(|it| it.facts.private).max(self.victim.private)
    }

    /// It has ended by itself.
    pub(crate) fn ended(self, now: Nanos) -> (Report, Option<Shared>) {
        let fate = match self.was_raised {
            true => Fate::Raised,
            false => Fate::Exited,
        };
        let freed = self.private();
        self.report(fate, now, freed)
    }

    /// Nobody waits for it any longer.
    pub(crate) fn given_up(self, why: &str) -> (Report, Option<Shared>) {
        let words: Vec<_> = self.found().iter().map(|it| it.word()).collect();
        let state = match words.is_empty() {
            true => String::new(),
            false => format!(" ({})", words.join(", ")),
        };
        self.report(
            Fate::Stuck(format!("{why}{state}")),
            clock::monotonic(),
            None,
        )
    }

    /// `freed`: what came back.
    pub(crate) fn report(
        mut self,
        fate: Fate,
        now: Nanos,
        freed: Option<Bytes>,
    ) -> (Report, Option<Shared>) {
        let mut found = self.found();
        if matches!(fate, Fate::MmShared(_)) {
            found.push(Peculiarity::MmShared);
        }
        let shared = self.seen.as_mut().map(|seen| Shared {
            pieces: std::mem::take(&mut seen.shared),
            bytes: seen.facts.shared,
        });
        let signalled = self.victim.signalled;
        let report = Report {
            took: Nanos::new(now.get().saturating_sub(signalled.get())),
            freed,
            found,
            ..self.victim.report(fate)
        };
        (report, shared)
    }

    fn found(&self) -> Vec<Peculiarity> {
        match self.seen {
            Some(_) => self.plan.found.clone(),
            None => Vec::new(),
        }
    }
}

pub(crate) fn sum(now: Nanos, span: Nanos) -> Nanos {
    Nanos::new(now.get().saturating_add(span.get()))
}
