// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Follows victims from the signal to their end, and has the worker act when that helps: at once where something holds
//! a victim back, otherwise when it is late.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use bursar_host::{HostError, Pidfd, Sent, Signal, Waker, clock};
use bursar_model::{Bytes, Nanos};
use bursar_policy::reap_plan;
use bursar_watchdog::{Finished, Supervisor};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::case::{Case, Shared, Stage, sum};
use crate::job::{Job, JobKind, Victim};
use crate::observer::{Observer, unseen};
use crate::report::{Fate, Outbox, ReapEvent, Report};
use crate::worker::{Answer, Observed, Order, Outcome, Taken, Taking};

/// Orders that wait for the worker. Beyond these a kill is refused, and the victims of a reap are only watched;
/// both are counted.
const MOST_QUEUED: usize = 256;
/// Victims followed at a time; of more the oldest are reported as they are.
const MOST_CASES: usize = 512;
/// Reports that wait for who holds the victim's shared memory; others go out without.
const MOST_REPORTS: usize = 256;
/// Less shared memory than this is not looked for.
const WORTH_A_SEARCH: Bytes = Bytes::from_mib(1);

const BLOCKED: &str = "another process holds its memory's lock (mmap_lock)";
const EXITING: &str = "it is still exiting";
const BEHIND: &str = "the reapers are behind, and it is still exiting";

pub(crate) struct Watcher {
    pub(crate) inbox: Receiver<Job>,
    pub(crate) waker: Waker,
    pub(crate) outbox: Outbox,
    pub(crate) observer: Arc<Observer>,
    pub(crate) worker: Supervisor<Order, Answer>,
    /// Finishes reports with who holds the shared memory that a victim left behind.
    pub(crate) reporter: Supervisor<(Report, Shared), Report>,
    pub(crate) turned_away: Arc<AtomicU64>,
    /// Oldest first.
    pub(crate) cases: Vec<Case>,
    pub(crate) next_id: u64,
}

impl Watcher {
    /// The thread. It ends when all handles of the reaper are gone.
    pub(crate) fn run(&mut self) {
        let mut ended = Vec::new();
        loop {
            self.waker.clear();
            if !self.receive() && self.cases.is_empty() {
                return;
            }
            for id in ended.drain(..) {
                self.end(id);
            }
            for finished in self.worker.poll() {
                self.follow(finished);
            }
            self.pass_deadlines();
            self.shed();
            // What was just decided may have queued orders.
            for finished in self.worker.poll() {
                self.follow(finished);
            }
            for finished in self.reporter.poll() {
                let report = match finished {
                    Finished::Done(_, report) => report,
                    // Without what it still lacks.
                    Finished::Abandoned((report, _), _) | Finished::Panicked((report, _)) => report,
                };
                (self.outbox)(ReapEvent::Settled(Box::new(report)));
            }
            ended = self.wait();
        }
    }

