// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends SIGKILL where the kernel half asks us to, or where there is none.
//!
//! A victim was chosen a moment ago; by now it may be gone and its pid another process's. So we open a pidfd of the process
//! with that pid *and* that number in pidfs, or that start time, look once more whether it may be killed, and signal
//! through the pidfd.
//!
//! Before 6.9 pidfs has no numbers, and /proc/PID/stat of a process whose execve lasts does not answer
//! (`process_query.rs`). Then two things are enough. A thread of ours still waits for that answer when the pidfd is open, so
//! the pid is still the same process's. And the process is the same user's, or is in another user namespace, where the
//! user has another uid: a process whose stat does not answer is no bystander.

use std::num::NonZeroU64;

use bursar_host::{HostError, Pidfd, Proc, ProcessQuery, Sent, StartTime, Status, clock};
use bursar_model::{Nanos, Pid, Uid};
use bursar_policy::OOM_SCORE_ADJ_MIN;
use bursar_watchdog::TimedQuery;
use rustix::process::Signal;

/// A process that somebody chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) pid: Pid,
    /// Who pays for it.
    pub(crate) uid: Uid,
    /// When it began, CLOCK_BOOTTIME; `None` where nobody could look, and then it has a number.
    pub(crate) started: Option<Nanos>,
    /// In pidfs. Where there is none its /proc/PID/stat has to be read, which waits for who is in the middle of an
    /// execve and lets it last (exec_update_lock).
    pub(crate) number: Option<NonZeroU64>,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KillOutcome {
    /// Its signal was sent, CLOCK_MONOTONIC.
    Signalled(Nanos),
    /// It has ended by itself.
    Gone,
    /// It must not be killed after all, or cannot be, and why.
    NotKilled(String),
}

impl KillOutcome {
    /// When its signal was sent, if it was.
    pub(crate) const fn signalled(&self) -> Option<Nanos> {
        match self {
            Self::Signalled(at) => Some(*at),
            Self::Gone | Self::NotKilled(_) => None,
        }
    }
}

/// What a look for it has found.
enum Opened {
    Held(Pidfd),
    /// It has ended.
    Gone,
    /// Whoever has its pid cannot be asked whether it is the same.
    Unsure,
}

impl From<Option<Pidfd>> for Opened {
    fn from(held: Option<Pidfd>) -> Self {
        held.map_or(Self::Gone, Self::Held)
    }
}

impl Chosen {
    /// A hold on it, without asking the process anything; `None` where there are no numbers.
    fn open_numbered(self) -> Option<Result<Option<Pidfd>, HostError>> {
        let number = self.number?;
        match Pidfd::open_numbered(self.pid, number) {
            Err(HostError::Unsupported { .. }) => None,
            held => Some(held),
        }
    }

    /// A hold on it.
    fn open(self, proc: &Proc, query: &mut TimedQuery) -> Result<Opened, HostError> {
        if let Some(held) = self.open_numbered() {
            return held.map(Opened::from);
        }
        let Some(started) = self.started else {
            return Ok(Opened::Gone);
        };
        let start = StartTime::after_boot(started);
        let asked = query.ask(self.pid, move |proc, pid| {
            Pidfd::open_verified(proc, pid, start)
        });
        match asked {
            Some(held) => held.map(Opened::from),
            None if query.hangs_at(self.pid) => self.open_hanging(proc, query),
            None => Ok(Opened::Unsure),
        }
    }

    /// The same of one that does not say when it began.
    fn open_hanging(self, proc: &Proc, query: &TimedQuery) -> Result<Opened, HostError> {
        let Some(pidfd) = Pidfd::open(self.pid)? else {
            return Ok(Opened::Gone);
        };
        let status = proc.status(self.pid)?;
        let is_his = status.is_some_and(|it| it.uid == self.uid)
            || proc.has_our_users(self.pid)? == Some(false);
        // Looked for after it is held: the thread is let go when its process ends, before another one has the number.
        Ok(match is_his && query.hangs_at(self.pid) {
            true => Opened::Held(pidfd),
            false => Opened::Unsure,
        })
    }

