// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process that may be killed: its pidfd, and the facts that were true of exactly that process.
//!
//! The race: a number read from /proc may be another process's a moment later. The pidfd is opened
//! first, the facts are read then, and the pidfd is asked afterwards whether its process still lived;
//! if so, the facts were its own.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use bursar_model::printable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use crate::failure::Code;

/// PF_KTHREAD, include/linux/sched.h.
const PF_KTHREAD: u64 = 0x0020_0000;
/// TASK_COMM_LEN is 16; `printable` may make four characters of one.
const LONGEST_COMM: usize = 64;

/// A process that lived when it was looked at and may be killed.
#[derive(Debug)]
pub(super) struct Target {
    pidfd: OwnedFd,
    comm: String,
}

/// One that is not killed.
#[derive(Debug)]
pub(super) struct Denied {
    pub(super) comm: Option<String>,
    pub(super) reason: String,
    pub(super) code: Code,
}

impl Target {
    /// The process with this number.
    pub(super) fn open(pid: u32) -> Result<Self, Denied> {
        let denied = |reason: &str, code| Denied {
            comm: None,
            reason: reason.into(),
            code,
        };
        if pid == 1 {
            return Err(denied("is init: the machine would go down", Code::Usage));
        }
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let Some(raw) = raw else {
            return Err(denied("no such process", Code::Failed));
        };
        if raw == getpid() {
            return Err(denied("is this very bursar", Code::Usage));
        }
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(Denied::opening)?;
        let stat = fs::read(format!("/proc/{pid}/stat"))
            .ok()
            .and_then(|stat| Stat::read(&stat));
        if has_ended(&pidfd).map_err(Denied::waiting)? {
            return Err(denied("has ended already", Code::Failed));
        }
        // Without facts (hidepid, no /proc) the kernel's own permission check decides.
        let Stat { comm, flags } = stat.unwrap_or_default();
        if flags & PF_KTHREAD != 0 {
            let reason = "is a thread of the kernel: it cannot be killed".into();
            return Err(Denied {
                comm: Some(comm),
                reason,
                code: Code::Usage,
            });
        }
        Ok(Self { pidfd, comm })
    }

    /// Its command name, made printable; empty where it could not be read.
    pub(super) fn comm(&self) -> &str {
        &self.comm
    }

    /// Sends SIGKILL.
    pub(super) fn kill(&self) -> Result<(), Denied> {
        pidfd_send_signal(&self.pidfd, Signal::KILL).map_err(|error| {
            let (reason, code) = match error {
                Errno::PERM => ("not permitted: it is not yours".into(), Code::NotPermitted),
                Errno::SRCH => ("has ended already".into(), Code::Failed),
                error => (format!("cannot send the signal: {error}"), Code::Failed),
            };
            Denied {
                comm: Some(self.comm.clone()),
                reason,
                code,
            }
        })
    }
}

/// When each of `targets` was gone; `None` for those that were not by `deadline`.
pub(super) fn wait(targets: &[&Target], deadline: Instant) -> Vec<Option<Instant>> {
    let mut ends = vec![None; targets.len()];
    loop {
        let waiting = ends.iter().zip(targets).filter(|(end, _)| end.is_none());
        let mut watched: Vec<_> = waiting
            .map(|(_, target)| PollFd::new(&target.pidfd, PollFlags::IN))
            .collect();
        let left = deadline.saturating_duration_since(Instant::now());
        if watched.is_empty() || left.is_zero() {
            return ends;
        }
        match poll(&mut watched, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return ends,
        }
        let now = Instant::now();
        let open = ends.iter_mut().filter(|end| end.is_none());
        for (end, fd) in open.zip(&watched) {
            if !fd.revents().is_empty() {
                *end = Some(now);
            }
        }
    }
}

/// A pidfd is readable once its process has ended, also while nobody has waited for it.
fn has_ended(pidfd: &OwnedFd) -> Result<bool, Errno> {
    let mut watched = [PollFd::new(pidfd, PollFlags::IN)];
    loop {
        match poll(&mut watched, Some(&Timespec::default())) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

impl Denied {
    fn opening(error: Errno) -> Self {
        let reason = match error {
            Errno::SRCH => "no such process".into(),
            // EINVAL before Linux 6.9, ENOENT since: the number of a thread.
            Errno::INVAL | Errno::NOENT => "is a thread, not a process: name its process".into(),
            error => format!("cannot open it: {}", io::Error::from(error)),
        };
        Self {
            comm: None,
            reason,
            code: Code::Failed,
        }
    }

    fn waiting(error: Errno) -> Self {
        Self {
            comm: None,
            reason: format!("cannot watch it: {error}"),
            code: Code::Failed,
        }
    }
}

/// What is needed of /proc/PID/stat.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stat {
    comm: String,
    flags: u64,
}

impl Stat {
    /// The comm is between the first `(` and the last `)`, and may hold both; flags are the seventh
    /// field after it (proc_pid_stat(5)).
    fn read(stat: &[u8]) -> Option<Self> {
        let start = stat.iter().position(|&byte| byte == b'(')?;
        let end = stat.iter().rposition(|&byte| byte == b')')?;
        let comm = printable(stat.get(start.checked_add(1)?..end)?, LONGEST_COMM);
        let rest = str::from_utf8(stat.get(end.checked_add(1)?..)?).ok()?;
        let flags = rest.split_ascii_whitespace().nth(6)?.parse().ok()?;
        Some(Self { comm, flags })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_comm_does_not_shift_the_fields() {
        let stat = b"42 (a) R 1 (\n) S 1 42 42 0 -1 2129984 0 0\n";
        let read = Stat::read(stat).unwrap();
        assert_eq!(
            read,
            Stat {
                comm: "a) R 1 (\\n".into(),
                flags: 2_129_984
            }
        );
        assert_ne!(read.flags & PF_KTHREAD, 0);
    }

    #[test]
    fn what_is_no_stat_is_nothing() {
        for stat in [&b""[..], b"42", b")(", b"42 (a", b"42 (a) S 1"] {
            assert_eq!(Stat::read(stat), None);
        }
    }

    fn denied(pid: u32) -> (Code, String) {
        let denied = Target::open(pid).unwrap_err();
        (denied.code, denied.reason)
    }

    #[test]
    fn what_must_not_or_cannot_be_killed_is_denied() {
        let (code, reason) = denied(1);
        assert!(code == Code::Usage && reason.contains("init"), "{reason}");
        let (code, reason) = denied(std::process::id());
        assert!(
            code == Code::Usage && reason.contains("this very"),
            "{reason}"
        );
        for nobody in [i32::MAX as u32, u32::MAX] {
            assert_eq!(denied(nobody), (Code::Failed, "no such process".into()));
        }
    }

    #[test]
    fn a_thread_is_no_process() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            let _ = ended.recv();
        });
        let (_, reason) = denied(told.recv().unwrap().as_raw_pid().unsigned_abs());
        assert!(reason.contains("is a thread"), "{reason}");
        drop(end);
        thread.join().unwrap();
    }
}
