// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's parts, and what concerns more than one of them.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use bursar_config::{Limits, ReloadChoice};
use bursar_host::machine;
use bursar_model::EventKind;
use bursar_policy::Plan;

use crate::accounts::{Accounts, Arrival, OverLimit};
use crate::backend_choice::Superseded;
use crate::beancounters::Beancounters;
use crate::briefings::Briefings;
use crate::control::{AdmissionCounters, ClientId};
use crate::delay::Delay;
use crate::exempt_cgroups::ExemptFollower;
use crate::expiry::Expiry;
use crate::ledger_check::LedgerChecker;
use crate::level_watches::LevelWatches;
use crate::physpages::Physpages;
use crate::reservations::Reservations;
use crate::responder::{Responder, by_files};
use crate::retries::{Retries, Task};
use crate::spared_programs::SparedPrograms;
use crate::usage::Usage;
use crate::watermarks::Watermarks;

pub(crate) struct Daemon {
    pub(crate) accounts: Accounts,
    pub(crate) responder: Responder,
    pub(crate) reservations: Reservations,
    pub(crate) beancounters: Beancounters,
    pub(crate) physpages: Physpages,
    pub(crate) ledger_checker: LedgerChecker,
    pub(crate) watermarks: Watermarks,
    pub(crate) level_watches: LevelWatches,
    /// Up to which kill users have been told at their logins.
    pub(crate) briefings: Briefings,
    pub(crate) usage: Usage,
    pub(crate) spared_programs: SparedPrograms,
    pub(crate) exempt: ExemptFollower,
    /// As of the last request.
    pub(crate) admission: AdmissionCounters,
    /// Remarks on configuration and machine that hold until the next start.
    pub(crate) standing_remarks: Vec<String>,
    /// What of bursar.toml has changed since the start and is not in force.
    pub(crate) awaits_restart: Option<String>,
    /// Why the limits as they are written are not in force, if bursard was to read them and could not.
    pub(crate) not_in_force: Option<String>,
    /// What becomes of limits that would kill at once when they are read again.
    pub(crate) reload: ReloadChoice,
    /// A change that nobody set, of users or groups or by the end of a limit, and that is not to hold yet.
    pub(crate) delay: Delay,
    /// What failed and is tried again.
    pub(crate) retries: Retries,
    /// When the next temporary limit ends.
    pub(crate) expiry: Expiry,
    /// Events that did not fit the ring buffer, as far as recorded.
    lost: u64,
}

impl Daemon {
    pub(crate) fn new(
        mut accounts: Accounts,
        responder: Responder,
        usage: Usage,
        standing_remarks: Vec<String>,
        state: &Path,
    ) -> Result<Self> {
        let blocklist = Arc::clone(responder.reaper.blocklist());
        Ok(Self {
            reservations: Reservations::new(machine::page_size(), responder.reaper.timed_query()?)?,
            beancounters: Beancounters::new()?,
            physpages: Physpages::new(Arc::clone(&blocklist)),
            ledger_checker: LedgerChecker::new(blocklist)?,
            watermarks: Watermarks::default(),
            level_watches: LevelWatches::new(machine::page_size()),
            briefings: Briefings::new(state),
            usage,
            spared_programs: SparedPrograms::new(&[]),
            exempt: ExemptFollower::new(Arc::default()),
            admission: AdmissionCounters::default(),
            standing_remarks,
            awaits_restart: None,
            not_in_force: None,
            reload: ReloadChoice::default(),
            delay: Delay::new()?,
            retries: Retries::new()?,
            expiry: Expiry::new()?,
            // By the bursard before, too: what was lost since then nobody has told.
            lost: accounts
                .backend
                .kernel_mut()
                .map_or(0, |it| it.recorded_events().lost_told()),
            accounts,
            responder,
        })
    }

    /// Does what the backend has for us.
    pub(crate) fn attend_backend(&mut self) -> Result<()> {
        let facts = self.accounts.backend.drain()?;
        // Who waits for a level is told first: what follows looks at processes and takes its time.
        self.level_watches.hear(&facts, &mut self.accounts);
        self.usage.hear(&facts);
        self.responder.handle_all(facts, &mut self.accounts);
        self.usage
            .note(&self.responder.recorder.take_usage_events());
        self.tell_losses();
        Ok(())
    }

    /// Records that events did not fit the ring buffer, if more did not than is recorded.
    fn tell_losses(&mut self) {
        let all = self.accounts.backend.status().events_lost;
        let count = all.saturating_sub(self.lost);
        if count > 0 {
            self.lost = all;
            self.responder.note_lost(count, all, &mut self.accounts);
        }
    }

    /// Records what the reaper reports.
    pub(crate) fn collect_reaps(&mut self) -> Result<()> {
        // What was killed was written down before the reaper heard of it: so it is read here.
        self.attend_backend()?;
        self.responder.record_reaps();
        self.keep_margin();
        Ok(())
    }

