// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From events to deliveries: what is read goes into the queue, and what is due goes to the thread of its rule. One
//! thread owns the queue; nothing else is shared.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bursar_host::clock;
use jiff::Timestamp;

use crate::config::Rule;
use crate::delivery::{DeliveryId, Outcome, Seconds};
use crate::message::{Message, StreamItem};
use crate::queue::Queue;
use crate::telling::{Job, Tell};

/// Events read ahead of the queue, and taken in between two looks at what is due.
pub(crate) const READ_AHEAD: usize = 64;
/// Pause after the disk took nothing.
const AGAIN: Duration = Duration::from_secs(2);
/// A rule pauses after so many failures in a row, and at most so long at a time.
const MANY_FAILURES: u32 = 3;
const LONGEST_WORKER_PAUSE: Duration = Duration::from_secs(60);
/// When nothing has been told for so long, the place up to which events were read is written.
const QUIET: Duration = Duration::from_secs(2);
/// So long attempts under way are waited for at the end.
const FINISH_WITHIN: Duration = Duration::from_secs(3);
/// We end after so long, whatever stands in the way: a disk, a log that nobody reads, a directory of users.
const END_WITHIN: Duration = Duration::from_millis(4_500);
/// The longest sleep: a clock that was set is noticed by then.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// What time it is: for people, and on a clock that nobody sets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    wall: Seconds,
    steady: Duration,
}

impl Moment {
    fn now() -> Self {
        Self {
            wall: Timestamp::now().as_second(),
            steady: Duration::from_nanos(clock::monotonic().get()),
        }
    }
}

/// A rule and its thread.
struct RuleWorker {
    rule: Rule,
    jobs: SyncSender<Job>,
    is_busy: bool,
    /// Attempts in a row in which nobody was reached, and until when nothing is tried for that.
    failures: u32,
    resumes: Option<Duration>,
}

impl RuleWorker {
    /// A server that is down is not asked for each delivery; one recipient in trouble keeps no other back.
    fn note(&mut self, outcome: &Outcome, now: Moment) {
        self.is_busy = false;
        self.failures = match outcome {
            Outcome::Unreached(_) => self.failures.saturating_add(1),
            Outcome::Delivered | Outcome::Later { .. } | Outcome::Refused(_) => 0,
        };
        let pause = Duration::from_secs(1 << self.failures.min(10)).min(LONGEST_WORKER_PAUSE);
        self.resumes = (self.failures >= MANY_FAILURES).then(|| now.steady.saturating_add(pause));
    }

    /// How long it does nothing.
    fn rest(&self, now: Moment) -> Duration {
        let until = self.resumes;
        until.map_or(Duration::ZERO, |it| it.saturating_sub(now.steady))
    }
}

/// Reads, queues and has delivered.
pub(crate) struct Engine {
    rules: Vec<Rule>,
    workers: Vec<RuleWorker>,
    queue: Queue,
    told: Receiver<StreamItem>,
    inbox: Receiver<Message>,
    /// Told and not in the queue yet, because the disk takes nothing. bursard keeps the others.
    held_back: Option<StreamItem>,
    is_failing: bool,
    clock: Box<dyn Fn() -> Moment>,
}

impl Engine {
    /// `back`: where attempts report their end, which is `inbox`.
    pub(crate) fn new(
        rules: Vec<(Rule, Box<dyn Tell>)>,
        mut queue: Queue,
        told: Receiver<StreamItem>,
        inbox: Receiver<Message>,
        back: &Sender<Message>,
    ) -> Result<Self> {
        let all: Vec<Rule> = rules.iter().map(|(rule, _)| rule.clone()).collect();
        queue
            .drop_others(&all)
            .context("write to the queue; see to the disk")?;
        let mut workers = Vec::new();
        for (at, (rule, tell)) in rules.into_iter().enumerate() {
            let (jobs, waiting) = sync_channel(1);
            let back = back.clone();
            spawn(&format!("rule {}", rule.name), move || {
                work(at, tell, &waiting, &back)
            })?;
            workers.push(RuleWorker {
                rule,
                jobs,
                is_busy: false,
                failures: 0,
                resumes: None,
            });
        }
        Ok(Self {
            rules: all,
            workers,
            queue,
            told,
            inbox,
            held_back: None,
            is_failing: false,
            clock: Box::new(Moment::now),
        })
    }

    /// Works until it is asked to end.
    pub(crate) fn run(&mut self) {
        loop {
            let done = self.turn();
            match done {
                Ok(()) if self.is_failing => {
                    self.is_failing = false;
                    tracing::warn!("the queue can be written again");
                }
                Ok(()) => {}
                Err(error) => self.say_failing(&error),
            }
            let mut heard = self.inbox.recv_timeout(self.sleep());
            if matches!(heard, Err(RecvTimeoutError::Timeout))
                && let Err(error) = self.queue.write_place()
            {
                self.say_failing(&error);
            }
            // All that waits: behind many words of fresh events may be one that asks to end.
            while let Ok(message) = heard {
                match message {
                    Message::Fresh => {}
                    Message::Settled(worker, id, outcome) => self.settle(worker, id, outcome),
                    Message::End => return self.finish(),
                }
                heard = self.inbox.try_recv().map_err(|_| RecvTimeoutError::Timeout);
            }
            if matches!(heard, Err(RecvTimeoutError::Disconnected)) {
                return self.finish();
            }
        }
    }

