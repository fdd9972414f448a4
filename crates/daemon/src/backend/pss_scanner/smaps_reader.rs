// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread that reads how much processes share. A process can make that last for ever (bursar-reap `Post`): then
//! the PSS scanner goes on with another reader, and this one ends when it is back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_host::Proc;
use bursar_kernel::{Notebook, PssScans, Sharer, Slot};
use bursar_watchdog::{AbandonableWorker, Abandoned, Guard, Owner};

use super::{Method, own_work};

/// It, as the PSS scanner has it.
pub(super) type SmapsReader = AbandonableWorker<Arc<Order>, Done>;

/// The processes of a PSS scan.
#[derive(Debug)]
pub(super) struct Order {
    /// Whose they are.
    owner: Owner,
    sharers: Vec<(u32, Sharer)>,
    /// How many of them have been begun with.
    begun: AtomicUsize,
    /// The rest of them count in full.
    is_cut_short: AtomicBool,
}

/// An order is carried out.
#[derive(Debug)]
pub(super) struct Done {
    /// Processor time.
    pub(super) work: Duration,
    pub(super) outcome: Result<()>,
}

impl Order {
    pub(super) fn of(slot: Slot, sharers: impl Iterator<Item = (u32, Sharer)>) -> Self {
        Self::with(Owner::Account(slot.number()), sharers)
    }

    fn with(owner: Owner, sharers: impl Iterator<Item = (u32, Sharer)>) -> Self {
        Self {
            owner,
            sharers: sharers.collect(),
            begun: AtomicUsize::new(0),
            is_cut_short: AtomicBool::new(false),
        }
    }

    /// Others wait who matter more.
    pub(super) fn cut_short(&self) {
        self.is_cut_short.store(true, Ordering::Release);
    }

    /// Those that nobody has begun with.
    pub(super) fn rest(&self) -> Option<Self> {
        if self.is_cut_short.load(Ordering::Acquire) {
            return None;
        }
        let begun = self.begun.load(Ordering::Acquire);
        let rest = self.sharers.get(begun..).filter(|it| !it.is_empty())?;
        Some(Self::with(self.owner, rest.iter().copied()))
    }
}

pub(super) fn start(pss_scans: &PssScans, method: &Arc<Method>) -> Result<SmapsReader> {
    let thread = Thread {
        proc: Proc::host()?,
        notebook: pss_scans.notebook()?,
        method: Arc::clone(method),
    };
    let priority = method.priority;
    let carry_out = move |order: Arc<Order>, guard: &Guard| {
        let before = own_work();
        let outcome = thread.carry_out(&order, guard)?;
        let work = own_work().saturating_sub(before);
        Ok(Done { work, outcome })
    };
    AbandonableWorker::start(
        "smaps-reader",
        &method.blocklist,
        move || priority.take(),
        carry_out,
        || {},
    )
    .context("start the thread that reads what processes share")
}

struct Thread {
    proc: Proc,
    notebook: Notebook,
    method: Arc<Method>,
}

impl Thread {
    fn carry_out(&self, order: &Order, guard: &Guard) -> Result<Result<()>, Abandoned> {
        for (place, &(index, sharer)) in order.sharers.iter().enumerate() {
            if order.is_cut_short.load(Ordering::Acquire) {
                break;
            }
            order
                .begun
                .store(place.saturating_add(1), Ordering::Release);
            let read = || self.proc.rollup(sharer.tid);
            // One that cannot be read, or has just ended, or must not be asked, counts in full.
            let asked = guard.call(&self.proc, sharer.tid, Some(order.owner), read)?;
            let Some(Ok(Some(rollup))) = asked else {
                continue;
            };
            let found = self.method.weigh(&rollup, sharer);
            if let Err(error) = self.notebook.note(index, found) {
                return Ok(Err(error.into()));
            }
        }
        Ok(Ok(()))
    }
}
