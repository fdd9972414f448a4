// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process that cannot be mistaken for another: pidfd_open(2), pidfd_send_signal(2).

use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bursar_model::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{fstat, fstatfs};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::mrelease::process_mrelease;
use crate::{HostError, Proc, Release, StartTime};

/// include/uapi/linux/magic.h
const PID_FS_MAGIC: rustix::fs::FsWord = 0x5049_4446;

/// A hold on a process. Its number may go to another process; this stays with the one it was opened
/// for.
#[derive(Debug)]
pub struct Pidfd {
    pid: Pid,
    fd: OwnedFd,
}

/// What became of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way.
    Done,
    /// The process is gone.
    Gone,
}

impl Pidfd {
    /// A hold on whatever process has this number now; `None` when none has (a thread that is not its
    /// process's first is none).
    ///
    /// # Errors
    /// [`HostError::Unsupported`] before 5.3, [`HostError::Failed`] when descriptors run out.
    pub fn open(pid: Pid) -> Result<Option<Self>, HostError> {
        let number = i32::try_from(pid.get())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let Some(number) = number else {
            return Ok(None);
        };
        match pidfd_open(number, PidfdFlags::empty()) {
            Ok(fd) => Ok(Some(Self { pid, fd })),
            // EINVAL, since 6.15 ENOENT: a thread.
            Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed("open a pidfd for", pid, errno)),
        }
    }

    /// A hold on the process with this number that began at `start`; `None` when that one has ended.
    ///
    /// Opened first and compared then: the number cannot have gone on to another process between the
    /// comparison and the opening. One that ended and made room *before* the comparison is met by
    /// looking whether the one we hold still runs.
    ///
    /// # Errors
    /// As [`Self::open`], or when /proc/PID/stat cannot be read.
    pub fn open_verified(
        proc: &Proc,
        pid: Pid,
        start: StartTime,
    ) -> Result<Option<Self>, HostError> {
        // Twice: the first pidfd may be of the process that had the number before ours.
        for _ in 0..2 {
            let Some(pidfd) = Self::open(pid)? else {
                return Ok(None);
            };
            match proc.stat(pid)? {
                Some(stat) if stat.start == start => {}
                _ => return Ok(None),
            }
            if !pidfd.has_ended()? {
                return Ok(Some(pidfd));
            }
        }
        Ok(None)
    }

    /// A hold on the process with this pid and this number in pidfs (6.9: cb12fd8e0dab "pidfd: add pidfs"), which is
    /// given to nobody else until the next boot; `None` when that one has ended. Unlike [`Self::open_verified`] it
    /// reads nothing of the process's, so no process can keep it waiting.
    ///
    /// # Errors
    /// As [`Self::open`]; [`HostError::Unsupported`] also where pidfds have no numbers.
    pub fn open_numbered(pid: Pid, number: NonZeroU64) -> Result<Option<Self>, HostError> {
        let Some(pidfd) = Self::open(pid)? else {
            return Ok(None);
        };
        let found = pidfd.number()?;
        if found != Some(number) {
            return match found {
                Some(_) => Ok(None),
                None => Err(failed("ask for the number of", pid, Errno::OPNOTSUPP)),
            };
        }
        Ok(Some(pidfd).filter(|it| it.has_ended() != Ok(true)))
    }

    /// Its number in pidfs; `None` where pidfds are anonymous files.
    ///
    /// # Errors
    /// What fstat(2) and fstatfs(2) do not list for a pidfd.
    pub fn number(&self) -> Result<Option<NonZeroU64>, HostError> {
        let failed = |errno| failed("ask for the number of", self.pid, errno);
        if fstatfs(&self.fd).map_err(failed)?.f_type != PID_FS_MAGIC {
            return Ok(None);
        }
        Ok(NonZeroU64::new(fstat(&self.fd).map_err(failed)?.st_ino))
    }

    /// A second hold on the same process.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn try_clone(&self) -> Result<Self, HostError> {
        let cloned = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0);
        let fd = cloned.map_err(|errno| failed("hold once more", self.pid, errno))?;
        Ok(Self { pid: self.pid, fd })
    }

    /// The number it had when it was opened.
    pub const fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to the process as a whole.
    ///
    /// # Errors
    /// [`HostError::Denied`] when we may not.
    pub fn send(&self, signal: Signal) -> Result<Sent, HostError> {
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) => Ok(Sent::Done),
            Err(Errno::SRCH) => Ok(Sent::Gone),
            Err(errno) => Err(failed("signal", self.pid, errno)),
        }
    }

    /// Takes back the memory of this process, which must have been sent SIGKILL.
    ///
    /// # Errors
    /// What process_mrelease(2) does not list.
    pub fn release_memory(&self) -> Result<Release, HostError> {
        let failed = |errno| failed("release the memory of", self.pid, errno);
        process_mrelease(self.fd.as_fd()).map_err(failed)
    }

    /// Whether the process, all its threads, has ended.
    ///
    /// # Errors
    /// When the kernel is out of memory.
    pub fn has_ended(&self) -> Result<bool, HostError> {
        self.wait_readable(Some(Duration::ZERO))
    }

    /// Waits until the process, all its threads, has ended; false when `timeout` came first. Without
    /// `timeout` as long as it takes.
    ///
    /// # Errors
    /// When the kernel is out of memory.
    pub fn wait_readable(&self, timeout: Option<Duration>) -> Result<bool, HostError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            match poll(&mut fds, left.as_ref()) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed("wait for", self.pid, errno)),
            }
        }
    }
}

/// Readable when the process has ended: for epoll.
impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn failed(action: &'static str, pid: Pid, errno: Errno) -> HostError {
    HostError::new(action, &PathBuf::from(format!("process {pid}")), errno)
}
