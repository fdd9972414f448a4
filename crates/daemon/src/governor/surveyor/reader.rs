// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread that reads how much processes share. A process can make that last for ever (bursar-reap `Post`): then
//! the surveyor goes on with another reader, and this one ends when it is back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bursar_host::{Proc, sched};
use bursar_kernel::{Notebook, Sharer, Slot, Surveys};
use bursar_reap::{Asker, Lost, Payer, Post, Sight, Vigil};

use super::{Method, own_work};

/// The processes of a survey.
#[derive(Debug)]
pub(super) struct Order {
    /// Whose they are.
    payer: Payer,
    sharers: Vec<(u32, Sharer)>,
    /// How many of them have been begun with.
    begun: AtomicUsize,
}

/// An order is carried out.
#[derive(Debug)]
pub(super) struct Done {
    /// Processor time.
    pub(super) work: Duration,
    pub(super) outcome: Result<()>,
}

/// What was heard of the reader.
#[derive(Debug)]
pub(super) enum Heard {
    Nothing,
    Done(Done),
    Lost,
}

/// It, as the surveyor has it.
#[derive(Debug)]
pub(super) struct Reader {
    orders: SyncSender<Arc<Order>>,
    answers: Receiver<Done>,
    post: Arc<Post>,
    vigil: Vigil,
    method: Arc<Method>,
    proc: Proc,
}

impl Order {
    pub(super) fn of(slot: Slot, sharers: impl Iterator<Item = (u32, Sharer)>) -> Self {
        Self::with(Payer::Account(slot.number()), sharers)
    }

    fn with(payer: Payer, sharers: impl Iterator<Item = (u32, Sharer)>) -> Self {
        Self {
            payer,
            sharers: sharers.collect(),
            begun: AtomicUsize::new(0),
        }
    }

    /// Those that nobody has begun with.
    pub(super) fn rest(&self) -> Option<Self> {
        let begun = self.begun.load(Ordering::Acquire);
        let rest = self.sharers.get(begun..).filter(|it| !it.is_empty())?;
        Some(Self::with(self.payer, rest.iter().copied()))
    }
}

impl Reader {
    pub(super) fn start(surveys: &Surveys, method: &Arc<Method>) -> Result<Self> {
        let asker = Asker::new(Arc::clone(&method.barred));
        let post = Arc::clone(asker.post());
        let (orders, received) = sync_channel::<Arc<Order>>(1);
        let (sender, answers) = sync_channel(1);
        let (number, its_number) = sync_channel(1);
        let thread = Thread {
            proc: Proc::host()?,
            notebook: surveys.notebook()?,
            method: Arc::clone(method),
            asker,
        };
        std::thread::Builder::new()
            .name("survey-reader".to_owned())
            .spawn(move || {
                thread.method.priority.take();
                let _ = number.send(sched::own_thread());
                for order in received {
                    let before = own_work();
                    let Ok(outcome) = thread.carry_out(&order) else {
                        thread.asker.be_back();
                        return;
                    };
                    let work = own_work().saturating_sub(before);
                    if sender.send(Done { work, outcome }).is_err() {
                        return;
                    }
                }
            })
            .context("start the thread that reads what processes share")?;
        let number = its_number.recv().context("start a thread")?;
        Ok(Self {
            orders,
            answers,
            post,
            vigil: Vigil::over(number),
            method: Arc::clone(method),
            proc: Proc::host()?,
        })
    }

    pub(super) fn take(&self, order: &Arc<Order>) -> Result<()> {
        let sent = self.orders.send(Arc::clone(order));
        sent.context("order a survey")
    }

    /// Waits for `span`; whoever sleeps at one process for `patience` is lost.
    pub(super) fn wait(&mut self, span: Duration, patience: Duration) -> Result<Heard> {
        match self.answers.recv_timeout(span) {
            Ok(done) => return Ok(Heard::Done(done)),
            Err(RecvTimeoutError::Disconnected) => bail!("the reader of a survey is gone"),
            Err(RecvTimeoutError::Timeout) => {}
        }
        match self.vigil.look(&self.proc, &self.post, patience) {
            Sight::Lost(pid) => {
                self.method.barred.bar(&self.proc, &self.post, pid);
                Ok(Heard::Lost)
            }
            Sight::Free | Sight::Asking(_) => Ok(Heard::Nothing),
        }
    }
}

struct Thread {
    proc: Proc,
    notebook: Notebook,
    method: Arc<Method>,
    asker: Asker,
}

impl Thread {
    fn carry_out(&self, order: &Order) -> Result<Result<()>, Lost> {
        for (place, &(index, sharer)) in order.sharers.iter().enumerate() {
            order
                .begun
                .store(place.saturating_add(1), Ordering::Release);
            let read = || self.proc.rollup(sharer.tid);
            // One that cannot be read, or has just ended, or must not be asked, counts in full.
            let asked = self
                .asker
                .ask_of(&self.proc, sharer.tid, Some(order.payer), read)?;
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
