// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One process, held by its directory so that it cannot be mistaken for another.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use bursar_model::{Pid, Uid};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{parsed, read};
use crate::bytes::number;
use crate::{Comm, HostError, Malformed, Proc, Stat, Status};

/// A hold on one process's directory in /proc. When the process is gone, every reader says so, also
/// when its number has gone to another one.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    path: PathBuf,
    directory: OwnedFd,
}

/// What became of a change of a process's OOM score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adjusted {
    /// It is so now.
    Done,
    /// The process is gone.
    Gone,
    /// We may not: it is another's, or to go below the lowest value that somebody with
    /// CAP_SYS_RESOURCE gave it (0 at first) takes that capability.
    Denied,
}

impl Process {
    pub(super) fn open(proc: &Proc, pid: Pid) -> Result<Option<Self>, HostError> {
        let name = pid.to_string();
        let path = proc.root.join(&name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::openat(&proc.directory, &name, flags, Mode::empty()) {
            Ok(directory) => Ok(Some(Self {
                pid,
                path,
                directory,
            })),
            Err(Errno::NOENT | Errno::SRCH) => Ok(None),
            Err(errno) => Err(HostError::new("open", &path, errno)),
        }
    }

    /// Its number.
    pub const fn pid(&self) -> Pid {
        self.pid
    }

    /// What its stat says.
    ///
    /// # Errors
    /// When it cannot be read or understood.
    pub fn stat(&self) -> Result<Option<Stat>, HostError> {
        self.parsed("stat", Stat::parse)
    }

    /// What its status says.
    ///
    /// # Errors
    /// When it cannot be read or understood.
    pub fn status(&self) -> Result<Option<Status>, HostError> {
        self.parsed("status", Status::parse)
    }

    /// Its command name.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn comm(&self) -> Result<Option<Comm>, HostError> {
        self.parsed("comm", |bytes| Ok(Comm::from_file(bytes)))
    }

    /// How the kernel's OOM killer prefers it, −1000 (never) to 1000 (first).
    ///
    /// # Errors
    /// When it cannot be read or understood.
    pub fn oom_score_adj(&self) -> Result<Option<i16>, HostError> {
        self.parsed("oom_score_adj", oom_score_adj)
    }

    /// Who logged in to begin it or an ancestor (the audit subsystem's loginuid); `None` where nobody did, or this
    /// kernel does not keep it. Nothing that a process does keeps this waiting.
    ///
    /// # Errors
    /// When it cannot be read or understood.
    pub fn login_uid(&self) -> Result<Option<Uid>, HostError> {
        let read = self.parsed("loginuid", |bytes| {
            number(bytes).ok_or_else(|| Malformed::new("no number that fits"))
        })?;
        Ok(read.filter(|&uid| uid != u32::MAX).map(Uid::new))
    }

    /// Changes that, −1000 to 1000. The kernel changes it for all processes that share the memory.
    ///
    /// # Errors
    /// When it cannot be written for another reason than those of [`Adjusted`].
    pub fn set_oom_score_adj(&self, score: i16) -> Result<Adjusted, HostError> {
        let name = "oom_score_adj";
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let written = rustix::fs::openat(&self.directory, name, flags, Mode::empty())
            .and_then(|file| rustix::io::write(file, score.to_string().as_bytes()));
        match written {
            Ok(_) => Ok(Adjusted::Done),
            Err(Errno::NOENT | Errno::SRCH) => Ok(Adjusted::Gone),
            Err(Errno::PERM | Errno::ACCESS) => Ok(Adjusted::Denied),
            Err(errno) => Err(HostError::new("write", &self.path.join(name), errno)),
        }
    }

    fn parsed<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Option<T>, HostError> {
        let bytes = read(self.directory.as_fd(), &self.path, name)?;
        parsed(bytes, &self.path, name, parse)
    }
}

pub(super) fn oom_score_adj(bytes: &[u8]) -> Result<i16, Malformed> {
    number(bytes).ok_or_else(|| Malformed::new("no number that fits"))
}
