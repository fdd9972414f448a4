// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Victims: of the kernel half, of its requests, of requests to end that did not help, of the kernel's OOM killer.

use std::cell::RefCell;
use std::collections::BTreeSet;

use bursar_host::{Pidfd, Proc, UserNamespaces, clock};
use bursar_model::{AccountId, Bytes, KillManner, Nanos, Pid, Trigger, Uid};
use bursar_watchdog::TimedQuery;

use super::Responder;
use crate::accounts::Accounts;
use crate::backend::Reading;
use crate::entered::Entered;
use crate::fact::{Level, Victim};
use crate::graceful::{Asked, GRACE, Payer};
use crate::killer::{KillOutcome, kill, kill_unless_protected};
use crate::oom::{self, OomWatch};
use crate::payers::{Payers, owner_of};
use crate::reaper::{Dying, VictimReaper};

impl Responder {
    /// Where the kernel half reaches its victim only at the victim's own next event, that event and
    /// bursard, who was asked meanwhile, may both have sent the signal: who tells first is believed.
    pub(super) fn killed(
        &mut self,
        victim: &Victim,
        trigger: Trigger,
        reason: Option<String>,
        accounts: &mut Accounts,
    ) {
        if !self.killed.is_new(victim.process()) {
            tracing::debug!(pid = %victim.pid, ?trigger, "killed twice; told once");
            return;
        }
        let circumstances = self.circumstances(victim, accounts);
        let (event, message) =
            self.recorder
                .kill(victim, trigger, reason, circumstances, &mut accounts.table);
        self.fresh.push(event);
        self.notify(message, accounts);
    }

    /// A victim was chosen in an account that is only observed; each is told of once.
    pub(super) fn forgo(&mut self, victim: &Victim, accounts: &mut Accounts) {
        let circumstances = self.circumstances(victim, accounts);
        let table = &mut accounts.table;
        let event = self.recorder.would_kill(victim, circumstances, table);
        self.fresh.push(event);
    }

    /// Somebody chose and left the signal to us.
    pub(super) fn carry_out(&mut self, victim: Victim, pidfd: Pidfd, accounts: &mut Accounts) {
        let outcome = kill_unless_protected(&self.proc, &pidfd);
        if matches!(outcome, KillOutcome::NotKilled(_)) {
            accounts.backend.kill_failed(&victim);
        }
        self.follow_up(victim, outcome, Some(pidfd), None, accounts);
    }

    /// We have sent the signal, or not: tells it, and takes the memory.
    fn follow_up(
        &mut self,
        victim: Victim,
        outcome: KillOutcome,
        pidfd: Option<Pidfd>,
        reason: Option<String>,
        accounts: &mut Accounts,
    ) {
        let (pid, uid) = (victim.pid, victim.uid);
        let signalled = outcome.signalled();
        self.kill_tried(victim, outcome, reason, accounts);
        if let Some(at) = signalled {
            self.reaper.reap(Dying {
                pid,
                uid,
                pidfd,
                signalled: at,
                private: None,
                is_unverified: false,
            });
        }
    }

    pub(super) fn kill_tried(
        &mut self,
        mut victim: Victim,
        outcome: KillOutcome,
        reason: Option<String>,
        accounts: &mut Accounts,
    ) {
        match outcome {
            KillOutcome::Signalled(at) => {
                let trigger = match victim.level.trigger {
                    Trigger::Poll => Trigger::Poll,
                    Trigger::Event | Trigger::Timer | Trigger::Notifier => Trigger::Notifier,
                };
                victim.latency = Nanos::new(at.get().saturating_sub(victim.level.at.get()));
                self.killed(&victim, trigger, reason, accounts);
            }
            // The breach is over as far as this process goes.
            KillOutcome::Gone => {}
            KillOutcome::NotKilled(why) => {
                let event = self
                    .recorder
                    .kill_failed(&victim, &why, &mut accounts.table);
                self.fresh.push(event);
            }
        }
    }

