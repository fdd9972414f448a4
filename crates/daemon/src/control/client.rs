// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection: a line comes in, its answer goes out, and only then comes the next line. What its
//! owner does not read he has to wait for; he costs us no more than one answer.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use bursar_host::peek;
use bursar_model::{Pid, Uid};
use bursar_protocol::{ErrorKind, LineBuffer, MAX_REQUEST, MAX_ROOT_REQUEST, Refusal, Reply};
use rustix::event::epoll::EventFlags;

use super::bounds::CountedAs;
use super::line::to_line;
use super::listener::Accepted;
use super::requester::Socket;

/// Bytes of events a client may leave unread before it is disconnected.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// Bytes of answers after which a turn ends.
const TURN_BYTES: usize = 64 << 10;

/// Room for what this user may ask.
const fn lines_for(uid: Uid) -> LineBuffer {
    LineBuffer::new(match uid.get() {
        0 => MAX_ROOT_REQUEST,
        _ => MAX_REQUEST,
    })
}

/// What is to become of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Stays,
    Ends,
}

#[derive(Debug)]
pub(super) struct Client {
    stream: UnixStream,
    takes_descriptors: bool,
    pub(super) uid: Uid,
    /// Who connected; who inherited the connection is not told apart.
    pub(super) pid: Pid,
    /// Who pays for its owner, and as whom he is counted (listener.rs).
    pub(super) payer: Uid,
    pub(super) counts_as: Uid,
    pub(super) socket: Socket,
    pub(super) is_reserving: bool,
    pub(super) is_following: bool,
    /// For a level of an account.
    pub(super) is_watching: bool,
    lines: LineBuffer,
    /// The line to be answered next.
    line: Option<Vec<u8>>,
    /// There is more to read, for later.
    has_more: bool,
    /// It is in the queue of those who wait for an answer.
    pub(super) is_waiting: bool,
    unsent: Vec<u8>,
    /// Bytes of events among what has been unsent without a break.
    event_bytes: usize,
    /// What the epoll waits for.
    watched: EventFlags,
    /// It has hung up before its turn: the epoll has it no more.
    pub(super) is_watched_no_more: bool,
    /// An answer comes later.
    pub(super) is_owed: bool,
    /// Nothing more will come in.
    is_closing: bool,
}

impl Client {
    pub(super) fn new(accepted: Accepted) -> Self {
        Self {
            stream: accepted.stream,
            takes_descriptors: accepted.takes_descriptors,
            uid: accepted.uid,
            pid: accepted.pid,
            payer: accepted.payer,
            counts_as: accepted.counts_as,
            socket: accepted.socket,
            is_reserving: false,
            is_following: false,
            is_watching: false,
            lines: lines_for(accepted.uid),
            line: None,
            has_more: false,
            is_waiting: false,
            unsent: Vec::new(),
            event_bytes: 0,
            watched: EventFlags::IN,
            is_watched_no_more: false,
            is_owed: false,
            is_closing: false,
        }
    }

