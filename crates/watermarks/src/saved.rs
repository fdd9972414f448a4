// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the knobs stood at before we turned them, on disk before the first turn, so that a crash takes
//! nothing with it: the next start, or `bursar watermarks restore`, puts it back.
//!
//! One short text file, written in place: a line for the boot it belongs to, one line of fixed width
//! for each knob with its original and what we wrote last. Not synced to disk: a machine that goes down
//! loses our values with it, and a file of another boot is void. Locked while somebody uses it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bursar_config::Sysctl;
use bursar_host::make_directory;
use rustix::fs::{FlockOperation, flock};

use crate::Paths;
use crate::knob::Knob;

const FILE: &str = "watermarks.originals";
/// Mode of the directory of state, as bursard makes it.
const STATE: u32 = 0o750;
const HEAD: &str = "bursar watermarks 1 ";
/// Bytes of a line, the newline included: a name and two numbers fit.
const WIDTH: usize = 96;

/// A knob that was turned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turned {
    /// The knob.
    pub knob: Knob,
    /// What it stood at before.
    pub original: i64,
    /// What we wrote last.
    pub written: i64,
}

/// What became of a knob when originals were put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restored {
    /// It stands at its original again.
    Done {
        /// The knob's name.
        name: &'static str,
        /// What we had set.
        from: i64,
        /// Its original.
        to: i64,
    },
    /// It stood there already.
    Unchanged {
        /// The knob's name.
        name: &'static str,
    },
    /// It is not what we wrote: somebody else has set it since, and it is left to them.
    Foreign {
        /// The knob's name.
        name: &'static str,
        /// What it stands at.
        found: i64,
        /// What we had set.
        written: i64,
    },
    /// It could not be put back.
    Failed {
        /// The knob's name.
        name: &'static str,
        /// Its original.
        to: i64,
        /// Why not.
        reason: String,
    },
}

/// Why originals cannot be kept: then nothing may be turned.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// Another bursard, or a `bursar watermarks restore`, has the file.
    #[error(
        "{path:?} is in use: another bursard moves the watermarks of this machine; stop it first, or ask it \
         (bursar watermarks restore)"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be read or written.
    #[error(
        "cannot {action} {path:?}: {source}; without it original values would be lost, so nothing is changed"
    )]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

/// The file, locked.
#[derive(Debug)]
pub struct SavedValues {
    path: PathBuf,
    file: File,
    /// Where the first line of a knob begins, bytes.
    head: u64,
    turned: Vec<Turned>,
}

impl SavedValues {
    /// Whether there is a file with something in it that was not put back.
    pub fn is_there(paths: &Paths) -> bool {
        let bytes = std::fs::read(paths.state.join(FILE)).unwrap_or_default();
        bytes.iter().filter(|&&byte| byte == b'\n').count() > 1
    }