    /// Tells the watermarks what the accounts hold that their rules name.
    pub(crate) fn tell_watermarks(&mut self) {
        self.watermarks.tell_held(&mut self.accounts);
    }

    fn keep_margin(&self) {
        let reaps = self.responder.recorder.reaps();
        self.watermarks.keep_margin(&self.accounts, reaps);
    }

    /// Scans for beancounters with a limit.
    pub(crate) fn scan_beancounters(&mut self) {
        let (accounts, count) = (&mut self.accounts, self.physpages.latest());
        if let Err(error) =
            self.beancounters
                .take_turn(accounts.backend.kernel_mut(), &accounts.payers, count)
        {
            tracing::warn!("beancounters were not scanned: {error:#}");
        }
    }

    /// Opens accounts for members of large groups who have come. Of accounts opened anew nothing is watched yet.
    pub(crate) fn look_for_arrivals(&mut self) {
        match self.accounts.look_for_arrivals() {
            Ok(Arrival::Somebody) => {
                self.retries.done(Task::Arrivals);
                self.level_watches.review_all(&mut self.accounts);
                self.usage.wake();
            }
            Ok(Arrival::Nobody) => self.retries.done(Task::Arrivals),
            Ok(Arrival::Refused) => {}
            Err(error) => {
                let why = "members of a large group have come";
                if self
                    .retries
                    .note(Task::Arrivals, why, &error, Instant::now())
                {
                    tracing::error!(
                        "members of a large group who have come have no limit yet: {error:#}"
                    );
                }
            }
        }
    }

    /// Looks at what accounts hold.
    pub(crate) fn observe_usage(&mut self) {
        self.usage
            .observe(&mut self.accounts, &mut self.level_watches);
    }

    /// A connection or its process has ended: what it had reserved is free.
    pub(crate) fn release(&mut self, client: ClientId) {
        self.level_watches.remove(client);
        let accounts = &mut self.accounts;
        if let Err(error) =
            self.reservations
                .release(client, &accounts.payers, &mut *accounts.backend)
        {
            tracing::warn!("a reservation was given back, and the kernel half not told: {error:#}");
        }
    }

    /// Processes that had something reserved have ended.
    pub(crate) fn release_ended(&mut self) {
        let accounts = &mut self.accounts;
        if let Err(error) = self
            .reservations
            .release_ended(&accounts.payers, &mut *accounts.backend)
        {
            tracing::warn!("a reservation was given back, and the kernel half not told: {error:#}");
        }
    }

    /// Puts the limits in force, and sends the kernel half away that was left in force where another backend enforces
    /// them now.
    pub(crate) fn start(&mut self, superseded: Option<Superseded>, how: &str) -> Result<()> {
        self.responder.resume(&mut self.accounts);
        // What is in force already goes on as it is.
        let table = &self.accounts.table;
        if !table.is_as_before() && !table.is_outdated() {
            self.accounts
                .plan_first()
                .context("look for users among subordinate uids")?;
        }
        let done = match superseded {
            Some(_) => self.accounts.observe(),
            None => self.accounts.enforce(),
        };
        done.context("put the limits in force")?;
        if let Some(superseded) = superseded {
            let facts = superseded.dismiss()?;
            self.responder.handle_all(facts, &mut self.accounts);
            let reason = format!(
                "the kernel half that was left in force is sent away: {how} decides from now on"
            );
            self.responder.note(EventKind::Released, None, reason);
            // Who is over only by what counts now (each page that processes share, for each of them) has his time.
            let plan = self.accounts.table.plan().clone();
            if self.holds_now(&plan, "bursard counts by /proc from now on") {
                let done = self.accounts.enforce();
                done.context("put the limits in force")?;
            }
        }
        self.limits_changed();
        self.tell_losses();
        Ok(())
    }

    /// Looks which files spared programs have by now. Those that cannot be spared are said once.
    pub(crate) fn spare_programs(&mut self) {
        let (programs, fresh) = self.spared_programs.find();
        for remark in fresh {
            tracing::warn!("{remark}");
        }
        if let Err(error) = self.accounts.spare(&programs) {
            tracing::error!("programs are not spared as configured: {error:#}");
        }
    }

    /// One of them may have been replaced.
    pub(crate) fn programs_changed(&mut self) {
        if self.spared_programs.take_news() {
            self.spare_programs();
        }
    }

    /// Looks which control groups are exempt by now.
    pub(crate) fn exempt_cgroups(&mut self) {
        let Some(resolved) = self.exempt.find() else {
            return;
        };
        match self.accounts.backend.exempt(&resolved.found) {
            Ok(()) => {
                self.exempt.note_in_force();
                self.retries.done(Task::ExemptCgroups);
            }
            Err(error) => {
                let why = "other control groups are exempt now";
                let now = Instant::now();
                if self.retries.note(Task::ExemptCgroups, why, &error, now) {
                    tracing::error!("control groups are not exempt as configured: {error:#}");
                }
            }
        }
    }

