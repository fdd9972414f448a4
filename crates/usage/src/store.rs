// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Samples on disk: added at the end of files, never changed. A crash costs the record that was being written, a full
//! disk the samples that come meanwhile.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bursar_model::{AccountId, Bytes, UsageSample};

use crate::directory::{Directory, Key};
use crate::file::{Contents, Unreadable};
use crate::record::{Record, SIZE, name_records};
use crate::tier::Tier;

/// One account's sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The account.
    pub id: AccountId,
    /// What it is called now.
    pub name: String,
    /// What it held.
    pub sample: UsageSample,
}

/// What went wrong so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreFacts {
    /// Samples that could not be written.
    pub unwritten: u64,
    /// Records that could not be read: a crash in the middle of one.
    pub damaged: u64,
    /// Files that did not begin as ours do, and were taken out of the way.
    pub set_aside: u64,
    /// What is to be said about it, once each; the caller takes them.
    pub remarks: Vec<String>,
}

/// The file that is being written.
#[derive(Debug)]
struct Open {
    file: File,
    start: u64,
    length: u64,
    /// As they stand in it.
    names: HashMap<AccountId, String>,
}

/// A directory of samples.
#[derive(Debug)]
pub struct Store {
    pub(crate) directory: Directory,
    path: PathBuf,
    bound: u64,
    open: HashMap<Tier, Open>,
    /// Intervals that others have to be made of.
    pub(crate) pending: BTreeSet<(Tier, u64)>,
    facts: StoreFacts,
    is_failing: bool,
}

