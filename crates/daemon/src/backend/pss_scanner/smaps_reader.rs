// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread that reads how much processes share. A process can make that last for ever (bursar-watchdog): then the
//! PSS scanner goes on with another reader, and this one ends when it is back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_host::{HostError, HugePages, MapCounts, PageFlags, Proc, Rollup};
use bursar_kernel::{PssScans, ScanResults, Sharer, Slot};
use bursar_model::{Bytes, Pid};
use bursar_reap::Priority;
use bursar_watchdog::{AbandonableWorker, Abandoned, Guard, Owner};

use super::method::own_work;
use super::{Method, Request};

/// Where readers say that they are done.
pub(super) type Wake = Arc<Mutex<Option<SyncSender<Request>>>>;

/// The handle by which the PSS scanner gives a reader orders.
pub(super) type SmapsReader = AbandonableWorker<Arc<Order>, Done>;

/// After so much work for one scan the rest is done at everybody's priority: what is dear is its account's affair.
const URGENT: Duration = Duration::from_millis(100);
/// Looking at one huge page takes as long as looking at so many pages: two files are read for it.
const HUGE_PAGE_WORK: u64 = 3;
/// Less that was given back is left alone.
const WORTH_TAKING: Bytes = Bytes::from_mib(1);

/// The processes of a PSS scan.
#[derive(Debug)]
pub(super) struct Order {
    /// Whose they are.
    owner: Owner,
    sharers: Vec<(u32, Sharer)>,
    /// How many of them have been begun with.
    begun: AtomicUsize,
    /// Pages that were given back are taken before what is shared is read.
    takes_given_back: bool,
    /// How many of them map pages of the pools.
    pool_users: u64,
}

/// An order is carried out.
#[derive(Debug)]
pub(super) struct Done {
    /// Processor time.
    pub(super) work: Duration,
    /// That were looked at.
    pub(super) pages: u64,
    pub(super) outcome: Result<()>,
}

impl Order {
    pub(super) fn of(
        slot: Slot,
        sharers: impl Iterator<Item = (u32, Sharer)>,
        takes_given_back: bool,
    ) -> Self {
        let sharers: Vec<_> = sharers.collect();
        let pool_users = sharers.iter().filter(|(_, it)| it.hugetlb.get() > 0);
        Self {
            pool_users: pool_users.count() as u64,
            owner: Owner::Account(slot.number()),
            sharers,
            begun: AtomicUsize::new(0),
            takes_given_back,
        }
    }

    /// Those that nobody has begun with.
    pub(super) fn rest(&self) -> Option<Self> {
        let begun = self.begun.load(Ordering::Acquire);
        let rest = self.sharers.get(begun..).filter(|it| !it.is_empty())?;
        Some(Self {
            owner: self.owner,
            sharers: rest.to_vec(),
            begun: AtomicUsize::new(0),
            takes_given_back: self.takes_given_back,
            pool_users: self.pool_users,
        })
    }
}

pub(super) fn start(pss_scans: &PssScans, method: &Arc<Method>, wake: Wake) -> Result<SmapsReader> {
    let proc = Proc::host()?;
    let thread = Thread {
        // Where the kernel does not tell, such pages count.
        page_flags: PageFlags::open(&proc).ok(),
        map_counts: MapCounts::open(&proc).ok(),
        proc,
        results: pss_scans.results()?,
        method: Arc::clone(method),
    };
    let priority = method.priority;
    let carry_out = move |order: Arc<Order>, guard: &Guard| {
        let begun = own_work();
        let mut pages = 0;
        let outcome = thread.carry_out(&order, guard, begun, &mut pages)?;
        let work = own_work().saturating_sub(begun);
        if work > URGENT {
            thread.method.priority.take();
        }
        Ok(Done {
            work,
            pages,
            outcome,
        })
    };
    let notify = move || {
        let sender = wake.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*sender {
            let _ = sender.try_send(Request::Read);
        }
    };
    AbandonableWorker::start(
        "smaps-reader",
        &method.blocklist,
        move || priority.take(),
        carry_out,
        notify,
    )
    .context("start the thread that reads what processes share")
}

struct Thread {
    proc: Proc,
    page_flags: Option<PageFlags>,
    map_counts: Option<MapCounts>,
    results: ScanResults,
    method: Arc<Method>,
}

impl Thread {
    fn carry_out(
        &self,
        order: &Order,
        guard: &Guard,
        begun: Duration,
        pages: &mut u64,
    ) -> Result<Result<()>, Abandoned> {
        let mut is_urgent = true;
        for (place, &(index, sharer)) in order.sharers.iter().enumerate() {
            order
                .begun
                .store(place.saturating_add(1), Ordering::Release);
            if is_urgent && own_work().saturating_sub(begun) > URGENT {
                Priority::calm();
                is_urgent = false;
            }
            let read = || {
                let rollup = self.rollup(sharer.tid, order.takes_given_back);
                rollup.map(|it| it.map(|it| (it, self.huge_pages(sharer, order.pool_users))))
            };
            // One that cannot be read, or has just ended, or must not be asked, counts in full.
            let asked = guard.call(&self.proc, sharer.tid, Some(order.owner), read)?;
            let Some(Ok(Some((rollup, huge_pages)))) = asked else {
                continue;
            };
            *pages = pages
                .saturating_add(self.method.page.pages_within(rollup.rss).get())
                .saturating_add(huge_pages.looked_at.saturating_mul(HUGE_PAGE_WORK));
            let found = |swap| self.method.weigh(&rollup, sharer, swap, huge_pages);
            if let Err(error) = self.results.note(index, found) {
                return Ok(Err(error.into()));
            }
        }
        Ok(Ok(()))
    }

    /// Of the huge pages that it maps of the pools. Where nobody says, they are its own.
    fn huge_pages(&self, sharer: Sharer, pool_users: u64) -> HugePages {
        match &self.map_counts {
            Some(counts) if sharer.hugetlb.get() > 0 => {
                let found = self.proc.huge_pages(sharer.tid, counts, pool_users);
                found.ok().flatten().unwrap_or_default()
            }
            _ => HugePages::default(),
        }
    }

    /// What it shares, as it is once the kernel has what was given back.
    fn rollup(&self, tid: Pid, takes_given_back: bool) -> Result<Option<Rollup>, HostError> {
        let rollup = self.proc.rollup(tid)?;
        let is_worth_it = rollup.is_some_and(|it| it.lazy_free >= WORTH_TAKING);
        match &self.page_flags {
            Some(flags) if is_worth_it && takes_given_back => {
                let taken = self.proc.take_given_back(tid, flags);
                tracing::debug!(%tid, ?taken, "what was given back is taken");
                self.proc.rollup(tid)
            }
            _ => Ok(rollup),
        }
    }
}
