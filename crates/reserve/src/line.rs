// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection that a process keeps open: what it reserves over it lasts as long (libbursar).

use crate::ask::{Ask, Refused};
use crate::clock::{now_ns, sleep_ns};
use crate::inbox::Inbox;
use crate::socket::Socket;

/// A daemon that does not answer within this is taken for dead.
const TIMEOUT_NS: u64 = 2_000_000_000;
/// Where too many others wait, the next try follows after this.
const PAUSE_NS: u64 = 1_000_000;

/// A connection and what is reserved over it.
#[derive(Debug)]
pub struct Line {
    socket: Socket,
    /// Pages granted and not given back.
    reserved: u64,
    /// The reply to what was given back is not read yet.
    has_unread: bool,
}

impl Line {
    /// Connects to the daemon that listens at `path`.
    ///
    /// # Errors
    /// [`Refused::Silent`] with ENOENT or ECONNREFUSED when nobody listens, EACCES when we may not ask,
    /// ENAMETOOLONG, EAGAIN when too many others wait.
    pub fn connect(path: &[u8]) -> Result<Self, Refused> {
        let until = now_ns().saturating_add(TIMEOUT_NS);
        loop {
            match Socket::connect(path) {
                Err(Refused::Silent(libc::EAGAIN)) if now_ns() < until => sleep_ns(PAUSE_NS),
                Err(refused) => return Err(refused),
                Ok(socket) => {
                    return Ok(Self {
                        socket,
                        reserved: 0,
                        has_unread: false,
                    });
                }
            }
        }
    }

    /// Asks and waits for the answer: the pages granted or given back.
    ///
    /// # Errors
    /// See [`Refused`]. After [`Refused::Silent`] and [`Refused::Foreign`] the connection is of no use
    /// any more, and nothing is reserved.
    pub fn ask(&mut self, ask: Ask) -> Result<u64, Refused> {
        self.socket.send_or_hear_why(ask)?;
        let mut inbox = Inbox::new();
        self.hear_what_is_unread(&mut inbox)?;
        let grant = self.socket.receive(&mut inbox, TIMEOUT_NS)?;
        match ask {
            Ask::Reserve { .. } => self.reserved = self.reserved.saturating_add(grant.pages),
            Ask::Commit { .. } => self.reserved = self.reserved.saturating_sub(grant.pages),
            Ask::Renew { .. } => {}
        }
        Ok(grant.pages)
    }

    /// Gives back what was granted, and does not wait for the answer: there is only one, and the daemon
    /// reads this before anything that is said later.
    ///
    /// # Errors
    /// [`Refused::Senseless`] for nothing, and for more than is reserved; else as [`Line::ask`].
    pub fn give_back(&mut self, pages: u64) -> Result<(), Refused> {
        if pages == 0 || pages > self.reserved {
            return Err(Refused::Senseless);
        }
        self.hear_what_is_unread(&mut Inbox::new())?;
        self.socket.send(Ask::Commit { pages })?;
        self.has_unread = true;
        self.reserved -= pages;
        Ok(())
    }

    fn hear_what_is_unread(&mut self, inbox: &mut Inbox) -> Result<(), Refused> {
        if !self.has_unread {
            return Ok(());
        }
        self.has_unread = false;
        match self.socket.receive(inbox, TIMEOUT_NS) {
            Ok(_) => Ok(()),
            Err(Refused::Silent(errno)) => Err(Refused::Silent(errno)),
            // It was reserved, by our own books: a daemon that says no has others.
            Err(_) => Err(Refused::Foreign),
        }
    }

    /// Pages reserved over it and not given back.
    pub const fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Ends it.
    pub fn close(self) {
        self.socket.close();
    }
}
