// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What follows from a fact: kill, reap, notify, record.

mod changes;
mod victims;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bursar_host::{MemoryFiles, Proc};
use bursar_kernel::RecordedEvents;
use bursar_model::{AccountId, Bytes, Event, EventKind, GateMode};

use crate::accounts::{Accounts, OverLimit};
use crate::background::Background;
use crate::fact::{Fact, Level, Victim};
use crate::graceful::Graceful;
use crate::message::{Message, Reader};
use crate::oom::OomWatch;
use crate::programs::Programs;
use crate::reaper::VictimReaper;
use crate::recent::Recent;
use crate::recorder::{Circumstances, Recorder};
use crate::shortage::{Change, Shortage};

pub(crate) use self::changes::{Author, by_files};

/// Accounts recorded one by one when limits are read again; a new `default` may concern thousands.
const MOST_NAMED: usize = 100;

/// Files are not looked for again before.
const FILES_FRESH: Duration = Duration::from_secs(5);

/// The bound at which requests are refused, where there is somebody who refuses them.
fn barrier_of(level: &Level, accounts: &Accounts) -> Option<Bytes> {
    let has_gate = accounts.backend.status().gate.mode != GateMode::None;
    let reading = accounts.reading_of(level.account).filter(|_| has_gate)?;
    reading.bounds.barrier()
}

/// Tells the kernel half what is recorded, so that the next bursard can go on there after a SIGKILL.
fn note_recorded<R>(
    accounts: &mut Accounts,
    note: impl FnOnce(&mut RecordedEvents) -> Result<R, bursar_kernel::Error>,
) -> Option<R> {
    let kernel = accounts.backend.kernel_mut()?;
    note(kernel.recorded_events())
        .inspect_err(|error| tracing::warn!(%error, "what is recorded is not noted: some may be told twice after a kill"))
        .ok()
}

pub(crate) struct Responder {
    pub(crate) recorder: Recorder,
    pub(crate) reaper: VictimReaper,
    pub(crate) background: Background,
    /// Only say what would be done.
    is_dry_run: bool,
    /// The administrator's word to users.
    hint: Option<String>,
    proc: Proc,
    graceful: Graceful,
    /// `None` where tracefs is not to be had.
    oom: Option<OomWatch>,
    shortage: Shortage,
    /// Recorded, and not yet sent to those who follow.
    fresh: Vec<Event>,
    /// Kills already recorded.
    killed: Recent,
    programs: Programs,
    /// The files that were told of last, by account.
    files: BTreeMap<AccountId, (Instant, MemoryFiles)>,
}

impl Responder {
    pub(crate) fn new(
        mut recorder: Recorder,
        reaper: VictimReaper,
        background: Background,
        oom: Option<OomWatch>,
        shortage: Shortage,
        is_dry_run: bool,
        hint: Option<String>,
    ) -> Result<Self> {
        recorder.introduce_reapers(reaper.priority());
        Ok(Self {
            programs: Programs::new(reaper.blocklist())?,
            files: BTreeMap::new(),
            recorder,
            reaper,
            background,
            is_dry_run,
            hint,
            proc: Proc::host().context("open /proc")?,
            graceful: Graceful::new()?,
            oom,
            shortage,
            fresh: Vec::new(),
            killed: Recent::default(),
        })
    }

    pub(crate) const fn is_dry_run(&self) -> bool {
        self.is_dry_run
    }

    pub(crate) fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    pub(crate) fn set_hint(&mut self, hint: Option<String>) {
        self.hint = hint;
    }

