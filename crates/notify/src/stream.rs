// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bursard's events, read on from where they were read before, as long as it takes: bursard may end, start again,
//! or begin its numbers anew.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, SyncSender};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use bursar_model::Event;
use bursar_protocol::{Client, EventPage, Operation, Reply};

use crate::message::{Message, StreamItem};
use crate::queue::state::Cursor;

/// How long to wait before another try, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Reads and passes on.
pub(crate) struct Stream {
    socket: PathBuf,
    /// The number read last; `None`: none yet.
    last: Option<u64>,
    /// Its time. Of numbers begun anew events up to then were told already.
    time: String,
    /// Set while numbers begun anew are read.
    not_before: Option<String>,
    out: SyncSender<StreamItem>,
    wake: Sender<Message>,
}

impl Stream {
    /// What is told goes to `out`, and a word of it to `wake`.
    pub(crate) fn new(
        socket: &Path,
        cursor: Option<&Cursor>,
        out: SyncSender<StreamItem>,
        wake: Sender<Message>,
    ) -> Self {
        Self {
            socket: socket.to_owned(),
            last: cursor.map(|it| it.number),
            time: cursor.map_or_else(String::new, |it| it.time.clone()),
            not_before: None,
            out,
            wake,
        }
    }

    /// Reads until nobody takes it.
    pub(crate) fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        let mut is_down = false;
        loop {
            let before = self.last;
            match self.read() {
                Ok(()) => return,
                Err(error) => {
                    if !is_down {
                        tracing::warn!("{error}; tried again until it is there");
                    }
                    is_down = true;
                }
            }
            if self.last != before {
                (pause, is_down) = (FIRST_PAUSE, false);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// `Ok`: nobody listens to us any more.
    fn read(&mut self) -> Result<()> {
        let mut client = Client::connect_to(&self.socket)?;
        loop {
            let reply = client.ask(Operation::Stream { after: self.last })?;
            let page = match reply {
                Reply::Stream(page) => *page,
                Reply::Refused(refusal) => {
                    bail!("bursard refuses to tell events: {}", refusal.message)
                }
                _ => bail!("bursard answers something else than events"),
            };
            if self.last.is_some_and(|last| page.newest < last) {
                self.begin_anew();
                bail!("bursard's events are numbered anew: its history was emptied");
            }
            let is_last = page.is_last;
            if !self.take_page(page) {
                return Ok(());
            }
            if is_last {
                self.not_before = None;
                break;
            }
        }
        tracing::info!(after = self.last, "reading bursard's events");
        while let Some(event) = client.next_event()? {
            if !self.take(event) {
                return Ok(());
            }
        }
        bail!("bursard closed the stream of events: it ended or is being restarted")
    }

    /// All that is there is read, and what was told before known by its time.
    fn begin_anew(&mut self) {
        self.last = Some(0);
        self.not_before = Some(self.time.clone());
    }

    /// Whether somebody listens.
    fn take_page(&mut self, page: EventPage) -> bool {
        if self.last.is_none() {
            self.last = Some(page.newest);
            return self.pass(StreamItem::Begins(page.newest));
        }
        for event in page.events {
            if !self.take(event) {
                return false;
            }
        }
        let last = self.last.unwrap_or(0);
        if page.is_last && page.newest > last {
            self.last = Some(page.newest);
            let (number, count) = (page.newest, page.newest - last);
            return self.pass(StreamItem::Missed { number, count });
        }
        true
    }

    fn take(&mut self, event: Event) -> bool {
        let last = self.last.unwrap_or(0);
        // Of a bursard that gives no numbers, and of what was read already.
        let Some(number) = event.number.filter(|it| *it > last) else {
            return true;
        };
        self.last = Some(number);
        let missed = number - last - 1;
        self.time.clone_from(&event.time);
        if self.not_before.as_ref().is_some_and(|it| event.time <= *it) {
            return true;
        }
        self.pass(StreamItem::Event(Box::new(event), missed))
    }

    fn pass(&self, told: StreamItem) -> bool {
        self.out.send(told).is_ok() && self.wake.send(Message::Fresh).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::{channel, sync_channel};

    use bursar_model::EventKind;
    use bursar_protocol::Request;

    use super::*;

    fn event(number: u64, second: u64) -> Event {
        let mut event = Event::new(EventKind::Kill);
        event.number = Some(number);
        event.time = format!("2026-11-26T07:00:{second:02}.000000Z");
        event
    }

    fn page(newest: u64, events: Vec<Event>, is_last: bool) -> Reply {
        Reply::Stream(Box::new(EventPage {
            newest,
            events,
            is_last,
        }))
    }

    /// One connection: each answer, what was asked for it, and then events until it closes.
    fn serve(listener: &UnixListener, answers: &[Reply], then: &[Event]) -> Vec<Option<u64>> {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut asked = Vec::new();
        for answer in answers {
            let request: Request = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            let Operation::Stream { after } = request.ask else {
                panic!("{request:?}")
            };
            asked.push(after);
            writeln!(stream, "{}", serde_json::to_string(answer).unwrap()).unwrap();
        }
        for event in then {
            writeln!(stream, "{}", serde_json::to_string(event).unwrap()).unwrap();
        }
        asked
    }

    #[test]
    fn it_reads_on_where_it_was_counts_gaps_and_knows_numbers_begun_anew() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("events.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let ((out, items), (wake, _woken)) = (sync_channel(64), channel());
        let cursor = Cursor {
            number: 10,
            time: event(10, 10).time,
        };
        let stream = Stream::new(&socket, Some(&cursor), out, wake);
        thread::spawn(|| stream.run());
        // Two pages with a gap and a repetition, a tail that is gone, then live events, one of them known.
        let first = [
            page(20, vec![event(11, 11), event(14, 14)], false),
            page(20, vec![event(14, 14), event(15, 15)], true),
        ];
        let asked = serve(
            &listener,
            &first,
            &[event(20, 20), event(21, 21), event(23, 23)],
        );
        assert_eq!(asked, [Some(10), Some(14)]);
        // Its history was emptied: what happened before was told already.
        assert_eq!(serve(&listener, &[page(2, vec![], true)], &[]), [Some(23)]);
        let anew = [page(2, vec![event(1, 22), event(2, 30)], true)];
        assert_eq!(serve(&listener, &anew, &[event(3, 5)]), [Some(0)]);
        let items: Vec<String> = (0..8)
            .map(
                |_| match items.recv_timeout(Duration::from_secs(20)).unwrap() {
                    StreamItem::Begins(number) => format!("begins {number}"),
                    StreamItem::Event(event, missed) => {
                        format!("{} after {missed}", event.number.unwrap())
                    }
                    StreamItem::Missed { number, count } => format!("{count} up to {number}"),
                },
            )
            .collect();
        let expected = [
            "11 after 0",
            "14 after 2",
            "15 after 0",
            "5 up to 20",
            "21 after 0",
            "23 after 1",
            "2 after 0",
            "3 after 0",
        ];
        assert_eq!(items, expected);
    }
}
