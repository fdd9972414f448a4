// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket: who is connected, whose request is next and what he may cost. What is asked is
//! answered elsewhere (requests.rs).
//!
//! A client costs at most [`MAX_REQUEST`](bursar_protocol::MAX_REQUEST) bytes on its way in and one answer
//! on its way out (client.rs); one user has at most so many connections (bounds.rs) and a share of our time
//! (scheduler.rs), so that he cannot keep the others out, or us from our work.

mod admission;
mod bounds;
mod client;
mod closer;
mod connection_count;
mod followers;
mod line;
mod listener;
mod requester;
mod scheduler;
mod turn;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_host::clock;
use bursar_model::Uid;
use bursar_policy::Subordinates;
use bursar_protocol::{Reply, events_socket, root_socket};
use bursar_watchdog::TimedQuery;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;

use self::bounds::{Bounds, CountedAs};
use self::client::{Client, Fate};
use self::closer::Closer;
use self::connection_count::ConnectionCount;
use self::listener::Listener;
use self::scheduler::Scheduler;

pub(crate) use self::admission::AdmissionCounters;
pub(crate) use self::line::to_line;
pub(crate) use self::requester::{ClientId, Requester, Socket};
pub(crate) use self::turn::After;

/// Connections of one user that have: a process of his that uses tmalloc needs one all its life.
pub(crate) const RESERVING_PER_USER: usize = 512;

/// Connections of one user that wait for a level of an account.
pub(crate) const WATCHING_PER_USER: usize = 128;

/// With a client's number: the process behind that client, which has something reserved.
const PROCESS: u64 = 1 << 63;
/// Numbers that are no client's: everybody's listener, root's, and that of who hears events.
const LISTENERS: u64 = 3;
/// Which of them is root's alone.
const OF_ROOT: usize = 1;
const EVENTS: usize = 2;

/// The socket and its connections.
#[derive(Debug)]
pub(crate) struct Control {
    listeners: [Listener; LISTENERS as usize],
    epoll: rustix::fd::OwnedFd,
    clients: BTreeMap<ClientId, Client>,
    closer: Closer,
    /// Connections that have something reserved, and those that wait for a level.
    reserving: ConnectionCount,
    watching: ConnectionCount,
    next: u64,
    scheduler: Scheduler,
    cut: u64,
    /// Who has gone since this was asked for last.
    gone: Vec<ClientId>,
}

impl Control {
    /// Listens at `path`, and for root beside it, as [`Listener::open`] says.
    pub(crate) fn listen(
        path: &Path,
        timed_query: impl Fn() -> Result<TimedQuery>,
    ) -> Result<Self> {
        // Anybody may ask about himself; who asks is known from the kernel.
        let listeners = [
            Listener::open(path, 0o666, Socket::Requests, timed_query()?)?,
            Listener::open(&root_socket(path), 0o600, Socket::Requests, timed_query()?)?,
            Listener::open(&events_socket(path), 0o600, Socket::Events, timed_query()?)?,
        ];
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("make an epoll")?;
        for (token, listener) in (0..LISTENERS).zip(&listeners) {
            epoll::add(&epoll, listener, EventData::new_u64(token), EventFlags::IN)
                .context("watch a socket")?;
        }
        Ok(Self {
            listeners,
            epoll,
            clients: BTreeMap::new(),
            closer: Closer::new(),
            reserving: ConnectionCount::default(),
            watching: ConnectionCount::default(),
            next: LISTENERS,
            scheduler: Scheduler::default(),
            cut: 0,
            gone: Vec::new(),
        })
    }

