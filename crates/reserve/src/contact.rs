// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a process reserves for itself ([`Ask::Renew`]). The reservation is the process's, so no descriptor
//! has to stay open: programs that list, close or renumber theirs meet none of ours. Who asks again and
//! again in a short time keeps its connection meanwhile.

use crate::ask::{Ask, Grant, Refused};
use crate::clock::{now_ns, sleep_ns};
use crate::inbox::Inbox;
use crate::socket::{Name, Socket};

/// Where too many ask, the next try follows after this, then after twice as long.
const FIRST_PAUSE_NS: u64 = 200_000;

/// Connections that were closed and may still stand in other tables of descriptors.
const CLOSED: usize = 4;
/// After so many requests that did not find the connection, and none by the thread that opened it, it is closed (by the
/// program, or with a thread that had a table of its own), or it is of less use than one that is found.
const MISSED: u8 = 4;

/// A connection, or none at the moment.
///
/// Threads may have tables of descriptors of their own (unshare(2), close_range(2)). Who finds the
/// connection in another's table asks over one of its own, which it closes. A copy that came with the table
/// is closed when its thread asks next.
#[derive(Debug)]
pub struct Contact {
    socket: Option<Socket>,
    /// The last request was given up, and its answer has not come.
    overdue: Option<Ask>,
    /// It has stayed open from one request to the next.
    is_kept: bool,
    closed: [Option<Name>; CLOSED],
    /// Requests in a row that did not find the connection.
    missed: u8,
}

impl Contact {
    /// No connection.
    pub const NONE: Self = Self {
        socket: None,
        overdue: None,
        is_kept: false,
        closed: [None; CLOSED],
        missed: 0,
    };

    /// Asks the daemon that listens at `path` and waits for its answer, `timeout_ns` in all where it
    /// sleeps. A connection that stays open is waited for once only: until the answer has come, others get
    /// ETIMEDOUT at once.
    ///
    /// # Errors
    /// See [`Refused`]. [`Refused::Busy`] and EAGAIN: too many asked until the time was up.
    pub fn ask(
        &mut self,
        path: &[u8],
        ask: Ask,
        timeout_ns: u64,
        keeps_open: bool,
    ) -> Result<Grant, Refused> {
        if self.overdue.is_some() {
            return Err(Refused::Silent(libc::ETIMEDOUT));
        }
        for name in self.closed.iter().flatten() {
            name.close();
        }
        if !self.socket.as_ref().is_some_and(Socket::is_elsewhere) {
            self.missed = 0;
        } else if self.missed < MISSED {
            self.missed += 1;
            let mut own = Self::NONE;
            return own.ask_until_answered(path, ask, timeout_ns, false);
        } else {
            self.close();
        }
        self.ask_until_answered(path, ask, timeout_ns, keeps_open)
    }

    fn ask_until_answered(
        &mut self,
        path: &[u8],
        ask: Ask,
        timeout_ns: u64,
        keeps_open: bool,
    ) -> Result<Grant, Refused> {
        let until = now_ns().saturating_add(timeout_ns);
        let mut pause = FIRST_PAUSE_NS;
        loop {
            let was_open = self.socket.is_some();
            let answer = self.ask_now(path, ask, timeout_ns);
            match answer {
                Ok(_) | Err(Refused::Full { .. }) if keeps_open => self.is_kept = true,
                Err(Refused::Silent(libc::ETIMEDOUT)) if keeps_open => {
                    self.is_kept = true;
                    self.overdue = Some(ask);
                }
                _ => self.close(),
            }
            match answer {
                // The daemon was started anew, or the program has closed the descriptor.
                Err(Refused::Silent(libc::EPIPE | libc::ECONNRESET | libc::EBADF)) if was_open => {}
                Err(Refused::Busy | Refused::Silent(libc::EAGAIN))
                    if now_ns().saturating_add(pause) < until =>
                {
                    sleep_ns(pause);
                    pause = pause.saturating_mul(2);
                }
                answer => return answer,
            }
        }
    }

    fn ask_now(&mut self, path: &[u8], ask: Ask, timeout_ns: u64) -> Result<Grant, Refused> {
        let socket = self.open(path)?;
        socket.send_or_hear_why(ask)?;
        socket.receive(&mut Inbox::new(), timeout_ns)
    }

