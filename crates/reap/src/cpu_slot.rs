// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A reaper's place: the CPU on which it was when it got ready, and the preempter there.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use bursar_host::sched;
use bursar_model::Pid;

use crate::preempt::Preempter;

/// Shared by a reaper, its preempter and the controller.
#[derive(Debug, Default)]
pub(crate) struct CpuSlot {
    reaper: OnceLock<Pid>,
    /// The preempter's thread.
    preempting: OnceLock<Pid>,
    /// To which the preempter is confined, plus one; 0 before the first job.
    preempter_cpu: AtomicUsize,
    pub(crate) preempter: Preempter,
}

impl CpuSlot {
    /// Says whose it is.
    pub(crate) fn give(&self, reaper: Pid, preempting: Pid) {
        let _ = self.reaper.set(reaper);
        let _ = self.preempting.set(preempting);
    }

    /// Whose it is; `None` while the pool is being started.
    pub(crate) fn reaper(&self) -> Option<Pid> {
        self.reaper.get().copied()
    }

    /// Confines the calling reaper to the CPU that it is on, and its preempter: the kernel moves a real-time thread
    /// when a higher one wants its CPU, and it would meet its helper or its victim on the other.
    pub(crate) fn take(&self) {
        let here = sched::own_cpu();
        let _ = sched::allow_cpu(sched::own_thread(), here);
        // While it sleeps: one that moved itself would need the kernel's migration thread.
        if let Some(&preempting) = self.preempting.get()
            && self.preempter_cpu.swap(here + 1, Ordering::Relaxed) != here + 1
        {
            let _ = sched::allow_cpu(preempting, here);
        }
    }

    /// Lets the reaper onto every CPU again.
    pub(crate) fn leave(&self) {
        if let Some(reaper) = self.reaper() {
            let _ = sched::allow_all_cpus(reaper);
        }
    }
}
