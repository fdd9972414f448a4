// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's parts together, and what it does when something happens: observe (governor) → decide
//! (already done, or bursar-policy) → act (executioner, reaper, chores) → record.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bursar_host::{MemoryFiles, Proc, clock, machine};
use bursar_model::{AccountId, Bytes, Event, EventKind, KillManner, Nanos, Pid, Trigger, Uid};
use bursar_protocol::Reserve;

use crate::auditor::{Auditor, News};
use crate::beancounters::Beancounters;
use crate::chores::Chores;
use crate::control::ClientId;
use crate::courtesy::Courtesy;
use crate::entering::Entered;
use crate::executioner::{Execution, execute, execute_chosen};
use crate::fact::{Fact, Level, Victim};
use crate::governor::Governor;
use crate::lately::Lately;
use crate::oom::{self, OomWatch};
use crate::physpages::{Counter, Finished, Order};
use crate::reaper::{Dying, Reaper};
use crate::recorder::{Message, Recorder};
use crate::reservations::{Asker, Denied, Reservations};
use crate::roster::Roster;
use crate::scope::{Payers, Scope};
use crate::watermarks::Watermarks;

/// Users of a shared account who are told; more would be a broadcast.
const MOST_TOLD: usize = 64;
/// Files named when they are what is over a limit, and how long they are looked for meanwhile.
const FILES_NAMED: usize = 8;
const FILES_PATIENCE: Duration = Duration::from_millis(100);

/// What the daemon may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mandate {
    /// Only say what would be done.
    pub(crate) dry_run: bool,
    /// Kill when the kernel half asks (S1's second trigger).
    pub(crate) notifier: bool,
}

/// Who works for the steward.
pub(crate) struct Helpers {
    pub(crate) reaper: Reaper,
    pub(crate) chores: Chores,
    /// `None` where tracefs is not to be had.
    pub(crate) oom: Option<OomWatch>,
}

/// All parts.
pub(crate) struct Steward {
    pub(crate) roster: Roster,
    pub(crate) governor: Box<dyn Governor>,
    pub(crate) recorder: Recorder,
    pub(crate) scope: Scope,
    pub(crate) reservations: Reservations,
    /// Who pays into what, as of the last change: asked at every reservation.
    pub(crate) paying: Payers,
    pub(crate) watermarks: Watermarks,
    pub(crate) beancounters: Beancounters,
    mandate: Mandate,
    proc: Proc,
    reaper: Reaper,
    chores: Chores,
    oom: Option<OomWatch>,
    /// Started by the first who asks.
    counter: Option<Counter>,
    courtesy: Courtesy,
    auditor: Auditor,
    /// Recorded, and not yet sent to those who follow.
    fresh: Vec<Event>,
    /// Remarks on configuration and machine that hold until the next reload.
    standing_remarks: Vec<String>,
    /// Victims of a dry run already mentioned.
    mentioned: Lately,
    /// Kills already told.
    killed: Lately,
    lost_before: u64,
}

impl Steward {
    pub(crate) fn new(
        roster: Roster,
        governor: Box<dyn Governor>,
        recorder: Recorder,
        scope: Scope,
        mandate: Mandate,
        helpers: Helpers,
        standing_remarks: Vec<String>,
    ) -> Result<Self> {
        let lost_before = governor.status().events_lost;
        let paying = Payers::new(roster.plan(), scope.clone());
        let mut recorder = recorder;
        recorder.introduce_reapers(helpers.reaper.priority());
        Ok(Self {
            reservations: Reservations::new(machine::page_size()),
            paying,
            roster,
            governor,
            recorder,
            scope,
            watermarks: Watermarks::default(),
            beancounters: Beancounters::new()?,
            mandate,
            proc: Proc::host()?,
            reaper: helpers.reaper,
            chores: helpers.chores,
            oom: helpers.oom,
            counter: None,
            courtesy: Courtesy::new()?,
            auditor: Auditor::new()?,
            fresh: Vec::new(),
            standing_remarks,
            mentioned: Lately::default(),
            killed: Lately::default(),
            lost_before,
        })
    }