impl Store {
    /// Opens the directory, which exists, for at most `bound` bytes. What was left to be done is done first.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(path: &Path, bound: Bytes, now: u64) -> io::Result<Self> {
        let mut store = Self {
            directory: Directory::open(path)?,
            path: path.to_owned(),
            bound: bound.get(),
            open: HashMap::new(),
            pending: BTreeSet::new(),
            facts: StoreFacts::default(),
            is_failing: false,
        };
        store.find_pending();
        store.consolidate(now);
        Ok(store)
    }

    /// What went wrong so far; its remarks are told once.
    pub fn take_facts(&mut self) -> StoreFacts {
        let facts = self.facts.clone();
        self.facts.remarks.clear();
        facts
    }

    /// All files together, bytes.
    pub fn bytes(&self) -> Bytes {
        Bytes::new(self.directory.bytes())
    }

    /// Adds samples of minutes, and makes coarser ones where an interval has ended.
    pub fn add(&mut self, entries: &[Entry], now: u64) {
        self.append(Tier::Minute, entries, &[], now);
        self.consolidate(now);
    }

    /// Adds samples of a tier as they are. `complete`: intervals of which these are all.
    pub fn append(&mut self, tier: Tier, entries: &[Entry], complete: &[u64], now: u64) {
        let starts = entries.iter().map(|it| it.sample.start);
        let files: BTreeSet<u64> = starts
            .chain(complete.iter().copied())
            .map(|it| tier.file_of(it))
            .collect();
        for start in files {
            let is_in = |moment: u64| tier.file_of(moment) == start;
            let mine: Vec<&Entry> = entries.iter().filter(|it| is_in(it.sample.start)).collect();
            let ended: Vec<u64> = complete.iter().copied().filter(|it| is_in(*it)).collect();
            match self.write(tier, start, &mine, &ended, now) {
                Ok(()) => self.note_written(tier, &mine),
                Err(error) => self.note_failure(&error, mine.len()),
            }
        }
    }

    fn note_written(&mut self, tier: Tier, entries: &[&Entry]) {
        if let Some(coarser) = tier.coarser() {
            let starts = entries.iter().map(|it| coarser.start_of(it.sample.start));
            self.pending.extend(starts.map(|start| (coarser, start)));
        }
        if std::mem::take(&mut self.is_failing) {
            let remark = format!(
                "usage is written to {:?} again; {} samples were lost",
                self.path, self.facts.unwritten
            );
            self.facts.remarks.push(remark);
        }
    }

    fn note_failure(&mut self, error: &io::Error, count: usize) {
        if !std::mem::replace(&mut self.is_failing, true) {
            let remark = format!("usage could not be written to {:?}: {error}", self.path);
            self.facts.remarks.push(remark);
        }
        self.facts.unwritten = self.facts.unwritten.saturating_add(count as u64);
    }

    fn write(
        &mut self,
        tier: Tier,
        start: u64,
        entries: &[&Entry],
        complete: &[u64],
        now: u64,
    ) -> io::Result<()> {
        let mut open = match self.open.remove(&tier) {
            Some(open) if open.start == start => open,
            _ => self.begin(tier, start, now)?,
        };
        let mut bytes = Vec::with_capacity(SIZE.saturating_mul(entries.len().saturating_add(2)));
        if open.length == 0 {
            bytes.extend(Record::Head(tier).encode());
        }
        let mut names = HashMap::new();
        for entry in entries {
            let known = names.get(&entry.id).or_else(|| open.names.get(&entry.id));
            if known != Some(&entry.name) {
                name_records(entry.id, &entry.name).for_each(|it| bytes.extend(it.encode()));
                names.insert(entry.id, entry.name.clone());
            }
            bytes.extend(Record::Sample(entry.id, entry.sample).encode());
        }
        complete
            .iter()
            .for_each(|it| bytes.extend(Record::Complete(*it).encode()));
        let length = open.length.saturating_add(bytes.len() as u64);
        let key = (tier, start);
        self.directory.note_size(key, length);
        let open_files: Vec<Key> = self
            .open
            .iter()
            .map(|(tier, it)| (*tier, it.start))
            .chain([key])
            .collect();
        let room = self.directory.prune(now, self.bound, &open_files);
        let is_full = self.directory.bytes() > self.bound;
        let written = room.and_then(|()| match is_full {
            true => Err(io::Error::other(
                "more than usage.keep_bytes would be kept; raise it in bursar.toml",
            )),
            false => open.file.write_all(&bytes),
        });
        match written {
            Ok(()) => {
                open.length = length;
                open.names.extend(names);
                self.open.insert(tier, open);
                Ok(())
            }
            Err(error) => {
                // A full disk takes half a record.
                self.directory.note_size(key, open.length);
                if open.file.set_len(open.length).is_ok() {
                    self.open.insert(tier, open);
                }
                Err(error)
            }
        }
    }

    /// Opens a file to write at its end. One that does not begin as ours do is taken out of the way.
    fn begin(&mut self, tier: Tier, start: u64, now: u64) -> io::Result<Open> {
        let key = (tier, start);
        let path = self.directory.path_of(key);
        let options = |is_new: bool| {
            let mut options = OpenOptions::new();
            options.read(true).append(true).create(is_new).mode(0o640);
            options.custom_flags(libc::O_NOFOLLOW);
            options
        };
        let mut file = options(true).open(&path)?;
        let mut length = file.metadata()?.len();
        let mut head = [0; SIZE];
        let has_head = length >= SIZE as u64
            && file.read_exact(&mut head).is_ok()
            && Record::decode(&head) == Some(Record::Head(tier));
        if length > 0 && !has_head {
            self.set_aside(key)?;
            file = options(true).open(&path)?;
            length = 0;
        }
        let torn = length % SIZE as u64;
        if torn > 0 {
            length = length.saturating_sub(torn);
            file.set_len(length)?;
            self.facts.damaged = self.facts.damaged.saturating_add(1);
        }
        self.directory.note_size(key, length);
        self.directory.prune(now, u64::MAX, &[key])?;
        Ok(Open {
            file,
            start,
            length,
            names: HashMap::new(),
        })
    }

    fn set_aside(&mut self, key: Key) -> io::Result<()> {
        let path = self.directory.path_of(key);
        let aside = self.directory.set_aside(key)?;
        self.facts.set_aside = self.facts.set_aside.saturating_add(1);
        self.facts.remarks.push(match aside {
            Some(aside) => format!("{path:?} is no file of usage, or damaged: it is {aside:?} now, and a new one is begun"),
            None => format!("{path:?} is no file of usage, or damaged: it was removed, as others are kept to look at"),
        });
        Ok(())
    }

    /// What a file says. One that cannot be read says nothing; one that is none of ours is taken out of the way.
    pub(crate) fn contents(&mut self, key: Key) -> Contents {
        let (tier, _) = key;
        match Contents::read(&self.directory.path_of(key), tier) {
            Ok(contents) => {
                self.facts.damaged = self.facts.damaged.max(contents.damaged);
                contents
            }
            Err(Unreadable::Foreign) => {
                self.open.remove(&tier);
                if let Err(error) = self.set_aside(key) {
                    self.facts.remarks.push(format!(
                        "a damaged file of usage could not be taken out of the way: {error}"
                    ));
                }
                Contents::default()
            }
            Err(Unreadable::Io(error)) => {
                if error.kind() != io::ErrorKind::NotFound {
                    let path = self.directory.path_of(key);
                    self.facts
                        .remarks
                        .push(format!("{path:?} could not be read: {error}"));
                }
                Contents::default()
            }
        }
    }
}
