// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's parts together, and what it does when something happens: observe (governor) → decide
//! (already done, or bursar-policy) → act (executioner, reaper, chores) → record.

use anyhow::Result;
use bursar_host::Proc;
use bursar_model::{AccountId, Event, EventKind, Trigger};

use crate::chores::Chores;
use crate::executioner::{Execution, execute, hold};
use crate::fact::{Fact, Victim};
use crate::governor::Governor;
use crate::reaper::Reaper;
use crate::recorder::{Message, Recorder};
use crate::roster::Roster;
use crate::scope::Scope;

/// Users of a shared account who are told; more would be a broadcast.
const MOST_TOLD: usize = 64;

/// What the daemon may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mandate {
    /// Only say what would be done.
    pub(crate) dry_run: bool,
    /// Kill when the kernel half asks (S1's second trigger).
    pub(crate) notifier: bool,
}

/// All parts.
pub(crate) struct Steward {
    pub(crate) roster: Roster,
    pub(crate) governor: Box<dyn Governor>,
    pub(crate) recorder: Recorder,
    pub(crate) scope: Scope,
    mandate: Mandate,
    proc: Proc,
    reaper: Reaper,
    chores: Chores,
    /// Recorded, and not yet sent to those who follow.
    fresh: Vec<Event>,
    /// Remarks on configuration and machine that hold until the next reload.
    standing_remarks: Vec<String>,
    /// Victims of a dry run already mentioned.
    mentioned: Vec<(bursar_model::Pid, bursar_model::Nanos)>,
    lost_before: u64,
}

impl Steward {
    pub(crate) fn new(
        roster: Roster,
        governor: Box<dyn Governor>,
        recorder: Recorder,
        scope: Scope,
        mandate: Mandate,
        chores: Chores,
        standing_remarks: Vec<String>,
    ) -> Result<Self> {
        let lost_before = governor.status().events_lost;
        Ok(Self {
            roster,
            governor,
            recorder,
            scope,
            mandate,
            proc: Proc::host()?,
            reaper: Reaper::start()?,
            chores,
            fresh: Vec::new(),
            standing_remarks,
            mentioned: Vec::new(),
            lost_before,
        })
    }

    pub(crate) const fn is_dry_run(&self) -> bool {
        self.mandate.dry_run
    }

    pub(crate) const fn reaper(&self) -> &Reaper {
        &self.reaper
    }

    /// Does what the governor has for us.
    pub(crate) fn attend(&mut self) -> Result<()> {
        for fact in self.governor.drain()? {
            self.handle(fact);
        }
        let lost = self.governor.status().events_lost;
        if lost > self.lost_before {
            let count = lost - self.lost_before;
            self.lost_before = lost;
            let reason = format!(
                "{count} events did not fit the ring buffer: they happened and are not recorded; raise ledger.events_bytes in bursar.toml"
            );
            self.note(EventKind::Lost, None, reason);
        }
        Ok(())
    }

    fn handle(&mut self, fact: Fact) {
        match fact {
            Fact::Notice(level) => {
                let (event, message) = self.recorder.notice(&level, &mut self.roster);
                self.fresh.push(event);
                self.tell(message);
            }
            Fact::Killed(victim) => {
                self.killed(&victim, victim.level.trigger);
                match hold(&self.proc, victim.pid, victim.started) {
                    Some(pidfd) => self.reaper.reap(pidfd),
                    None => self.settle_reaped(victim.pid, crate::reaper::Method::Exit),
                }
            }
            Fact::KillAsked(victim) => self.carry_out(&victim),
            Fact::NoVictim(victim) => {
                let event = self.recorder.no_victim(&victim, &mut self.roster);
                self.fresh.push(event);
            }
            Fact::Freed(victim, duration) => {
                let event = self.recorder.freed(&victim, duration, &mut self.roster);
                self.fresh.extend(event);
            }
            Fact::Undefended => self.chores.defend(self.payers()),
        }
    }

    fn killed(&mut self, victim: &Victim, trigger: Trigger) {
        let (event, message) = self.recorder.kill(victim, trigger, &mut self.roster);
        self.fresh.push(event);
        self.tell(message);
    }