    /// With whose others it is counted.
    pub(super) const fn counted_as(&self) -> CountedAs {
        CountedAs {
            socket: self.socket,
            uid: self.counts_as,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// The connection, if closing it may take long.
    pub(super) fn into_stream(self) -> Option<UnixStream> {
        self.takes_descriptors.then_some(self.stream)
    }

    /// Takes in what has come, a piece at most. Returns whether it was cut for asking too much.
    pub(super) fn read(&mut self) -> bool {
        self.has_more = self.line.is_some();
        if self.is_closing || self.has_more {
            return false;
        }
        let mut piece = [0; 8 << 10];
        let mut room = piece.len();
        if self.takes_descriptors {
            // What is read comes with its descriptors, and closing those may take long (closer.rs).
            match peek(&self.stream, &mut piece) {
                Ok((_, true)) => {
                    self.unsent.clear();
                    self.is_closing = true;
                    return true;
                }
                Ok((count, false)) => room = count,
                // What comes between this and a read would not have been looked at.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // What is left is looked through when it is closed.
                Err(_) => {
                    self.unsent.clear();
                    self.is_closing = true;
                    return false;
                }
            }
        }
        match self.stream.read(piece.get_mut(..room).unwrap_or_default()) {
            Ok(0) => self.is_closing = true,
            Ok(count) => self.lines.push(piece.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => {
                self.is_closing = true;
                self.unsent.clear();
            }
        }
        self.find_line()
    }

    fn find_line(&mut self) -> bool {
        match self.lines.next_line() {
            Ok(line) => self.line = line,
            Err(error) => {
                let refusal = Refusal {
                    kind: ErrorKind::BadRequest,
                    reserved: None,
                    message: error.to_string(),
                };
                self.send(&to_line(&Reply::Refused(refusal)));
                self.lines = lines_for(self.uid);
                self.is_closing = true;
                return true;
            }
        }
        false
    }

    /// What has come is for when it is its turn.
    pub(super) fn put_off(&mut self) {
        self.has_more = true;
    }

    /// Whether there is something to do for it, and it has taken every answer so far.
    pub(super) fn is_ready(&self) -> bool {
        (self.line.is_some() || self.has_more) && self.unsent.is_empty() && !self.is_owed
    }

    /// The line to be answered now; and whether it was cut for asking too much.
    pub(super) fn take_line(&mut self) -> (Option<Vec<u8>>, bool) {
        let is_cut = self.line.is_none() && self.has_more && self.read();
        self.has_more = false;
        let line = self.line.take();
        let is_cut = is_cut || (line.is_some() && self.find_line());
        (line, is_cut)
    }

    pub(super) fn send(&mut self, line: &[u8]) {
        self.unsent.extend_from_slice(line);
    }

    /// Whether what is to be sent to it is enough for one turn.
    pub(super) fn has_much_to_say(&self) -> bool {
        self.unsent.len() > TURN_BYTES
    }

    /// Bytes that its owner has not read yet.
    pub(super) fn unread(&self) -> usize {
        self.unsent.len()
    }

    /// Sends an event. Returns whether its owner has left more of them unread than are kept for him.
    pub(super) fn tell(&mut self, event: &[u8]) -> bool {
        self.send(event);
        self.event_bytes = self.event_bytes.saturating_add(event.len());
        self.event_bytes > MAX_EVENT_BYTES
    }

    /// Writes what it can take.
    pub(super) fn flush(&mut self) -> Fate {
        let mut sent = 0;
        loop {
            let rest = self.unsent.get(sent..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            match self.stream.write(rest) {
                Ok(count @ 1..) => sent = sent.saturating_add(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Nobody hears the answers any more; what was asked counts all the same, to its end.
                Ok(0) | Err(_) => {
                    self.unsent.clear();
                    self.has_more = !self.is_closing;
                    break;
                }
            }
        }
        self.unsent.drain(..sent.min(self.unsent.len()));
        self.event_bytes = self.event_bytes.min(self.unsent.len());
        if self.unsent.is_empty() {
            self.unsent.shrink_to(4 << 10);
        }
        let is_last = self.is_closing || (self.is_watched_no_more && !self.has_more);
        let has_ended = is_last && self.line.is_none() && !self.is_owed;
        if has_ended && self.unsent.is_empty() {
            Fate::Ends
        } else {
            Fate::Stays
        }
    }

    /// What the epoll is to wait for, if that has changed: room for what is unsent, or else another line,
    /// unless there is one already. Its end is told of in any case.
    pub(super) fn watch_for(&mut self) -> Option<EventFlags> {
        if self.is_watched_no_more {
            return None;
        }
        let wanted = if !self.unsent.is_empty() {
            EventFlags::OUT
        } else if self.has_more || self.is_closing {
            EventFlags::empty()
        } else {
            EventFlags::IN
        };
        (std::mem::replace(&mut self.watched, wanted) != wanted).then_some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Client, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let accepted = Accepted {
            stream: ours,
            takes_descriptors: true,
            uid: Uid::new(60001),
            pid: Pid::new(7),
            payer: Uid::new(60001),
            counts_as: Uid::new(60001),
            socket: Socket::Requests,
        };
        (Client::new(accepted), theirs)
    }

    #[test]
    fn lines_come_one_by_one_however_many_were_sent() {
        let (mut client, mut theirs) = pair();
        theirs.write_all(b"one\ntwo\nth").unwrap();
        assert!(!client.read());
        assert_eq!(client.take_line(), (Some(b"one".to_vec()), false));
        assert_eq!(client.take_line(), (Some(b"two".to_vec()), false));
        assert_eq!(client.take_line(), (None, false));
        theirs.write_all(b"ree\n").unwrap();
        assert!(!client.read());
        assert_eq!(client.take_line(), (Some(b"three".to_vec()), false));
    }

    #[test]
    fn what_was_asked_counts_also_where_nobody_hears_the_answers() {
        let (mut client, mut theirs) = pair();
        theirs.write_all(b"one\n").unwrap();
        client.read();
        assert_eq!(client.take_line(), (Some(b"one".to_vec()), false));
        theirs.write_all(b"two\n").unwrap();
        drop(theirs);
        for line in [Some(b"two".to_vec()), None] {
            client.send(b"answer\n");
            assert_eq!(client.flush(), Fate::Stays);
            assert!(client.is_ready());
            assert_eq!(client.take_line(), (line, false));
        }
        assert_eq!(client.flush(), Fate::Ends);
    }

    #[test]
    fn who_has_hung_up_before_his_turn_ends_with_his_last_line() {
        let (mut client, mut theirs) = pair();
        theirs.write_all(b"one\ntwo").unwrap();
        drop(theirs);
        client.put_off();
        client.is_watched_no_more = true;
        assert_eq!((client.flush(), client.watch_for()), (Fate::Stays, None));
        assert_eq!(client.take_line(), (Some(b"one".to_vec()), false));
        assert_eq!(client.flush(), Fate::Ends);
    }

    #[test]
    fn no_more_is_read_while_a_line_waits() {
        let (mut client, mut theirs) = pair();
        theirs.write_all(b"one\n").unwrap();
        client.read();
        assert_eq!(client.watch_for(), None);
        theirs.write_all(b"two\n").unwrap();
        client.read();
        assert_eq!(client.watch_for(), Some(EventFlags::empty()));
        assert_eq!(client.take_line(), (Some(b"one".to_vec()), false));
        assert_eq!(client.watch_for(), Some(EventFlags::IN));
        client.read();
        assert_eq!(client.take_line(), (Some(b"two".to_vec()), false));
    }

    #[test]
    fn what_was_put_off_is_read_when_it_is_its_turn() {
        let (mut client, mut theirs) = pair();
        theirs.write_all(b"on").unwrap();
        client.put_off();
        assert!(client.is_ready());
        assert_eq!(client.watch_for(), Some(EventFlags::empty()));
        assert_eq!(client.take_line(), (None, false));
        assert!(!client.is_ready());
        assert_eq!(client.watch_for(), Some(EventFlags::IN));
        theirs.write_all(b"e\n").unwrap();
        client.put_off();
        assert_eq!(client.take_line(), (Some(b"one".to_vec()), false));
    }

    #[test]
    fn who_leaves_an_answer_unread_is_not_ready_for_the_next() {
        let (mut client, mut theirs) = pair();
        theirs.write_all(b"one\n").unwrap();
        client.read();
        client.send(&vec![b'x'; 4 << 20]);
        assert_eq!(client.flush(), Fate::Stays);
        assert!(!client.is_ready());
        assert_eq!(client.watch_for(), Some(EventFlags::OUT));
        theirs.set_nonblocking(true).unwrap();
        let mut piece = vec![0; 1 << 20];
        while !client.is_ready() {
            while theirs.read(&mut piece).is_ok() {}
            assert_eq!(client.flush(), Fate::Stays);
        }
        assert_eq!(client.watch_for(), Some(EventFlags::IN));
    }

    #[test]
    fn root_may_ask_for_more_than_others() {
        let room = |uid| {
            let mut lines = lines_for(Uid::new(uid));
            lines.push(&[b'x'; MAX_REQUEST]);
            lines.next_line().is_ok()
        };
        assert!(room(0) && !room(60001));
    }

    #[test]
    fn a_line_too_long_is_refused_and_ends_it() {
        let (mut client, mut theirs) = pair();
        let mut is_cut = false;
        for _ in 0..=MAX_REQUEST / (8 << 10) {
            theirs.write_all(&[b'x'; 8 << 10]).unwrap();
            is_cut |= client.read();
        }
        assert!(is_cut);
        assert_eq!(client.flush(), Fate::Ends);
        let mut answer = [0; 64];
        assert!(theirs.read(&mut answer).unwrap() > 0);
        assert!(answer.starts_with(b"{\"refused\""));
    }

    #[test]
    fn who_hangs_up_is_answered_what_he_asked_before() {
        let (mut client, mut theirs) = pair();
        theirs.write_all(b"one\n").unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        client.read();
        assert_eq!(client.take_line(), (Some(b"one".to_vec()), false));
        client.read();
        client.send(b"answer\n");
        assert_eq!(client.flush(), Fate::Ends);
        let mut answer = String::new();
        drop(client);
        theirs.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer\n");
    }

    #[test]
    fn events_that_nobody_reads_are_kept_up_to_a_bound() {
        let (mut client, _theirs) = pair();
        let event = [b'x'; 1 << 10];
        let told = (0..10_000).position(|_| {
            let is_behind = client.tell(&event);
            client.flush();
            is_behind
        });
        let kept = told.unwrap() << 10;
        assert!(
            (MAX_EVENT_BYTES..2 * MAX_EVENT_BYTES).contains(&kept),
            "{kept}"
        );
    }
}
