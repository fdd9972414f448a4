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
/// After accounts could not be opened nobody is looked for during so long.
const REST: Duration = Duration::from_secs(3);

/// Which members of large groups have an account.
#[derive(Debug)]
pub(super) struct Arrivals {
    timer: Timer,
    /// Those who have one; `None`: all have.
    opened: Option<BTreeSet<Uid>>,
    /// Those who had processes at the last look.
    here: BTreeSet<Uid>,
    /// Those who had when accounts could not be opened last: as long as it is these nothing has changed.
    refused: Option<BTreeSet<Uid>>,
}

/// What a look for newcomers has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Whoever is here has an account.
    Nobody,
    /// Whoever has none could not have one before, and nothing has changed since.
    Refused,
    /// Somebody has come.
    Somebody,
}

impl Arrivals {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            timer: Timer::polled().context("make a timer")?,
            opened: None,
            here: BTreeSet::new(),
            refused: None,
        })
    }

    /// The accounts of a plan that are to be open now, where there is room for so many, and which members of large
    /// groups those are of; `None`: all. Once they are open: [`Self::note_opened`].
    pub(super) fn opened_of(
        &self,
        plan: &Plan,
        room: usize,
        proc: &Proc,
    ) -> Result<(Plan, Option<BTreeSet<Uid>>)> {
        if plan.accounts.len() <= room {
            return Ok((plan.clone(), None));
        }
        let here = owners(proc)?;
        let certain = plan.accounts.values().filter(|it| !is_waiting(it)).count();
        // Whoever has gone keeps his account and its history as long as there is room.
        let mut opened: BTreeSet<Uid> = members(plan).filter(|it| here.contains(it)).collect();
        let before = self.opened.iter().flatten();
        let gone: Vec<Uid> = before.filter(|it| !opened.contains(it)).copied().collect();
        let left = room
            .saturating_sub(certain)
            .saturating_sub(opened.len())
            .min(gone.len());
        opened.extend(gone.into_iter().take(left));
        let mut part = plan.clone();
        part.accounts.retain(|id, planned| {
            !is_waiting(planned) || id.uid().is_some_and(|uid| opened.contains(&uid))
        });
        Ok((part, Some(opened)))
    }

    /// Their accounts are open.
    pub(super) fn note_opened(&mut self, opened: Option<BTreeSet<Uid>>) -> Result<()> {
        let every = match opened {
            Some(_) => EVERY,
            None => Duration::ZERO,
        };
        self.opened = opened;
        self.refused = None;
        self.timer.set(every, every).context("set a timer")
    }

    /// Who has come has no account yet, for it could not be opened. The same is tried again when somebody else is here, or
    /// after [`Self::retry`].
    pub(super) fn put_off(&mut self) -> Result<()> {
        self.refused = Some(std::mem::take(&mut self.here));
        self.timer.set(REST, EVERY).context("set a timer")
    }

    /// What could not be done before may be possible now.
    pub(super) fn retry(&mut self) {
        self.refused = None;
    }

    /// Whether somebody has come who has no account yet.
    pub(super) fn look(&mut self, plan: &Plan, proc: &Proc) -> Result<Arrival> {
        self.timer.take_expiry().context("read a timer")?;
        let Some(opened) = &self.opened else {
            return Ok(Arrival::Nobody);
        };
        let mut here = owners(proc)?;
        here.retain(|&uid| {
            let planned = plan.accounts.get(&AccountId::of(uid));
            planned.is_some_and(is_waiting)
        });
        let arrival = if here.is_subset(opened) {
            Arrival::Nobody
        } else if self.refused.as_ref() == Some(&here) {
            Arrival::Refused
        } else {
            Arrival::Somebody
        };
        self.here = here;
        Ok(arrival)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Instant;

    use bursar_model::{Bounds, Who};

    use super::*;

    /// Of a group, with an account for each of these.
    fn plan(uids: &[Uid]) -> Plan {
        let who: Who = "@many".parse().unwrap();
        let planned = |uid| Planned {
            who: who.clone(),
            memory_of: who.clone(),
            kind: AccountKind::Group,
            bounds: Bounds::default(),
            rows: BTreeMap::new(),
            payers: BTreeSet::from([uid]),
        };
        Plan {
            accounts: uids
                .iter()
                .map(|&uid| (AccountId::of(uid), planned(uid)))
                .collect(),
            ..Plan::default()
        }
    }

    /// At the timer's next expiry.
    fn look(arrivals: &mut Arrivals, plan: &Plan, proc: &Proc) -> Arrival {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(20) {
            if let Ok(arrival) = arrivals.look(plan, proc) {
                return arrival;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("the timer did not expire");
    }

    #[test]
    fn who_has_come_is_news_until_his_account_is_open() {
        let proc = Proc::host().unwrap();
        let own = Uid::new(rustix::process::getuid().as_raw());
        let plan = plan(&[own, Uid::new(4_000_000_001), Uid::new(4_000_000_002)]);
        let mut arrivals = Arrivals::new().unwrap();
        arrivals.note_opened(Some(BTreeSet::new())).unwrap();
        let (part, opened) = arrivals.opened_of(&plan, 2, &proc).unwrap();
        assert!(part.accounts.contains_key(&AccountId::of(own)));
        assert!(part.accounts.len() < plan.accounts.len());
        let look = |arrivals: &mut Arrivals| look(arrivals, &plan, &proc);
        for _ in 0..2 {
            assert_eq!(look(&mut arrivals), Arrival::Somebody);
            arrivals.put_off().unwrap();
            // As if that were over.
            arrivals.timer.set(EVERY, EVERY).unwrap();
            assert_eq!(look(&mut arrivals), Arrival::Refused);
            arrivals.retry();
        }
        arrivals.note_opened(opened).unwrap();
        assert_eq!(look(&mut arrivals), Arrival::Nobody);
        let (all, opened) = arrivals.opened_of(&plan, 3, &proc).unwrap();
        assert_eq!((all, opened), (plan, None));
    }
}