    /// Helps the kernel's OOM killer with victims of accounts that have a limit.
    pub(crate) fn attend_oom(&mut self, accounts: &mut Accounts) {
        let marked = self.oom.as_mut().map(OomWatch::drain).unwrap_or_default();
        if marked.is_empty() {
            return;
        }
        // All are held before anybody asks what they have entered.
        let held: Vec<_> = marked
            .into_iter()
            .map(|it| (oom::hold(&self.proc, it.pid), it))
            .collect();
        let payers = accounts.payers.clone();
        let entered = accounts.entered().ok();
        for (hold, marked) in held {
            let oom::Marked {
                pid,
                uid,
                private,
                comm,
            } = marked;
            // Gone already: the kernel's word for whose it was.
            let (pidfd, uid, comm) = match hold {
                Some(held) => (Some(held.pidfd), Some(held.uid), held.comm),
                None => (None, uid, comm),
            };
            let Some(uid) = uid else {
                tracing::info!(%pid, "the kernel's OOM killer took a process that was gone before it could be looked at");
                continue;
            };
            // Of a number that may be another's by now nobody knows what it has entered.
            let entered = entered
                .as_ref()
                .filter(|_| pidfd.is_some())
                .and_then(|it| it.account_of(pid, &payers));
            let own = || payers.of(uid).map(|(id, _)| id);
            let Some(account) = entered.or_else(own) else {
                continue;
            };
            if self.is_dry_run || self.recorder.awaits(pid) {
                continue;
            }
            // Its death may have been heard of before: then the reapers have it.
            let message =
                self.recorder
                    .expect_oom_victim(pid, uid, comm, account, &mut accounts.table);
            if !accounts.is_observed(account) {
                self.notify(message, accounts);
            }
            self.reaper.reap(Dying {
                pid,
                uid,
                pidfd,
                signalled: clock::monotonic(),
                private,
                is_unverified: false,
            });
        }
    }

    /// An account that wants it has its largest process asked to end.
    pub(super) fn ask_first(&mut self, level: &Level, accounts: &mut Accounts) {
        let is_over = level.limit.is_some_and(|limit| level.held > limit);
        if is_over || level.is_observed || !is_graceful(level.account, accounts) {
            return;
        }
        self.graceful.await_look(level.clone());
        self.ask_waiting(accounts);
    }

    /// The same for all that have reached their notice: of these no notice is given again where bursard has begun anew, or
    /// an account's manner has changed.
    pub(crate) fn ask_noticed(&mut self, accounts: &mut Accounts) {
        let readings = accounts.backend.readings();
        let noticed = readings.iter().filter(|it| it.has_reached_notice());
        for reading in noticed.filter(|it| is_graceful(it.id, accounts)) {
            self.graceful.await_look(level_of(reading));
        }
        self.ask_waiting(accounts);
    }

    /// Has the largest process of each account that waits for it asked to end, when /proc may be looked through.
    fn ask_waiting(&mut self, accounts: &mut Accounts) {
        let waiting = self.graceful.take_waiting();
        if waiting.is_empty() {
            return;
        }
        // Some of it may be gone by now, or the limit be another.
        let readings = accounts.backend.readings();
        let has_its_turn = |mut level: Level| {
            let reading = readings.iter().find(|it| it.id == level.account);
            let may_come = |it: &&Reading| {
                let is_over = it.bounds.limit().is_some_and(|limit| it.held > limit);
                it.is_noticed_still() && !is_over && !it.bounds.is_observed()
            };
            let reading = reading.filter(may_come)?;
            if !is_graceful(level.account, accounts) || !self.graceful.may_ask(level.account) {
                return None;
            }
            // There is no second notice until it has sunk further.
            if !reading.has_reached_notice() {
                self.graceful.await_look(level);
                return None;
            }
            level.held = reading.held;
            level.limit = reading.bounds.limit();
            Some((level, reading.ranked_by()))
        };
        let waiting: Vec<(Level, Bytes)> = waiting.into_iter().filter_map(has_its_turn).collect();
        if waiting.is_empty() {
            return self.graceful.rest();
        }
        let queries = (query_of(&self.reaper), query_of(&self.reaper));
        let (Some(entered), (Some(query), Some(mut other))) = (entered_of(accounts), queries)
        else {
            for (level, _) in waiting {
                self.graceful.await_look(level);
            }
            return self.graceful.rest();
        };
        let wanted: BTreeSet<AccountId> = waiting.iter().map(|(it, _)| it.account).collect();
        let payer = payer_by(&entered, &accounts.payers, &self.proc, query);
        let payer_of = |pid: Pid, uid: Uid| {
            let payer = payer(pid, uid);
            payer.filter(|it| wanted.contains(&it.account))
        };
        let mut found = self.graceful.look(&self.proc, payer_of);
        for (level, bound) in waiting {
            let account = level.account;
            let choices = found.remove(&account).unwrap_or_default();
            let spared = |pids| accounts.spared().among(account, pids, &mut other);
            let asked = self
                .graceful
                .ask(&self.proc, &level, bound, choices, payer_of, spared);
            let Some(asked) = asked else { continue };
            let (event, message) = self.recorder.asked(asked, &level, &mut accounts.table);
            self.fresh.push(event);
            self.notify(message, accounts);
        }
    }

