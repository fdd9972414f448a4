// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket: connections, their lines, their limits. What is asked is answered elsewhere
//! (requests.rs).
//!
//! A client costs at most [`MAX_REQUEST`] bytes on its way in and [`MAX_BACKLOG`] on its way out;
//! one user has at most [`PER_USER`] connections, so that he cannot keep the others out.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bursar_model::{Pid, Uid};
use bursar_protocol::{ErrorKind, LineBuffer, MAX_REQUEST, Refusal, Reply};
use rustix::net::sockopt::socket_peercred;

/// Connections of everybody together.
const EVERYBODY: usize = 4096;
/// Connections of one user that have nothing reserved; root is not counted.
const PER_USER: usize = 16;
/// Connections of one user that have: a process of his that uses tmalloc needs one all its life.
const RESERVING_PER_USER: usize = 512;
/// Bytes a client may leave unread before it is disconnected.
const MAX_BACKLOG: usize = 16 << 20;

/// Names a connection for as long as it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientId(u64);

/// What becomes of a connection after a line was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// It may ask again.
    Ask,
    /// It gets events from now on.
    Follow,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    uid: Uid,
    pid: Pid,
    is_reserving: bool,
    lines: LineBuffer,
    unsent: Vec<u8>,
    /// It is waited for until it takes more.
    is_backlogged: bool,
    is_following: bool,
    is_closing: bool,
}

/// The socket and its connections.
#[derive(Debug)]
pub(crate) struct Control {
    path: PathBuf,
    listener: UnixListener,
    clients: BTreeMap<ClientId, Client>,
    next: u64,
    /// Connections refused or cut because of a bound.
    pub(crate) cut: u64,
}

/// A whole line that somebody sent.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) client: ClientId,
    pub(crate) uid: Uid,
    /// Who connected; who inherited the connection is not told apart.
    pub(crate) pid: Pid,
    pub(crate) line: Vec<u8>,
}