    /// Opens the file, or makes it. What an earlier run of this boot has not put back is in it.
    ///
    /// # Errors
    /// When somebody else has it, or it cannot be read or written.
    pub fn open(paths: &Paths) -> Result<Self, SavedError> {
        let path = paths.state.join(FILE);
        let io = |action: &'static str| {
            let path = path.clone();
            move |source: io::Error| SavedError::Io {
                action,
                path,
                source,
            }
        };
        make_directory(&paths.state, STATE).map_err(io("make the directory of"))?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(io("open"))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| SavedError::InUse { path: path.clone() })?;
        let mut bytes = Vec::new();
        // A few lines; what is longer was not written by us.
        (&mut file)
            .take(64 << 10)
            .read_to_end(&mut bytes)
            .map_err(io("read"))?;
        let head = format!("{HEAD}{}\n", boot_id(paths));
        let turned = match bytes.strip_prefix(head.as_bytes()) {
            Some(lines) => parse(lines, paths),
            None => Vec::new(),
        };
        let mut saved = Self {
            path: path.clone(),
            file,
            head: head.len() as u64,
            turned,
        };
        saved.rewrite(&head).map_err(io("write"))?;
        Ok(saved)
    }

    /// Knobs that were turned and not put back.
    pub fn turned(&self) -> &[Turned] {
        &self.turned
    }

    /// What a knob stood at before it was turned.
    pub fn original_of(&self, sysctl: Sysctl) -> Option<i64> {
        let found = self.turned.iter().find(|it| it.knob.sysctl() == sysctl);
        found.map(|it| it.original)
    }

    /// The file again from the beginning, with what is known.
    fn rewrite(&mut self, head: &str) -> io::Result<()> {
        self.file.write_all_at(head.as_bytes(), 0)?;
        self.file.set_len(self.head)?;
        for index in 0..self.turned.len() {
            self.write_line(index)?;
        }
        Ok(())
    }

    fn write_line(&self, index: usize) -> io::Result<()> {
        let Some(turned) = self.turned.get(index) else {
            return Ok(());
        };
        let mut line = [b' '; WIDTH];
        let mut room = line.get_mut(..WIDTH - 1).unwrap_or_default();
        write!(
            room,
            "{} {} {} .",
            turned.knob.name(),
            turned.original,
            turned.written
        )?;
        if let Some(last) = line.last_mut() {
            *last = b'\n';
        }
        let at = self.head + (index as u64) * (WIDTH as u64);
        self.file.write_all_at(&line, at)
    }

    /// Turns a knob: first what it stood at and what it will stand at goes into the file, then the
    /// kernel is told. Allocates only the first time.
    ///
    /// # Errors
    /// When either fails; the knob then stands where it stood.
    pub fn turn(&mut self, knob: &Knob, current: i64, value: i64) -> io::Result<()> {
        let known = self
            .turned
            .iter()
            .position(|it| it.knob.sysctl() == knob.sysctl());
        let index = match known {
            Some(index) => index,
            None => {
                self.turned.push(Turned {
                    knob: knob.clone(),
                    original: current,
                    written: current,
                });
                self.turned.len() - 1
            }
        };
        let before = self.turned.get(index).map_or(current, |it| it.written);
        self.set_written(index, value);
        let done = self.write_line(index).and_then(|()| knob.write(value));
        if done.is_err() && known.is_none() && stands_at(knob, current) {
            // The kernel would not have it: there is nothing to put back.
            self.turned.pop();
            self.store();
        } else if done.is_err() {
            self.set_written(index, before);
            // The file is one step ahead of the kernel at most; what cannot be put right in it now
            // shows at the next start as a value that is not ours.
            let _ = self.write_line(index);
        }
        done
    }

    fn set_written(&mut self, index: usize, value: i64) {
        if let Some(turned) = self.turned.get_mut(index) {
            turned.written = value;
        }
    }

    /// Forgets a knob without touching it: somebody else has taken it over.
    pub fn give_up(&mut self, sysctl: Sysctl) {
        self.turned.retain(|it| it.knob.sysctl() != sysctl);
        self.store();
    }

    /// Puts back everything that still stands at what we wrote.
    pub fn restore(&mut self) -> Vec<Restored> {
        let mut left = Vec::new();
        let results = self.turned.iter().map(|turned| {
            let result = restore_one(turned);
            if matches!(result, Restored::Failed { .. }) {
                left.push(turned.clone());
            }
            result
        });
        let results = results.collect();
        self.turned = left;
        self.store();
        results
    }

    fn store(&mut self) {
        let end = self.head + (self.turned.len() as u64) * (WIDTH as u64);
        let stored = (0..self.turned.len())
            .try_for_each(|index| self.write_line(index))
            .and_then(|()| self.file.set_len(end));
        if let Err(error) = stored {
            tracing::warn!(path = %self.path.display(), %error, "the file of original values could not be written");
        }
    }
}

/// Whether a knob is as it was, or is not there at all.
fn stands_at(knob: &Knob, value: i64) -> bool {
    match knob.read() {
        Ok(found) => found.is_none_or(|found| found == value),
        Err(_) => false,
    }
}

fn restore_one(turned: &Turned) -> Restored {
    let Turned {
        knob,
        original,
        written,
    } = turned;
    let name = knob.name();
    let failed = |reason: String| Restored::Failed {
        name,
        to: *original,
        reason,
    };
    match knob.read() {
        Ok(Some(found)) if found == *original => Restored::Unchanged { name },
        Ok(Some(found)) if found == *written => match knob.write(*original) {
            Ok(()) => Restored::Done {
                name,
                from: found,
                to: *original,
            },
            Err(error) => failed(error.to_string()),
        },
        Ok(Some(found)) => Restored::Foreign {
            name,
            found,
            written: *written,
        },
        Ok(None) => failed("this kernel does not have it any more".to_owned()),
        Err(error) => failed(error.to_string()),
    }
}

/// Lines that are whole; a line cut short was being written when its writer died, and the knob had
/// not been turned yet.
fn parse(lines: &[u8], paths: &Paths) -> Vec<Turned> {
    let whole = lines.chunks_exact(WIDTH);
    whole
        .filter_map(|line| {
            let text = str::from_utf8(line).ok()?;
            let mut words = text.split_whitespace();
            let sysctl = Sysctl::of_name(words.next()?)?;
            let original = words.next()?.parse().ok()?;
            let written = words.next()?.parse().ok()?;
            (words.next() == Some(".")).then(|| Turned {
                knob: Knob::of(sysctl, paths),
                original,
                written,
            })
        })
        .collect()
}

/// Values of another boot are no originals.
fn boot_id(paths: &Paths) -> String {
    let path: &Path = &paths.proc.join("sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let id = text.trim();
    let is_plain = id
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if id.is_empty() || id.len() > 64 || !is_plain {
        "unknown".to_owned()
    } else {
        id.to_owned()
    }
}
