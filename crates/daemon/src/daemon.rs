// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's parts together, and what it does when something happens: observe (backend) → decide
//! (already done, or bursar-policy) → act (killer, reaper, background) → record.

mod over;
mod remarks;
mod victims;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bursar_config::Limits;
use bursar_host::{MemoryFiles, Proc, machine};
use bursar_model::{AccountId, Bytes, Event, EventKind, Uid};
use bursar_policy::Plan;
use bursar_protocol::Reserve;
use bursar_watchdog::TimedQuery;

use crate::backend::{Backend, Reading};
use crate::background::{Background, Recipients};
use crate::beancounters::Beancounters;
use crate::control::{AdmissionCounters, ClientId, Requester};
use crate::fact::{Fact, Level};
use crate::graceful::Graceful;
use crate::join::Entered;
use crate::ledger_check::{LedgerChecker, News};
use crate::limit_table::LimitTable;
use crate::message::Message;
use crate::oom::OomWatch;
use crate::payers::{Coverage, Payers};
use crate::physpages::{Counter, Finished, Order};
use crate::reaper::VictimReaper;
use crate::recent::Recent;
use crate::recorder::Recorder;
use crate::reservations::{Denied, Reservations};
use crate::watermarks::Watermarks;

pub(crate) use over::Over;

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

/// Who works for the daemon.
pub(crate) struct Helpers {
    pub(crate) reaper: VictimReaper,
    pub(crate) background: Background,
    /// `None` where tracefs is not to be had.
    pub(crate) oom: Option<OomWatch>,
}

/// All parts.
pub(crate) struct Daemon {
    pub(crate) limit_table: LimitTable,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) recorder: Recorder,
    pub(crate) coverage: Coverage,
    pub(crate) reservations: Reservations,
    /// Who pays into what, as of the last change: asked at every reservation.
    pub(crate) paying: Payers,
    pub(crate) watermarks: Watermarks,
    pub(crate) beancounters: Beancounters,
    /// As of the last request.
    pub(crate) admission: AdmissionCounters,
    mandate: Mandate,
    proc: Proc,
    query: TimedQuery,
    reaper: VictimReaper,
    background: Background,
    oom: Option<OomWatch>,
    /// Started by the first who asks.
    counter: Option<Counter>,
    graceful: Graceful,
    ledger_checker: LedgerChecker,
    /// Recorded, and not yet sent to those who follow.
    fresh: Vec<Event>,
    /// Remarks on configuration and machine that hold until the next reload.
    standing_remarks: Vec<String>,
    not_in_force: Option<String>,
    /// Victims of a dry run already mentioned.
    mentioned: Recent,
    /// Kills already told.
    killed: Recent,
    lost_before: u64,
}

impl Daemon {
    pub(crate) fn new(
        limit_table: LimitTable,
        backend: Box<dyn Backend>,
        recorder: Recorder,
        coverage: Coverage,
        mandate: Mandate,
        helpers: Helpers,
        standing_remarks: Vec<String>,
    ) -> Result<Self> {
        let query = helpers.reaper.timed_query()?;
        let lost_before = backend.status().events_lost;
        let paying = Payers::new(limit_table.plan(), coverage.clone());
        let mut recorder = recorder;
        recorder.introduce_reapers(helpers.reaper.priority());
        Ok(Self {
            reservations: Reservations::new(machine::page_size()),
            paying,
            limit_table,
            backend,
            recorder,
            coverage,
            watermarks: Watermarks::default(),
            beancounters: Beancounters::new()?,
            admission: AdmissionCounters::default(),
            mandate,
            proc: Proc::host()?,
            query,
            reaper: helpers.reaper,
            background: helpers.background,
            oom: helpers.oom,
            counter: None,
            graceful: Graceful::new()?,
            ledger_checker: LedgerChecker::new()?,
            fresh: Vec::new(),
            standing_remarks,
            not_in_force: None,
            mentioned: Recent::default(),
            killed: Recent::default(),
            lost_before,
        })
    }

    pub(crate) const fn proc(&self) -> &Proc {
        &self.proc
    }

    pub(crate) const fn is_dry_run(&self) -> bool {
        self.mandate.dry_run
    }

    pub(crate) const fn reaper(&self) -> &VictimReaper {
        &self.reaper
    }