    /// Kills those who were asked and did not end, and asks those who had to wait for that.
    pub(crate) fn insist(&mut self, accounts: &mut Accounts) {
        self.kill_overdue(accounts);
        self.ask_waiting(accounts);
    }

    /// Kills those who were asked, had their time, and are still in the way.
    fn kill_overdue(&mut self, accounts: &mut Accounts) {
        let overdue = self.graceful.overdue();
        if overdue.is_empty() {
            return;
        }
        let (Some(entered), Some(query)) = (entered_of(accounts), query_of(&self.reaper)) else {
            return self.graceful.put_off(overdue);
        };
        let payer_of = payer_by(&entered, &accounts.payers, &self.proc, query);
        let mut due = Vec::new();
        for asked in overdue {
            let Some(reading) = accounts.reading_of(asked.account) else {
                continue;
            };
            // What was decided when it was asked may have been taken back since.
            if !reading.is_over_notice()
                || reading.bounds.is_observed()
                || !is_graceful(asked.account, accounts)
            {
                continue;
            }
            let Some(held) = asked.held_now(&self.proc, &payer_of) else {
                continue;
            };
            let level = level_of(&reading);
            // What it gave back was not enough: whoever is the largest by now is asked.
            if asked.has_given_back(held) {
                self.graceful.await_look(level);
            } else {
                due.push((asked, held, level));
            }
        }
        drop(payer_of);
        for (asked, held, level) in due {
            self.kill_asked(asked, held, level, accounts);
        }
    }

    fn kill_asked(&mut self, asked: Asked, held: Bytes, level: Level, accounts: &mut Accounts) {
        let reason = format!(
            "asked to end {} s ago; the account still holds {}, more than its notice",
            GRACE.as_secs(),
            level.held
        );
        let victim = Victim {
            level,
            pid: asked.pidfd.pid(),
            uid: asked.uid,
            comm: asked.comm,
            started: None,
            namespace_pid: None,
            shares_with: None,
            number: asked.pidfd.number().ok().flatten(),
            held,
            latency: Nanos::new(0),
            candidates_met: 1,
            candidates: Vec::new(),
        };
        let outcome = kill(&asked.pidfd);
        self.follow_up(victim, outcome, Some(asked.pidfd), Some(reason), accounts);
    }
}

/// Whether processes of an account are asked to end before it is over its limit.
fn is_graceful(account: AccountId, accounts: &Accounts) -> bool {
    accounts.table.manner_of(account) == KillManner::Graceful
}

fn level_of(reading: &Reading) -> Level {
    Level {
        at: clock::monotonic(),
        account: reading.id,
        trigger: Trigger::Notifier,
        held: reading.held,
        limit: reading.bounds.limit(),
        is_observed: reading.bounds.is_observed(),
    }
}

/// `None`, and a line in the log, where it cannot be read.
fn entered_of(accounts: &Accounts) -> Option<Entered> {
    accounts.entered().map_err(say_nobody_is_asked).ok()
}

/// The same where nobody can be sent to ask.
fn query_of(reaper: &VictimReaper) -> Option<TimedQuery> {
    reaper.timed_query().map_err(say_nobody_is_asked).ok()
}

fn say_nobody_is_asked(error: anyhow::Error) {
    tracing::warn!("nobody is asked to end, or killed for not ending: {error:#}");
}

/// Who pays for a process: by what it has entered, by who owns its user namespace, by whose subordinate uid it has. For one
/// in an exempt group nobody does; of one that does not say where it is nothing is known (before 6.11).
fn payer_by<'a>(
    entered: &'a Entered,
    payers: &'a Payers,
    proc: &'a Proc,
    query: TimedQuery,
) -> impl Fn(Pid, Uid) -> Option<Payer> + use<'a> {
    let namespaces = UserNamespaces::new(proc).ok();
    let namespaces = namespaces.map(UserNamespaces::shifting_in_doubt);
    let outside = RefCell::new((namespaces, query));
    move |pid, uid| {
        if payers.is_exempt(pid) {
            return None;
        }
        let (namespaces, query) = &mut *outside.borrow_mut();
        let namespaces = namespaces.as_mut()?;
        let owner = owner_of(namespaces, proc, pid, uid, query)?;
        let own = || payers.of(payers.payer(owner)).map(|(id, _)| id);
        let account = entered.account_of(pid, payers).or_else(own)?;
        let uid = owner.uid;
        Some(Payer { account, uid })
    }
}