    /// Hears what clients have sent, lets in whoever is at the listener, and writes where there is room. Who has a
    /// subordinate uid counts as the user who has that.
    pub(crate) fn hear(&mut self, subordinates: &Subordinates) {
        let mut happened = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 64];
        let count = epoll::wait(&self.epoll, &mut happened, Some(&Timespec::default()));
        let began = own_time();
        let mut heard = Vec::new();
        let mut pressed = Vec::new();
        for event in happened.iter().take(count.unwrap_or(0)) {
            match event.data.u64() {
                token @ 0..LISTENERS => pressed.push(token as usize),
                token if token & PROCESS != 0 => {
                    self.end(ClientId::from_token(token & !PROCESS));
                }
                token => heard.extend(self.attend(ClientId::from_token(token), event.flags)),
            }
        }
        self.charge(&heard, began);
        for which in pressed {
            self.let_in(which, subordinates);
        }
    }

    /// What was done since then was done for these.
    fn charge(&mut self, uids: &[Uid], began: Duration) -> Duration {
        let spent = own_time().saturating_sub(began);
        let now = moment();
        let each = u32::try_from(uids.len())
            .ok()
            .and_then(|count| spent.checked_div(count));
        for &uid in uids {
            self.scheduler.charge(uid, each.unwrap_or(spent), now);
        }
        spent
    }

    /// Something has become of a connection. Returns whose it is.
    fn attend(&mut self, id: ClientId, flags: EventFlags) -> Option<Uid> {
        let client = self.clients.get_mut(&id)?;
        let uid = client.counts_as;
        let is_spent = self.scheduler.is_spent(uid, moment());
        let has_hung_up = flags.contains(EventFlags::HUP);
        if has_hung_up && client.is_owed {
            // Nobody is there any more to take an answer.
            self.end(id);
        } else if !is_spent {
            self.cut = self.cut.saturating_add(client.read().into());
        } else {
            client.put_off();
            if has_hung_up {
                // What it has sent counts when it is its turn; until then it would be told of again and again.
                client.is_watched_no_more = true;
                let _ = epoll::delete(&self.epoll, client.fd());
            }
        }
        self.flush(id);
        Some(uid)
    }

    /// Sends a reply that could not be given at once.
    pub(crate) fn reply(&mut self, id: ClientId, reply: &Reply) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.is_owed = false;
            client.send(&to_line(reply));
        }
        self.flush(id);
    }

    /// A thread has worked so long for a user.
    pub(crate) fn charge_for(&mut self, uid: Uid, spent: Duration) {
        self.scheduler.charge(uid, spent, moment());
    }

    /// How long there is nothing to do unless something happens; `None`: nobody waits.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let now = moment();
        let listeners = self
            .listeners
            .iter()
            .filter_map(|listener| listener.timeout(now));
        self.scheduler
            .timeout(now)
            .into_iter()
            .chain(listeners)
            .min()
    }

    fn end(&mut self, id: ClientId) {
        if let Some(client) = self.clients.remove(&id) {
            let who = client.counted_as();
            self.scheduler.leave(who.uid, id);
            self.gone.push(id);
            if client.is_reserving {
                self.reserving.take(who);
            }
            if client.is_watching {
                self.watching.take(who);
            }
            let _ = epoll::delete(&self.epoll, client.fd());
            if let Some(stream) = client.into_stream() {
                self.closer.close(stream, who);
            }
        }
    }

    /// Who has gone since this was asked for last.
    pub(crate) fn take_gone(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.gone)
    }

    /// Writes what a client can take, and sees to it that it is heard and answered next.
    fn flush(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let who = client.counted_as();
        if client.flush() == Fate::Ends {
            return self.end(id);
        }
        if client.unread() > 0 && who.uid.get() != 0 && self.is_full_of(who) {
            self.cut = self.cut.saturating_add(1);
            return self.end(id);
        }
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if client.is_ready() && !client.is_waiting {
            client.is_waiting = true;
            self.scheduler.line_up(client.counts_as, id);
        }
        if let Some(interest) = client.watch_for() {
            let token = EventData::new_u64(id.to_token());
            if let Err(error) = epoll::modify(&self.epoll, client.fd(), token, interest) {
                tracing::warn!(%error, "a client could not be watched");
                self.end(id);
            }
        }
    }

    /// Whether more is kept for a user, or for everybody, than may be.
    fn is_full_of(&self, who: CountedAs) -> bool {
        let bounds = Bounds::of(who.socket);
        let mine = |it: &&Client| it.counted_as() == who;
        let users = self.clients.values();
        let users = users.filter(|it| it.uid.get() != 0 && it.socket == who.socket);
        let all: usize = users.clone().map(Client::unread).sum();
        let own: usize = users.filter(mine).map(Client::unread).sum();
        own > bounds.unread_per_user || all > bounds.unread
    }
}

impl AsFd for Control {
    /// Readable when [`Control::hear`] is to be called.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Time on a clock that nobody sets.
fn moment() -> Duration {
    Duration::from_nanos(clock::monotonic().get())
}

/// Processor time of this thread: who asks pays for what we do, not for what the machine does beside.
fn own_time() -> Duration {
    Duration::from_nanos(clock::thread_cpu_time().get())
}