    pub(crate) const fn proc(&self) -> &Proc {
        &self.proc
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
                self.ask_first(&level);
            }
            // The sentry has set the reapers on it.
            Fact::Killed(victim) => self.killed(&victim, victim.level.trigger, None),
            Fact::KillAsked(victim) => self.carry_out(victim),
            Fact::Executed(victim, execution) => self.executed(victim, execution, None),
            Fact::NoVictim(victim) => {
                let event = self.recorder.no_victim(&victim, &mut self.roster);
                self.fresh.push(event);
            }
            Fact::Files(level, stuck) => self.tell_of_files(&level, stuck),
            Fact::Freed(victim, duration) => {
                let event = self.recorder.freed(&victim, duration, &mut self.roster);
                self.fresh.extend(event);
            }
            Fact::Refused(level, refused) => {
                let event = self.recorder.refused(&level, &refused, &mut self.roster);
                self.fresh.push(event);
            }
            Fact::RowRefused(level, refused) => {
                let event = self
                    .recorder
                    .row_refused(&level, &refused, &mut self.roster);
                self.fresh.push(event);
            }
            Fact::Undefended => self.chores.defend(self.payers()),
        }
    }

    /// Where the kernel half reaches its victim only at the victim's own next event, that event and
    /// bursard, who was asked meanwhile, may both have sent the signal: who tells first is believed.
    fn killed(&mut self, victim: &Victim, trigger: Trigger, reason: Option<String>) {
        if !self.killed.is_new(victim.pid, victim.started) {
            tracing::debug!(pid = %victim.pid, ?trigger, "killed twice; told once");
            return;
        }
        let (event, message) = self
            .recorder
            .kill(victim, trigger, reason, &mut self.roster);
        self.fresh.push(event);
        self.tell(message);
    }

    /// No kill would free them: their user is to remove them, so he is told which.
    fn tell_of_files(&mut self, level: &Level, stuck: Bytes) {
        let users: BTreeSet<Uid> = self.payers().payers_of(level.account).into_iter().collect();
        let files = MemoryFiles::of(&self.proc, &users, FILES_NAMED, FILES_PATIENCE)
            .inspect_err(|error| tracing::warn!(%error, "files in memory could not be looked for"))
            .unwrap_or_default();
        let (event, message) = self.recorder.files(level, stuck, &files, &mut self.roster);
        self.fresh.push(event);
        self.tell(message);
    }

    /// Somebody chose and left the signal to us.
    fn carry_out(&mut self, victim: Victim) {
        if self.mandate.dry_run {
            if self.mentioned.is_new(victim.pid, victim.started) {
                let event = self.recorder.would_kill(&victim, &mut self.roster);
                self.fresh.push(event);
            }
            return;
        }
        if !self.mandate.notifier {
            return;
        }
        let pid = victim.pid;
        let (execution, pidfd) = execute_chosen(&self.proc, pid, victim.started);
        let signalled = execution.signalled();
        self.executed(victim, execution, None);
        if let Some(at) = signalled {
            self.reaper.reap(Dying {
                pid,
                pidfd,
                signalled: at,
                private: None,
            });
        }
    }

    fn executed(&mut self, mut victim: Victim, execution: Execution, reason: Option<String>) {
        match execution {
            Execution::Signalled(at) => {
                let trigger = match victim.level.trigger {
                    Trigger::Poll => Trigger::Poll,
                    Trigger::Event | Trigger::Timer | Trigger::Notifier => Trigger::Notifier,
                };
                victim.latency = Nanos::new(at.get().saturating_sub(victim.level.at.get()));
                self.killed(&victim, trigger, reason);
            }
            // The breach is over as far as this process goes.
            Execution::Gone => {}
            Execution::Spared(why) => {
                let event = self.recorder.kill_failed(&victim, &why, &mut self.roster);
                self.fresh.push(event);
            }
        }
    }

    /// Takes what the reapers tell.
    pub(crate) fn collect_news(&mut self) -> Result<()> {
        // What was killed was written down before the reapers were told: so it is read here.
        self.attend()?;
        for report in self.reaper.drain() {
            let event = self.recorder.settled(&report);
            self.fresh.extend(event);
        }
        Ok(())
    }

    /// Helps the kernel's OOM killer with victims of accounts that have a limit.
    pub(crate) fn attend_oom(&mut self) {
        let marked = self.oom.as_mut().map(OomWatch::drain).unwrap_or_default();
        if marked.is_empty() {
            return;
        }
        // All are held before anybody asks what they have entered.
        let held: Vec<_> = marked
            .into_iter()
            .map(|it| (it, oom::hold(&self.proc, it.pid)))
            .collect();
        let payers = self.payers();
        let entered = Entered::of(&*self.governor).ok();
        for (oom::Marked { pid, uid, private }, hold) in held {
            // Gone already: the kernel's word for whose it was.
            let (pidfd, uid) = match hold {
                Some((pidfd, uid)) => (Some(pidfd), Some(uid)),
                None => (None, uid),
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
            if self.mandate.dry_run || self.recorder.awaits(pid) {
                continue;
            }
            self.recorder
                .expect_oom_victim(pid, uid, account, &mut self.roster);
            self.reaper.reap(Dying {
                pid,
                pidfd,
                signalled: clock::monotonic(),
                private,
            });
        }
    }

    pub(crate) fn oom(&self) -> Option<BorrowedFd<'_>> {
        self.oom.as_ref().map(AsFd::as_fd)
    }

    pub(crate) const fn courtesy(&self) -> &Courtesy {
        &self.courtesy
    }

    /// Who checks the ledger when asked.
    pub(crate) const fn auditor(&self) -> &Auditor {
        &self.auditor
    }

    /// Has the ledger compared with /proc; `false` where there is no kernel half.
    pub(crate) fn check_ledger(&mut self, client: ClientId) -> Result<bool> {
        let Some(ledger) = self.governor.ledger()? else {
            return Ok(false);
        };
        let payers = self.payers();
        let entered = Entered::of(&*self.governor)?;
        self.auditor.begin(client, ledger, payers, entered)?;
        Ok(true)
    }

    /// What a check of the ledger has found.
    pub(crate) fn ledger_checked(&mut self) -> Option<News> {
        self.auditor.drain()
    }

    /// An account that wants it has its largest process asked to end.
    fn ask_first(&mut self, level: &Level) {
        let is_over = level.limit.is_some_and(|limit| level.held > limit);
        if self.mandate.dry_run
            || is_over
            || self.roster.manner_of(level.account) != KillManner::Graceful
        {
            return;
        }
        let Some(notice) = self.notice_of(level.account) else {
            return;
        };
        let entered = match Entered::of(&*self.governor) {
            Ok(entered) => entered,
            Err(error) => {
                tracing::warn!("nobody was asked to end: {error:#}");
                return;
            }
        };
        let payers = self.payers();
        let users = payers.payers_of(level.account);
        let pays = |pid: Pid, uid: Uid| match entered.account_of(pid, &payers) {
            Some(account) => account == level.account,
            None => users.contains(&uid),
        };
        let asked = self.courtesy.ask(&self.proc, level.account, pays, notice);
        let Some(asked) = asked else { return };
        let (event, message) = self.recorder.asked(asked, level, &mut self.roster);
        self.fresh.push(event);
        self.tell(message);
    }

    fn notice_of(&self, account: AccountId) -> Option<Bytes> {
        let readings = self.governor.readings();
        readings
            .into_iter()
            .find(|it| it.id == account)?
            .bounds
            .notice()
    }

    /// Kills those who were asked, had their time, and are still in the way.
    pub(crate) fn insist(&mut self) {
        for asked in self.courtesy.overdue() {
            let reading = self
                .governor
                .readings()
                .into_iter()
                .find(|it| it.id == asked.account);
            let Some(reading) = reading else { continue };
            if reading
                .bounds
                .notice()
                .is_none_or(|notice| reading.held <= notice)
            {
                continue;
            }
            let level = Level {
                at: clock::monotonic(),
                account: asked.account,
                trigger: Trigger::Notifier,
                held: reading.held,
                limit: reading.bounds.limit(),
            };
            let pid = asked.pidfd.pid();
            let reason = format!(
                "asked to end {} s ago; the account still holds {}, more than its notice",
                crate::courtesy::GRACE.as_secs(),
                reading.held
            );
            let victim = Victim {
                level,
                pid,
                uid: asked.uid,
                comm: asked.comm,
                started: Nanos::new(0),
                held: asked.held,
                latency: Nanos::new(0),
                candidates_met: 1,
                candidates: Vec::new(),
            };
            let execution = execute(&asked.pidfd);
            let signalled = execution.signalled();
            self.executed(victim, execution, Some(reason));
            if let Some(at) = signalled {
                self.reaper.reap(Dying {
                    pid,
                    pidfd: Some(asked.pidfd),
                    signalled: at,
                    private: None,
                });
            }
        }
    }

    fn tell(&mut self, message: Message) {
        let mut users = self.payers().payers_of(message.account);
        if users.is_empty() {
            // Nobody's but those who enter it.
            let planned = self.roster.plan().accounts.get(&message.account);
            let who = planned.map(|it| it.who.clone());
            let granted = who.and_then(|who| self.roster.granted(&who));
            users.extend(granted.unwrap_or_default());
        }
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
    pub(crate) fn limits_changed(&mut self) {
        self.paying = self.payers();
        self.chores.defend(self.payers());
        self.beancounters.watch(self.roster.plan());
    }

    /// Looks at what beancounters with a limit hold, as often as they are looked at.
    pub(crate) fn look_at_beancounters(&mut self) {
        let count = self.last_count();
        if let Err(error) = self
            .beancounters
            .take_turn(&mut *self.governor, &self.paying, count)
        {
            tracing::warn!("beancounters were not looked at: {error:#}");
        }
    }

    /// Reserves for a process; the pages granted and those it has reserved now.
    pub(crate) fn reserve(&mut self, asker: Asker, ask: &Reserve) -> Result<(u64, u64), Denied> {
        let ram = self.roster.ram();
        let books = &mut *self.governor;
        self.reservations
            .reserve(asker, ask, &self.paying, ram, books)
    }

    /// Gives back; the pages that the process has still reserved.
    pub(crate) fn commit(&mut self, asker: Asker, pages: u64) -> Result<u64, Denied> {
        let books = &mut *self.governor;
        self.reservations.commit(asker, pages, &self.paying, books)
    }

    /// A connection or its process has ended.
    pub(crate) fn release(&mut self, client: ClientId) {
        let books = &mut *self.governor;
        if let Err(error) = self.reservations.release(client, &self.paying, books) {
            tracing::warn!("a reservation was given back, and the kernel half not told: {error:#}");
        }
    }

    /// Where counts of mapped pages are.
    pub(crate) fn physpages_counted(&mut self) -> Result<&mut Counter> {
        match &mut self.counter {
            Some(counter) => Ok(counter),
            none => Ok(none.insert(Counter::start()?)),
        }
    }

    /// The last count of mapped pages, if there was one.
    pub(crate) fn last_count(&self) -> Option<Arc<Finished>> {
        self.counter.as_ref()?.latest()
    }

    /// Has mapped pages counted for whoever pays as of now; the count's ticket.
    pub(crate) fn count_physpages(&mut self) -> Result<u64> {
        let payers = self.payers();
        let entered = Entered::of(&*self.governor)?;
        self.physpages_counted()?.order(Order { payers, entered })
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
    pub(crate) fn remarks(&mut self) -> Vec<String> {
        let mut remarks = self.standing_remarks.clone();
        remarks.extend(self.watermarks.remark.clone());
        remarks.extend(
            self.roster
                .plan()
                .remarks
                .iter()
                .map(|(who, text)| format!("{who}: {text}")),
        );
        remarks.extend(self.beancounters.remarks(&*self.governor, &self.roster));
        let status = self.governor.status();
        if status.attached && status.timer && !status.counts_files {
            remarks.push(
                "files in tmpfs that no process maps do not count: the kernel half could not load what \
                 counts them"
                    .to_owned(),
            );
        }
        let readings = self.governor.readings();
        for reading in readings.iter().filter(|it| it.is_stuck()) {
            let (name, _) = self.roster.name_of(reading.id);
            remarks.push(format!(
                "{name} holds {} in files that no kill would free (see: bursar why)",
                reading.stuck
            ));
        }
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
                status.members_lost,
                "children could not be kept in the account their parents have entered",
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
        self.watermarks.finish();
        let left = self.governor.leave(release);
        if release {
            self.chores.stand_down();
        }
        self.chores.finish();
        left
    }
}