    /// Whether nobody could look at it: its pid may be another's.
    pub(crate) fn is_unknown(&self) -> bool {
        self.number.is_none() && self.started.is_none_or(|it| it.get() == 0)
    }

    /// Whether it is surely the same: pids come again, and of another process is said rather too much than nothing.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let alike = match (self.number, other.number) {
            (Some(own), Some(its)) => own == its,
            _ => self.started.is_some() && self.started == other.started,
        };
        alike && self.pid == other.pid
    }
}

/// A hold on a process that was killed already, if it is still there. Where it has no number and is dying to be seen, it
/// is held at once: for it will soon be past holding, and nothing is done to it but that its memory is taken.
pub(crate) fn hold(proc: &Proc, query: &mut TimedQuery, killed: Chosen) -> Option<Pidfd> {
    if let Some(held) = killed.open_numbered() {
        return held.ok().flatten();
    }
    let dying = hold_dying(proc, killed.pid).map(|(pidfd, _)| pidfd);
    dying.or_else(|| match killed.open(proc, query) {
        Ok(Opened::Held(pidfd)) => Some(pidfd),
        Ok(Opened::Gone | Opened::Unsure) | Err(_) => None,
    })
}

/// A hold on whatever process has this number, if it is dying, and its status.
pub(crate) fn hold_dying(proc: &Proc, pid: Pid) -> Option<(Pidfd, Status)> {
    let pidfd = Pidfd::open(pid).ok().flatten()?;
    // Not by its stat, for which one in the middle of an execve may have us wait.
    let status = proc.status(pid).ok().flatten()?;
    let is_dying = status.is_kill_pending || status.is_dead || status.memory.is_none();
    // Its status is of the process we hold: its number has not been free meanwhile.
    let is_there = !pidfd.has_ended().ok()?;
    (is_dying && is_there).then_some((pidfd, status))
}

/// Kills the process behind a hold.
pub(crate) fn kill(pidfd: &Pidfd) -> KillOutcome {
    let at = clock::monotonic();
    match pidfd.send(Signal::KILL) {
        Ok(Sent::Done) => KillOutcome::Signalled(at),
        Ok(Sent::Gone) => KillOutcome::Gone,
        Err(error) => KillOutcome::NotKilled(error.to_string()),
    }
}

/// Kills the process that was chosen; what it held is to be reaped through the hold.
pub(crate) fn kill_chosen(
    proc: &Proc,
    query: &mut TimedQuery,
    chosen: Chosen,
) -> (KillOutcome, Option<Pidfd>) {
    match chosen.open(proc, query) {
        Ok(Opened::Held(pidfd)) => (kill_unless_protected(proc, &pidfd), Some(pidfd)),
        Ok(Opened::Gone) => (KillOutcome::Gone, None),
        Ok(Opened::Unsure) => {
            let why = "it cannot be asked whether it is the process that was chosen; the kernel half asks again";
            (KillOutcome::NotKilled(why.to_owned()), None)
        }
        Err(error) => (KillOutcome::NotKilled(error.to_string()), None),
    }
}

/// The same of one that is held.
pub(crate) fn kill_unless_protected(proc: &Proc, pidfd: &Pidfd) -> KillOutcome {
    let pid = pidfd.pid();
    if pid.get() <= 1 || pid.get() == std::process::id() {
        return KillOutcome::NotKilled("it is pid 1 or bursard".to_owned());
    }
    let adjusted = match proc.oom_score_adj(pid) {
        Ok(adjusted) => adjusted,
        Err(error) => return KillOutcome::NotKilled(error.to_string()),
    };
    // As long as ours has not ended nobody else had its number.
    match (pidfd.has_ended(), adjusted) {
        (Err(error), _) => KillOutcome::NotKilled(error.to_string()),
        (Ok(true), _) | (_, None) => KillOutcome::Gone,
        (_, Some(OOM_SCORE_ADJ_MIN)) => {
            KillOutcome::NotKilled("its oom_score_adj is -1000".to_owned())
        }
        (Ok(false), Some(_)) => kill(pidfd),
    }
}
