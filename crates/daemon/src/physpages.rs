// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts of mapped pages, made by a thread of their own when somebody asks (bursar-pagemap-scan). Nothing
//! is counted, and after a minute nothing remembered, while nobody does.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bursar_host::{Proc, UserNamespaces, UsernsOwner};
use bursar_pagemap_scan::{Count, Pace, PagemapScanner};
use bursar_watchdog::{Blocklist, TimedQuery};

use crate::entered::Entered;
use crate::payers::Payers;

/// The rings of shared pages are kept so long after a count.
const KEPT: Duration = Duration::from_secs(60);
/// An ordinary user is told what was found at most so long ago …
const FRESH: Duration = Duration::from_secs(10);
/// … or so many times as long as the count took: users who ask all the time take a twentieth of a core
/// at most, for a count itself takes a quarter.
const REST: u32 = 4;

/// A count to be made: who pays for whom.
#[derive(Debug)]
struct Order {
    payers: Payers,
    entered: Entered,
}

/// A count that has been made.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) count: Count,
    pub(crate) at: Instant,
}

impl Finished {
    /// Whether it is fresh enough for who may not have one made at any time.
    pub(crate) fn is_recent(&self) -> bool {
        let rest = self.count.took.saturating_mul(REST).max(FRESH);
        self.at.elapsed() < rest
    }
}

/// Where the counts are.
#[derive(Debug, Default)]
struct CountState {
    begun: u64,
    finished: u64,
    latest: Option<Arc<Finished>>,
    /// Why the last one failed.
    failure: Option<String>,
}

/// Has counts made, from when somebody first asks.
#[derive(Debug)]
pub(crate) struct Physpages {
    blocklist: Arc<Blocklist>,
    counter: Option<Counter>,
}

#[derive(Debug)]
struct Counter {
    orders: SyncSender<Order>,
    state: Arc<Mutex<CountState>>,
    ordered: u64,
}

/// What there is for who holds a ticket.
#[derive(Debug)]
pub(crate) enum State {
    /// It is under way, or about to be.
    Counting(u64),
    Counted(Arc<Finished>),
    Failed(String),
}

fn lock(state: &Mutex<CountState>) -> MutexGuard<'_, CountState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Physpages {
    pub(crate) const fn new(blocklist: Arc<Blocklist>) -> Self {
        Self {
            blocklist,
            counter: None,
        }
    }

    /// Has pages counted for whoever pays as of now; the count's ticket. All who ask before it begins get the same.
    pub(crate) fn order(&mut self, payers: Payers, entered: Entered) -> Result<u64> {
        self.counter()?.order(Order { payers, entered })
    }

    /// What has become of a count.
    pub(crate) fn state(&mut self, ticket: u64) -> Result<State> {
        Ok(self.counter()?.state(ticket))
    }

    /// The last count, if there was one.
    pub(crate) fn latest(&self) -> Option<Arc<Finished>> {
        self.counter.as_ref()?.latest()
    }

    fn counter(&mut self) -> Result<&mut Counter> {
        match &mut self.counter {
            Some(counter) => Ok(counter),
            none => Ok(none.insert(Counter::start(Arc::clone(&self.blocklist))?)),
        }
    }
}

impl Counter {
    /// Starts the thread. It ends with the counter.
    fn start(blocklist: Arc<Blocklist>) -> Result<Self> {
        let query = TimedQuery::new("pagemap-query", blocklist).context("open /proc")?;
        let (orders, received) = sync_channel(1);
        let state = Arc::new(Mutex::new(CountState::default()));
        let shown = Arc::clone(&state);
        bursar_host::thread::spawn("pagemap-scan", move || work(&received, &shown, query))
            .context("start the thread that counts mapped pages")?;
        Ok(Self {
            orders,
            state,
            ordered: 0,
        })
    }

    fn order(&mut self, order: Order) -> Result<u64> {
        let begun = lock(&self.state).begun;
        if self.ordered > begun {
            return Ok(self.ordered);
        }
        match self.orders.try_send(order) {
            Ok(()) => self.ordered = begun.saturating_add(1),
            // One waits: it has just been taken up, or is about to be.
            Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => {
                anyhow::bail!("the thread that counts mapped pages is gone")
            }
        }
        Ok(self.ordered)
    }

    fn latest(&self) -> Option<Arc<Finished>> {
        lock(&self.state).latest.clone()
    }

    fn state(&self, ticket: u64) -> State {
        let state = lock(&self.state);
        if state.finished < ticket.min(self.ordered) {
            return State::Counting(ticket);
        }
        match (&state.latest, &state.failure) {
            (_, Some(failure)) => State::Failed(failure.clone()),
            (Some(latest), None) => State::Counted(Arc::clone(latest)),
            (None, None) => State::Failed("nothing has been counted yet".to_owned()),
        }
    }
}

fn work(orders: &Receiver<Order>, state: &Mutex<CountState>, mut query: TimedQuery) {
    let mut scanner = None;
    loop {
        let heard = match scanner {
            Some(_) => orders.recv_timeout(KEPT),
            None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let order = match heard {
            Ok(order) => order,
            Err(RecvTimeoutError::Timeout) => {
                scanner = None;
                crate::log::trim_memory();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let ticket = {
            let mut state = lock(state);
            state.begun = state.begun.saturating_add(1);
            state.begun
        };
        let made = count(&mut scanner, &order, &mut query);
        let mut state = lock(state);
        state.finished = ticket;
        match made {
            Ok(count) => {
                let at = Instant::now();
                state.latest = Some(Arc::new(Finished { count, at }));
                state.failure = None;
            }
            Err(error) => state.failure = Some(format!("{error:#}")),
        }
    }
}

fn count(
    scanner: &mut Option<PagemapScanner>,
    order: &Order,
    query: &mut TimedQuery,
) -> Result<Count> {
    let proc = Proc::host().context("open /proc")?;
    // Who answers for what runs in a user namespace pays for it, as in the kernel half.
    let mut namespaces = UserNamespaces::new(&proc)?;
    let scanner = match scanner {
        Some(scanner) => scanner,
        none => none.insert(PagemapScanner::new(Proc::host().context("open /proc")?)),
    };
    let count = scanner.count(Pace::QUARTER, query, |query, process| {
        let entered = order.entered.account_of(process.pid, &order.payers);
        entered.or_else(|| {
            let owner = namespaces.owner_of(&proc, process.pid, process.uid, query);
            let owner = owner.unwrap_or(UsernsOwner::itself(process.uid));
            order.payers.billed(order.payers.payer(owner))
        })
    })?;
    tracing::debug!(took = ?count.took, work = ?count.work, pages = count.mapped_pages, "counted mapped pages");
    Ok(count)
}