    /// Takes in new jobs; false when there will be none any more.
    fn receive(&mut self) -> bool {
        use std::sync::mpsc::TryRecvError;
        loop {
            match self.inbox.try_recv() {
                Ok(job) => self.accept(job),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn accept(&mut self, job: Job) {
        let has_room = self.worker.queued() < MOST_QUEUED;
        if !has_room {
            let count = job.victims.len() as u64;
            self.turned_away.fetch_add(count, Ordering::Relaxed);
        }
        match (job.kind, has_room) {
            (JobKind::Kill, true) => self.worker.push(Order::Prepare(Arc::new(job))),
            (JobKind::Kill, false) => {
                for victim in job.victims {
                    let fate = Fate::NotKilled("the reapers are behind".to_owned());
                    self.settle(victim.report(fate), None);
                }
            }
            (JobKind::Reap, has_room) => {
                for victim in job.victims {
                    if self.follows(&victim) {
                        continue;
                    }
                    let id = self.open(victim, None);
                    if has_room && let Some(case) = self.find(id) {
                        let order = Order::Observe(id, case.victim.clone());
                        self.worker.push(order);
                    } else if let Some(case) = self.find(id) {
                        case.leave(clock::monotonic(), false, BEHIND);
                    }
                }
            }
        }
    }

    /// Follows a victim that was signalled; its case's number.
    fn open(&mut self, victim: Victim, observed: Option<Observed>) -> u64 {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let observed = observed.unwrap_or_else(|| {
            let facts = unseen(self.observer.cpus, victim.private);
            Observed {
                seen: None,
                plan: reap_plan(&facts, self.observer.machine()),
                mm_sharer: None,
                is_alive: false,
            }
        });
        self.cases.push(Case {
            id,
            victim,
            seen: observed.seen,
            plan: observed.plan,
            mm_sharer: observed.mm_sharer,
            stage: Stage::Observed,
            was_raised: false,
        });
        id
    }

    /// Whether it is being seen to: its death was heard of twice. As long as its case is open nobody else has its number.
    fn follows(&self, victim: &Victim) -> bool {
        let pid = victim.pidfd.pid();
        self.cases.iter().any(|it| it.pidfd().pid() == pid)
    }

    fn find(&mut self, id: u64) -> Option<&mut Case> {
        self.cases.iter_mut().find(|it| it.id == id)
    }

    fn take_out(&mut self, id: u64) -> Option<Case> {
        let index = self.cases.iter().position(|it| it.id == id)?;
        Some(self.cases.remove(index))
    }

    /// The worker has finished an order, or was abandoned in it.
    fn follow(&mut self, finished: Finished<Order, Answer>) {
        match finished {
            Finished::Done(Order::Prepare(job), Answer::Prepared(observed)) => {
                self.signal(&job, observed);
            }
            Finished::Done(Order::Observe(id, _), Answer::Observed(observed))
                if observed.is_alive =>
            {
                if let Some(case) = self.take_out(id) {
                    let fate = Fate::NotKilled("it is not dying".to_owned());
                    self.settle(case.victim.report(fate), None);
                }
            }
            Finished::Done(Order::Observe(id, _), Answer::Observed(observed)) => {
                if let Some(case) = self.find(id) {
                    case.seen = observed.seen;
                    case.plan = observed.plan;
                    self.decide(id);
                }
            }
            Finished::Done(Order::Take(id, _), Answer::Taken(taken)) => self.conclude(id, taken),
            // At somebody whose memory nobody asks for from now on: the rest can go on.
            Finished::Abandoned(order @ Order::Prepare(_), _) => self.worker.push(order),
            Finished::Abandoned(order @ Order::Take(..), pid) if !order.is_about(pid) => {
                self.worker.push(order);
            }
            Finished::Abandoned(Order::Observe(id, _) | Order::Take(id, _), _) => {
                if let Some(case) = self.find(id) {
                    case.leave(clock::monotonic(), true, BLOCKED);
                }
            }
            Finished::Panicked(order) | Finished::Done(order, _) => self.drop_order(order),
        }
    }

    /// An order that cannot be carried out.
    fn drop_order(&mut self, order: Order) {
        match order {
            Order::Prepare(job) => {
                for victim in &job.victims {
                    let fate = Fate::NotKilled("the reaper failed".to_owned());
                    self.settle(victim.report(fate), None);
                }
            }
            Order::Observe(id, _) | Order::Take(id, _) => {
                if let Some(case) = self.find(id) {
                    case.leave(clock::monotonic(), false, EXITING);
                }
            }
        }
    }

    /// Sends SIGKILL to all victims of a job before the first one's memory is taken: two that share one memory both
    /// are dying by then.
    fn signal(&mut self, job: &Job, observed: Vec<Observed>) {
        let mut signalled = Vec::new();
        for (victim, observed) in job.victims.iter().zip(observed) {
            let mut victim = victim.clone();
            victim.signalled = clock::monotonic();
            let fate = match victim.pidfd.send(Signal::KILL) {
                Ok(Sent::Done) => {
                    let (tag, at) = (victim.tag, victim.signalled);
                    (self.outbox)(ReapEvent::Signalled { tag, at });
                    signalled.push(self.open(victim, Some(observed)));
                    continue;
                }
                Ok(Sent::Gone) => Fate::Gone,
                Err(HostError::Denied { .. }) => Fate::NotPermitted,
                Err(error) => Fate::NotKilled(error.to_string()),
            };
            let mut report = victim.report(fate);
            if observed.seen.is_some() {
                report.found = observed.plan.found;
            }
            self.settle(report, None);
        }
        for id in signalled {
            self.decide(id);
        }
    }

    /// Whether a victim's memory is taken now or only if it is late.
    fn decide(&mut self, id: u64) {
        let Some(case) = self.find(id) else { return };
        if case.plan.is_held_back || case.mm_sharer.is_some() {
            self.take(id);
        } else {
            case.stage = Stage::Exiting(sum(case.victim.signalled, case.plan.late_after));
        }
    }

    fn take(&mut self, id: u64) {
        let Some(case) = self.find(id) else { return };
        case.stage = Stage::Taken;
        let order = Order::Take(id, Taking::of(case));
        self.worker.push(order);
    }

    fn conclude(&mut self, id: u64, taken: Taken) {
        let Some(case) = self.find(id) else { return };
        case.was_raised |= taken.was_raised;
        match taken.outcome {
            Outcome::Done(fate, freed) => {
                if let Some(case) = self.take_out(id) {
                    let (report, shared) = case.report(fate, taken.at, freed);
                    self.settle(report, shared);
                }
            }
            Outcome::MustExit => case.leave(taken.at, false, EXITING),
            Outcome::Blocked { is_at_it } => case.leave(taken.at, is_at_it, BLOCKED),
        }
    }

    fn end(&mut self, id: u64) {
        if let Some(case) = self.take_out(id) {
            let (report, shared) = case.ended(clock::monotonic());
            self.settle(report, shared);
        }
    }

    fn pass_deadlines(&mut self) {
        let now = clock::monotonic();
        let is_past = |case: &&Case| case.deadline().is_some_and(|it| it <= now);
        let past: Vec<u64> = self.cases.iter().filter(is_past).map(|it| it.id).collect();
        for id in past {
            match self.find(id).map(|it| it.stage) {
                Some(Stage::Exiting(_)) => self.take(id),
                Some(Stage::Leaving(_, why)) => {
                    if let Some(case) = self.take_out(id) {
                        let (report, shared) = case.given_up(why);
                        self.settle(report, shared);
                    }
                }
                Some(Stage::Observed | Stage::Taken) | None => {}
            }
        }
    }

    /// Descriptors are not without number.
    fn shed(&mut self) {
        while self.cases.len() > MOST_CASES {
            let case = self.cases.remove(0);
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            let (report, shared) = case.given_up("too many are exiting at once");
            self.settle(report, shared);
        }
    }

    fn settle(&mut self, report: Report, shared: Option<Shared>) {
        match shared.filter(|it| it.bytes >= WORTH_A_SEARCH) {
            Some(shared) if self.reporter.queued() < MOST_REPORTS => {
                self.reporter.push((report, shared));
            }
            _ => (self.outbox)(ReapEvent::Settled(Box::new(report))),
        }
    }

    /// Sleeps until something happens; whose victims have ended.
    fn wait(&self) -> Vec<u64> {
        let watched = || self.cases.iter().filter(|it| it.is_watched());
        let pidfds: Vec<(u64, Arc<Pidfd>)> = watched()
            .map(|it| (it.id, Arc::clone(it.pidfd())))
            .collect();
        let mut fds = vec![PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN)];
        let fd_of = |it| PollFd::from_borrowed_fd(it, PollFlags::IN);
        fds.extend(pidfds.iter().map(|(_, it)| fd_of(it.as_fd())));
        let deadline = watched().filter_map(Case::deadline).min();
        let deadline = deadline.map(until);
        let checks = [self.worker.next_check(), self.reporter.next_check()];
        let timeout = checks.into_iter().flatten().chain(deadline).min();
        let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
        let _ = poll(&mut fds, timeout.as_ref());
        let ended = fds.iter().skip(1).zip(&pidfds);
        ended
            .filter(|(fd, _)| !fd.revents().is_empty())
            .map(|(_, (id, _))| *id)
            .collect()
    }
}

fn until(deadline: Nanos) -> Duration {
    Duration::from_nanos(deadline.get().saturating_sub(clock::monotonic().get()))
}
