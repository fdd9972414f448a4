// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop: waits for the kernel half, clients, signals and the reaper, and does nothing while
//! nothing happens.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result};
use bursar_model::Uid;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use crate::control::{After, ClientId, Control, to_line};
use crate::recorder::Recorder;
use crate::requests;
use crate::reservations::Asker;
use crate::signals::{Signalled, Signals};
use crate::steward::Steward;

const GOVERNOR: u64 = 0;
const LISTENER: u64 = 1;
const SIGNALS: u64 = 2;
const REAPER: u64 = 3;
const OOM: u64 = 4;
const COURTESY: u64 = 5;
const BEANCOUNTERS: u64 = 7;
const AUDITOR: u64 = 6;
/// Clients are numbered from here on.
pub(crate) const FIRST_CLIENT: u64 = 16;

/// With a client's number: the process behind that client, which has something reserved.
const PROCESS: u64 = 1 << 63;

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
    watch.add(watch.control.listener(), LISTENER)?;
    watch.add(signals.as_fd(), SIGNALS)?;
    watch.add(watch.steward.reaper().as_fd(), REAPER)?;
    watch.add(watch.steward.courtesy().as_fd(), COURTESY)?;
    watch.add(watch.steward.auditor().as_fd(), AUDITOR)?;
    watch.add(watch.steward.beancounters.as_fd(), BEANCOUNTERS)?;
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
    }; 64];
    loop {
        let count = match epoll::wait(&watch.epoll, &mut happened, None) {
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error).context("wait for events"),
        };
        for event in happened.iter().take(count) {
            match event.data.u64() {
                GOVERNOR => watch.steward.attend()?,
                LISTENER => watch.admit(),
                REAPER => watch.steward.collect_news()?,
                OOM => watch.steward.attend_oom(),
                COURTESY => watch.steward.insist(),
                BEANCOUNTERS => watch.steward.look_at_beancounters(),
                AUDITOR => watch.answer_later(),
                SIGNALS => match signals.take() {
                    Some(Signalled::End) => return Ok(Ended::Asked),
                    Some(Signalled::Reload) => watch.reload(),
                    None => {}
                },
                token if token & PROCESS != 0 => {
                    watch.process_ended(ClientId::from_token(token & !PROCESS));
                }
                token => watch.serve(ClientId::from_token(token)),
            }
        }
        watch.publish();
    }
}

impl Watch<'_> {
    fn add(&self, fd: BorrowedFd<'_>, token: u64) -> Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN)
            .context("watch a descriptor")
    }

    fn admit(&mut self) {
        for id in self.control.accept() {
            let Some(fd) = self.control.fd_of(id) else {
                continue;
            };
            let interest = EventFlags::IN | EventFlags::RDHUP;
            if let Err(error) =
                epoll::add(&self.epoll, fd, EventData::new_u64(id.to_token()), interest)
            {
                tracing::warn!(%error, "a client could not be watched");
            }
        }
    }

    fn serve(&mut self, id: ClientId) {
        let Some(asked) = self.control.read(id) else {
            self.steward.release(id);
            return;
        };
        let was_reserving = self.steward.reservations.process_of(id).is_some();
        for one in asked {
            let asker = Asker {
                client: one.client,
                uid: one.uid,
                pid: one.pid,
            };
            if let Some((reply, after)) = requests::answer(self.steward, asker, &one.line) {
                self.control.reply(one.client, &reply, after);
            }
        }
        if !was_reserving {
            self.watch_process(id);
        }
        self.flush(id);
    }

    /// What could not be answered at once.
    fn answer_later(&mut self) {
        if let Some((client, found)) = self.steward.ledger_checked() {
            let reply = requests::ledger_checked(self.steward, found);
            self.control.reply(client, &reply, After::Ask);
            self.flush(client);
        }
    }

    /// A connection may outlive its process in a child's hands; the reservation must not.
    fn watch_process(&mut self, id: ClientId) {
        let Some(fd) = self.steward.reservations.process_of(id) else {
            return;
        };
        let token = EventData::new_u64(id.to_token() | PROCESS);
        let watched = epoll::add(&self.epoll, fd, token, EventFlags::IN);
        if let Err(error) = watched {
            tracing::warn!(%error, "a process with a reservation could not be watched");
            self.steward.release(id);
            self.control.hang_up(id);
            return;
        }
        self.control.set_reserving(id);
    }

    fn process_ended(&mut self, id: ClientId) {
        self.steward.release(id);
        self.control.hang_up(id);
    }

    /// Writes what can be written, and waits for room only while there is something to write.
    fn flush(&mut self, id: ClientId) {
        if !self.control.flush(id) {
            self.steward.release(id);
            return;
        }
        let Some(is_backlogged) = self.control.backlog_changed(id) else {
            return;
        };
        let Some(fd) = self.control.fd_of(id) else {
            return;
        };
        let mut interest = EventFlags::IN | EventFlags::RDHUP;
        if is_backlogged {
            interest |= EventFlags::OUT;
        }
        // A closed descriptor leaves the epoll by itself.
        let _ = epoll::modify(&self.epoll, fd, EventData::new_u64(id.to_token()), interest);
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
                uid.get() == 0 || Recorder::concerns(&event, uid, own)
            };
            for id in self.control.publish(&line, may_see) {
                self.flush(id);
            }
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