    /// Does what the backend has for us.
    pub(crate) fn attend(&mut self) -> Result<()> {
        let facts = self.backend.drain()?;
        self.hear(facts);
        let lost = self.backend.status().events_lost;
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

    /// Follows up what happened.
    pub(crate) fn hear(&mut self, facts: Vec<Fact>) {
        for fact in facts {
            self.handle(fact);
        }
    }

    fn handle(&mut self, fact: Fact) {
        match fact {
            Fact::Notice(level) => {
                let (event, message) = self.recorder.notice(&level, &mut self.limit_table);
                self.fresh.push(event);
                self.tell(message);
                self.ask_first(&level);
            }
            // The ring reader has set the reapers on it.
            Fact::Killed(victim) => self.killed(&victim, victim.level.trigger, None),
            Fact::KillAsked(victim) => self.carry_out(victim),
            Fact::KillTried(victim, outcome) => self.kill_tried(victim, outcome, None),
            Fact::NoVictim(victim) => {
                let event = self.recorder.no_victim(&victim, &mut self.limit_table);
                self.fresh.push(event);
            }
            Fact::Files(level, stuck) => self.tell_of_files(&level, stuck),
            Fact::Freed(victim, duration) => {
                let event = self
                    .recorder
                    .freed(&victim, duration, &mut self.limit_table);
                self.fresh.extend(event);
            }
            Fact::Refused(level, refused) => {
                let event = self
                    .recorder
                    .refused(&level, &refused, &mut self.limit_table);
                self.fresh.push(event);
            }
            Fact::RowRefused(level, refused) => {
                let event = self
                    .recorder
                    .row_refused(&level, &refused, &mut self.limit_table);
                self.fresh.push(event);
            }
            Fact::Unreadable(count) => {
                let reason = format!(
                    "{count} events of the kernel half before are of a version that this bursard cannot read: \
                     they happened and are not recorded"
                );
                self.note(EventKind::Lost, None, reason);
            }
            Fact::OomScoreDue => self.background.set_oom_scores(self.payers()),
        }
    }

    /// No kill would free them: their user is to remove them, so he is told which.
    fn tell_of_files(&mut self, level: &Level, stuck: Bytes) {
        let users: BTreeSet<Uid> = self.payers().payers_of(level.account).into_iter().collect();
        let subordinates = &self.limit_table.plan().subordinates;
        let are_theirs = |uid: Uid| {
            let subuid_owner = subordinates.subuid_owner_of(uid);
            users.contains(&uid) || subuid_owner.is_some_and(|it| users.contains(&it))
        };
        let (proc, query) = (&self.proc, &mut self.query);
        let files = MemoryFiles::of(proc, &are_theirs, FILES_NAMED, FILES_PATIENCE, query)
            .inspect_err(|error| tracing::warn!(%error, "files in memory could not be looked for"))
            .unwrap_or_default();
        let (event, message) = self
            .recorder
            .files(level, stuck, &files, &mut self.limit_table);
        self.fresh.push(event);
        self.tell(message);
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

    pub(crate) fn oom(&self) -> Option<BorrowedFd<'_>> {
        self.oom.as_ref().map(AsFd::as_fd)
    }

    pub(crate) const fn graceful(&self) -> &Graceful {
        &self.graceful
    }

    /// Who checks the ledger when asked.
    pub(crate) const fn ledger_checker(&self) -> &LedgerChecker {
        &self.ledger_checker
    }

    /// Has the ledger compared with /proc; `false` where there is no kernel half.
    pub(crate) fn check_ledger(&mut self, client: ClientId) -> Result<bool> {
        let Some(ledger) = self.backend.ledger()? else {
            return Ok(false);
        };
        let payers = self.payers();
        let entered = Entered::of(&*self.backend)?;
        let blocklist = Arc::clone(self.reaper.blocklist());
        self.ledger_checker
            .begin(client, ledger, payers, entered, blocklist)?;
        Ok(true)
    }

    /// What a check of the ledger has found.
    pub(crate) fn ledger_checked(&mut self) -> Option<News> {
        self.ledger_checker.drain()
    }

    fn tell(&self, message: Message) {
        if self.background.tells() {
            let recipients = self.recipients_of(message.account);
            self.background.tell(message, recipients);
        }
    }

    /// Who may be told of an account.
    fn recipients_of(&self, account: AccountId) -> Recipients {
        let payers = self.paying.payers_of(account).into_iter().collect();
        if account.uid().is_some() {
            return Recipients {
                payers,
                ..Recipients::default()
            };
        }
        let planned = self.limit_table.plan().accounts.get(&account);
        let granted = planned.and_then(|it| self.limit_table.granted(&it.who));
        let entered = Entered::if_any(&*self.backend)
            .inspect_err(|error| {
                tracing::warn!("who has entered an account is not told: {error:#}")
            })
            .ok();
        Recipients {
            payers,
            granted: granted.unwrap_or_default(),
            entered,
        }
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
        let holdings = &mut *self.backend;
        if let Err(error) = self.reservations.tell_all(&self.paying, holdings) {
            tracing::warn!("the kernel half was not told what is reserved: {error:#}");
        }
        self.background.set_oom_scores(self.payers());
        self.beancounters.watch(self.limit_table.plan());
    }

    /// Scans for beancounters with a limit, when that is due.
    pub(crate) fn scan_beancounters(&mut self) {
        let count = self.last_count();
        if let Err(error) = self
            .beancounters
            .take_turn(&mut *self.backend, &self.paying, count)
        {
            tracing::warn!("beancounters were not scanned: {error:#}");
        }
    }

    /// Reserves for a process; the pages granted and those it has reserved now.
    pub(crate) fn reserve(
        &mut self,
        requester: Requester,
        ask: &Reserve,
    ) -> Result<(u64, u64), Denied> {
        let ram = self.limit_table.ram();
        let holdings = &mut *self.backend;
        self.reservations
            .reserve(requester, ask, &self.paying, ram, holdings)
    }

    /// Gives back; the pages that the process has still reserved.
    pub(crate) fn commit(&mut self, requester: Requester, pages: u64) -> Result<u64, Denied> {
        let holdings = &mut *self.backend;
        self.reservations
            .commit(requester, pages, &self.paying, holdings)
    }

    /// A connection or its process has ended.
    pub(crate) fn release(&mut self, client: ClientId) {
        let holdings = &mut *self.backend;
        if let Err(error) = self.reservations.release(client, &self.paying, holdings) {
            tracing::warn!("a reservation was given back, and the kernel half not told: {error:#}");
        }
    }

    /// Where counts of mapped pages are.
    pub(crate) fn physpages_counted(&mut self) -> Result<&mut Counter> {
        match &mut self.counter {
            Some(counter) => Ok(counter),
            none => Ok(none.insert(Counter::start(Arc::clone(self.reaper.blocklist()))?)),
        }
    }

    /// The last count of mapped pages, if there was one.
    pub(crate) fn last_count(&self) -> Option<Arc<Finished>> {
        self.counter.as_ref()?.latest()
    }

    /// Has mapped pages counted for whoever pays as of now; the count's ticket.
    pub(crate) fn count_physpages(&mut self) -> Result<u64> {
        let payers = self.payers();
        let entered = Entered::of(&*self.backend)?;
        self.physpages_counted()?.order(Order { payers, entered })
    }

    /// Reads the limits again; the old ones stay when the new ones are wrong or do not fit. Whoever wrote
    /// them down cannot be asked whether he means it, so they are put in force.
    pub(crate) fn reload(&mut self) -> Result<()> {
        let done = self.read_again();
        self.not_in_force = done.as_ref().err().map(|error| format!("{error:#}"));
        done
    }

    /// Why the limits as they are written now are not in force, if bursard was to read them and could not.
    pub(crate) fn not_in_force(&self) -> Option<&str> {
        self.not_in_force.as_deref()
    }

    fn read_again(&mut self) -> Result<()> {
        let (limits, plan) = self.limit_table.read_again()?;
        self.announce(&plan);
        self.adopt(limits, plan)?;
        let count = self.limit_table.limits().len();
        self.note(
            EventKind::Reloaded,
            None,
            format!("{count} limits in force"),
        );
        Ok(())
    }

    /// A name in the limits that nobody had, or that could not be looked up, has an answer.
    pub(crate) fn names_answered(&mut self) {
        if self.limit_table.names().take_news() {
            self.look_up_again("names in the limits can be looked up now");
        }
    }

    /// The file that says whose subordinate uids are has changed.
    pub(crate) fn subuid_changed(&mut self) {
        if self.limit_table.subuid().take_news() {
            self.look_up_again("whose subordinate uids are was read again");
        }
    }

    /// What is not written in the limits, and they mean by it, may have changed.
    fn look_up_again(&mut self, why: &str) {
        let plan = self.limit_table.plan_anew();
        let limits = self.limit_table.limits().clone();
        let is_other = plan != *self.limit_table.plan();
        let count = limits.len();
        self.announce(&plan);
        match self.adopt(limits, plan) {
            Ok(()) if is_other => self.note(
                EventKind::Reloaded,
                None,
                format!("{why}; {count} limits in force"),
            ),
            Ok(()) => {}
            Err(error) => {
                tracing::error!("the limits stay as they were: {error:#}");
                self.limit_table.watch_names();
            }
        }
    }

    /// Puts other limits in force; those before hold again when that fails half-way.
    pub(crate) fn adopt(&mut self, limits: Limits, plan: Plan) -> Result<()> {
        if let Err(error) = self.backend.apply(&plan) {
            return Err(match self.backend.apply(self.limit_table.plan()) {
                Ok(()) => error,
                Err(other) => error.context(format!(
                    "the limits before could not be put back in force either, restart bursard: {other:#}"
                )),
            });
        }
        self.limit_table.adopt(limits, plan);
        self.limits_changed();
        Ok(())
    }

    /// How an account stands; `None` where there is no such account yet.
    pub(crate) fn reading_of(&self, id: AccountId) -> Option<Reading> {
        let readings = self.backend.readings();
        readings.into_iter().find(|it| it.id == id)
    }

    /// The account a name in an event stands for is compared by name; who may see it by user.
    pub(crate) fn account_name(&mut self, id: AccountId) -> String {
        self.limit_table.name_of(id).0
    }

    /// Ends. With `release` nothing of the kernel half stays, and nobody has a limit any more.
    pub(crate) fn leave(mut self, release: bool) -> Result<()> {
        self.watermarks.finish();
        let left = self.backend.leave(release);
        if release {
            self.background.restore_oom_scores();
        }
        self.background.finish();
        left
    }
}
