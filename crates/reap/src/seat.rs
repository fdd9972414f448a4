// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A reaper's place: the CPU on which it was when it got ready, and the ticker there.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use bursar_host::sched;
use bursar_model::Pid;

use crate::ticker::Ticker;

/// Shared by a reaper, its ticker and the pacer.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    reaper: OnceLock<Pid>,
    /// The ticker's thread.
    ticking: OnceLock<Pid>,
    /// To which the ticker is confined, plus one; 0 before the first job.
    ticker_cpu: AtomicUsize,
    pub(crate) ticker: Ticker,
}

impl Seat {
    /// Says whose it is.
    pub(crate) fn give(&self, reaper: Pid, ticking: Pid) {
        let _ = self.reaper.set(reaper);
        let _ = self.ticking.set(ticking);
    }

    /// Whose it is; `None` while the crew is being started.
    pub(crate) fn reaper(&self) -> Option<Pid> {
        self.reaper.get().copied()
    }

    /// Confines the calling reaper to the CPU that it is on, and its ticker: the kernel moves a real-time thread
    /// when a higher one wants its CPU, and it would meet its mate or its victim on the other.
    pub(crate) fn take(&self) {
        let here = sched::own_cpu();
        let _ = sched::allow_cpu(sched::own_thread(), here);
        // While it sleeps: one that moved itself would need the kernel's migration thread.
        if let Some(&ticking) = self.ticking.get()
            && self.ticker_cpu.swap(here + 1, Ordering::Relaxed) != here + 1
        {
            let _ = sched::allow_cpu(ticking, here);
        }
    }

    /// Lets the reaper onto every CPU again.
    pub(crate) fn leave(&self) {
        if let Some(reaper) = self.reaper() {
            let _ = sched::allow_all_cpus(reaper);
        }
    }
}