    /// Readable when [`Self::insist`] has something to do.
    pub(crate) fn graceful(&self) -> BorrowedFd<'_> {
        self.graceful.as_fd()
    }

    /// Readable when [`Self::attend_oom`] has something to do.
    pub(crate) fn oom(&self) -> Option<BorrowedFd<'_>> {
        self.oom.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn handle_all(&mut self, facts: Vec<Fact>, accounts: &mut Accounts) {
        for fact in facts {
            let is_recorded = fact.is_recorded();
            if !is_recorded || self.begin(accounts) {
                self.handle(fact, accounts);
            }
            if is_recorded {
                self.note_unwritten(accounts);
                note_recorded(accounts, RecordedEvents::end);
            }
        }
    }

    /// Tells the kernel half how many events would be gone with us.
    pub(crate) fn note_unwritten(&self, accounts: &mut Accounts) {
        let count = self.recorder.unwritten();
        note_recorded(accounts, |it| it.note_waiting(count));
    }

    /// Records that so many events more did not fit the ring buffer, which makes it `all` of this kernel half.
    pub(crate) fn note_lost(&mut self, count: u64, all: u64, accounts: &mut Accounts) {
        self.handle(Fact::Lost(count), accounts);
        self.note_unwritten(accounts);
        // Last: who is killed here has them told twice, and not never.
        note_recorded(accounts, |it| it.note_lost_told(all));
    }

    /// Goes on where a bursard that was killed ended; before anything is recorded.
    pub(crate) fn resume(&self, accounts: &mut Accounts) {
        let found = self.recorder.history().newest_found();
        note_recorded(accounts, |it| it.end_interrupted(found));
    }

    /// The next fact is about to be recorded; not where a bursard that was killed has done so.
    fn begin(&self, accounts: &mut Accounts) -> bool {
        let next = self.recorder.history().next_number();
        note_recorded(accounts, |it| it.begin(next)) != Some(true)
    }

    /// Ends: what waits to be written is written.
    pub(crate) fn write_waiting(&mut self, accounts: &mut Accounts) {
        self.recorder.write_waiting();
        self.note_unwritten(accounts);
    }

    fn handle(&mut self, fact: Fact, accounts: &mut Accounts) {
        match fact {
            Fact::Notice(level) => {
                self.look(&level, accounts);
                let barrier = barrier_of(&level, accounts);
                let (event, message) = self.recorder.notice(&level, barrier, &mut accounts.table);
                self.fresh.push(event);
                self.notify_of(&level, message, accounts);
                self.ask_first(&level, accounts);
            }
            // The ring reader has handed it to the reaper.
            Fact::Killed(victim) => self.killed(&victim, victim.level.trigger, None, accounts),
            Fact::WouldKill(victim) => self.forgo(&victim, accounts),
            Fact::KillAsked(victim, pidfd) => self.carry_out(victim, pidfd, accounts),
            Fact::KillUnknown(_) => {
                note_recorded(accounts, |it| it.count_unrecorded(1));
                let reason = "a process that was to be killed has ended; bursard was killed meanwhile, so the cause is not known";
                self.note(EventKind::Lost, None, reason.to_owned());
            }
            Fact::KillTried(victim, outcome) => self.kill_tried(victim, outcome, None, accounts),
            Fact::NoVictim(victim) => {
                let event = self.recorder.no_victim(&victim, &mut accounts.table);
                self.fresh.push(event);
            }
            // No kill would free them: their user is to remove them, and is told which.
            Fact::Files(level, stuck) => {
                let files = accounts.files_of(level.account);
                let (event, message) =
                    self.recorder
                        .files(&level, stuck, &files, &mut accounts.table);
                self.fresh.push(event);
                self.notify_of(&level, message, accounts);
            }
            Fact::Dying(victim) => {
                // The kernel's OOM killer has a word of its own, and has had it by now.
                self.attend_oom(accounts);
                self.recorder.expect_others(&victim, &mut accounts.table);
            }
            Fact::Freed(victim, duration) => {
                let event = self.recorder.freed(&victim, duration, &mut accounts.table);
                self.fresh.extend(event);
            }
            Fact::Refused(level, refused) => {
                let (event, message) = self.recorder.refused(&level, &refused, &mut accounts.table);
                self.fresh.push(event);
                self.notify_of(&level, message, accounts);
            }
            Fact::RowRefused(level, refused) => {
                let (event, message) =
                    self.recorder
                        .row_refused(&level, &refused, &mut accounts.table);
                self.fresh.push(event);
                self.notify_of(&level, message, accounts);
            }
            Fact::Unreadable(count) => {
                let reason = format!(
                    "{count} events of the previous kernel half have another format; they happened but are not \
                     recorded"
                );
                self.note(EventKind::Lost, None, reason);
            }
            Fact::Unrecorded(count) => {
                let reason = format!(
                    "up to {count} events happened and are not recorded: they are gone with a bursard that was killed"
                );
                self.note(EventKind::Lost, None, reason);
            }
            Fact::Lost(count) => {
                let reason = format!(
                    "{count} events did not fit the ring buffer: they happened and are not recorded; raise ledger.events_bytes in bursar.toml"
                );
                self.note(EventKind::Lost, None, reason);
            }
            // For those who wait (level_watches.rs).
            Fact::WatchReached(_) => {}
            Fact::OomScoreDue => self.set_oom_scores(accounts),
            Fact::Shortage => self.hear_of_shortage(accounts),
        }
    }

    /// Has priority data when [`Self::hear_of_shortage`] has something to do.
    pub(crate) fn pressure(&self) -> Option<BorrowedFd<'_>> {
        self.shortage.pressure()
    }

    /// The machine may be short of memory.
    pub(crate) fn hear_of_shortage(&mut self, accounts: &mut Accounts) {
        let change = self.shortage.hear(&self.proc);
        self.follow_shortage(change, accounts);
    }

    /// How long until [`Self::review_shortage`] is due.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.shortage.timeout()
    }

    pub(crate) fn review_shortage(&mut self, accounts: &mut Accounts) {
        let change = self.shortage.look(&self.proc);
        self.follow_shortage(change, accounts);
    }

    fn follow_shortage(&mut self, change: Option<Change>, accounts: &mut Accounts) {
        if matches!(change, Some(Change::Raise | Change::Lowered))
            && let Some(kernel) = accounts.backend.kernel_mut()
            && let Err(error) = kernel.set_raised_adj(self.shortage.raised_adj())
        {
            tracing::warn!("the kernel half was not told of the last defence: {error:#}");
        }
        match change {
            Some(Change::Raise | Change::RaiseAgain) => self.set_oom_scores(accounts),
            Some(Change::PutBack) => self.background.restore_oom_scores(),
            Some(Change::Lowered) | None => {}
        }
    }

    /// Has oom_score_adj be what the limits want, if it is anything now.
    pub(crate) fn set_oom_scores(&self, accounts: &Accounts) {
        if self.shortage.is_raised() {
            self.background.set_oom_scores(accounts.payers.clone());
        }
    }

    /// Records what the reaper reports.
    pub(crate) fn record_reaps(&mut self) {
        for report in self.reaper.drain() {
            let event = self.recorder.settled(&report);
            self.fresh.extend(event);
        }
    }

    /// Records which accounts are over limits that are about to be put in force without anybody being asked: what
    /// follows is a kill in each, and this is its reason.
    pub(crate) fn announce(&mut self, over: &[OverLimit]) {
        self.announce_as(over, "this limit holds from now on");
    }

    /// Tells who is over limits that hold in a while, and on his terminals.
    pub(crate) fn warn_of(
        &mut self,
        over: &[OverLimit],
        why: &str,
        within: Duration,
        accounts: &Accounts,
    ) {
        let seconds = within.as_secs();
        self.announce_as(
            over,
            &format!("{why}; this limit holds in {seconds} seconds"),
        );
        for it in over {
            let reader = Reader(it.id.uid().is_none().then_some(it.name.as_str()));
            let message = Message::soon(it.id, reader, it.held, it.limit, within);
            self.notify(message, accounts);
        }
    }

    fn announce_as(&mut self, over: &[OverLimit], reason: &str) {
        for it in over.iter().take(MOST_NAMED) {
            let mut event = Event::new(EventKind::LimitChanged);
            event.account = Some(it.name.clone());
            event.uid = it.id.uid();
            event.held = Some(it.held);
            event.limit = Some(it.limit);
            event.overcommit = Some(it.by());
            event.reason = Some(reason.to_owned());
            let event = self.recorder.tell(event);
            self.fresh.push(event);
        }
        let others = over.len().saturating_sub(MOST_NAMED);
        if others > 0 {
            let reason = format!("{others} more accounts hold more than their limit: {reason}");
            self.note(EventKind::LimitChanged, None, reason);
        }
    }

    /// Records a fact about ourselves.
    pub(crate) fn note(&mut self, kind: EventKind, account: Option<String>, reason: String) {
        let event = self.recorder.remark(kind, account, reason);
        self.fresh.push(event);
    }

    /// Events recorded since the last call.
    pub(crate) fn take_fresh(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.fresh)
    }

    /// What the processes of an account are, before one of them is gone.
    fn look(&mut self, level: &Level, accounts: &Accounts) {
        let users = accounts.payers.payers_of(level.account);
        self.programs
            .look(level.account, &users.into_iter().collect());
    }

    /// What is to be told of a victim besides what the backend knows.
    fn circumstances(&mut self, victim: &Victim, accounts: &mut Accounts) -> Circumstances {
        self.look(&victim.level, accounts);
        let account = victim.level.account;
        let reading = accounts.reading_of(account);
        let in_files = reading.map_or(Bytes::ZERO, |it| it.unmapped);
        let is_much = in_files.get().saturating_mul(4) >= victim.level.held.get();
        let files = (is_much && in_files > Bytes::ZERO)
            .then(|| (in_files, self.files_of(account, accounts)));
        Circumstances {
            identity: self.programs.identity(account, victim.pid, victim.started),
            candidates: self.programs.candidate_facts(account, &victim.candidates),
            programs: self.programs.groups(account),
            files,
        }
    }

    /// Not looked for again while kills follow each other.
    fn files_of(&mut self, account: AccountId, accounts: &mut Accounts) -> MemoryFiles {
        if let Some((at, files)) = self.files.get(&account)
            && at.elapsed() < FILES_FRESH
        {
            return files.clone();
        }
        let files = accounts.files_of(account);
        self.files.retain(|_, (at, _)| at.elapsed() < FILES_FRESH);
        self.files.insert(account, (Instant::now(), files.clone()));
        files
    }

    /// Nobody is told of what would have happened in an account that is only observed.
    fn notify_of(&self, level: &Level, message: Message, accounts: &Accounts) {
        if !level.is_observed {
            self.notify(message, accounts);
        }
    }

    fn notify(&self, message: Message, accounts: &Accounts) {
        if self.background.tells() {
            let recipients = accounts.recipients_of(message.account);
            let message = message.with_hint(self.hint());
            self.background.tell(message, recipients);
        }
    }

    /// Ends. With `releases` nobody has a limit any more.
    pub(crate) fn finish(self, releases: bool) {
        if releases {
            self.background.restore_oom_scores();
        }
        self.background.finish();
    }
}
