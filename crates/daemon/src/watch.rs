// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop: waits for the kernel half, clients, signals and the reaper, and does nothing while
//! nothing happens.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_model::Uid;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::control::{Control, to_line};
use crate::requests;
use crate::signals::{Signalled, Signals};
use crate::steward::Steward;

const GOVERNOR: u64 = 0;
const CLIENTS: u64 = 1;
const SIGNALS: u64 = 2;
const REAPER: u64 = 3;
const OOM: u64 = 4;
const COURTESY: u64 = 5;
const AUDITOR: u64 = 6;
const BEANCOUNTERS: u64 = 7;
const NAMES: u64 = 8;
const SUBUID: u64 = 9;

/// Why the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// SIGTERM or SIGINT.
    Asked,
}

struct Watch<'a> {
    epoll: rustix::fd::OwnedFd,
    steward: &'a mut Steward,
    control: &'a mut Control,
}

/// Runs until asked to end.
pub(crate) fn watch(
    steward: &mut Steward,
    control: &mut Control,
    signals: &Signals,
) -> Result<Ended> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("make an epoll")?;
    let mut watch = Watch {
        epoll,
        steward,
        control,
    };
    watch.add(watch.steward.governor.wake(), GOVERNOR)?;
    watch.add(watch.control.as_fd(), CLIENTS)?;
    watch.add(signals.as_fd(), SIGNALS)?;
    watch.add(watch.steward.reaper().as_fd(), REAPER)?;
    watch.add(watch.steward.courtesy().as_fd(), COURTESY)?;
    watch.add(watch.steward.auditor().as_fd(), AUDITOR)?;
    watch.add(watch.steward.beancounters.as_fd(), BEANCOUNTERS)?;
    watch.add(watch.steward.roster.names().as_fd(), NAMES)?;
    if let Some(subuid) = watch.steward.roster.subuid().wake() {
        watch.add(subuid, SUBUID)?;
    }
    if let Some(oom) = watch.steward.oom() {
        epoll::add(&watch.epoll, oom, EventData::new_u64(OOM), EventFlags::IN)
            .context("watch the OOM killer")?;
    }
    // What happened before we looked.
    watch.steward.attend()?;
    watch.publish();
    let mut happened = [epoll::Event {
        flags: EventFlags::empty(),
        data: EventData::new_u64(0),
    }; 16];
    loop {
        // Nobody's request keeps us from what happens: between any two of them we look.
        let patience = watch.control.patience().map(to_timespec);
        let count = match epoll::wait(&watch.epoll, &mut happened, patience.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error).context("wait for events"),
        };
        for event in happened.iter().take(count) {
            match event.data.u64() {
                GOVERNOR => watch.steward.attend()?,
                CLIENTS => watch.control.hear(),
                REAPER => watch.steward.collect_news()?,
                OOM => watch.steward.attend_oom(),
                COURTESY => watch.steward.insist(),
                BEANCOUNTERS => watch.steward.look_at_beancounters(),
                NAMES => watch.steward.names_answered(),
                SUBUID => watch.steward.subuid_changed(),
                AUDITOR => watch.answer_later(),
                SIGNALS => match signals.take() {
                    Some(Signalled::End) => return Ok(Ended::Asked),
                    Some(Signalled::Reload) => watch.reload(),
                    None => {}
                },
                _ => {}
            }
        }
        watch.release_gone();
        // Before somebody new follows: what has happened by now he is answered.
        watch.publish();
        watch.serve();
        watch.publish();
        watch.release_gone();
    }
}

fn to_timespec(patience: Duration) -> Timespec {
    Timespec::try_from(patience).unwrap_or_default()
}

impl Watch<'_> {
    fn add(&self, fd: BorrowedFd<'_>, token: u64) -> Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN)
            .context("watch a descriptor")
    }

    /// Answers whose turn it is.
    fn serve(&mut self) {
        let Some(turn) = self.control.next() else {
            return;
        };
        self.steward.crowd = self.control.crowd(&turn);
        let asker = turn.asker;
        while let Some(line) = self.control.line_of(&turn) {
            let reply = requests::answer(self.steward, asker, &line);
            self.control.answer(&turn, reply);
            if !self.control.is_reserving(asker.client)
                && let Some(process) = self.steward.reservations.process_of(asker.client)
            {
                self.control.set_reserving(asker.client, process);
            }
        }
        self.control.end_turn(&turn);
    }

    /// What clients had reserved goes with them.
    fn release_gone(&mut self) {
        for gone in self.control.take_gone() {
            self.steward.release(gone);
        }
    }

    /// What could not be answered at once.
    fn answer_later(&mut self) {
        if let Some((client, found)) = self.steward.ledger_checked() {
            let reply = requests::ledger_checked(self.steward, found);
            self.control.reply(client, &reply);
        }
    }

    /// Sends fresh events to those who follow.
    fn publish(&mut self) {
        for event in self.steward.take_fresh() {
            let line = to_line(&event);
            let payers = self.steward.payers();
            let mut names: Vec<(Uid, Option<String>)> = Vec::new();
            for uid in self.control.followers() {
                let own = payers.of(uid).map(|(id, _)| self.steward.account_name(id));
                names.push((uid, own));
            }
            let may_see = |uid: Uid| {
                let own = names
                    .iter()
                    .find(|(it, _)| *it == uid)
                    .and_then(|(_, own)| own.as_deref());
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
        if let Err(error) = self.steward.reload() {
            tracing::error!("the limits stay as they were: {error:#}");
        }
        let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    }
}
