// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket: who is connected, whose request is next and what he may cost. What is asked is
//! answered elsewhere (requests.rs).
//!
//! A client costs at most [`MAX_REQUEST`](bursar_protocol::MAX_REQUEST) bytes on its way in and one answer
//! on its way out (client.rs); one user has at most [`PER_USER`] connections and a share of our time
//! (turns.rs), so that he cannot keep the others out, or us from our work.

mod client;
mod door;
mod turns;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_model::{Pid, Uid};
use bursar_protocol::{ErrorKind, Refusal, Reply, root_socket};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{ClockId, Timespec, clock_gettime};

use self::client::{Client, Fate};
use self::door::{Door, Visitor};
use self::turns::Turns;

/// Connections of everybody together.
const EVERYBODY: usize = 4096;
/// Connections of one user that have nothing reserved; root is not counted.
const PER_USER: usize = 16;
/// Connections of one user that have: a process of his that uses tmalloc needs one all its life.
const RESERVING_PER_USER: usize = 512;

/// Connections let in before we look what else there is.
const AT_ONCE: usize = 32;
/// One connection is answered for so long before others are.
const TURN: Duration = Duration::from_micros(100);
/// When most of those had no business here, letting people in takes one part in so many of a processor.
const DOOR_PART: u32 = 10;
/// How long nobody is let in when nobody can be let in, for want of descriptors or memory.
const FAILED: Duration = Duration::from_millis(100);

/// Names a connection for as long as it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientId(u64);

/// With a client's number: the process behind that client, which has something reserved.
const PROCESS: u64 = 1 << 63;
/// Numbers that are no client's: everybody's door, and root's.
const DOORS: u64 = 2;

/// What becomes of a connection after a line was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// It may ask again.
    Ask,
    /// It gets events from now on.
    Follow,
}

/// What became of those who ask for more than is theirs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Crowd {
    /// Connections refused or cut because of a bound.
    pub(crate) cut: u64,
    /// Requests that had to wait until their user had time of ours again.
    pub(crate) delayed: u64,
}

/// The socket and its connections.
#[derive(Debug)]
pub(crate) struct Control {
    doors: [Door; DOORS as usize],
    epoll: rustix::fd::OwnedFd,
    clients: BTreeMap<ClientId, Client>,
    next: u64,
    turns: Turns,
    cut: u64,
    /// Who has gone since this was asked for last.
    gone: Vec<ClientId>,
}

/// A connection's turn: its lines are answered until [`TURN`] is over.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) client: ClientId,
    pub(crate) uid: Uid,
    /// Who connected; who inherited the connection is not told apart.
    pub(crate) pid: Pid,
    /// Our processor time when it began.
    began: Duration,
    ends: Duration,
}

impl ClientId {
    const fn to_token(self) -> u64 {
        self.0
    }

    const fn from_token(token: u64) -> Self {
        Self(token)
    }
}

impl Control {
    /// Listens at `path`, and for root beside it, as [`Door::open`] says.
    pub(crate) fn listen(path: &Path) -> Result<Self> {
        // Anybody may ask about himself; who asks is known from the kernel.
        let doors = [
            Door::open(path, 0o666)?,
            Door::open(&root_socket(path), 0o600)?,
        ];
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("make an epoll")?;
        for (token, door) in (0..DOORS).zip(&doors) {
            epoll::add(&epoll, door, EventData::new_u64(token), EventFlags::IN)
                .context("watch a socket")?;
        }
        Ok(Self {
            doors,
            epoll,
            clients: BTreeMap::new(),
            next: DOORS,
            turns: Turns::default(),
            cut: 0,
            gone: Vec::new(),
        })
    }

