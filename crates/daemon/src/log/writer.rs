// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one thread that waits for whoever reads the log. Everybody else leaves an entry and goes on: a full
//! pipe that nobody reads, or a journal that hangs, would hold up kills and answers alike.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Entries that wait at most, and their bytes; as many again for the last lines.
const ENTRIES_WAIT: usize = 1024;
const BYTES_WAIT: usize = 512 << 10;

/// Something to write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Text for stderr, its line end included.
    Text(Vec<u8>),
    /// An entry for the journal.
    Journal(Vec<u8>),
}

impl Entry {
    fn stream(&self) -> Stream {
        match self {
            Self::Text(_) => Stream::Stderr,
            Self::Journal(_) => Stream::Journal,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Text(bytes) | Self::Journal(bytes) => bytes.len(),
        }
    }
}

/// What waits to be written.
#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// How many found no room since that was last said.
    lost: u64,
    /// Where one goes that is not here any more and not written yet.
    writing: Option<Stream>,
}

/// Whom an entry waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Stderr,
    Journal,
}

impl Queue {
    fn has_room(&self, more: usize, share: usize) -> bool {
        self.entries.len() < ENTRIES_WAIT * share
            && self.bytes.saturating_add(more) <= BYTES_WAIT * share
    }

    fn add(&mut self, entry: Entry) {
        self.bytes = self.bytes.saturating_add(entry.len());
        self.entries.push_back(entry);
    }

    fn take(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.bytes = self.bytes.saturating_sub(entry.len());
        Some(entry)
    }

    fn is_written(&self) -> bool {
        self.entries.is_empty() && self.lost == 0 && self.writing.is_none()
    }
}

/// The entries that wait, and how it is said that so many others were lost.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Mutex<Queue>,
    changed: Condvar,
    lost: fn(u64) -> Entry,
}

impl Writer {
    pub(super) fn new(lost: fn(u64) -> Entry) -> Self {
        Self {
            queue: Mutex::default(),
            changed: Condvar::new(),
            lost,
        }
    }

    /// Leaves an entry; where there is no room it is counted instead.
    pub(super) fn leave(&self, entry: Entry) {
        self.leave_within(entry, 1);
    }

    /// Leaves a last word, for which there is room where there is none for others.
    pub(super) fn leave_last(&self, entry: Entry) {
        self.leave_within(entry, 2);
    }

    fn leave_within(&self, entry: Entry, share: usize) {
        let mut queue = self.lock();
        if !queue.has_room(entry.len(), share) {
            queue.lost = queue.lost.saturating_add(1);
            return;
        }
        // Said where they are missing.
        self.say_lost(&mut queue);
        queue.add(entry);
        drop(queue);
        self.changed.notify_all();
    }

    fn say_lost(&self, queue: &mut Queue) {
        if queue.lost > 0 {
            let lost = (self.lost)(std::mem::take(&mut queue.lost));
            queue.add(lost);
        }
    }

    /// Waits until everything is written, so long at most; whether it is.
    pub(super) fn finish(&self, within: Duration) -> bool {
        let start = Instant::now();
        let mut queue = self.lock();
        while !queue.is_written() {
            let Some(left) = within.checked_sub(start.elapsed()) else {
                return false;
            };
            let (next, _) = self
                .changed
                .wait_timeout(queue, left)
                .unwrap_or_else(PoisonError::into_inner);
            queue = next;
        }
        true
    }

    /// Takes the text that waits behind a journal that hangs: stderr may be somebody else's.
    pub(super) fn take_texts(&self) -> Vec<Vec<u8>> {
        let mut queue = self.lock();
        if queue.writing != Some(Stream::Journal) {
            return Vec::new();
        }
        let mut texts = Vec::new();
        for entry in std::mem::take(&mut queue.entries) {
            match entry {
                Entry::Text(text) => {
                    queue.bytes = queue.bytes.saturating_sub(text.len());
                    texts.push(text);
                }
                Entry::Journal(_) => queue.entries.push_back(entry),
            }
        }
        texts
    }

