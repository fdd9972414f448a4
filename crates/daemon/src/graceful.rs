// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kill = "graceful"`: an account over its notice has its largest process asked to end (SIGTERM), and
//! killed some seconds later if the account is still over its notice then. Over the limit nobody is
//! asked: the kernel half does not wait.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_host::{Pidfd, Proc, Sent, Signal, Timer, clock};
use bursar_model::{AccountId, Bytes, Nanos, Pid, Uid};
use bursar_policy::{Choice, Weighed, first};

/// So long a process has to end after it was asked.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// Processes asked at a time; one more is not asked.
const MOST: usize = 256;
const UNTOUCHABLE: i16 = -1000;

/// A process that was asked.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) pidfd: Pidfd,
    pub(crate) account: AccountId,
    pub(crate) uid: Uid,
    /// Bytes that its user chose.
    pub(crate) comm: Vec<u8>,
    pub(crate) held: Bytes,
    /// CLOCK_MONOTONIC.
    deadline: Nanos,
}

impl Asked {
    /// Whether it is still one of those that pay, and not protected since: it may have become somebody else's.
    pub(crate) fn may_be_killed(&self, proc: &Proc, pays: impl Fn(Pid, Uid) -> bool) -> bool {
        let weighed = weigh(proc, self.pidfd.pid(), &pays);
        // The look was at this process if that is still there.
        weighed.is_some_and(|(it, _)| !it.is_protected) && !has_ended(&self.pidfd)
    }
}

/// Who has been asked.
#[derive(Debug)]
pub(crate) struct Graceful {
    asked: Vec<Asked>,
    timer: Timer,
}

impl Graceful {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            asked: Vec::new(),
            timer: Timer::polled().context("make a timer")?,
        })
    }

    /// Asks the one of the processes that pay which would be killed first at the limit. Returns whom. That the account
    /// is over its notice the caller knows from the ledger: what /proc says of a process that grows is some pages
    /// behind, and at the crossing that decides.
    pub(crate) fn ask(
        &mut self,
        proc: &Proc,
        account: AccountId,
        limit: Bytes,
        pays: impl Fn(Pid, Uid) -> bool,
        is_spared: impl Fn(Pid) -> bool,
    ) -> Option<&Asked> {
        let weigh = |pid| {
            let (weighed, uid) = weigh(proc, pid, &pays)?;
            let is_spared = is_spared(pid);
            Some((
                Weighed {
                    is_spared,
                    ..weighed
                },
                uid,
            ))
        };
        self.asked.retain(|it| !has_ended(&it.pidfd));
        // One at a time for each account: what it frees shows only when it has ended.
        if self.asked.len() >= MOST || self.asked.iter().any(|it| it.account == account) {
            return None;
        }
        let mut choices: Vec<Weighed> = proc
            .pids()
            .ok()?
            .filter_map(Result::ok)
            .filter_map(weigh)
            .map(|(it, _)| it)
            .collect();
        let Choice::Victim(pid) = first(&choices, limit) else {
            return None;
        };
        let pidfd = Pidfd::open(pid).ok().flatten()?;
        // Between the look and the hold the number may have changed hands: it is weighed again. By its stat it would
        // be told, too, but not while it is in the middle of an execve.
        let (of, uid) = weigh(pid)?;
        let comm = proc.comm(pid).ok().flatten()?;
        let chosen = choices.iter_mut().find(|it| it.pid == pid)?;
        chosen.clone_from(&of);
        if first(&choices, limit) != Choice::Victim(pid) || has_ended(&pidfd) {
            return None;
        }
        if !matches!(pidfd.send(Signal::TERM), Ok(Sent::Done)) {
            return None;
        }
        let now = clock::monotonic().get();
        let grace = u64::try_from(GRACE.as_nanos()).unwrap_or(u64::MAX);
        self.asked.push(Asked {
            pidfd,
            account,
            uid,
            comm: comm.as_bytes().to_vec(),
            held: of.held,
            deadline: Nanos::new(now.saturating_add(grace)),
        });
        self.wind();
        self.asked.last()
    }

    /// Those whose time is over and who are still there.
    pub(crate) fn overdue(&mut self) -> Vec<Asked> {
        let _ = self.timer.take_expiry();
        let now = clock::monotonic();
        let mut overdue = Vec::new();
        let mut left = Vec::new();
        for asked in self.asked.drain(..) {
            if has_ended(&asked.pidfd) {
                continue;
            }
            if asked.deadline <= now {
                overdue.push(asked);
            } else {
                left.push(asked);
            }
        }
        self.asked = left;
        self.wind();
        overdue
    }

    /// Sets the timer to the next deadline.
    fn wind(&self) {
        let Some(next) = self.asked.iter().map(|it| it.deadline).min() else {
            return;
        };
        if let Err(error) = self.timer.set_at(next) {
            tracing::error!(%error, "a process that was asked to end will not be reminded");
        }
    }
}

fn has_ended(pidfd: &Pidfd) -> bool {
    pidfd.wait_readable(Some(Duration::ZERO)).unwrap_or(true)
}

fn weigh(proc: &Proc, pid: Pid, pays: &impl Fn(Pid, Uid) -> bool) -> Option<(Weighed, Uid)> {
    let status = proc.status(pid).ok().flatten()?;
    if !pays(pid, status.uid) {
        return None;
    }
    let memory = status.memory?;
    let adj = proc.oom_score_adj(pid).ok().flatten()?;
    let held = memory.rss_anon.saturating_add(memory.rss_shmem);
    let weighed = Weighed {
        pid,
        held: held
            .saturating_add(memory.swap)
            .saturating_add(memory.page_tables),
        is_dying: status.is_kill_pending,
        is_protected: pid.get() <= 1 || pid.get() == std::process::id() || adj <= UNTOUCHABLE,
        raised: adj,
        is_spared: false,
    };
    Some((weighed, status.uid))
}

impl AsFd for Graceful {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
