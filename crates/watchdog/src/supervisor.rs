// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A queue of orders that one worker carries out, and another one when that hangs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bursar_model::Pid;

use crate::abandonable_worker::{AbandonableWorker, Outcome};
use crate::blocklist::Blocklist;
use crate::guard::{Abandoned, Guard};

/// Between two checks of a worker that is at an order.
const INTERVAL: Duration = Duration::from_millis(500);
/// A worker that could not be started is tried again after this.
const AGAIN: Duration = Duration::from_millis(100);

type Begin = Arc<dyn Fn() + Send + Sync>;
type CarryOut<I, O> = Arc<dyn Fn(I, &Guard) -> Result<O, Abandoned> + Send + Sync>;

/// What the workers of a [`Supervisor`] are and do.
pub struct Work<I, O> {
    /// The threads' name.
    pub name: &'static str,
    /// One that has hung in one call for so long is replaced.
    pub timeout: Duration,
    /// What a thread does first.
    pub begin: Begin,
    /// What it does with each order.
    pub carry_out: CarryOut<I, O>,
    /// What it does when the answer can be had.
    pub notify: Begin,
}

/// For a thread that has other things to do than to wait: it is polled.
pub struct Supervisor<I, O> {
    work: Work<I, O>,
    blocklist: Arc<Blocklist>,
    worker: Option<AbandonableWorker<I, O>>,
    current: Option<I>,
    queue: VecDeque<I>,
    next_check: Option<Duration>,
}

/// What became of an order.
#[derive(Debug)]
pub enum Finished<I, O> {
    /// It is carried out.
    Done(I, O),
    /// Its worker hung in a call to this process, and was replaced.
    Abandoned(I, Pid),
    /// Its worker has panicked, and was replaced.
    Panicked(I),
}

impl<I: Clone + Send + 'static, O: Send + 'static> Supervisor<I, O> {
    /// Starts the first worker.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(work: Work<I, O>, blocklist: Arc<Blocklist>) -> std::io::Result<Self> {
        let mut own = Self {
            work,
            blocklist,
            worker: None,
            current: None,
            queue: VecDeque::new(),
            next_check: None,
        };
        own.worker = Some(own.start_worker()?);
        Ok(own)
    }

    /// Queues an order; [`Self::poll`] gives it to the worker.
    pub fn push(&mut self, order: I) {
        self.queue.push_back(order);
    }

    /// Orders that no worker has begun.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// What is finished. To be called when notified, and after [`Self::next_check`].
    pub fn poll(&mut self) -> Vec<Finished<I, O>> {
        let mut finished = Vec::new();
        loop {
            if let Some(order) = self.current.take() {
                match self.check(order) {
                    Some(one) => finished.push(one),
                    None => return finished,
                }
            }
            self.next_check = None;
            let Some(next) = self.queue.pop_front() else {
                return finished;
            };
            if let Err(error) = self.give(next.clone()) {
                tracing::error!(%error, thread = self.work.name, "cannot be started");
                self.queue.push_front(next);
                self.next_check = Some(AGAIN);
                return finished;
            }
            self.current = Some(next);
        }
    }

    /// When to poll at the latest, from now; `None` while there is nothing to do.
    pub const fn next_check(&self) -> Option<Duration> {
        self.next_check
    }

    /// `None`: the worker is still at it.
    fn check(&mut self, order: I) -> Option<Finished<I, O>> {
        let outcome = match &mut self.worker {
            Some(worker) => worker.wait(Duration::ZERO, self.work.timeout),
            None => Outcome::Panicked,
        };
        match outcome {
            Outcome::Done(answer) => Some(Finished::Done(order, answer)),
            Outcome::Pending(left) => {
                self.next_check = Some(left.unwrap_or(INTERVAL).min(INTERVAL));
                self.current = Some(order);
                None
            }
            Outcome::Abandoned(pid) => {
                self.worker = None;
                Some(Finished::Abandoned(order, pid))
            }
            Outcome::Panicked => {
                self.worker = None;
                Some(Finished::Panicked(order))
            }
        }
    }

    fn give(&mut self, order: I) -> std::io::Result<()> {
        if self.worker.is_none() {
            self.worker = Some(self.start_worker()?);
        }
        if let Some(worker) = &self.worker {
            // One that has panicked is found so at the next check.
            worker.send(order);
        }
        Ok(())
    }

    fn start_worker(&self) -> std::io::Result<AbandonableWorker<I, O>> {
        let (begin, carry_out) = (
            Arc::clone(&self.work.begin),
            Arc::clone(&self.work.carry_out),
        );
        let notify = Arc::clone(&self.work.notify);
        AbandonableWorker::start(
            self.work.name,
            &self.blocklist,
            move || begin(),
            move |order, guard| carry_out(order, guard),
            move || notify(),
        )
    }
}

impl<I, O> std::fmt::Debug for Supervisor<I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisor")
            .field("name", &self.work.name)
            .field("worker", &self.worker)
            .finish_non_exhaustive()
    }
}