    /// The last request, if its answer has not come.
    pub const fn overdue(&self) -> Option<Ask> {
        self.overdue
    }

    /// The answer that was overdue, if it has come or comes within `timeout_ns`: to what, and what.
    pub fn overdue_answer(&mut self, timeout_ns: u64) -> Option<(Ask, Result<Grant, Refused>)> {
        let (ask, socket) = (self.overdue?, self.socket.as_ref()?);
        let mut inbox = Inbox::new();
        let answer = match timeout_ns {
            0 => socket.receive_now(&mut inbox)?,
            timeout_ns => socket.receive(&mut inbox, timeout_ns),
        };
        self.overdue = None;
        if !matches!(answer, Ok(_) | Err(Refused::Full { .. })) {
            self.close();
        }
        Some((ask, answer))
    }

    /// Says something that no answer is waited for.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn tell(&mut self, path: &[u8], ask: Ask) -> Result<(), Refused> {
        if self.socket.as_ref().is_some_and(Socket::is_elsewhere) {
            let mut own = Self::NONE;
            return own.tell(path, ask);
        }
        let told = self.open(path).and_then(|socket| socket.send(ask));
        self.close();
        told
    }

    /// Whether who listens at the other end of the open connection is runnable: its answer is late, but comes.
    pub fn waits_for_processor(&self) -> bool {
        self.socket.as_ref().is_some_and(Socket::daemon_is_runnable)
    }

    fn open(&mut self, path: &[u8]) -> Result<&Socket, Refused> {
        match &mut self.socket {
            Some(socket) => Ok(socket),
            none => Ok(none.insert(Socket::connect(path)?)),
        }
    }

    /// Ends the connection, or this process's copy of its parent's.
    pub fn close(&mut self) {
        self.overdue = None;
        if let Some(socket) = self.socket.take() {
            if self.is_kept {
                self.is_kept = false;
                // slice::rotate_right() can panic, and the machinery for that would come with tmalloc.
                let [first, second, third, _] = self.closed;
                self.closed = [Some(socket.name()), first, second, third];
            }
            socket.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    const REPORT: Ask = Ask::Renew {
        keep: 0,
        untouched: 0,
        pages: 0,
        at_least: 0,
        is_tentative: false,
        refused: 3,
    };

    fn listen(name: &str) -> (UnixListener, String) {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        (listener, path.to_str().unwrap().to_owned())
    }

    #[test]
    fn who_is_turned_away_before_it_asked_hears_that_the_daemon_is_busy() {
        let (listener, path) = listen("turned-away");
        let socket = Socket::connect(path.as_bytes()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let busy = b"{\"refused\":{\"kind\":\"failed\",\"message\":\"too many\"}}\n";
        accepted.write_all(busy).unwrap();
        drop(accepted);
        assert_eq!(socket.send_or_hear_why(REPORT), Err(Refused::Busy));
        socket.close();
        std::fs::remove_file(path).unwrap();
    }

    /// As a program that closes all that it did not open.
    #[test]
    fn a_connection_that_another_thread_closed_is_replaced() {
        let (listener, path) = listen("replaced");
        let server = thread::spawn(move || {
            let mut open = Vec::new();
            for _ in 0..=MISSED + 1 {
                let (mut accepted, _) = listener.accept().unwrap();
                accepted
                    .write_all(b"{\"granted\":{\"pages\":1,\"reserved\":1}}\n")
                    .unwrap();
                open.push(accepted);
            }
            (listener, open)
        });
        let mut contact = Contact::NONE;
        let timeout = 5_000_000_000;
        let first = thread::scope(|scope| {
            let ask = || contact.ask(path.as_bytes(), REPORT, timeout, true);
            scope.spawn(ask).join().unwrap()
        });
        assert!(first.is_ok(), "{first:?}");
        contact.socket.as_ref().unwrap().name().close();
        for _ in 0..=MISSED {
            let next = contact.ask(path.as_bytes(), REPORT, timeout, true);
            assert!(next.is_ok(), "{next:?}");
        }
        let _open = server.join().unwrap();
        let is_kept = contact.socket.as_ref().is_some_and(Socket::is_ours);
        assert!(is_kept, "the next request connects anew");
        std::fs::remove_file(path).unwrap();
    }
}
