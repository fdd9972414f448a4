// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon at work: what is done when something happens, and who is answered when.

use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use bursar_config::{BackendChoice, Config, Loaded};
use bursar_host::{gid_in_file, thread};
use bursar_model::{Gid, Uid};

use crate::control::{Control, to_line};
use crate::daemon::Daemon;
use crate::event_loop::EventLoop;
use crate::log;
use crate::requests;
use crate::signals::{Signalled, Signals};

const GO_ON: Result<ControlFlow<()>> = Ok(ControlFlow::Continue(()));

pub(crate) struct Service {
    pub(crate) daemon: Daemon,
    pub(crate) control: Control,
    pub(crate) signals: Signals,
    /// Who besides root may hear all events.
    pub(crate) events_group: Option<String>,
    /// The file of the configuration, where it is not the usual one.
    pub(crate) config: Option<PathBuf>,
    /// What of it was read at the start.
    pub(crate) running: Config,
    /// Said on the command line: it wins over the file at the next start, too.
    pub(crate) trigger: Option<BackendChoice>,
}

/// The group's number now. A group that comes later is let in then.
pub(crate) fn events_gid(name: Option<&str>) -> Option<Gid> {
    let path = Path::new("/etc/group");
    let found = gid_in_file(path, name?);
    found.unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "only root can read the events of all");
        None
    })
}

impl Service {
    /// Runs until asked to end.
    pub(crate) fn run(&mut self) -> Result<()> {
        let event_loop = self.event_loop()?;
        // What happened before the loop began.
        self.daemon.attend_backend()?;
        self.publish();
        event_loop.run(self, Self::timeout, Self::serve)
    }

    fn event_loop(&self) -> Result<EventLoop<Self>> {
        let mut events = EventLoop::<Self>::new()?;
        let Daemon {
            accounts,
            responder,
            beancounters,
            ledger_checker,
            reservations,
            usage,
            ..
        } = &self.daemon;
        events.register(accounts.backend.wake(), |it| {
            it.daemon.attend_backend()?;
            GO_ON
        })?;
        events.register(responder.reaper.as_fd(), |it| {
            it.daemon.collect_reaps()?;
            GO_ON
        })?;
        if let Some(oom) = responder.oom() {
            events.register(oom, |it| {
                it.daemon.responder.attend_oom(&mut it.daemon.accounts);
                GO_ON
            })?;
        }
        if let Some(pressure) = responder.pressure() {
            events.register_priority(pressure, |it| {
                it.daemon
                    .responder
                    .hear_of_shortage(&mut it.daemon.accounts);
                GO_ON
            })?;
        }
        events.register(responder.graceful(), |it| {
            it.daemon.responder.insist(&mut it.daemon.accounts);
            GO_ON
        })?;
        events.register(beancounters.as_fd(), |it| {
            it.daemon.scan_beancounters();
            GO_ON
        })?;
        events.register(accounts.table.names().as_fd(), |it| {
            it.daemon.names_answered();
            GO_ON
        })?;
        events.register(self.daemon.expiry.as_fd(), |it| {
            it.daemon.limit_ends();
            GO_ON
        })?;
        events.register(self.daemon.delay.as_fd(), |it| {
            it.daemon.delay_is_over();
            GO_ON
        })?;
        events.register(self.daemon.retries.as_fd(), |it| {
            it.daemon.try_again();
            GO_ON
        })?;
        if let Some(files) = accounts.table.files().wake() {
            events.register(files, |it| {
                if it.daemon.account_files_changed() {
                    it.control
                        .let_hear_events(events_gid(it.events_group.as_deref()));
                }
                GO_ON
            })?;
        }
        events.register(accounts.arrivals(), |it| {
            it.daemon.look_for_arrivals();
            GO_ON
        })?;
        events.register(accounts.subuid_users(), |it| {
            it.daemon.look_for_subuid_users();
            GO_ON
        })?;
        if let Some(subuid) = accounts.table.subuid().wake() {
            events.register(subuid, |it| {
                it.daemon.subuid_changed();
                GO_ON
            })?;
        }
        if let Some(groups) = self.daemon.exempt.wake() {
            events.register(groups, |it| {
                it.daemon.cgroups_changed();
                GO_ON
            })?;
        }
        if let Some(programs) = self.daemon.spared_programs.wake() {
            events.register(programs, |it| {
                it.daemon.programs_changed();
                GO_ON
            })?;
        }
        events.register(ledger_checker.as_fd(), |it| {
            it.answer_ledger_check();
            GO_ON
        })?;
        if let Some(timer) = self.daemon.watermarks.wake() {
            events.register(timer, |it| {
                it.daemon.tell_watermarks();
                GO_ON
            })?;
        }
        events.register(usage.as_fd(), |it| {
            it.daemon.observe_usage();
            GO_ON
        })?;
        if let Some(answers) = usage.answers() {
            events.register(answers, |it| {
                it.answer_usage();
                GO_ON
            })?;
        }
        if let Some(threads) = thread::wake() {
            events.register(threads, |_| {
                thread::check();
                GO_ON
            })?;
        }
        events.register(reservations.as_fd(), |it| {
            it.daemon.release_ended();
            GO_ON
        })?;
        events.register(self.control.as_fd(), |it| {
            let plan = it.daemon.accounts.table.plan();
            it.control.hear(&plan.subordinates);
            GO_ON
        })?;
        events.register(self.signals.as_fd(), Self::attend_signals)?;
        Ok(events)
    }

