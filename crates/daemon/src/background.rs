// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slow work outside the loop, by a thread of its own: messages on users' terminals, setting oom_score_adj. Its queue is
//! bounded by the number of accounts, not of events, and messages never delay oom_score_adj.

mod pending;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bursar_host::{Proc, Terminals, thread};
use bursar_model::AccountId;
use bursar_watchdog::{Blocklist, TimedQuery};

use crate::message::Message;
use crate::oom_score::OomScore;
use crate::payers::Payers;
use pending::{Pending, PendingMessages};

pub(crate) use pending::Recipients;

/// Sending messages scans /proc. Afterwards none is sent for so many times as long as that took: a user whose processes
/// are killed all the time costs at most a tenth of a processor.
const REST: u32 = 9;
/// But not for longer: with very many processes a message is late rather than never told.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// What is to be done.
#[derive(Debug, Default)]
struct Queue {
    /// By the newest limits: it covers what the ones before wanted.
    set_oom_scores: Option<Box<Payers>>,
    restores_oom_scores: bool,
    ends: bool,
    pending: PendingMessages,
}

#[derive(Debug)]
enum Task {
    SetOomScores(Box<Payers>),
    RestoreOomScores,
    Tell(Vec<(AccountId, Pending)>),
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    unnotified: AtomicU64,
}

/// The thread that does them.
#[derive(Debug)]
pub(crate) struct Background {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
    tells: bool,
}

impl Background {
    /// `tells`: write to terminals. `oom_score`: keeps oom_score_adj, if anybody does.
    pub(crate) fn start(
        tells: bool,
        oom_score: Option<OomScore>,
        blocklist: Arc<Blocklist>,
    ) -> Result<Self> {
        let proc = Proc::host().context("open /proc")?;
        let query = TimedQuery::new("bg-query", blocklist).context("open /proc")?;
        let query = query.ready().context("start the thread that asks for it")?;
        let shared = Arc::<Shared>::default();
        let its = Arc::clone(&shared);
        let work = move || work(&its, &proc, query, oom_score);
        let thread = thread::spawn("background", work).context("start the background thread")?;
        Ok(Self {
            shared,
            thread,
            tells,
        })
    }

    /// Whether anybody is told anything.
    pub(crate) const fn tells(&self) -> bool {
        self.tells
    }

    /// Writes to the terminals of whom it concerns.
    pub(crate) fn tell(&self, message: Message, recipients: Recipients) {
        if !self.tells {
            return;
        }
        let is_kept = self
            .shared
            .change(|queue| queue.pending.add(message, recipients));
        if !is_kept {
            self.shared.count_unnotified(1);
        }
    }

    /// Sets oom_score_adj of all processes by the limits.
    pub(crate) fn set_oom_scores(&self, payers: Payers) {
        self.shared
            .change(|queue| queue.set_oom_scores = Some(Box::new(payers)));
    }

    /// Puts everything back as it was.
    pub(crate) fn restore_oom_scores(&self) {
        self.shared.change(Queue::restore_oom_scores);
    }

    /// Readers of messages for whom there was no room.
    pub(crate) fn unnotified(&self) -> u64 {
        self.shared.unnotified.load(Ordering::Relaxed)
    }

    /// Does what is still to be done, and ends. Nobody is told any more: bursard's end does not wait for that.
    pub(crate) fn finish(self) {
        let discarded = self.shared.change(Queue::end);
        if discarded > 0 {
            tracing::warn!("{discarded} messages to users were not told: bursard ends");
        }
        let _ = self.thread.join();
    }
}

impl Queue {
    fn restore_oom_scores(&mut self) {
        self.set_oom_scores = None;
        self.restores_oom_scores = true;
    }

    /// How many messages are not told.
    fn end(&mut self) -> u64 {
        self.ends = true;
        self.pending.discard()
    }

    /// What comes first.
    fn next(&mut self, has_rested: bool) -> Option<Task> {
        if let Some(payers) = self.set_oom_scores.take() {
            return Some(Task::SetOomScores(payers));
        }
        if std::mem::take(&mut self.restores_oom_scores) {
            return Some(Task::RestoreOomScores);
        }
        let now = Instant::now();
        let is_due = self.pending.due(now).is_some_and(|due| due <= now);
        (has_rested && is_due).then(|| Task::Tell(self.pending.take(now)))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, how: impl FnOnce(&mut Queue) -> T) -> T {
        let done = how(&mut self.lock());
        self.changed.notify_one();
        done
    }

    fn count_unnotified(&self, count: u64) {
        self.unnotified.fetch_add(count, Ordering::Relaxed);
    }

