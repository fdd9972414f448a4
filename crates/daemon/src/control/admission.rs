// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is let in at the listeners, who is turned away, and which connections count apart from those that only ask.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bursar_policy::Subordinates;
use bursar_protocol::{ErrorKind, Refusal, Reply};
use rustix::event::epoll::{self, EventData, EventFlags};

use super::bounds::{Bounds, CountedAs};
use super::client::Client;
use super::line::to_line;
use super::listener::{Accepted, Listener};
use super::requester::{ClientId, Requester, Socket};
use super::turn::Turn;
use super::{Control, OF_ROOT, PROCESS, RESERVING_PER_USER, WATCHING_PER_USER, moment, own_time};

/// Connections let in before we look what else there is.
const AT_ONCE: usize = 32;
/// When most of those had no business here, letting people in takes one part in so many of a processor.
const ACCEPT_PART: u32 = 10;
/// How long nobody is let in when nobody can be let in, for want of descriptors or memory.
const FAILED: Duration = Duration::from_millis(100);

/// What became of those who ask for more than is theirs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AdmissionCounters {
    /// Connections refused or cut because of a bound.
    pub(crate) cut: u64,
    /// Requests that had to wait until their user had time of ours again.
    pub(crate) delayed: u64,
    /// Whether one more connection of this user may have something reserved.
    pub(crate) may_reserve: bool,
    /// Whether one more may wait for a level.
    pub(crate) may_watch: bool,
}

impl Control {
    /// Lets in who waits at the listener; never all of them, for they may come as fast as they are let in.
    pub(super) fn let_in(&mut self, which: usize, subordinates: &Subordinates) {
        let socket = self.listeners.get(which).map(Listener::socket);
        if socket.is_some_and(|it| self.closer.is_full(it)) && which != OF_ROOT {
            self.pause(which, FAILED);
            return;
        }
        let began = own_time();
        let mut counted_users = Vec::new();
        let mut unwelcome = 0_usize;
        for _ in 0..AT_ONCE {
            let listener = self.listeners.get_mut(which);
            match listener.map(|it| it.next(subordinates)) {
                Some(Ok(Some(accepted))) => {
                    counted_users.push(accepted.counts_as);
                    let is_spent = self.scheduler.is_spent(accepted.counts_as, moment());
                    let is_unwelcome = !self.admit(accepted) || is_spent;
                    unwelcome = unwelcome.saturating_add(is_unwelcome.into());
                }
                Some(Ok(None)) | None => break,
                Some(Err(error)) => {
                    tracing::warn!(%error, "a client could not be let in");
                    self.pause(which, FAILED);
                    break;
                }
            }
        }
        let spent = self.charge(&counted_users, began);
        if unwelcome > counted_users.len() / 2 {
            self.pause(which, spent * (ACCEPT_PART - 1));
        }
    }

    fn pause(&mut self, which: usize, pause: Duration) {
        if let Some(listener) = self.listeners.get_mut(which) {
            listener.pause(moment().saturating_add(pause));
            watch_listener(&self.epoll, which, listener, EventFlags::empty());
        }
    }

    /// Opens what was shut for long enough.
    pub(super) fn resume_listeners(&mut self) {
        for (which, listener) in self.listeners.iter_mut().enumerate() {
            if listener.resumes(moment()) {
                watch_listener(&self.epoll, which, listener, EventFlags::IN);
            }
        }
    }

    /// Whether there is room for him.
    fn admit(&mut self, accepted: Accepted) -> bool {
        if accepted.uid.get() != 0 && self.is_over_quota(accepted.counted_as()) {
            self.turn_away(accepted);
            return false;
        }
        let id = ClientId::from_token(self.next);
        self.next = self.next.saturating_add(1);
        let token = EventData::new_u64(id.to_token());
        if let Err(error) = epoll::add(&self.epoll, &accepted.stream, token, EventFlags::IN) {
            tracing::warn!(%error, "a client could not be watched");
            self.turn_away(accepted);
            return false;
        }
        self.clients.insert(id, Client::new(accepted));
        true
    }

    /// Whether one more connection of this user may have something reserved.
    pub(super) fn may_reserve(&self, who: CountedAs) -> bool {
        who.uid.get() == 0
            || (self.reserving.of(who) < RESERVING_PER_USER && self.has_room_to_stay(who.socket))
    }