    fn timeout(&self) -> Option<Duration> {
        let of_daemon = self.daemon.responder.timeout();
        self.control.timeout().into_iter().chain(of_daemon).min()
    }

    fn attend_signals(&mut self) -> Result<ControlFlow<()>> {
        match self.signals.take() {
            Some(Signalled::End) => return Ok(ControlFlow::Break(())),
            Some(Signalled::Reload) => self.reload(),
            None => {}
        }
        GO_ON
    }

    /// Gives one client its turn. No request delays what happens: between any two turns the loop looks for that.
    fn serve(&mut self) {
        let daemon = &mut self.daemon;
        daemon.responder.review_shortage(&mut daemon.accounts);
        self.release_gone();
        // Before somebody new follows: what has happened by now is in its answer.
        self.publish();
        self.answer_next();
        self.publish();
        self.release_gone();
        let daemon = &mut self.daemon;
        daemon.responder.note_unwritten(&mut daemon.accounts);
    }

    fn answer_next(&mut self) {
        let Some(turn) = self.control.next() else {
            return;
        };
        self.daemon.admission = self.control.admission(&turn);
        let requester = turn.requester;
        while let Some(line) = self.control.line_of(&turn) {
            let reply = requests::answer(&mut self.daemon, requester, &line);
            self.control.answer(&turn, reply);
            if self.daemon.level_watches.has(requester.client) {
                self.control.set_watching(requester.client, true);
            }
            if !self.control.is_reserving(requester.client) {
                let reservations = &self.daemon.reservations;
                if let Some(process) = reservations.process_of(requester.client) {
                    self.control.set_reserving(requester.client, process);
                } else if reservations.has_of_process(requester.pid) {
                    self.control.count_as_reserving(requester.client);
                }
            }
        }
        self.control.end_turn(&turn);
    }

    /// What clients had reserved goes with them.
    fn release_gone(&mut self) {
        for gone in self.control.take_gone() {
            self.daemon.release(gone);
        }
    }

    /// A ledger check takes its time: its answer comes later.
    fn answer_ledger_check(&mut self) {
        if let Some((client, found)) = self.daemon.ledger_checker.drain() {
            let reply = requests::ledger_checked(&mut self.daemon.accounts, found);
            self.control.reply(client, &reply);
        }
    }

    /// Files take their time, which is the asker's: the rest of it was charged when he asked.
    fn answer_usage(&mut self) {
        let uid_min = self.daemon.accounts.uid_min();
        for answered in self.daemon.usage.drain() {
            let reply = requests::usage_found(answered.found, uid_min);
            self.control.charge_for(answered.counts_as, answered.spent);
            self.control.reply(answered.client, &reply);
        }
    }

    /// Tells who has waited for a level, and sends fresh events to those who follow.
    fn publish(&mut self) {
        for (client, reply) in self.daemon.level_watches.take_told() {
            self.control.reply(client, &reply);
            let goes_on = self.daemon.level_watches.has(client);
            self.control.set_watching(client, goes_on);
        }
        for event in self.daemon.responder.take_fresh() {
            let line = to_line(&event);
            let accounts = &mut self.daemon.accounts;
            let mut names: Vec<(Uid, Vec<String>)> = Vec::new();
            for uid in self.control.followers() {
                names.push((uid, requests::own_names(accounts, uid)));
            }
            let may_see = |uid: Uid| {
                let own = names.iter().find(|(it, _)| *it == uid);
                let own = own.map(|(_, own)| own.as_slice()).unwrap_or_default();
                requests::may_see(&event, uid, own)
            };
            self.control.publish(&line, may_see);
        }
    }

    fn reload(&mut self) {
        let _ = sd_notify::notify(
            false,
            &[
                sd_notify::NotifyState::Reloading,
                sd_notify::NotifyState::monotonic_usec_now()
                    .unwrap_or(sd_notify::NotifyState::Ready),
            ],
        );
        match Config::load(self.config.as_deref()) {
            Ok(loaded) => self.take_configuration(loaded),
            Err(error) => tracing::error!("bursar.toml is not read again: {error}"),
        }
        if let Err(error) = self.daemon.reload() {
            tracing::error!("the limits stay as they were: {error:#}");
        }
        let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    }

    /// Of bursar.toml the level of the log and the hint hold at once, the rest at the next start. Who had it read again may
    /// think otherwise, and a service would die that was exempt a moment before: it is said what is not in force.
    fn take_configuration(&mut self, loaded: Loaded) {
        let mut config = loaded.config;
        log::set_level(config.log.level);
        self.daemon.responder.set_hint(config.messages.hint.clone());
        for remark in &loaded.remarks {
            tracing::warn!("{remark}");
        }
        if let Some(trigger) = self.trigger {
            config.trigger = trigger;
        }
        let at_once = Config {
            log: config.log,
            messages: config.messages.clone(),
            ..self.running.clone()
        };
        let changes = at_once.changes(&config);
        self.daemon.awaits_restart = (!changes.is_empty()).then(|| {
            format!(
                "bursar.toml has changed, and this is in force after `systemctl restart bursard` only: {}",
                changes.join(", ")
            )
        });
        if let Some(remark) = &self.daemon.awaits_restart {
            tracing::warn!("{remark}");
        }
    }
}
