// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Past events: bounded files that survive us, and the newest of them in memory for those who ask.

mod cache;
mod index;
mod numbers;
mod page;
mod rate_limit;
mod reserve;

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bursar_host::{Proc, make_directory};
use bursar_model::{Bytes, Event, Nanos};

use cache::Cache;
use index::{Index, Which};
use numbers::Numbers;
use rate_limit::RateLimit;

/// Mode of the directory of state: events name commands and sizes.
pub(crate) const STATE: u32 = 0o750;

pub(crate) use cache::is_kill;

/// Past events.
#[derive(Debug)]
pub(crate) struct History {
    current: PathBuf,
    previous: PathBuf,
    file: Option<File>,
    written: u64,
    /// The current file is set aside when it is this large: two of them are the bound.
    half: u64,
    cache: Cache,
    index: Index,
    numbers: Numbers,
    /// The last number in the files when they were opened.
    newest_found: u64,
    rate_limit: RateLimit,
    /// The last event could not be written.
    is_failing: bool,
    /// Events that could not be written.
    pub(crate) unwritten: u64,
    /// Lines of the file that were no events: a crash in the middle of one, an editor.
    pub(crate) unreadable: u64,
    /// Bytes of the files that were read for pages.
    #[cfg(test)]
    read: std::cell::Cell<u64>,
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
            cache: Cache::default(),
            index: Index::default(),
            numbers: Numbers::default(),
            newest_found: 0,
            rate_limit: RateLimit::default(),
            is_failing: false,
            unwritten: 0,
            unreadable: 0,
            #[cfg(test)]
            read: std::cell::Cell::default(),
        };
        history.remember_file(Which::Previous);
        history.remember_file(Which::Current);
        if let Err(error) = make_directory(directory, STATE).and_then(|()| history.open_file()) {
            tracing::error!(path = %history.current.display(), %error, "events are kept in memory only");
        }
        let stored = history.recent().filter_map(|it| it.number).max();
        history.newest_found = stored.unwrap_or(0);
        let boot = Proc::host().and_then(|proc| proc.boot_id());
        let boot = boot.ok().flatten().unwrap_or_default();
        history.numbers = Numbers::open(directory, history.newest_found, &boot);
        history
    }

    fn remember_file(&mut self, which: Which) {
        let path = match which {
            Which::Previous => &self.previous,
            Which::Current => &self.current,
        };
        let Ok((mut at, lines)) = self.lines_of(path) else {
            return;
        };
        for line in lines {
            let length = (line.len() as u64).saturating_add(1);
            let start = at;
            at = at.saturating_add(length);
            match serde_json::from_slice::<Event>(&line) {
                Ok(event) => {
                    self.index.note(which, start, length, &event);
                    self.cache.take(event);
                }
                Err(_) if line.is_empty() => {}
                Err(_) => self.unreadable = self.unreadable.saturating_add(1),
            }
        }
    }

    /// Of a file from a time with a larger bound only what would be kept now: whoever asks for all gets
    /// it in one piece. With where the first of them begins.
    fn lines_of(&self, path: &Path) -> io::Result<(u64, impl Iterator<Item = Vec<u8>> + use<>)> {
        let mut file = File::open(path)?;
        let start = file.metadata()?.len().saturating_sub(self.half);
        file.seek(SeekFrom::Start(start))?;
        // What it begins with then is the rest of a line.
        let mut reader = BufReader::new(file);
        let rest = match start {
            0 => 0,
            _ => reader.skip_until(b'\n')?,
        };
        let lines = reader.split(b'\n').map_while(Result::ok);
        Ok((start.saturating_add(rest as u64), lines))
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

    /// Gives an event its number.
    pub(crate) fn number(&mut self, event: &mut Event) {
        event.number = Some(self.numbers.give());
    }

    /// Adds an event. What one account has too many of is counted in the files, not written each: says which were now.
    pub(crate) fn add(&mut self, event: Event, now: Nanos) -> Vec<Event> {
        let due = self.rate_limit.admit(event.clone(), now);
        for due in &due {
            self.store(due);
        }
        self.cache.take(event);
        due
    }

    /// The number that the next event is given.
    pub(crate) const fn next_number(&self) -> u64 {
        self.numbers.last().saturating_add(1)
    }

    /// The last number that was in the files when they were opened.
    pub(crate) const fn newest_found(&self) -> u64 {
        self.newest_found
    }

    /// How many events wait to be written.
    pub(crate) const fn waiting(&self) -> u64 {
        self.rate_limit.count()
    }

    /// Writes them, and says which they were.
    pub(crate) fn write_waiting(&mut self) -> Vec<Event> {
        let waiting = self.rate_limit.take_waiting();
        for event in &waiting {
            self.store(event);
        }
        waiting
    }

    fn store(&mut self, event: &Event) {
        let outcome = self.write(event);
        let path = self.current.display();
        match outcome {
            Ok(()) if self.is_failing => {
                self.is_failing = false;
                tracing::warn!(%path, lost = self.unwritten, "events are written again");
            }
            Ok(()) => {}
            Err(error) => {
                if !self.is_failing {
                    tracing::error!(%path, %error, "an event could not be written");
                }
                self.is_failing = true;
                let count = event.more.unwrap_or(0).saturating_add(1);
                self.unwritten = self.unwritten.saturating_add(count);
            }
        }
    }

    fn write(&mut self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        if self.written.saturating_add(line.len() as u64) > self.half {
            self.file = None;
            match fs::rename(&self.current, &self.previous) {
                Ok(()) => self.index.rotate(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.index.forget_current()
                }
                Err(error) => return Err(error),
            }
        }
        if self.file.is_none() {
            self.open_file()?;
        }
        let Some(file) = &mut self.file else {
            return Err(io::ErrorKind::NotFound.into());
        };
        // One write for one line, so that readers never see half of it.
        if let Err(error) = file.write_all(&line) {
            // A full disk takes half a line. The next one must not be glued to it.
            let length = file.metadata().map_or(self.written, |it| it.len());
            if file.set_len(length.min(self.written)).is_err() {
                self.file = None;
            }
            return Err(error);
        }
        let length = line.len() as u64;
        self.index.note(Which::Current, self.written, length, event);
        self.written = self.written.saturating_add(length);
        Ok(())
    }

    /// Cached events, in the order in which they came.
    pub(crate) fn recent(&self) -> impl DoubleEndedIterator<Item = &Event> {
        self.cache.iter()
    }

    /// Whether everything that happened since then is cached.
    pub(crate) fn remembers(&self, since: &str) -> bool {
        self.cache.reaches_back_to(since)
    }

    /// Whether somebody's last kill may not be cached any more.
    pub(crate) const fn lacks_kills(&self) -> bool {
        self.cache.lacks_kills()
    }

    /// What the files have and what waits to be written of all that is `wanted`, by its time. For root,
    /// who may wait.
    pub(crate) fn stored(&self, wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
        let files = [&self.previous, &self.current];
        let lines = files
            .iter()
            .filter_map(|path| self.lines_of(path).ok())
            .flat_map(|(_, lines)| lines);
        let mut found: Vec<Event> = lines
            .filter_map(|line| serde_json::from_slice(&line).ok())
            .filter(&wanted)
            .collect();
        found.extend(self.rate_limit.waiting().filter(|it| wanted(it)).cloned());
        // RFC 3339 in UTC with a fixed number of digits sorts as text.
        found.sort_by(|one, other| one.time.cmp(&other.time));
        found
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.write_waiting();
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use bursar_model::EventKind;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    fn event(number: u64) -> Event {
        let mut event = Event::new(EventKind::Notice);
        event.time = format!("2026-11-21T00:00:00.{number:06}Z");
        event
    }

    const NOW: Nanos = Nanos::new(1 << 40);

    fn kill(account: &str, number: u64) -> Event {
        Event {
            event: EventKind::Kill,
            account: Some(account.to_owned()),
            ..event(number)
        }
    }

    #[test]
    fn history_survives_us_and_half_a_line() {
        let directory = tempfile::tempdir().unwrap();
        let open = || History::open(directory.path(), Bytes::from_mib(1));
        open().add(event(1), NOW);
        let path = directory.path().join("events.jsonl");
        OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"time\":\"2")
            .unwrap();
        open().add(event(2), NOW);
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
        (0..500).for_each(|number| drop(history.add(event(number), NOW)));
        let size: u64 = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        assert!(size <= bound, "{size}");
        let newest = history.stored(|it| it.time >= event(490).time);
        assert_eq!(newest.len(), 10);
    }

    #[test]
    fn who_reads_on_gets_each_event_once_and_sees_what_is_missing() {
        let directory = tempfile::tempdir().unwrap();
        let open = || History::open(directory.path(), Bytes::from_mib(1));
        let add = |history: &mut History, count: u64| {
            for number in 0..count {
                let mut event = kill("alice", number);
                event.reason = Some("so long that one page has not all of them; ".repeat(4));
                history.number(&mut event);
                history.add(event, NOW);
            }
        };
        let mut history = open();
        add(&mut history, 400);
        // Killed: what waited to be written is gone, and its numbers are not given again.
        std::mem::forget(history);
        let mut history = open();
        assert_eq!(history.page_after(0).newest, 400);
        add(&mut history, 1_500);
        let (mut numbers, mut pages) = (Vec::new(), 0);
        loop {
            let page = history.page_after(numbers.last().copied().unwrap_or(0));
            numbers.extend(page.events.iter().filter_map(|it| it.number));
            pages += 1;
            if page.is_last {
                break;
            }
        }
        let expected: Vec<u64> = (1..=300).chain(401..=1_900).collect();
        let is_same = numbers == expected;
        assert!(is_same && pages > 1, "{pages} pages, {}", numbers.len());
        let none = history.page_after(u64::MAX);
        assert_eq!(
            (none.newest, none.events.len(), none.is_last),
            (1_900, 0, true)
        );
        // Beyond what memory has, from the files; those that fill no line of their own are missing.
        add(&mut history, 1_000);
        let page = history.page_after(10);
        assert_eq!(page.events[0].number, Some(11));
    }

    #[test]
    fn who_reads_on_through_a_hundred_thousand_events_has_each_block_read_about_once() {
        let directory = tempfile::tempdir().unwrap();
        let bound = Bytes::from_mib(64);
        let mut history = History::open(directory.path(), bound);
        for number in 0..100_000_u64 {
            // Every tenth is mallory's: most of these wait, and come late and out of their order.
            let mut event = match number % 10 {
                0 => kill("mallory", number),
                _ => event(number),
            };
            history.number(&mut event);
            history.add(event, Nanos::new(NOW.get() + number * 10_000_000));
        }
        let written = history.written;
        let read_all = |history: &History| {
            history.read.set(0);
            let mut numbers: Vec<u64> = vec![0];
            loop {
                let page = history.page_after(*numbers.last().unwrap());
                numbers.extend(page.events.iter().filter_map(|it| it.number));
                if page.is_last {
                    return numbers;
                }
            }
        };
        let numbers = read_all(&history);
        assert!(numbers.len() > 90_000 && numbers.is_sorted_by(|one, other| one < other));
        let read = history.read.get();
        assert!(read < 2 * written, "{read} of {written}");
        // Those of memory besides, which the files only count.
        let stored = |history: &History| {
            let stored = history.stored(|it| it.number.is_some());
            stored.iter().filter_map(|it| it.number).collect::<Vec<_>>()
        };
        let has = |number: &u64| numbers.binary_search(number).is_ok();
        assert!(stored(&history).iter().all(has));
        drop(history);
        let history = History::open(directory.path(), bound);
        assert_eq!(read_all(&history)[1..], stored(&history));
    }

    #[test]
    fn a_directory_that_cannot_be_written_costs_the_file_and_not_the_events() {
        let mut history = History::open(Path::new("/proc/nowhere"), Bytes::from_mib(1));
        history.add(event(1), NOW);
        assert_eq!((history.recent().count(), history.unwritten), (1, 1));
    }

    #[test]
    fn a_day_of_one_account_s_kills_leaves_the_others_events_in_the_files() {
        let directory = tempfile::tempdir().unwrap();
        let open = || History::open(directory.path(), Bytes::new(64 << 10));
        let mut history = open();
        let mut change = event(0);
        change.event = EventKind::LimitChanged;
        history.add(change, NOW);
        history.add(kill("alice", 1), NOW);
        let minute = 60_000_000_000;
        for number in 2..20_000 {
            let now = Nanos::new(NOW.get() + number * minute / 200);
            history.add(kill("mallory", number), now);
        }
        let count = |history: &History| {
            let all = history.stored(|it| it.account.as_deref() == Some("mallory"));
            all.iter().map(|it| 1 + it.more.unwrap_or(0)).sum::<u64>()
        };
        assert_eq!(count(&history), 19_998);
        drop(history);
        let history = open();
        assert_eq!(count(&history), 19_998);
        let kinds: Vec<_> = history.recent().take(2).map(|it| it.event).collect();
        assert_eq!(kinds, [EventKind::LimitChanged, EventKind::Kill]);
        assert_eq!(
            history.recent().next_back().unwrap().time,
            kill("", 19_999).time
        );
    }

    #[test]
    fn files_of_a_larger_bound_are_read_up_to_this_one() {
        let directory = tempfile::tempdir().unwrap();
        let open = |bound| History::open(directory.path(), Bytes::new(bound));
        let mut large = open(1 << 20);
        (0..500).for_each(|number| drop(large.add(event(number), NOW)));
        assert_eq!(large.stored(|_| true).len(), 500);
        let line = serde_json::to_vec(&event(1)).unwrap().len() as u64 + 1;
        for (half, whole) in [(10 * line, 10), (10 * line + 1, 10), (11 * line - 1, 10)] {
            let small = open(2 * half);
            // Opening has put an end of line after the last.
            let newest = small.stored(|_| true);
            assert!(
                (whole - 1..=whole).contains(&newest.len()),
                "{}",
                newest.len()
            );
            assert_eq!(newest.last().unwrap().time, event(499).time);
            assert_eq!(small.unreadable, 0);
        }
    }

    /// Where the test below is to work: a process of its own, for only that may be held so short.
    const FULL_DISK: &str = "BURSAR_TEST_FULL_DISK";

    #[test]
    fn a_full_disk_loses_whole_lines_and_what_comes_after_is_written() {
        let Some(directory) = std::env::var_os(FULL_DISK).map(PathBuf::from) else {
            let directory = tempfile::tempdir().unwrap();
            let name =
                "history::tests::a_full_disk_loses_whole_lines_and_what_comes_after_is_written";
            // The signal that comes with the error would end it.
            let said = Command::new("sh")
                .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", name])
                .env(FULL_DISK, directory.path())
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&said.stdout);
            assert!(said.status.success() && text.contains("1 passed"), "{text}");
            return;
        };
        let allow = |length: Option<u64>| {
            let limit = Rlimit {
                current: length,
                maximum: getrlimit(Resource::Fsize).maximum,
            };
            setrlimit(Resource::Fsize, limit).unwrap();
        };
        let mut history = History::open(&directory, Bytes::from_mib(1));
        let length = |history: &History| fs::metadata(&history.current).unwrap().len();
        history.add(event(1), NOW);
        for (round, number) in [(1, 2), (2, 4)] {
            let before = length(&history);
            allow(Some(before + 20));
            history.add(event(number), NOW);
            assert_eq!(length(&history), before);
            assert_eq!((history.unwritten, history.is_failing), (round, true));
            allow(None);
            history.add(event(number + 1), NOW);
            assert!(!history.is_failing);
        }
        drop(history);
        let history = History::open(&directory, Bytes::from_mib(1));
        let times: Vec<_> = history.recent().map(|it| it.time.clone()).collect();
        assert_eq!(times, [1, 3, 5].map(|number| event(number).time));
        assert_eq!(history.unreadable, 0);
    }
}