impl ClientId {
    pub(crate) const fn to_token(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_token(token: u64) -> Self {
        Self(token)
    }
}

impl Control {
    /// Listens at `path`; a socket that a dead daemon left there is replaced (the caller holds the
    /// lock that says it is dead). Client ids begin at `first`.
    pub(crate) fn listen(path: &Path, first: u64) -> Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove the old socket {path:?}"));
            }
            _ => {}
        }
        let listener = UnixListener::bind(path).with_context(|| format!("listen at {path:?}"))?;
        listener
            .set_nonblocking(true)
            .context("make the socket non-blocking")?;
        // Anybody may ask about himself; who asks is known from the kernel.
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))
            .with_context(|| format!("open {path:?} to all users"))?;
        Ok(Self {
            path: path.to_owned(),
            listener,
            clients: BTreeMap::new(),
            next: first,
            cut: 0,
        })
    }

    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    pub(crate) fn fd_of(&self, id: ClientId) -> Option<BorrowedFd<'_>> {
        self.clients.get(&id).map(|client| client.stream.as_fd())
    }

    /// Whether the connection waits to be writable, if that is not as it was when this was asked last.
    pub(crate) fn backlog_changed(&mut self, id: ClientId) -> Option<bool> {
        let client = self.clients.get_mut(&id)?;
        let is_backlogged = !client.unsent.is_empty();
        let was = std::mem::replace(&mut client.is_backlogged, is_backlogged);
        (was != is_backlogged).then_some(is_backlogged)
    }

    /// Lets in whoever waits at the door; returns the new connections.
    pub(crate) fn accept(&mut self) -> Vec<ClientId> {
        let mut admitted = Vec::new();
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return admitted,
                Err(error) => {
                    tracing::warn!(%error, "a client could not be let in");
                    return admitted;
                }
            };
            let Ok(credentials) = socket_peercred(&stream) else {
                continue;
            };
            let uid = Uid::new(credentials.uid.as_raw());
            let number = u32::try_from(credentials.pid.as_raw_nonzero().get()).unwrap_or(0);
            let own = |is_reserving: bool| {
                let same = |it: &&Client| it.uid == uid && it.is_reserving == is_reserving;
                self.clients.values().filter(same).count()
            };
            let is_crowded = uid.get() != 0
                && (own(false) >= PER_USER
                    || own(true) >= RESERVING_PER_USER
                    || self.clients.len() >= EVERYBODY);
            if is_crowded || stream.set_nonblocking(true).is_err() {
                self.turn_away(stream);
                continue;
            }
            let id = ClientId(self.next);
            self.next = self.next.saturating_add(1);
            let lines = LineBuffer::new(MAX_REQUEST);
            let client = Client {
                stream,
                uid,
                pid: Pid::new(number),
                is_reserving: false,
                lines,
                unsent: Vec::new(),
                is_backlogged: false,
                is_following: false,
                is_closing: false,
            };
            self.clients.insert(id, client);
            admitted.push(id);
        }
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

    /// Reads what a client has sent. `None`: it is gone.
    pub(crate) fn read(&mut self, id: ClientId) -> Option<Vec<Asked>> {
        let client = self.clients.get_mut(&id)?;
        let mut asked = Vec::new();
        let mut piece = [0; 8 << 10];
        loop {
            let read = client.stream.read(&mut piece);
            // What fits is all there was: what comes later wakes us again.
            let is_all = matches!(read, Ok(count) if count < piece.len());
            match read {
                Ok(0) => {
                    // It will hear what is still unsent; then the connection ends.
                    if asked.is_empty() && client.unsent.is_empty() {
                        self.clients.remove(&id);
                        return None;
                    }
                    client.is_closing = true;
                    return Some(asked);
                }
                Ok(count) => client.lines.push(piece.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(asked),
                Err(_) => {
                    self.clients.remove(&id);
                    return None;
                }
            }
            loop {
                match client.lines.next_line() {
                    Ok(Some(line)) => asked.push(Asked {
                        client: id,
                        uid: client.uid,
                        pid: client.pid,
                        line,
                    }),
                    Ok(None) => break,
                    Err(error) => {
                        let refusal = Refusal {
                            kind: ErrorKind::BadRequest,
                            message: error.to_string(),
                        };
                        client.unsent.extend(to_line(&Reply::Refused(refusal)));
                        client.is_closing = true;
                        self.cut = self.cut.saturating_add(1);
                        return Some(asked);
                    }
                }
            }
            if is_all {
                return Some(asked);
            }
        }
    }

    /// Its process has something reserved: it counts apart from those that only ask.
    pub(crate) fn set_reserving(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.is_reserving = true;
        }
    }

    /// Ends a connection.
    pub(crate) fn hang_up(&mut self, id: ClientId) {
        self.clients.remove(&id);
    }

    /// Sends a reply, as far as the client takes it now.
    pub(crate) fn reply(&mut self, id: ClientId, reply: &Reply, after: After) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.unsent.extend(to_line(reply));
            client.is_following |= after == After::Follow;
        }
    }

    /// Sends an event to whoever follows and may see it. Returns those now waiting to be writable.
    pub(crate) fn publish(&mut self, line: &[u8], may_see: impl Fn(Uid) -> bool) -> Vec<ClientId> {
        let mut waiting = Vec::new();
        for (&id, client) in &mut self.clients {
            if client.is_following && may_see(client.uid) {
                client.unsent.extend_from_slice(line);
                waiting.push(id);
            }
        }
        waiting
    }

    /// Writes what a client can take. `false`: it is gone.
    pub(crate) fn flush(&mut self, id: ClientId) -> bool {
        let Some(client) = self.clients.get_mut(&id) else {
            return false;
        };
        let mut sent = 0;
        let is_alive = loop {
            let rest = client.unsent.get(sent..).unwrap_or_default();
            if rest.is_empty() {
                break !client.is_closing;
            }
            match client.stream.write(rest) {
                Ok(0) => break false,
                Ok(count) => sent = sent.saturating_add(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break true,
                Err(_) => break false,
            }
        };
        client.unsent.drain(..sent.min(client.unsent.len()));
        if client.unsent.is_empty() {
            client.unsent.shrink_to(4 << 10);
        }
        if client.unsent.len() > MAX_BACKLOG {
            self.cut = self.cut.saturating_add(1);
            tracing::warn!(
                uid = client.uid.get(),
                "a client that does not read was disconnected"
            );
            self.clients.remove(&id);
            return false;
        }
        if !is_alive {
            self.clients.remove(&id);
        }
        is_alive
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
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
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