    /// Writes whatever comes, for ever. `to` says whether somebody took it: what nobody took is counted, and
    /// said when somebody is there again.
    pub(super) fn write(&self, to: impl Fn(&Entry) -> bool) -> ! {
        let mut untaken: u64 = 0;
        let mut queue = self.lock();
        loop {
            if queue.entries.is_empty() {
                self.say_lost(&mut queue);
            }
            let Some(entry) = queue.take() else {
                queue = self
                    .changed
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            queue.writing = Some(entry.stream());
            drop(queue);
            if untaken > 0 && to(&(self.lost)(untaken)) {
                untaken = 0;
            }
            if !to(&entry) {
                untaken = untaken.saturating_add(1);
            }
            queue = self.lock();
            queue.writing = None;
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    fn text(text: &str) -> Entry {
        Entry::Text(text.into())
    }

    fn lost(count: u64) -> Entry {
        text(&format!("{count} lost"))
    }

    /// One whose reader takes an entry for each word that it is given.
    fn read_by_hand() -> (Arc<Writer>, Sender<()>, Receiver<Vec<u8>>) {
        let writer = Arc::new(Writer::new(lost));
        let (go, may) = channel();
        let (said, heard) = channel();
        let may = Mutex::new(may);
        let thread = Arc::clone(&writer);
        std::thread::spawn(move || {
            thread.write(|entry| {
                let _ = may.lock().unwrap().recv();
                if let Entry::Text(bytes) = entry {
                    let _ = said.send(bytes.clone());
                }
                true
            })
        });
        (writer, go, heard)
    }

    #[test]
    fn nobody_waits_for_a_log_that_nobody_reads_and_what_is_lost_is_said_in_its_place() {
        let (writer, go, heard) = read_by_hand();
        let sent = ENTRIES_WAIT * 3;
        writer.leave(text("0"));
        // The thread has it: nothing else leaves the queue until it is let go on.
        while writer.lock().writing.is_none() {
            std::thread::yield_now();
        }
        for number in 1..sent {
            writer.leave(text(&number.to_string()));
        }
        assert!(!writer.finish(Duration::from_millis(10)));

        drop(go);
        assert!(writer.finish(Duration::from_secs(20)));
        writer.leave(text("after"));
        assert!(writer.finish(Duration::from_secs(20)));

        let read: Vec<String> = heard
            .try_iter()
            .map(|bytes| String::from_utf8(bytes).unwrap())
            .collect();
        let kept = read.len() - 2;
        assert_eq!(kept, ENTRIES_WAIT + 1);
        let numbers: Vec<String> = (0..kept).map(|number| number.to_string()).collect();
        assert_eq!(read[..kept], numbers);
        assert_eq!(
            read[kept..],
            [format!("{} lost", sent - kept), "after".to_owned()]
        );
    }

    #[test]
    fn what_nobody_takes_is_said_to_who_comes_back() {
        let writer = Arc::new(Writer::new(lost));
        let (said, heard) = channel();
        let (is_there, thread) = (Arc::new(AtomicBool::new(false)), Arc::clone(&writer));
        let is_read = Arc::clone(&is_there);
        std::thread::spawn(move || {
            thread.write(|entry| {
                let is_taken = is_read.load(Ordering::SeqCst);
                if let (true, Entry::Text(bytes)) = (is_taken, entry) {
                    let _ = said.send(bytes.clone());
                }
                is_taken
            })
        });
        for _ in 0..3 {
            writer.leave(text("nobody reads it"));
            assert!(writer.finish(Duration::from_secs(20)));
        }
        is_there.store(true, Ordering::SeqCst);
        for word in ["back", "again"] {
            writer.leave(text(word));
        }
        assert!(writer.finish(Duration::from_secs(20)));
        let read: Vec<Vec<u8>> = heard.try_iter().collect();
        assert_eq!(read, [&b"3 lost"[..], b"back", b"again"]);
    }

    #[test]
    fn the_last_lines_do_not_wait_behind_a_journal_that_hangs() {
        let (writer, go, _heard) = read_by_hand();
        writer.leave(Entry::Journal(b"entry".to_vec()));
        writer.leave(Entry::Journal(b"entry".to_vec()));
        writer.leave_last(text("last word"));
        while writer.lock().writing.is_none() {
            std::thread::yield_now();
        }
        assert_eq!(writer.take_texts(), [b"last word"]);
        assert_eq!(writer.lock().bytes, 5);
        drop(go);
        assert!(writer.finish(Duration::from_secs(20)));
        // Nor are they taken from a thread that is about to write them.
        writer.leave(text("line"));
        assert!(writer.take_texts().is_empty());
    }

    #[test]
    fn long_lines_are_bounded_by_their_bytes() {
        let writer = Writer::new(lost);
        let long = "x".repeat(BYTES_WAIT / 2);
        for _ in 0..5 {
            writer.leave(text(&long));
        }
        let queue = writer.lock();
        assert_eq!((queue.entries.len(), queue.lost), (2, 3));
    }

    #[test]
    fn a_last_word_has_room_where_others_have_none() {
        let writer = Writer::new(lost);
        for _ in 0..=ENTRIES_WAIT {
            writer.leave(text("line"));
        }
        writer.leave_last(text("last word"));
        let queue = writer.lock();
        let end: Vec<&Entry> = queue.entries.iter().skip(ENTRIES_WAIT).collect();
        assert_eq!(end, [&lost(1), &text("last word")]);
    }
}