    /// Hears what clients have sent, lets in whoever is at the door, and writes where there is room.
    pub(crate) fn hear(&mut self) {
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
                token @ 0..DOORS => pressed.push(token as usize),
                token if token & PROCESS != 0 => {
                    self.end(ClientId::from_token(token & !PROCESS));
                }
                token => heard.extend(self.attend(ClientId::from_token(token), event.flags)),
            }
        }
        self.charge(&heard, began);
        for which in pressed {
            self.let_in(which);
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
            self.turns.charge(uid, each.unwrap_or(spent), now);
        }
        spent
    }

    /// Lets in who waits at the door; never all of them, for they may come as fast as they are let in.
    fn let_in(&mut self, which: usize) {
        let began = own_time();
        let mut visitors = Vec::new();
        let mut unwelcome = 0_usize;
        for _ in 0..AT_ONCE {
            match self.doors.get(which).map(Door::next) {
                Some(Ok(Some(visitor))) => {
                    visitors.push(visitor.uid);
                    let is_spent = self.turns.is_spent(visitor.uid, moment());
                    let is_unwelcome = !self.admit(visitor) || is_spent;
                    unwelcome = unwelcome.saturating_add(is_unwelcome.into());
                }
                Some(Ok(None)) | None => break,
                Some(Err(error)) => {
                    tracing::warn!(%error, "a client could not be let in");
                    self.shut(which, FAILED);
                    break;
                }
            }
        }
        let spent = self.charge(&visitors, began);
        if unwelcome > AT_ONCE / 2 {
            self.shut(which, spent * (DOOR_PART - 1));
        }
    }

    fn shut(&mut self, which: usize, pause: Duration) {
        if let Some(door) = self.doors.get_mut(which) {
            door.shut(moment().saturating_add(pause));
            watch_door(&self.epoll, which, door, EventFlags::empty());
        }
    }

    /// Opens what was shut for long enough.
    fn open_doors(&mut self) {
        for (which, door) in self.doors.iter_mut().enumerate() {
            if door.opens(moment()) {
                watch_door(&self.epoll, which, door, EventFlags::IN);
            }
        }
    }

    /// Whether there is room for him.
    fn admit(&mut self, visitor: Visitor) -> bool {
        let Visitor { stream, uid, pid } = visitor;
        let own = |is_reserving: bool| {
            let same = |it: &&Client| it.uid == uid && it.is_reserving == is_reserving;
            self.clients.values().filter(same).count()
        };
        let is_crowded = uid.get() != 0
            && (own(false) >= PER_USER
                || own(true) >= RESERVING_PER_USER
                || self.clients.len() >= EVERYBODY);
        if is_crowded {
            self.turn_away(stream);
            return false;
        }
        let id = ClientId(self.next);
        self.next = self.next.saturating_add(1);
        let token = EventData::new_u64(id.to_token());
        if let Err(error) = epoll::add(&self.epoll, &stream, token, EventFlags::IN) {
            tracing::warn!(%error, "a client could not be watched");
            return false;
        }
        self.clients.insert(id, Client::new(stream, uid, pid));
        true
    }

    fn turn_away(&mut self, mut stream: UnixStream) {
        self.cut = self.cut.saturating_add(1);
        let message = "too many connections of this user are open; close one and try again";
        let refusal = Refusal {
            kind: ErrorKind::Failed,
            message: message.to_owned(),
        };
        // A courtesy: it fits the socket's buffer, and if it does not arrive nothing is lost.
        let _ = stream.write_all(&to_line(&Reply::Refused(refusal)));
    }

    /// Something has become of a connection. Returns whose it is.
    fn attend(&mut self, id: ClientId, flags: EventFlags) -> Option<Uid> {
        let client = self.clients.get_mut(&id)?;
        let uid = client.uid;
        if !self.turns.is_spent(uid, moment()) {
            self.cut = self.cut.saturating_add(client.read().into());
        } else if flags.contains(EventFlags::HUP) {
            // Nobody is there any more to take an answer, and it would be told of until then.
            self.end(id);
        } else {
            client.put_off();
        }
        self.flush(id);
        Some(uid)
    }

    /// Whose turn it is.
    pub(crate) fn next(&mut self) -> Option<Turn> {
        self.open_doors();
        let now = moment();
        let id = self.turns.next(now)?;
        let client = self.clients.get_mut(&id)?;
        client.is_waiting = false;
        Some(Turn {
            client: id,
            uid: client.uid,
            pid: client.pid,
            began: own_time(),
            ends: now.saturating_add(TURN),
        })
    }

    /// The line that is to be answered now.
    pub(crate) fn line_of(&mut self, turn: &Turn) -> Option<Vec<u8>> {
        let client = self.clients.get_mut(&turn.client)?;
        if moment() > turn.ends || client.has_much_to_say() {
            return None;
        }
        let (line, is_cut) = client.take_line();
        self.cut = self.cut.saturating_add(is_cut.into());
        line
    }

    /// What is answered; no reply: it comes later.
    pub(crate) fn answer(&mut self, turn: &Turn, reply: Option<(Reply, After)>) {
        if let Some((reply, after)) = reply
            && let Some(client) = self.clients.get_mut(&turn.client)
        {
            client.is_following |= after == After::Follow;
            client.send(&to_line(&reply));
        }
    }

    /// Sends the answers, and charges the user for them.
    pub(crate) fn end_turn(&mut self, turn: &Turn) {
        self.flush(turn.client);
        self.charge(&[turn.uid], turn.began);
    }

    /// Sends a reply that could not be given at once.
    pub(crate) fn reply(&mut self, id: ClientId, reply: &Reply) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.send(&to_line(reply));
        }
        self.flush(id);
    }

    /// How long there is nothing to do unless something happens; `None`: nobody waits.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let now = moment();
        let doors = self.doors.iter().filter_map(|door| door.patience(now));
        self.turns.patience(now).into_iter().chain(doors).min()
    }

    /// Its process has something reserved: it counts apart from those that only ask. A connection may
    /// outlive its process in a child's hands; it ends with the process that `process` becomes readable
    /// for.
    pub(crate) fn set_reserving(&mut self, id: ClientId, process: BorrowedFd<'_>) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.is_reserving = true;
        let token = EventData::new_u64(id.to_token() | PROCESS);
        if let Err(error) = epoll::add(&self.epoll, process, token, EventFlags::IN) {
            tracing::warn!(%error, "a process with a reservation could not be watched");
            self.end(id);
        }
    }

    /// Whether its process is known to have something reserved.
    pub(crate) fn is_reserving(&self, id: ClientId) -> bool {
        self.clients.get(&id).is_some_and(|it| it.is_reserving)
    }

    fn end(&mut self, id: ClientId) {
        // A closed descriptor leaves the epoll by itself.
        if let Some(client) = self.clients.remove(&id) {
            self.turns.leave(client.uid, id);
            self.gone.push(id);
        }
    }

    /// Who has gone since this was asked for last.
    pub(crate) fn take_gone(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.gone)
    }

    /// Sends an event to whoever follows and may see it.
    pub(crate) fn publish(&mut self, line: &[u8], may_see: impl Fn(Uid) -> bool) {
        let follows = |client: &Client| client.is_following && may_see(client.uid);
        let told: Vec<ClientId> = self
            .clients
            .iter()
            .filter_map(|(&id, client)| follows(client).then_some(id))
            .collect();
        for id in told {
            if self.clients.get_mut(&id).is_some_and(|it| it.tell(line)) {
                self.cut = self.cut.saturating_add(1);
                self.end(id);
            } else {
                self.flush(id);
            }
        }
    }

    /// Writes what a client can take, and sees to it that it is heard and answered next.
    fn flush(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if client.flush() == Fate::Ends {
            return self.end(id);
        }
        if client.is_ready() && !client.is_waiting {
            client.is_waiting = true;
            self.turns.line_up(client.uid, id);
        }
        if let Some(interest) = client.watch_for() {
            let token = EventData::new_u64(id.to_token());
            if let Err(error) = epoll::modify(&self.epoll, client.fd(), token, interest) {
                tracing::warn!(%error, "a client could not be watched");
                self.end(id);
            }
        }
    }

    /// The users who follow events.
    pub(crate) fn followers(&self) -> Vec<Uid> {
        let mut users: Vec<Uid> = self
            .clients
            .values()
            .filter(|client| client.is_following)
            .map(|client| client.uid)
            .collect();
        users.sort_unstable();
        users.dedup();
        users
    }

    pub(crate) fn crowd(&self) -> Crowd {
        Crowd {
            cut: self.cut,
            delayed: self.turns.delayed,
        }
    }
}

impl AsFd for Control {
    /// Readable when [`Control::hear`] is to be called.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn watch_door(epoll: impl AsFd, which: usize, door: &Door, interest: EventFlags) {
    let token = EventData::new_u64(which as u64);
    if let Err(error) = epoll::modify(epoll, door, token, interest) {
        tracing::error!(%error, "a control socket cannot be watched any more");
    }
}

/// Time on a clock that nobody sets.
fn moment() -> Duration {
    time(ClockId::Monotonic)
}

/// Processor time of this thread: who asks pays for what we do, not for what the machine does beside.
fn own_time() -> Duration {
    time(ClockId::ThreadCPUTime)
}

fn time(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// A reply as it goes over the wire.
pub(crate) fn to_line(reply: &impl serde::Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(reply).unwrap_or_else(|error| {
        // Only a map with keys that are no text could fail, and the protocol has none.
        format!("{{\"refused\":{{\"kind\":\"failed\",\"message\":\"{error}\"}}}}").into_bytes()
    });
    line.push(b'\n');
    line
}
