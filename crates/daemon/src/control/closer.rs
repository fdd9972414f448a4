// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections closed. A client may pass descriptors over its connection (SCM_RIGHTS), and closing those
//! can take as long as he likes: kernels from 6.16 on let us refuse them; before, who passes any is closed
//! by a thread of his own, and counts as connected until that is done.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use bursar_host::{peek, thread};

use super::bounds::CountedAs;
use super::connection_count::ConnectionCount;
use super::requester::Socket;

/// Of a thread that closes one connection, bytes.
const STACK: usize = 64 << 10;
/// So many of one socket are closed at a time. Meanwhile nobody is let in there who could add to them: each is a
/// descriptor and a thread of bursard's, for as long as who connected likes.
const MOST: usize = 1024;

type Handover = Arc<Mutex<Option<UnixStream>>>;

/// Closes connections, without waiting for any.
#[derive(Debug)]
pub(super) struct Closer {
    tell: Sender<CountedAs>,
    told: Receiver<CountedAs>,
    /// Connections whose closing takes its time.
    open: ConnectionCount,
    /// Those for which there was no thread: left open rather than waited for, and tried again.
    given_up: Vec<(Handover, CountedAs)>,
}

impl Closer {
    pub(super) fn new() -> Self {
        let (tell, told) = channel();
        Self {
            tell,
            told,
            open: ConnectionCount::default(),
            given_up: Vec::new(),
        }
    }

    /// Closes a connection over which descriptors may have been passed.
    pub(super) fn close(&mut self, stream: UnixStream, who: CountedAs) {
        // From here on nothing can be added to what is to be looked through.
        let _ = stream.shutdown(Shutdown::Both);
        if !has_descriptors(&stream) {
            return;
        }
        tracing::debug!(
            uid = who.uid.get(),
            "descriptors were passed to bursard; closed aside"
        );
        self.open.add(who);
        self.close_by_thread(stream, who);
    }

    fn close_by_thread(&mut self, stream: UnixStream, who: CountedAs) {
        let handover: Handover = Arc::new(Mutex::new(Some(stream)));
        let (theirs, tell) = (Arc::clone(&handover), self.tell.clone());
        let closing = thread::spawn_small("closer", STACK, move || {
            let stream = theirs.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(stream);
            let _ = tell.send(who);
        });
        if let Err(error) = closing {
            tracing::warn!(%error, "a connection over which descriptors were passed stays open for now");
            self.given_up.push((handover, who));
        }
    }

    /// A user's connections that are not closed yet.
    pub(super) fn of(&self, who: CountedAs) -> usize {
        self.open.of(who)
    }

    /// Whether no more of a socket's connections can be closed for now. Whoever fills one keeps nobody from another.
    pub(super) fn is_full(&mut self, socket: Socket) -> bool {
        for done in self.told.try_iter() {
            self.open.take(done);
        }
        if let Some((handover, who)) = self.given_up.pop() {
            let stream = handover
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            stream
                .into_iter()
                .for_each(|it| self.close_by_thread(it, who));
        }
        self.by(socket) >= MOST
    }

    /// Everybody's by one socket.
    pub(super) fn by(&self, socket: Socket) -> usize {
        self.open.sum(socket)
    }
}

fn has_descriptors(stream: &UnixStream) -> bool {
    let unread = rustix::io::ioctl_fionread(stream).unwrap_or(0);
    let Ok(unread @ 1..) = usize::try_from(unread) else {
        return false;
    };
    peek(stream, &mut vec![0; unread]).is_ok_and(|(_, passed)| passed)
}

#[cfg(test)]
mod tests {
    use bursar_model::Uid;

    use super::*;

    #[test]
    fn requests_that_are_closed_keep_nobody_from_events() {
        let mut closer = Closer::new();
        let who = |number: usize| CountedAs {
            socket: Socket::Requests,
            uid: Uid::new(u32::try_from(number).unwrap()),
        };
        for number in 0..MOST {
            assert!(!closer.is_full(Socket::Requests));
            closer.open.add(who(number));
        }
        assert!(closer.is_full(Socket::Requests));
        assert!(!closer.is_full(Socket::Events));
        closer.tell.send(who(0)).unwrap();
        assert!(!closer.is_full(Socket::Requests));
    }
}