    fn say_failing(&mut self, error: &io::Error) {
        if !self.is_failing {
            tracing::error!(
                "the queue cannot be written: {error}; events wait at bursard until it can, see to the disk"
            );
        }
        self.is_failing = true;
    }

    /// Takes in what was told, has done what is due.
    fn turn(&mut self) -> io::Result<()> {
        if !self.queue.write_outcomes() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        for _ in 0..READ_AHEAD {
            let next = self.held_back.take().or_else(|| self.told.try_recv().ok());
            let Some(told) = next else { break };
            if let Err(error) = self.enter(&told) {
                self.held_back = Some(told);
                return Err(error);
            }
        }
        self.start_due()?;
        self.queue.tidy()
    }

    fn enter(&mut self, told: &StreamItem) -> io::Result<()> {
        match told {
            StreamItem::Begins(number) => self.queue.begin_at(*number),
            StreamItem::Event(event, missed) => {
                if *missed > 0 {
                    tracing::warn!(
                        "{missed} events before number {} were not to be had from bursard any more",
                        event.number.unwrap_or(0)
                    );
                }
                let now = (self.clock)();
                self.queue.take(event, &self.rules, *missed, now.wall)
            }
            StreamItem::Missed { number, count } => {
                tracing::warn!(
                    "{count} events up to number {number} were not to be had from bursard any more"
                );
                self.queue.miss(*number, *count)
            }
        }
    }

    /// One attempt of each rule at a time.
    fn start_due(&mut self) -> io::Result<()> {
        let moment = (self.clock)();
        let now = moment.wall;
        let is_ready = |worker: &&mut RuleWorker| !worker.is_busy && worker.rest(moment).is_zero();
        for worker in self.workers.iter_mut().filter(is_ready) {
            let Some(id) = self.queue.due_of(&worker.rule, now) else {
                continue;
            };
            let Some(delivery) = self.queue.begin(id, &worker.rule, now)? else {
                continue;
            };
            let id = format!("{}-{id}", self.queue.state().instance);
            // A thread that is gone never settles; its rule's deliveries wait for the next start.
            worker.is_busy = true;
            let _ = worker.jobs.send(Job { id, delivery });
        }
        Ok(())
    }

    fn settle(&mut self, worker: usize, id: DeliveryId, outcome: Outcome) {
        let Some(worker) = self.workers.get_mut(worker) else {
            return;
        };
        let now = (self.clock)();
        worker.note(&outcome, now);
        match &outcome {
            Outcome::Delivered => tracing::info!("{}: delivery {id} is told", worker.rule.name),
            Outcome::Unreached(why) | Outcome::Later { why, .. } => {
                tracing::warn!("{}: delivery {id} is tried again: {why}", worker.rule.name)
            }
            Outcome::Refused(why) => {
                tracing::error!("{}: delivery {id} is dropped: {why}", worker.rule.name)
            }
        }
        self.queue.settle(id, outcome, &worker.rule, now.wall);
    }

    /// How long nothing is due.
    fn sleep(&self) -> Duration {
        if self.is_failing {
            return AGAIN;
        }
        let moment = (self.clock)();
        let now = moment.wall;
        let idle = self.workers.iter().filter(|it| !it.is_busy);
        let due = idle.filter_map(|worker| {
            let due = self.queue.next_due(&worker.rule, now)?;
            let seconds = due.saturating_sub(now).max(0).unsigned_abs();
            Some(Duration::from_secs(seconds).max(worker.rest(moment)))
        });
        let place = self.queue.is_place_unwritten().then_some(QUIET);
        due.chain(place)
            .min()
            .unwrap_or(LONGEST_SLEEP)
            .min(LONGEST_SLEEP)
    }

    /// Waits for attempts under way; what is not done by then is tried again, and said to be.
    fn finish(&mut self) {
        let until = Instant::now() + FINISH_WITHIN;
        while self.workers.iter().any(|it| it.is_busy) {
            let left = until.saturating_duration_since(Instant::now());
            match self.inbox.recv_timeout(left) {
                Ok(Message::Settled(worker, id, outcome)) => self.settle(worker, id, outcome),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        if let Err(error) = self.queue.close() {
            self.say_failing(&error);
        }
    }
}

/// A rule's thread.
fn work(worker: usize, mut tell: Box<dyn Tell>, jobs: &Receiver<Job>, back: &Sender<Message>) {
    while let Ok(job) = jobs.recv() {
        let outcome = tell.tell(&job);
        if back
            .send(Message::Settled(worker, job.delivery.id, outcome))
            .is_err()
        {
            return;
        }
    }
}

/// Asks for an end, and sees to it.
pub(crate) fn end(wake: &Sender<Message>) {
    let _ = wake.send(Message::End);
    thread::sleep(END_WITHIN);
    // What was under way is tried again by the next one, which knows that it may have come through.
    std::process::exit(0);
}

/// Starts a thread without which nothing is told: its end is ours, and the service manager starts us again.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let guarded = move || {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
            std::process::exit(1);
        }
    };
    let name: String = name.chars().take(15).collect();
    thread::Builder::new()
        .name(name)
        .spawn(guarded)
        .context("start a thread")?;
    Ok(())
}

#[cfg(test)]
mod tests;
