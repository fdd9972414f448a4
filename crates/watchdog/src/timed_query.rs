// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks processes what they can keep the asking thread waiting with: a worker that hangs at one process is abandoned,
//! and another one goes on with the next.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bursar_host::{HostError, Proc, ProcessQuery};
use bursar_model::Pid;

use crate::abandonable_worker::{AbandonableWorker, Outcome};
use crate::blocklist::Blocklist;
use crate::guard::{Abandoned, Guard};

/// A worker that sleeps so long at one process, without a moment of work and for no signal, hangs there.
const TIMEOUT: Duration = Duration::from_millis(400);
/// Between two checks of the worker.
const INTERVAL: Duration = Duration::from_millis(20);

thread_local! {
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// How long processes have taken so far to answer what the calling thread asked by [`TimedQuery`]s. That a worker waited
/// for a processor first is not in it.
pub fn time_waited() -> Duration {
    WAITED.get()
}

type Order = Box<dyn FnOnce(&Proc, &Guard) -> Result<(), Abandoned> + Send>;

/// The worker is started at the first question and ends with this.
#[derive(Debug)]
pub struct TimedQuery {
    name: &'static str,
    timeout: Duration,
    blocklist: Arc<Blocklist>,
    proc: Arc<Proc>,
    worker: Option<AbandonableWorker<Order, ()>>,
}

/// One question to many processes.
struct Round<T, Q> {
    pids: Vec<Pid>,
    question: Q,
    /// How many of them have been begun with.
    begun: AtomicUsize,
    answers: Mutex<Vec<(Pid, T)>>,
    /// How long they took for their answers, nanoseconds.
    spent: AtomicU64,
}

impl TimedQuery {
    /// `name` is the worker's.
    ///
    /// # Errors
    /// When /proc cannot be opened.
    pub fn new(name: &'static str, blocklist: Arc<Blocklist>) -> Result<Self, HostError> {
        Ok(Self {
            name,
            timeout: TIMEOUT,
            blocklist,
            proc: Arc::new(Proc::host()?),
            worker: None,
        })
    }

    /// The same with another timeout.
    #[must_use]
    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Whether a thread hangs at this very process: it was asked and did not answer in time.
    pub fn hangs_at(&self, pid: Pid) -> bool {
        self.blocklist.has(pid)
    }

    /// Has its worker started now: later there may be no memory for one.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn ready(mut self) -> std::io::Result<Self> {
        self.worker = Some(self.start()?);
        Ok(self)
    }

    fn start(&self) -> std::io::Result<AbandonableWorker<Order, ()>> {
        let proc = Arc::clone(&self.proc);
        let carry_out = move |order: Order, guard: &Guard| order(&proc, guard);
        AbandonableWorker::start(self.name, &self.blocklist, || {}, carry_out, || {})
    }
}

impl ProcessQuery for TimedQuery {
    fn ask_each<T, Q>(&mut self, pids: Vec<Pid>, question: Q) -> Vec<(Pid, T)>
    where
        T: Send + 'static,
        Q: Fn(&Proc, Pid) -> T + Send + Sync + 'static,
    {
        let round = Arc::new(Round {
            pids,
            question,
            begun: AtomicUsize::new(0),
            answers: Mutex::default(),
            spent: AtomicU64::new(0),
        });
        let mut waited = Duration::ZERO;
        while round.next().is_some() {
            let mut worker = match self.worker.take().map_or_else(|| self.start(), Ok) {
                Ok(worker) => worker,
                Err(error) => {
                    tracing::error!(%error, thread = self.name, "cannot be started: processes are not asked");
                    break;
                }
            };
            let its = Arc::clone(&round);
            let order: Order = Box::new(move |proc, guard| its.go_on(proc, guard));
            let sent = Instant::now();
            // An abandoned one is not used again.
            if worker.send(order) && has_finished(&mut worker, self.timeout) {
                self.worker = Some(worker);
            } else {
                waited = waited.saturating_add(sent.elapsed());
            }
        }
        waited = waited.saturating_add(Duration::from_nanos(round.spent.load(Ordering::Relaxed)));
        WAITED.set(WAITED.get().saturating_add(waited));
        std::mem::take(&mut round.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn has_finished(worker: &mut AbandonableWorker<Order, ()>, timeout: Duration) -> bool {
    loop {
        match worker.wait(INTERVAL, timeout) {
            Outcome::Pending(_) => {}
            Outcome::Done(()) => return true,
            Outcome::Abandoned(_) | Outcome::Panicked => return false,
        }
    }
}

impl<T, Q: Fn(&Proc, Pid) -> T> Round<T, Q> {
    /// The index of the next process, and its pid.
    fn next(&self) -> Option<(usize, Pid)> {
        let index = self.begun.load(Ordering::Acquire);
        self.pids.get(index).map(|&pid| (index, pid))
    }

    fn go_on(&self, proc: &Proc, guard: &Guard) -> Result<(), Abandoned> {
        while let Some((index, pid)) = self.next() {
            self.begun.store(index.saturating_add(1), Ordering::Release);
            let asked = Instant::now();
            // An abandoned worker that comes back has nothing to say any more.
            let answer = guard.call(proc, pid, None, || (self.question)(proc, pid))?;
            let spent = u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.spent.fetch_add(spent, Ordering::Relaxed);
            if let Some(answer) = answer {
                let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
                answers.push((pid, answer));
            }
        }
        Ok(())
    }
}