    /// Whether one more may wait for a level.
    pub(super) fn may_watch(&self, who: CountedAs) -> bool {
        who.uid.get() == 0
            || (self.watching.of(who) < WATCHING_PER_USER && self.has_room_to_stay(who.socket))
    }

    /// How it stands, and stands for whose turn it is.
    pub(crate) fn admission(&self, turn: &Turn) -> AdmissionCounters {
        let Requester {
            client,
            counts_as: uid,
            socket,
            ..
        } = turn.requester;
        let who = CountedAs { socket, uid };
        AdmissionCounters {
            may_reserve: self.may_reserve(who) || self.is_reserving(client),
            may_watch: self.may_watch(who)
                || self.clients.get(&client).is_some_and(|it| it.is_watching),
            cut: self.cut,
            delayed: self.scheduler.delayed,
        }
    }

    /// Its process has something reserved: it counts apart from those that only ask. A connection may
    /// outlive its process in a child's hands; it ends with the process that `process` becomes readable
    /// for.
    pub(crate) fn set_reserving(&mut self, id: ClientId, process: BorrowedFd<'_>) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.is_reserving = true;
        self.reserving.add(client.counted_as());
        let token = EventData::new_u64(id.to_token() | PROCESS);
        if let Err(error) = epoll::add(&self.epoll, process, token, EventFlags::IN) {
            tracing::warn!(%error, "a process with a reservation could not be watched");
            self.end(id);
        }
    }

    /// Its process has a reservation of its own, whose end is noticed elsewhere: the connection counts apart
    /// from those that only ask, while there is room.
    pub(crate) fn count_as_reserving(&mut self, id: ClientId) {
        let who = self.clients.get(&id).map(Client::counted_as);
        if who.is_some_and(|who| self.may_reserve(who))
            && let Some(client) = self.clients.get_mut(&id).filter(|it| !it.is_reserving)
        {
            client.is_reserving = true;
            self.reserving.add(client.counted_as());
        }
    }

    /// It waits for a level of an account, or does no more: while it does it counts apart from those that ask.
    pub(crate) fn set_watching(&mut self, id: ClientId, is_watching: bool) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let who = client.counted_as();
        match (
            std::mem::replace(&mut client.is_watching, is_watching),
            is_watching,
        ) {
            (false, true) => self.watching.add(who),
            (true, false) => self.watching.take(who),
            _ => {}
        }
    }

    /// Whether its process is known to have something reserved.
    pub(crate) fn is_reserving(&self, id: ClientId) -> bool {
        self.clients.get(&id).is_some_and(|it| it.is_reserving)
    }

    /// Connections that reserve or wait stay for long: a quarter of the places is for those who only ask.
    fn has_room_to_stay(&self, socket: Socket) -> bool {
        let stay = self
            .reserving
            .sum(socket)
            .saturating_add(self.watching.sum(socket));
        stay < Bounds::of(socket).everybody / 4 * 3
    }

    fn is_over_quota(&self, who: CountedAs) -> bool {
        let bounds = Bounds::of(who.socket);
        let clients = || self.clients.values();
        let asking = |it: &&Client| it.counted_as() == who && !it.is_reserving && !it.is_watching;
        let own = clients().filter(asking).count();
        let all = clients().filter(|it| it.socket == who.socket).count();
        own.saturating_add(self.closer.of(who)) >= bounds.per_user
            || all.saturating_add(self.closer.by(who.socket)) >= bounds.everybody
    }

    fn turn_away(&mut self, accepted: Accepted) {
        let who = accepted.counted_as();
        self.cut = self.cut.saturating_add(1);
        let refusal = Refusal {
            kind: ErrorKind::Failed,
            reserved: None,
            message: "too many connections are open; close one of yours, or try again later"
                .to_owned(),
        };
        let mut stream = accepted.stream;
        // Best effort: it fits the socket's buffer, and if it does not arrive nothing is lost.
        let _ = stream.write_all(&to_line(&Reply::Refused(refusal)));
        if accepted.takes_descriptors {
            self.closer.close(stream, who);
        }
    }
}

fn watch_listener(epoll: impl AsFd, which: usize, listener: &Listener, interest: EventFlags) {
    let token = EventData::new_u64(which as u64);
    if let Err(error) = epoll::modify(epoll, listener, token, interest) {
        tracing::error!(%error, "a control socket cannot be watched any more");
    }
}
