// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /proc: which processes there are, and what the machine as a whole holds.

mod meminfo;
mod process;
mod stat;
mod status;

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bursar_model::Pid;
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::bytes::number;
use crate::{HostError, Malformed};

pub use meminfo::MemInfo;
pub use process::{Adjusted, Comm, Process};
pub use stat::{Device, StartTime, Stat, State};
pub use status::{Memory, Status};

/// /proc, or a directory that looks like it.
#[derive(Debug)]
pub struct Proc {
    root: PathBuf,
    directory: OwnedFd,
}

impl Proc {
    /// The process file system mounted at `root`.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn at(root: &Path) -> Result<Self, HostError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(root, flags, Mode::empty())
            .map_err(|errno| HostError::new("open", root, errno))?;
        Ok(Self {
            root: root.to_owned(),
            directory,
        })
    }

    /// This machine's, `/proc`.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn host() -> Result<Self, HostError> {
        Self::at(Path::new("/proc"))
    }

    /// The processes there are, in the kernel's order. One that comes or goes meanwhile may or may
    /// not be among them.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub fn pids(&self) -> Result<Pids, HostError> {
        let failed = |errno| HostError::new("list", &self.root, errno);
        Ok(Pids {
            entries: Dir::read_from(&self.directory).map_err(failed)?,
            root: self.root.clone(),
        })
    }

    /// What /proc/PID/stat says.
    ///
    /// # Errors
    /// When it cannot be read or understood.
    pub fn stat(&self, pid: Pid) -> Result<Option<Stat>, HostError> {
        self.parsed(&format!("{pid}/stat"), Stat::parse)
    }

    /// What /proc/PID/status says.
    ///
    /// # Errors
    /// When it cannot be read or understood.
    pub fn status(&self, pid: Pid) -> Result<Option<Status>, HostError> {
        self.parsed(&format!("{pid}/status"), Status::parse)
    }

    /// The command name, at most 64 bytes that the process chose.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn comm(&self, pid: Pid) -> Result<Option<Comm>, HostError> {
        self.parsed(&format!("{pid}/comm"), |bytes| Ok(Comm::from_file(bytes)))
    }

    /// A hold on a process's directory: what is read or written through it concerns that process even
    /// when its number has gone to another one.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn process(&self, pid: Pid) -> Result<Option<Process>, HostError> {
        Process::open(self, pid)
    }

    /// The same, if it is the process that began at `start`; `None` when that one is gone.
    ///
    /// # Errors
    /// When it cannot be opened, read or understood.
    pub fn process_since(&self, pid: Pid, start: StartTime) -> Result<Option<Process>, HostError> {
        let Some(process) = self.process(pid)? else {
            return Ok(None);
        };
        let stat = process.stat()?;
        Ok(stat.filter(|stat| stat.start == start).map(|_| process))
    }

    /// The machine's memory.
    ///
    /// # Errors
    /// When /proc/meminfo cannot be read or understood.
    pub fn meminfo(&self) -> Result<MemInfo, HostError> {
        let missing = || HostError::new("read", &self.root.join("meminfo"), Errno::NOENT);
        self.parsed("meminfo", MemInfo::parse)?.ok_or_else(missing)
    }

    /// What names this boot, a UUID; `None` where the kernel does not say.
    ///
    /// # Errors
    /// When it cannot be read or is no UUID.
    pub fn boot_id(&self) -> Result<Option<String>, HostError> {
        self.parsed("sys/kernel/random/boot_id", |bytes| {
            let text = str::from_utf8(bytes.trim_ascii()).unwrap_or_default();
            let is_uuid =
                text.len() == 36 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
            if is_uuid {
                Ok(text.to_owned())
            } else {
                Err(Malformed::new("no UUID"))
            }
        })
    }

    /// What `parse` makes of a file; `None` when there is none.
    pub(crate) fn parsed<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Option<T>, HostError> {
        read_parsed(self.directory.as_fd(), &self.root, name, parse)
    }
}

/// The processes that [`Proc::pids`] found.
#[derive(Debug)]
pub struct Pids {
    entries: Dir,
    root: PathBuf,
}

impl Iterator for Pids {
    type Item = Result<Pid, HostError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.entries.next()? {
                Ok(entry) => {
                    let pid = number::<i32>(entry.file_name().to_bytes());
                    if let Some(pid) = pid
                        .and_then(|pid| u32::try_from(pid).ok())
                        .filter(|&pid| pid > 0)
                    {
                        return Some(Ok(Pid::new(pid)));
                    }
                }
                Err(errno) => return Some(Err(HostError::new("list", &self.root, errno))),
            }
        }
    }
}

/// A file of /proc is never larger, bytes: a status with 65,536 groups has 720 KiB.
const MAX_FILE: u64 = 2 << 20;

/// What `parse` makes of the file `name` in `directory`, which is called `path`; `None` when the file
/// is not there or its process has gone while we read.
fn read_parsed<T>(
    directory: BorrowedFd<'_>,
    path: &Path,
    name: &str,
    parse: impl FnOnce(&[u8]) -> Result<T, Malformed>,
) -> Result<Option<T>, HostError> {
    let failed = |errno| HostError::new("read", &path.join(name), errno);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT | Errno::SRCH) => return Ok(None),
        Err(errno) => return Err(failed(errno)),
    };
    let mut bytes = Vec::with_capacity(4096);
    match file.take(MAX_FILE).read_to_end(&mut bytes) {
        Ok(_) => parse(&bytes)
            .map(Some)
            .map_err(|malformed| malformed.at(&path.join(name))),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::SRCH | Errno::NOENT) => Ok(None),
            errno => Err(failed(errno.unwrap_or(Errno::IO))),
        },
    }
}
