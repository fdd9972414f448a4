// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Groups with more members than the ledger should have accounts for: those members have one who have processes. Who
//! comes later is found within [`EVERY`].

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_host::{Proc, Timer};
use bursar_model::{AccountId, AccountKind, Uid};
use bursar_policy::{Plan, Planned};

/// How often newcomers are looked for. It takes some 3 µs a process.
const EVERY: Duration = Duration::from_millis(200);

/// Which members of large groups have an account.
#[derive(Debug)]
pub(super) struct Arrivals {
    timer: Timer,
    /// Those who have one; `None`: all have.
    opened: Option<BTreeSet<Uid>>,
}

impl Arrivals {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            timer: Timer::polled().context("make a timer")?,
            opened: None,
        })
    }

    /// The accounts of a plan that are opened now, where there is room for so many.
    pub(super) fn opened_of(&mut self, plan: &Plan, room: usize, proc: &Proc) -> Result<Plan> {
        if plan.accounts.len() <= room {
            self.opened = None;
            self.timer.set(Duration::ZERO, Duration::ZERO)?;
            return Ok(plan.clone());
        }
        let here = owners(proc)?;
        let before = self.opened.take().unwrap_or_default();
        let certain = plan.accounts.values().filter(|it| !is_waiting(it)).count();
        // Whoever has gone keeps his account and its history as long as there is room.
        let mut opened: BTreeSet<Uid> = members(plan).filter(|it| here.contains(it)).collect();
        let gone: Vec<Uid> = before.difference(&opened).copied().collect();
        let left = room
            .saturating_sub(certain)
            .saturating_sub(opened.len())
            .min(gone.len());
        opened.extend(gone.into_iter().take(left));
        let mut part = plan.clone();
        part.accounts.retain(|id, planned| {
            !is_waiting(planned) || id.uid().is_some_and(|uid| opened.contains(&uid))
        });
        self.opened = Some(opened);
        self.timer.set(EVERY, EVERY)?;
        Ok(part)
    }

    /// Whether somebody has come who has no account yet.
    pub(super) fn has_news(&self, plan: &Plan, proc: &Proc) -> Result<bool> {
        self.timer.take_expiry().context("read a timer")?;
        let Some(opened) = &self.opened else {
            return Ok(false);
        };
        let here = owners(proc)?;
        Ok(here.difference(opened).any(|&uid| {
            plan.accounts
                .get(&AccountId::of(uid))
                .is_some_and(is_waiting)
        }))
    }
}

impl AsFd for Arrivals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// Only members of groups are so many.
fn is_waiting(planned: &Planned) -> bool {
    planned.kind == AccountKind::Group
}

fn members(plan: &Plan) -> impl Iterator<Item = Uid> + '_ {
    let waiting = plan.accounts.iter().filter(|(_, it)| is_waiting(it));
    waiting.filter_map(|(id, _)| id.uid())
}

/// Who has processes.
fn owners(proc: &Proc) -> Result<BTreeSet<Uid>> {
    let pids = proc.pids().context("list processes")?;
    Ok(pids
        .filter_map(Result::ok)
        .filter_map(|pid| std::fs::metadata(format!("/proc/{pid}")).ok())
        .map(|it| Uid::new(it.uid()))
        .collect())
}
