// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kill = "graceful"`: an account over its notice has its largest process asked to end (SIGTERM), and
//! killed some seconds later if the account is still over its notice then. Over the limit nobody is
//! asked: the kernel half does not wait.

use std::collections::BTreeSet;
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
    pub(crate) fn may_be_killed(
        &self,
        proc: &Proc,
        payer_of: impl Fn(Pid, Uid) -> Option<Uid>,
    ) -> bool {
        let weighed = weigh(proc, self.pidfd.pid(), &payer_of);
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

    /// Asks one process to end: of those that `payer_of` gives a payer, the one that would be killed first at the limit.
    /// The caller checks in the ledger that the account is over its notice: /proc lags some pages behind a process that
    /// grows, and that matters at the crossing.
    pub(crate) fn ask(
        &mut self,
        proc: &Proc,
        account: AccountId,
        limit: Bytes,
        payer_of: impl Fn(Pid, Uid) -> Option<Uid>,
        spared_among: impl FnOnce(Vec<Pid>) -> BTreeSet<Pid>,
    ) -> Option<&Asked> {
        let weigh = |pid| weigh(proc, pid, &payer_of);
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
        let spared = spared_among(choices.iter().map(|it| it.pid).collect());
        for choice in &mut choices {
            choice.is_spared = spared.contains(&choice.pid);
        }
        let Choice::Victim(pid) = first(&choices, limit) else {
            return None;
        };
        let pidfd = Pidfd::open(pid).ok().flatten()?;
        // Between the look and the hold the number may have changed hands: it is weighed again. By its stat it would
        // be told, too, but not while it is in the middle of an execve.
        let (mut of, uid) = weigh(pid)?;
        of.is_spared = spared.contains(&pid);
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

/// A process, and the user who pays for it.
fn weigh(
    proc: &Proc,
    pid: Pid,
    payer_of: &impl Fn(Pid, Uid) -> Option<Uid>,
) -> Option<(Weighed, Uid)> {
    let status = proc.status(pid).ok().flatten()?;
    let payer = payer_of(pid, status.uid)?;
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
    Some((weighed, payer))
}

impl AsFd for Graceful {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
