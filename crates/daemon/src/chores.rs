// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What takes long and nobody waits for: telling users on their terminals, the last defence. A thread of its own.
//! What waits for it does not grow with what happens, and no user's messages keep back the last defence.

mod backlog;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bursar_host::{Proc, Terminals};
use bursar_model::AccountId;
use bursar_reap::{Barred, Envoy};

use crate::defence::Defence;
use crate::message::Message;
use crate::scope::Payers;
use backlog::{Backlog, Pending};

pub(crate) use backlog::Company;

/// To tell takes a look at all of /proc. Afterwards nobody is told for so many times what that took: who has processes
/// of his killed as fast as he can costs a tenth of a processor.
const REST: u32 = 9;
/// But not for longer.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// What is to be done.
#[derive(Debug, Default)]
struct Desk {
    /// By the newest limits: it covers what the ones before wanted.
    defend: Option<Box<Payers>>,
    stands_down: bool,
    ends: bool,
    backlog: Backlog,
}

#[derive(Debug)]
enum Chore {
    Defend(Box<Payers>),
    StandDown,
    Tell(BTreeMap<AccountId, Pending>),
}

#[derive(Debug, Default)]
struct Office {
    desk: Mutex<Desk>,
    changed: Condvar,
    untold: AtomicU64,
}

/// The thread that does them.
#[derive(Debug)]
pub(crate) struct Chores {
    office: Arc<Office>,
    thread: JoinHandle<()>,
    tells: bool,
}

impl Chores {
    /// `tells`: write to terminals. `raised`: the oom_score_adj of the last defence, if there is one.
    pub(crate) fn start(tells: bool, raised: Option<i16>, barred: Arc<Barred>) -> Result<Self> {
        let proc = Proc::host().context("open /proc")?;
        let envoy = Envoy::new("chores-envoy", barred).context("open /proc")?;
        let envoy = envoy.ready().context("start the thread that asks for it")?;
        let office = Arc::<Office>::default();
        let its = Arc::clone(&office);
        let thread = std::thread::Builder::new()
            .name("chores".to_owned())
            .spawn(move || work(&its, &proc, envoy, raised.map(Defence::new)))
            .context("start the thread for chores")?;
        Ok(Self {
            office,
            thread,
            tells,
        })
    }

    /// Whether anybody is told anything.
    pub(crate) const fn tells(&self) -> bool {
        self.tells
    }

    /// Writes to the terminals of whom it concerns.
    pub(crate) fn tell(&self, message: Message, company: Company) {
        if !self.tells {
            return;
        }
        let is_kept = self
            .office
            .change(|desk| desk.backlog.add(message, company));
        if !is_kept {
            self.office.leave_untold(1);
        }
    }

    /// Looks at the last defence of all processes.
    pub(crate) fn defend(&self, payers: Payers) {
        self.office
            .change(|desk| desk.defend = Some(Box::new(payers)));
    }

    /// Puts everything back as it was.
    pub(crate) fn stand_down(&self) {
        self.office.change(Desk::stand_down);
    }

    /// Readers of messages for whom there was no room.
    pub(crate) fn untold(&self) -> u64 {
        self.office.untold.load(Ordering::Relaxed)
    }

    /// Does what is still to be done, and ends. Nobody is told any more: bursard's end does not wait for that.
    pub(crate) fn finish(self) {
        let discarded = self.office.change(Desk::end);
        if discarded > 0 {
            tracing::warn!("{discarded} messages to users were not told: bursard ends");
        }
        let _ = self.thread.join();
    }
}

impl Desk {
    fn stand_down(&mut self) {
        self.defend = None;
        self.stands_down = true;
    }

    /// How many messages are not told.
    fn end(&mut self) -> u64 {
        self.ends = true;
        self.backlog.discard()
    }

    /// What comes first.
    fn next(&mut self, has_rested: bool) -> Option<Chore> {
        if let Some(payers) = self.defend.take() {
            return Some(Chore::Defend(payers));
        }
        if std::mem::take(&mut self.stands_down) {
            return Some(Chore::StandDown);
        }
        let tells = has_rested && !self.backlog.is_empty();
        tells.then(|| Chore::Tell(self.backlog.take()))
    }
}

