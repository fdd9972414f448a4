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
use crate::daemon::Daemon;
use crate::requests;
use crate::signals::{Signalled, Signals};

const BACKEND: u64 = 0;
const CLIENTS: u64 = 1;
const SIGNALS: u64 = 2;
const REAPER: u64 = 3;
const OOM: u64 = 4;
const GRACEFUL: u64 = 5;
const LEDGER_CHECK: u64 = 6;
const BEANCOUNTERS: u64 = 7;
const NAMES: u64 = 8;
const SUBUID: u64 = 9;

/// Why the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// SIGTERM or SIGINT.
    Asked,
}

struct EventLoop<'a> {
    epoll: rustix::fd::OwnedFd,
    daemon: &'a mut Daemon,
    control: &'a mut Control,
}

/// Runs until asked to end.
pub(crate) fn run(daemon: &mut Daemon, control: &mut Control, signals: &Signals) -> Result<Ended> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("make an epoll")?;
    let mut event_loop = EventLoop {
        epoll,
        daemon,
        control,
    };
    event_loop.add(event_loop.daemon.backend.wake(), BACKEND)?;
    event_loop.add(event_loop.control.as_fd(), CLIENTS)?;
    event_loop.add(signals.as_fd(), SIGNALS)?;
    event_loop.add(event_loop.daemon.reaper().as_fd(), REAPER)?;
    event_loop.add(event_loop.daemon.graceful().as_fd(), GRACEFUL)?;
    event_loop.add(event_loop.daemon.ledger_checker().as_fd(), LEDGER_CHECK)?;
    event_loop.add(event_loop.daemon.beancounters.as_fd(), BEANCOUNTERS)?;
    event_loop.add(event_loop.daemon.limit_table.names().as_fd(), NAMES)?;
    if let Some(subuid) = event_loop.daemon.limit_table.subuid().wake() {
        event_loop.add(subuid, SUBUID)?;
    }
    if let Some(oom) = event_loop.daemon.oom() {
        epoll::add(
            &event_loop.epoll,
            oom,
            EventData::new_u64(OOM),
            EventFlags::IN,
        )
        .context("watch the OOM killer")?;
    }
    // What happened before we looked.
    event_loop.daemon.attend()?;
    event_loop.publish();
    let mut happened = [epoll::Event {
        flags: EventFlags::empty(),
        data: EventData::new_u64(0),
    }; 16];
    loop {
        // Nobody's request keeps us from what happens: between any two of them we look.
        let patience = event_loop.control.patience().map(to_timespec);
        let count = match epoll::wait(&event_loop.epoll, &mut happened, patience.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error).context("wait for events"),
        };
        for event in happened.iter().take(count) {
            match event.data.u64() {
                BACKEND => event_loop.daemon.attend()?,
                CLIENTS => event_loop.control.hear(),
                REAPER => event_loop.daemon.collect_news()?,
                OOM => event_loop.daemon.attend_oom(),
                GRACEFUL => event_loop.daemon.insist(),
                BEANCOUNTERS => event_loop.daemon.scan_beancounters(),
                NAMES => event_loop.daemon.names_answered(),
                SUBUID => event_loop.daemon.subuid_changed(),
                LEDGER_CHECK => event_loop.answer_later(),
                SIGNALS => match signals.take() {
                    Some(Signalled::End) => return Ok(Ended::Asked),
                    Some(Signalled::Reload) => event_loop.reload(),
                    None => {}
                },
                _ => {}
            }
        }
        event_loop.release_gone();
        // Before somebody new follows: what has happened by now he is answered.
        event_loop.publish();
        event_loop.serve();
        event_loop.publish();
        event_loop.release_gone();
    }
}

fn to_timespec(patience: Duration) -> Timespec {
    Timespec::try_from(patience).unwrap_or_default()
}

impl EventLoop<'_> {
    fn add(&self, fd: BorrowedFd<'_>, token: u64) -> Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN)
            .context("watch a descriptor")
    }

    /// Answers whose turn it is.
    fn serve(&mut self) {
        let Some(turn) = self.control.next() else {
            return;
        };
        self.daemon.admission = self.control.admission(&turn);
        let requester = turn.requester;
        while let Some(line) = self.control.line_of(&turn) {
            let reply = requests::answer(self.daemon, requester, &line);
            self.control.answer(&turn, reply);
            if !self.control.is_reserving(requester.client)
                && let Some(process) = self.daemon.reservations.process_of(requester.client)
            {
                self.control.set_reserving(requester.client, process);
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

    /// What could not be answered at once.
    fn answer_later(&mut self) {
        if let Some((client, found)) = self.daemon.ledger_checked() {
            let reply = requests::ledger_checked(self.daemon, found);
            self.control.reply(client, &reply);
        }
    }

    /// Sends fresh events to those who follow.
    fn publish(&mut self) {
        for event in self.daemon.take_fresh() {
            let line = to_line(&event);
            let payers = self.daemon.payers();
            let mut names: Vec<(Uid, Option<String>)> = Vec::new();
            for uid in self.control.followers() {
                let own = payers.of(uid).map(|(id, _)| self.daemon.account_name(id));
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
        if let Err(error) = self.daemon.reload() {
            tracing::error!("the limits stay as they were: {error:#}");
        }
        let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    }
}