    /// One of them may have come or gone.
    pub(crate) fn cgroups_changed(&mut self) {
        if self.exempt.take_news() {
            self.exempt_cgroups();
        }
    }

    /// Reads the limits again; the old ones stay when the new ones are wrong, do not fit, or would kill at once and
    /// that is not wanted.
    pub(crate) fn reload(&mut self) -> Result<()> {
        self.spare_programs();
        self.exempt_cgroups();
        let done = self.read_again();
        self.not_in_force = done.as_ref().err().map(|error| format!("{error:#}"));
        done
    }

    /// What was written while no bursard ran, or was refused by the one before, is read as at a reload: who restarts bursard
    /// may know nothing of it. Where something else has changed by itself that is tried again when that holds.
    pub(crate) fn read_written(&mut self) {
        if !self.accounts.table.is_outdated() {
            return;
        }
        let done = self.read_again();
        self.not_in_force = done.err().map(|error| format!("{error:#}"));
        if let Some(why) = &self.not_in_force {
            tracing::error!("limits are not in force as they are written: {why}");
        }
    }

    fn read_again(&mut self) -> Result<()> {
        self.accounts.forget_absent();
        let (limits, plan) = self.accounts.read_again()?;
        if self.reload == ReloadChoice::Refuse {
            self.refuse_to_kill(&limits, &plan)?;
        }
        self.announce(&plan);
        let before = self.accounts.table.limits().clone();
        self.adopt(limits, plan)?;
        self.accounts.table.note_read();
        self.note_read(&before);
        let count = self.accounts.table.limits().len();
        self.note_reloaded(format!("{count} limits in force"));
        Ok(())
    }

    /// Whoever wrote limits into a file and has them read is asked, too, whether he means it.
    fn refuse_to_kill(&mut self, limits: &Limits, plan: &Plan) -> Result<()> {
        let mut over = self.accounts.over_at_once(plan)?;
        over.retain(|it| !limits.is_forced(&it.entry));
        let Some(first) = over.first() else {
            return Ok(());
        };
        let facts = OverLimit::in_words(
            &over,
            &format!("the limit of {} that holds then", first.limit),
        );
        bail!(
            "{facts}: a reload would kill at once; wait, or choose a larger limit, and reload again (bursar check \
             --live says who would be killed; force = true at the top of the file has it done all the same)"
        )
    }

    /// Records what files of limits say otherwise than limits that were in force `before` they were read.
    pub(crate) fn note_read(&mut self, before: &Limits) {
        let changes = by_files(before, self.accounts.table.limits());
        self.responder.note_changes(changes);
    }

    fn announce(&mut self, plan: &Plan) {
        match self.accounts.over_at_once(plan) {
            Ok(over) => self.responder.announce(&over),
            Err(error) => tracing::warn!(
                "limits are put in force, and it is not known which accounts are over them: {error:#}"
            ),
        }
    }

    pub(crate) fn note_reloaded(&mut self, reason: String) {
        self.responder.note(EventKind::Reloaded, None, reason);
    }

    /// Puts other limits in force; those before hold again when that fails half-way.
    pub(crate) fn adopt(&mut self, limits: Limits, plan: Plan) -> Result<()> {
        self.accounts.adopt(limits, plan)?;
        // What waited is in this plan, too.
        self.delay.clear();
        // So are all accounts that have members here.
        self.retries.done(Task::Limits);
        self.retries.done(Task::Arrivals);
        self.limits_changed();
        Ok(())
    }

    /// Others may pay now than before.
    fn limits_changed(&mut self) {
        let accounts = &mut self.accounts;
        if let Err(error) = self
            .reservations
            .tell_all(&accounts.payers, &mut *accounts.backend)
        {
            tracing::warn!("the kernel half was not told what is reserved: {error:#}");
        }
        self.responder.set_oom_scores(&self.accounts);
        if !self.responder.is_dry_run() {
            self.accounts.table.keep();
        }
        self.expiry
            .await_end(self.accounts.table.limits().nearest_end());
        self.beancounters.watch(self.accounts.table.plan());
        self.keep_margin();
        self.level_watches.review_all(&mut self.accounts);
        self.usage.wake();
        self.responder.ask_noticed(&mut self.accounts);
    }

    /// Ends. With `release` nothing of the kernel half stays, and nobody has a limit any more.
    pub(crate) fn leave(mut self, release: bool) -> Result<()> {
        self.watermarks.finish();
        let (facts, left) = self.accounts.backend.leave(release);
        self.responder.handle_all(facts, &mut self.accounts);
        self.tell_losses();
        self.responder.write_waiting(&mut self.accounts);
        self.usage
            .note(&self.responder.recorder.take_usage_events());
        self.usage.finish(&mut self.accounts);
        self.responder.finish(release);
        left
    }
}