impl Office {
    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, how: impl FnOnce(&mut Desk) -> T) -> T {
        let done = how(&mut self.lock());
        self.changed.notify_one();
        done
    }

    fn leave_untold(&self, count: u64) {
        self.untold.fetch_add(count, Ordering::Relaxed);
    }

    /// Waits for the next one; `None` at the end. Nobody is told before `rested`.
    fn next(&self, rested: Instant) -> Option<Chore> {
        let mut desk = self.lock();
        loop {
            let rest = rested.saturating_duration_since(Instant::now());
            if let Some(chore) = desk.next(rest.is_zero()) {
                return Some(chore);
            }
            if desk.ends {
                return None;
            }
            desk = if desk.backlog.is_empty() {
                let woken = self.changed.wait(desk);
                woken.unwrap_or_else(PoisonError::into_inner)
            } else {
                let woken = self.changed.wait_timeout(desk, rest);
                woken.unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }
}

fn work(office: &Office, proc: &Proc, mut envoy: Envoy, mut defence: Option<Defence>) {
    let terminals = Terminals::host(proc);
    let mut rested = Instant::now();
    while let Some(chore) = office.next(rested) {
        match chore {
            Chore::Tell(all) => {
                let began = Instant::now();
                office.leave_untold(tell(&terminals, &all, &mut envoy));
                let rest = began.elapsed().saturating_mul(REST).min(LONGEST_REST);
                rested = Instant::now().checked_add(rest).unwrap_or(rested);
            }
            Chore::Defend(payers) => {
                if let Some(defence) = &mut defence {
                    let helpless = defence.review(proc, &payers, &mut envoy);
                    if helpless > 0 {
                        tracing::warn!(
                            processes = helpless,
                            "oom_score_adj could not be changed: the last defence does not cover them"
                        );
                    }
                }
            }
            Chore::StandDown => {
                if let Some(defence) = &mut defence {
                    defence.stand_down(proc, &mut envoy);
                }
            }
        }
    }
}

/// Tells all of them after one look at /proc. Returns for how many readers there was no room.
fn tell(terminals: &Terminals<'_>, all: &BTreeMap<AccountId, Pending>, envoy: &mut Envoy) -> u64 {
    let users = all.values().flat_map(Pending::users).collect();
    let seats = match terminals.seats(&users, envoy) {
        Ok(seats) => seats,
        Err(error) => {
            tracing::warn!(%error, "users could not be told");
            return 0;
        }
    };
    let mut untold: u64 = 0;
    for (&account, pending) in all {
        let entered = pending.company.entered.as_ref();
        let is_inside = |pid| entered.is_some_and(|it| it.is_in(pid, account));
        let (readers, beyond) = pending.readers(&seats, is_inside);
        untold = untold.saturating_add(beyond);
        for uid in readers {
            let Some(seat) = seats.get(&uid) else {
                continue;
            };
            let told = terminals.tell(uid, seat, &pending.text_for(uid));
            tracing::debug!(
                uid = uid.get(),
                written = told.written,
                failed = told.failed,
                "user told"
            );
        }
    }
    untold
}

#[cfg(test)]
mod tests {
    use bursar_model::Uid;
    use bursar_policy::Plan;

    use super::*;
    use crate::scope::Scope;

    fn payers() -> Box<Payers> {
        let scope = Scope {
            uid_min: Uid::new(1000),
            exempt: Vec::new(),
        };
        Box::new(Payers::new(&Plan::default(), scope))
    }

    fn with_messages(count: u32) -> Desk {
        let mut desk = Desk::default();
        for number in 0..count {
            let message = Message {
                account: AccountId::of(Uid::new(60_000 + number)),
                owner: None,
                to_owner: String::new(),
                to_others: String::new(),
            };
            assert!(desk.backlog.add(message, Company::default()));
        }
        desk
    }

    #[test]
    fn the_last_defence_waits_for_no_message() {
        let mut desk = with_messages(1000);
        desk.defend = Some(payers());
        assert!(matches!(desk.next(true), Some(Chore::Defend(_))));
        assert!(matches!(desk.next(true), Some(Chore::Tell(all)) if all.len() == 1000));
        assert!(desk.next(true).is_none());
    }

    #[test]
    fn nobody_is_told_before_the_rest_is_over() {
        let mut desk = with_messages(1);
        assert!(desk.next(false).is_none());
        assert!(matches!(desk.next(true), Some(Chore::Tell(_))));
    }

    #[test]
    fn at_the_end_messages_are_counted_and_only_the_defence_is_seen_to() {
        let mut desk = with_messages(1000);
        desk.defend = Some(payers());
        desk.stand_down();
        assert_eq!(desk.end(), 1000);
        assert!(matches!(desk.next(true), Some(Chore::StandDown)));
        assert!(desk.next(true).is_none());
        // Limits that stay in force want their defence.
        let mut desk = with_messages(1);
        desk.defend = Some(payers());
        desk.end();
        assert!(matches!(desk.next(true), Some(Chore::Defend(_))));
        assert!(desk.next(true).is_none());
    }
}
