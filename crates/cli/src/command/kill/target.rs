// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process that may be killed: its pidfd, and the facts that were true of exactly that process.
//!
//! The race: a number read from /proc may be another process's a moment later. The pidfd is opened
//! first, the facts are read then, and the pidfd is asked afterwards whether its process still lived;
//! if so, the facts were its own.

use bursar_host::{HostError, Pidfd, Proc, ProcessQuery};
use bursar_model::{Bytes, Pid, Uid};

use crate::failure::Code;

/// A process that lived when it was looked at and may be killed.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) pidfd: Pidfd,
    /// Made printable; empty where it could not be read.
    pub(super) comm: String,
    /// Whose it is.
    pub(super) uid: Option<Uid>,
    /// What it had of its own.
    pub(super) private: Option<Bytes>,
}

/// One that is not killed.
#[derive(Debug)]
pub(super) struct Denied {
    pub(super) comm: Option<String>,
    pub(super) reason: String,
    pub(super) code: Code,
    /// It has gone, or its number is another's by now: nothing is left to kill.
    pub(super) is_gone: bool,
}

impl Denied {
    fn new(reason: impl Into<String>, code: Code) -> Self {
        Self {
            comm: None,
            reason: reason.into(),
            code,
            is_gone: false,
        }
    }

    fn gone(reason: &str) -> Self {
        Self {
            is_gone: true,
            ..Self::new(reason, Code::Failed)
        }
    }

    pub(super) fn ended() -> Self {
        Self::gone("has ended already")
    }

    fn of_host(error: &HostError) -> Self {
        Self::new(format!("cannot be watched: {error}"), Code::Failed)
    }
}

impl Target {
    /// The process with this number. With `uids`: only if it is one of theirs.
    pub(super) fn open(
        ask: &mut impl ProcessQuery,
        proc: &Proc,
        pid: Pid,
        uids: Option<&[Uid]>,
    ) -> Result<Self, Denied> {
        if pid.get() == 1 {
            return Err(Denied::new(
                "is init: the machine would go down",
                Code::Usage,
            ));
        }
        if pid.get() == std::process::id() {
            return Err(Denied::new("is this very bursar", Code::Usage));
        }
        let Some(pidfd) = Pidfd::open(pid).map_err(|error| Denied::of_host(&error))? else {
            let is_thread = proc
                .status(pid)
                .ok()
                .flatten()
                .is_some_and(|it| it.tgid != pid);
            return Err(if is_thread {
                Denied::new("is a thread, not a process: name its process", Code::Failed)
            } else {
                Denied::gone("no such process")
            });
        };
        // Its stat it can delay: not asked for where its user is known, whose it is then no thread of the kernel's. What
        // else the reapers want to know they ask themselves.
        let stat = match uids {
            Some(_) => None,
            None => ask.ask(pid, |proc, pid| proc.stat(pid).ok().flatten()),
        };
        let status = proc.status(pid).ok().flatten();
        let comm = proc.comm(pid).ok().flatten();
        let uid = status.as_ref().map(|it| it.uid);
        let memory = status.and_then(|it| it.memory);
        if pidfd.has_ended().map_err(|error| Denied::of_host(&error))? {
            return Err(Denied::ended());
        }
        if let Some(uids) = uids
            && uid.is_none_or(|uid| !uids.contains(&uid))
        {
            return Err(Denied::gone("is not theirs any more"));
        }
        // Without facts (hidepid, no /proc) the kernel's own permission check decides.
        let comm = comm.map(|it| it.to_printable()).unwrap_or_default();
        if stat.flatten().is_some_and(|it| it.is_kernel_thread) {
            return Err(Denied {
                comm: Some(comm),
                ..Denied::new(
                    "is a thread of the kernel: it cannot be killed",
                    Code::Usage,
                )
            });
        }
        Ok(Self {
            pidfd,
            comm,
            uid,
            private: memory.map(|it| it.comes_back()),
        })
    }

    /// Why a signal could not be sent.
    pub(super) fn refused(&self, error: &HostError) -> Denied {
        let (reason, code) = match error {
            HostError::Denied { .. } => {
                ("not permitted: it is not yours".into(), Code::NotPermitted)
            }
            error => (format!("cannot send the signal: {error}"), Code::Failed),
        };
        Denied {
            comm: Some(self.comm.clone()),
            ..Denied::new(reason, code)
        }
    }
}

#[cfg(test)]
mod tests {
    use bursar_host::Patient;

    use super::*;

    fn denied(pid: u32) -> (Code, String) {
        let proc = Proc::host().unwrap();
        let denied = Target::open(&mut Patient(&proc), &proc, Pid::new(pid), None).unwrap_err();
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
