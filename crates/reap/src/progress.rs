// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far the first reaper is with a job, for who takes over should it be lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bursar_model::Nanos;

use crate::job::{Errand, Job, Victim};

/// A job under way.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) job: Arc<Job>,
    marks: Vec<Mark>,
}

/// One victim's.
#[derive(Debug, Default)]
struct Mark {
    /// When the signal was sent; 0 before.
    signalled: AtomicU64,
    /// Its report is out, or somebody sees to that.
    is_settled: AtomicBool,
}

impl Progress {
    pub(crate) fn of(job: Arc<Job>) -> Self {
        let marks = job.victims.iter().map(|_| Mark::default()).collect();
        Self { job, marks }
    }

    pub(crate) fn signalled(&self, victim: usize, at: Nanos) {
        if let Some(mark) = self.marks.get(victim) {
            mark.signalled.store(at.get(), Ordering::Release);
        }
    }

    pub(crate) fn settle(&self, victim: usize) {
        if let Some(mark) = self.marks.get(victim) {
            mark.is_settled.store(true, Ordering::Release);
        }
    }

    /// What is left to be done. All victims are signalled before anybody's memory is taken: of those that are left,
    /// all have been or none.
    pub(crate) fn rest(&self) -> Job {
        let mut errand = self.job.errand;
        let mut victims: Vec<Victim> = Vec::new();
        for (victim, mark) in self.job.victims.iter().zip(&self.marks) {
            if mark.is_settled.load(Ordering::Acquire) {
                continue;
            }
            let mut victim = victim.clone();
            let at = mark.signalled.load(Ordering::Acquire);
            if at > 0 {
                victim.signalled = Nanos::new(at);
                errand = Errand::Reap;
            }
            victims.push(victim);
        }
        Job { errand, victims }
    }
}

#[cfg(test)]
mod tests {
    use bursar_host::Pidfd;
    use bursar_model::Pid;

    use super::*;

    #[test]
    fn who_takes_over_reaps_what_was_signalled_and_kills_what_was_not() {
        let victim = |tag| {
            let own = Pidfd::open(Pid::new(std::process::id()));
            Victim::new(own.unwrap().unwrap(), Nanos::new(0), tag)
        };
        let job = Job {
            errand: Errand::Kill,
            victims: (0..3).map(victim).collect(),
        };
        let progress = Progress::of(Arc::new(job));
        let rest = progress.rest();
        assert_eq!((rest.errand, rest.victims.len()), (Errand::Kill, 3));
        progress.settle(0);
        progress.signalled(1, Nanos::new(5));
        progress.signalled(2, Nanos::new(6));
        progress.settle(1);
        let rest = progress.rest();
        let left: Vec<_> = rest
            .victims
            .iter()
            .map(|it| (it.tag, it.signalled))
            .collect();
        assert_eq!(
            (rest.errand, left),
            (Errand::Reap, vec![(2, Nanos::new(6))])
        );
    }
}
