// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop: waits for the kernel half, clients, signals and the reaper, and does nothing while
//! nothing happens.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result};
use bursar_model::Uid;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use crate::control::{ClientId, Control, to_line};
use crate::recorder::Recorder;
use crate::requests;
use crate::signals::{Signalled, Signals};
use crate::steward::Steward;

const GOVERNOR: u64 = 0;
const LISTENER: u64 = 1;
const SIGNALS: u64 = 2;
const REAPER: u64 = 3;
/// Clients are numbered from here on.
pub(crate) const FIRST_CLIENT: u64 = 16;

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
                REAPER => watch.steward.collect_reaped(),
                SIGNALS => match signals.take() {
                    Some(Signalled::End) => return Ok(Ended::Asked),
                    Some(Signalled::Reload) => watch.reload(),
                    None => {}
                },
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
            return;
        };
        for one in asked {
            let (reply, after) = requests::answer(self.steward, one.uid, &one.line);
            self.control.reply(one.client, &reply, after);
        }
        self.flush(id);
    }

    /// Writes what can be written, and waits for room only while there is something to write.
    fn flush(&mut self, id: ClientId) {
        if !self.control.flush(id) {
            return;
        }
        let Some(fd) = self.control.fd_of(id) else {
            return;
        };
        let mut interest = EventFlags::IN | EventFlags::RDHUP;
        if self.control.is_backlogged(id) {
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
