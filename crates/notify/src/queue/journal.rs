// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file of the queue: one line an entry, each with its checksum, only ever appended to. A crash leaves the end
//! of a line at most, which is cut off; anything else that does not fit its checksum is damage. When the disk fails, what
//! the file has is not known any more: it is written anew before anything else is written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};

use super::state::{Entry, State};

/// Room that is kept ahead, so that what came of an attempt can be written on a full disk.
const AHEAD: u64 = 64 << 10;

/// How often, and after which pause, it is tried to have the file for ourselves.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(50);

/// The file, locked.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    length: u64,
    /// Its length when it was written anew last; 0: somebody else did.
    began_with: u64,
    /// Up to where the disk has room for us.
    reserved: u64,
    is_synced: bool,
    /// The disk failed in the middle of something.
    is_broken: bool,
}

/// What a file says.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) state: State,
    /// Lines that are damaged, which is never a crash's doing.
    pub(crate) damaged: u64,
    /// Up to where it is whole lines.
    length: u64,
}

/// Another one is at work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JournalError {
    #[error(
        "{0:?} is in use: another bursar-notify runs with this state directory; stop that one first"
    )]
    InUse(PathBuf),
    #[error("cannot use {path:?}: {source}; see to the disk and to the directory's permissions")]
    Io { path: PathBuf, source: io::Error },
}

impl Journal {
    /// Opens or begins the file at `path`.
    pub(crate) fn open(path: &Path) -> Result<(Self, Read), JournalError> {
        let wrong = |source| JournalError::Io {
            path: path.to_owned(),
            source,
        };
        let file = open(path, false).map_err(wrong)?;
        // Who only looks whether somebody works on it has it for a moment.
        if !(0..TRIES).any(|_| lock(&file)) {
            return Err(JournalError::InUse(path.to_owned()));
        }
        let read = read(&file).map_err(wrong)?;
        let mut journal = Self {
            path: path.to_owned(),
            file,
            length: read.length,
            began_with: 0,
            reserved: 0,
            is_synced: true,
            is_broken: false,
        };
        journal.cut().map_err(wrong)?;
        Ok((journal, read))
    }

    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    pub(crate) const fn began_with(&self) -> u64 {
        self.began_with
    }

    /// Whether it is to be written anew ([`Journal::replace`]) before anything else is done.
    pub(crate) const fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Appends an entry. When that fails the file is as before, or broken.
    pub(crate) fn append(&mut self, entry: &Entry) -> io::Result<()> {
        let line = line(entry)?;
        if let Err(error) = self.file.write_all(&line) {
            // The next one must not be glued to half a line.
            self.is_broken |= self.cut().is_err();
            return Err(error);
        }
        self.length = self.length.saturating_add(line.len() as u64);
        self.is_synced = false;
        Ok(())
    }

    /// Takes off what is no whole line.
    fn cut(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() != self.length {
            self.file.set_len(self.length)?;
            self.reserved = 0;
        }
        self.file.seek(SeekFrom::Start(self.length))?;
        Ok(())
    }

    /// Sees to it that some more entries find room, whatever others write to the disk.
    pub(crate) fn keep_room(&mut self) -> io::Result<()> {
        if self.reserved.saturating_sub(self.length) >= AHEAD / 2 {
            return Ok(());
        }
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.length, AHEAD) {
            // File systems that cannot promise any.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {
                self.reserved = self.length.saturating_add(AHEAD);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the disk has it.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if !self.is_synced {
            // What could not be written is forgotten by the kernel: another attempt would succeed for nothing.
            let done = self.file.sync_data();
            (self.is_synced, self.is_broken) = (true, done.is_err());
            return done;
        }
        Ok(())
    }

    /// Begins a new file with these entries in the place of this one, which stays as it is until the other one is whole.
    pub(crate) fn replace(&mut self, entries: &[Entry]) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        let (file, length) = write_anew(&fresh, entries)
            .and_then(|it| fs::rename(&fresh, &self.path).map(|()| it))
            // The disk may be full: half a file is in the way.
            .inspect_err(|_| drop(fs::remove_file(&fresh)))?;
        (self.file, self.length, self.reserved) = (file, length, 0);
        (self.began_with, self.is_synced) = (length, true);
        // Until the disk has its name, too, a crash would bring the old one back.
        self.is_broken = true;
        if let Some(directory) = self.path.parent() {
            File::open(directory)?.sync_all()?;
        }
        self.is_broken = false;
        Ok(())
    }

    /// Keeps the file as evidence under another name, which it returns. It stays where it is, too, until it is written
    /// anew.
    pub(crate) fn keep_aside(&self) -> io::Result<PathBuf> {
        let aside = self.path.with_extension("damaged");
        match fs::remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::hard_link(&self.path, &aside).or_else(|_| fs::copy(&self.path, &aside).map(drop))?;
        Ok(aside)
    }

    /// From now on the disk takes what is written and does not keep it.
    #[cfg(test)]
    pub(super) fn break_sync(&mut self) {
        let null = OpenOptions::new().write(true).open("/dev/null");
        (self.file, self.reserved) = (null.unwrap(), u64::MAX);
    }

    /// From now on the disk takes nothing.
    #[cfg(test)]
    pub(super) fn break_disk(&mut self) {
        let full = OpenOptions::new().write(true).open("/dev/full");
        (self.file, self.reserved) = (full.unwrap(), u64::MAX);
    }
}

/// A file with these entries, and its length. The disk has it.
fn write_anew(path: &Path, entries: &[Entry]) -> io::Result<(File, u64)> {
    let mut file = open(path, true)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let mut length = 0_u64;
    for entry in entries {
        let line = line(entry)?;
        file.write_all(&line)?;
        length = length.saturating_add(line.len() as u64);
    }
    file.sync_data()?;
    Ok((file, length))
}

fn open(path: &Path, is_anew: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(is_anew)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
        .open(path)
}

fn lock(file: &File) -> bool {
    let is_ours = flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
    if !is_ours {
        std::thread::sleep(PAUSE);
    }
    is_ours
}

/// Whether somebody works on it.
pub(crate) fn is_in_use(file: &File) -> bool {
    let is_free = flock(file, FlockOperation::NonBlockingLockShared).is_ok();
    let _ = flock(file, FlockOperation::Unlock);
    !is_free
}

/// What the file says, for who looks at it only, too.
pub(crate) fn read(file: &File) -> io::Result<Read> {
    let mut found = Read::default();
    let mut reader = BufReader::new(file);
    reader.seek(SeekFrom::Start(0))?;
    let mut line = Vec::new();
    loop {
        line.clear();
        let count = reader.read_until(b'\n', &mut line)?;
        if count == 0 || line.pop() != Some(b'\n') {
            return Ok(found);
        }
        found.length = found.length.saturating_add(count as u64);
        match entry(&line) {
            Some(entry) => found.state.apply(&entry),
            None => found.damaged = found.damaged.saturating_add(1),
        }
    }
}

fn line(entry: &Entry) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(entry)?;
    let mut line = format!("{:08x} ", crc32fast::hash(&json)).into_bytes();
    line.extend(json);
    line.push(b'\n');
    Ok(line)
}

fn entry(line: &[u8]) -> Option<Entry> {
    let (checksum, json) = line.split_at_checked(9)?;
    let checksum = std::str::from_utf8(checksum).ok()?.strip_suffix(' ')?;
    let is_whole = u32::from_str_radix(checksum, 16).ok()? == crc32fast::hash(json);
    serde_json::from_slice(json).ok().filter(|_| is_whole)
}
