// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Past events: a bounded file that survives us, and the newest of them in memory for those who ask.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bursar_model::{Bytes, Event};

/// Events kept in memory; with candidates about half a kilobyte each.
const REMEMBERED: usize = 2048;

/// Past events.
#[derive(Debug)]
pub(crate) struct History {
    current: PathBuf,
    previous: PathBuf,
    file: Option<File>,
    written: u64,
    /// The current file is set aside when it is this large: two of them are the bound.
    half: u64,
    recent: VecDeque<Event>,
    /// Events that could not be written.
    pub(crate) unwritten: u64,
    /// Lines of the file that were no events: a crash in the middle of one, an editor.
    pub(crate) unreadable: u64,
}

impl History {
    /// Opens the history in `directory`, at most `bound` bytes of it, and remembers its newest
    /// events. Without a directory that can be written it lives in memory alone; that is logged.
    pub(crate) fn open(directory: &Path, bound: Bytes) -> Self {
        let mut history = Self {
            current: directory.join("events.jsonl"),
            previous: directory.join("events.1.jsonl"),
            file: None,
            written: 0,
            half: (bound.get() / 2).max(1),
            recent: VecDeque::new(),
            unwritten: 0,
            unreadable: 0,
        };
        for path in [history.previous.clone(), history.current.clone()] {
            history.remember_file(&path);
        }
        if let Err(error) = fs::create_dir_all(directory).and_then(|()| history.open_file()) {
            tracing::error!(path = %history.current.display(), %error, "events are kept in memory only");
        }
        history
    }

    fn remember_file(&mut self, path: &Path) {
        let Ok(file) = File::open(path) else { return };
        for line in BufReader::new(file).split(b'\n') {
            let Ok(line) = line else { return };
            match serde_json::from_slice(&line) {
                Ok(event) => self.remember(event),
                Err(_) if line.is_empty() => {}
                Err(_) => self.unreadable = self.unreadable.saturating_add(1),
            }
        }
    }

    fn open_file(&mut self) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o640)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&self.current)?;
        self.written = file.metadata()?.len();
        // After a crash the last line may lack its end; the next event must not be glued to it.
        if self.written > 0 {
            file.write_all(b"\n")?;
            self.written = self.written.saturating_add(1);
        }
        self.file = Some(file);
        Ok(())
    }

    fn remember(&mut self, event: Event) {
        if self.recent.len() >= REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(event);
    }

    /// Adds an event.
    pub(crate) fn add(&mut self, event: Event) {
        if let Err(error) = self.write(&event) {
            if self.unwritten == 0 {
                tracing::error!(path = %self.current.display(), %error, "an event could not be written");
            }
            self.unwritten = self.unwritten.saturating_add(1);
        }
        self.remember(event);
    }

    fn write(&mut self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        if self.written.saturating_add(line.len() as u64) > self.half {
            self.file = None;
            match fs::rename(&self.current, &self.previous) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.file.is_none() {
            self.open_file()?;
        }
        let Some(file) = &mut self.file else {
            return Err(io::ErrorKind::NotFound.into());
        };
        // One write for one line: readers never see half of it, and a full disk loses whole ones.
        file.write_all(&line)?;
        self.written = self.written.saturating_add(line.len() as u64);
        Ok(())
    }

    /// Remembered events, oldest first.
    pub(crate) fn recent(&self) -> impl DoubleEndedIterator<Item = &Event> {
        self.recent.iter()
    }

    /// All events of the files not older than `since`, for root, who may wait.
    pub(crate) fn all_since(&self, since: &str) -> Vec<Event> {
        let mut found = Vec::new();
        for path in [&self.previous, &self.current] {
            let Ok(file) = File::open(path) else { continue };
            for line in BufReader::new(file).split(b'\n').map_while(Result::ok) {
                // RFC 3339 in UTC with a fixed number of digits sorts as text.
                if let Ok(event) = serde_json::from_slice::<Event>(&line)
                    && event.time.as_str() >= since
                {
                    found.push(event);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::EventKind;

    use super::*;

    fn event(number: u64) -> Event {
        let mut event = Event::new(EventKind::Notice);
        event.time = format!("2026-11-21T00:00:00.{number:06}Z");
        event
    }

    #[test]
    fn history_survives_us_and_half_a_line() {
        let directory = tempfile::tempdir().unwrap();
        let open = || History::open(directory.path(), Bytes::from_mib(1));
        open().add(event(1));
        let path = directory.path().join("events.jsonl");
        OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"time\":\"2")
            .unwrap();
        open().add(event(2));
        let history = open();
        assert_eq!(
            history
                .recent()
                .map(|it| it.time.clone())
                .collect::<Vec<_>>(),
            [event(1).time, event(2).time]
        );
        assert_eq!(history.unreadable, 1);
    }

    #[test]
    fn the_files_stay_within_their_bound_and_the_newest_stay() {
        let directory = tempfile::tempdir().unwrap();
        let bound = 4096;
        let mut history = History::open(directory.path(), Bytes::new(bound));
        (0..500).for_each(|number| history.add(event(number)));
        let size: u64 = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        assert!(size <= bound, "{size}");
        let newest = history.all_since(&event(490).time);
        assert_eq!(newest.len(), 10);
    }

    #[test]
    fn a_directory_that_cannot_be_written_costs_the_file_and_not_the_events() {
        let mut history = History::open(Path::new("/proc/nowhere"), Bytes::from_mib(1));
        history.add(event(1));
        assert_eq!((history.recent().count(), history.unwritten), (1, 1));
    }
}