    /// Waits for the next one; `None` at the end. Nobody is told before `rested`.
    fn next(&self, rested: Instant) -> Option<Task> {
        let mut queue = self.lock();
        loop {
            let now = Instant::now();
            let rest = rested.saturating_duration_since(now);
            if let Some(task) = queue.next(rest.is_zero()) {
                return Some(task);
            }
            if queue.ends {
                return None;
            }
            queue = match queue.pending.due(now) {
                None => {
                    let woken = self.changed.wait(queue);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
                Some(due) => {
                    let pause = due.saturating_duration_since(now).max(rest);
                    let woken = self.changed.wait_timeout(queue, pause);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

fn work(shared: &Shared, proc: &Proc, mut query: TimedQuery, mut oom_score: Option<OomScore>) {
    let terminals = Terminals::host(proc);
    let mut rested = Instant::now();
    while let Some(task) = shared.next(rested) {
        match task {
            Task::Tell(all) => {
                let began = Instant::now();
                shared.count_unnotified(tell(&terminals, &all, &mut query));
                let rest = began.elapsed().saturating_mul(REST).min(LONGEST_REST);
                rested = Instant::now().checked_add(rest).unwrap_or(rested);
            }
            Task::SetOomScores(payers) => {
                if let Some(oom_score) = &mut oom_score {
                    let helpless = oom_score.review(proc, &payers, &mut query);
                    if helpless > 0 {
                        tracing::warn!(
                            processes = helpless,
                            "oom_score_adj could not be changed: the kernel's OOM killer will not choose them first"
                        );
                    }
                }
            }
            Task::RestoreOomScores => {
                if let Some(oom_score) = &mut oom_score {
                    oom_score.restore_oom_scores(proc, &mut query);
                }
            }
        }
    }
}

/// Tells all of them after one look at /proc. Returns for how many readers there was no room.
fn tell(terminals: &Terminals<'_>, all: &[(AccountId, Pending)], query: &mut TimedQuery) -> u64 {
    let users = all.iter().flat_map(|(_, it)| it.users()).collect();
    let by_user = match terminals.of_users(&users, query) {
        Ok(by_user) => by_user,
        Err(error) => {
            tracing::warn!(%error, "users could not be told");
            return 0;
        }
    };
    let mut unnotified: u64 = 0;
    for (account, pending) in all {
        let account = *account;
        let entered = pending.recipients.entered.as_ref();
        let is_inside = |pid| entered.is_some_and(|it| it.is_in(pid, account));
        let (readers, beyond) = pending.readers(&by_user, is_inside);
        unnotified = unnotified.saturating_add(beyond);
        for uid in readers {
            let Some(user_terminals) = by_user.get(&uid) else {
                continue;
            };
            let told = terminals.tell(uid, user_terminals, &pending.text_for(uid));
            tracing::debug!(
                uid = uid.get(),
                written = told.written,
                failed = told.failed,
                "user told"
            );
        }
    }
    unnotified
}

#[cfg(test)]
mod tests {
    use bursar_model::Uid;
    use bursar_policy::Plan;

    use super::*;
    use crate::payers::Coverage;

    fn payers() -> Box<Payers> {
        let coverage = Coverage {
            uid_min: Uid::new(1000),
            exempt: Vec::new(),
        };
        Box::new(Payers::new(&Plan::default(), coverage))
    }

    fn with_messages(count: u32) -> Queue {
        let mut queue = Queue::default();
        for number in 0..count {
            let message = Message {
                account: AccountId::of(Uid::new(60_000 + number)),
                topic: crate::message::Topic::Notice,
                owner: None,
                to_owner: String::new(),
                to_others: String::new(),
            };
            assert!(queue.pending.add(message, Recipients::default()));
        }
        queue
    }

    #[test]
    fn oom_score_adj_waits_for_no_message() {
        let mut queue = with_messages(1000);
        queue.set_oom_scores = Some(payers());
        assert!(matches!(queue.next(true), Some(Task::SetOomScores(_))));
        assert!(matches!(queue.next(true), Some(Task::Tell(all)) if all.len() == 1000));
        assert!(queue.next(true).is_none());
    }

    #[test]
    fn nobody_is_told_before_the_rest_is_over() {
        let mut queue = with_messages(1);
        assert!(queue.next(false).is_none());
        assert!(matches!(queue.next(true), Some(Task::Tell(_))));
    }

    #[test]
    fn at_the_end_messages_are_counted_and_only_oom_score_adj_is_seen_to() {
        let mut queue = with_messages(1000);
        queue.set_oom_scores = Some(payers());
        queue.restore_oom_scores();
        assert_eq!(queue.end(), 1000);
        assert!(matches!(queue.next(true), Some(Task::RestoreOomScores)));
        assert!(queue.next(true).is_none());
        // Limits that stay in force want their oom_score_adj.
        let mut queue = with_messages(1);
        queue.set_oom_scores = Some(payers());
        queue.end();
        assert!(matches!(queue.next(true), Some(Task::SetOomScores(_))));
        assert!(queue.next(true).is_none());
    }
}