    /// The kernel half chose and could not reach the victim, or a user-space trigger chose.
    fn carry_out(&mut self, victim: &Victim) {
        if self.mandate.dry_run {
            let key = (victim.pid, victim.started);
            if !self.mentioned.contains(&key) {
                self.mentioned.push(key);
                let event = self.recorder.would_kill(victim, &mut self.roster);
                self.fresh.push(event);
            }
            return;
        }
        if !self.mandate.notifier {
            return;
        }
        let trigger = match victim.level.trigger {
            Trigger::Poll => Trigger::Poll,
            Trigger::Event | Trigger::Timer | Trigger::Notifier => Trigger::Notifier,
        };
        let failed = match execute(&self.proc, victim) {
            Ok(Execution::Done(pidfd)) => {
                self.killed(victim, trigger);
                self.reaper.reap(pidfd);
                return;
            }
            // It ended by itself: the breach is over as far as this process goes.
            Ok(Execution::Gone) => return,
            Ok(Execution::Spared(why)) => why.to_owned(),
            Err(error) => error.to_string(),
        };
        let event = self.recorder.kill_failed(victim, &failed, &mut self.roster);
        self.fresh.push(event);
    }

    /// Takes the reaper's reports.
    pub(crate) fn collect_reaped(&mut self) {
        for reaped in self.reaper.drain() {
            self.settle_reaped(reaped.pid, reaped.method);
        }
    }

    fn settle_reaped(&mut self, pid: bursar_model::Pid, method: crate::reaper::Method) {
        let event = self.recorder.reaped(pid, method);
        self.fresh.extend(event);
    }

    fn tell(&self, message: Message) {
        let mut users = self.payers().payers_of(message.account);
        users.truncate(MOST_TOLD);
        self.chores.tell(users, message.text);
    }

    /// Records a fact about ourselves.
    pub(crate) fn note(&mut self, kind: EventKind, account: Option<String>, reason: String) {
        let event = self.recorder.remark(kind, account, reason);
        self.fresh.push(event);
    }

    /// Events recorded since the last call, with the account each is about.
    pub(crate) fn take_fresh(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.fresh)
    }

    /// Others may pay now than before.
    pub(crate) fn limits_changed(&self) {
        self.chores.defend(self.payers());
    }

    /// Reads the limits again; the old ones stay when the new ones are wrong.
    pub(crate) fn reload(&mut self) -> Result<()> {
        self.roster.reload()?;
        let plan = self.roster.plan().clone();
        self.governor.apply(&plan)?;
        self.limits_changed();
        let count = self.roster.limits().len();
        self.note(
            EventKind::Reloaded,
            None,
            format!("{count} limits in force"),
        );
        Ok(())
    }

    /// What an administrator should know.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut remarks = self.standing_remarks.clone();
        remarks.extend(
            self.roster
                .plan()
                .remarks
                .iter()
                .map(|(who, text)| format!("{who}: {text}")),
        );
        let status = self.governor.status();
        let history = self.recorder.history();
        let facts = [
            (
                status.events_lost,
                "events did not fit the ring buffer (ledger.events_bytes)",
            ),
            (
                status.records_full,
                "times a process did not fit the ledger (ledger.max_processes)",
            ),
            (
                status.accounts_full,
                "times a user did not fit the ledger (ledger.max_accounts)",
            ),
            (
                history.unwritten,
                "events could not be written to the history",
            ),
            (history.unreadable, "lines of the history were no events"),
            (
                self.chores.dropped(),
                "messages to users or reviews of the last defence did not fit",
            ),
        ];
        remarks.extend(
            facts
                .iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, what)| format!("{count} {what}")),
        );
        remarks
    }

    /// The account a name in an event stands for is compared by name; who may see it by user.
    pub(crate) fn account_name(&mut self, id: AccountId) -> String {
        self.roster.name_of(id).0
    }

    /// Ends. With `release` nothing of the kernel half stays, and nobody has a limit any more.
    pub(crate) fn leave(mut self, release: bool) -> Result<()> {
        let left = self.governor.leave(release);
        if release {
            self.chores.stand_down();
        }
        self.chores.finish();
        left
    }
}
