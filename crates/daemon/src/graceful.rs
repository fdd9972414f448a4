// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kill = "graceful"`: an account over its notice has its largest process asked to end (SIGTERM), and
//! killed some seconds later if the account is still over its notice then. Over the limit nobody is
//! asked: the kernel half does not wait.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bursar_host::{Pidfd, Proc, Sent, Signal, Timer, clock};
use bursar_model::{AccountId, Bytes, Nanos, Pid, Uid};
use bursar_policy::{Choice, Weighed, first, is_protected};

use crate::fact::Level;
use crate::proc_pace::{LEAST_REST, rest_after};

/// So long a process has to end after it was asked.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// Processes asked at a time; one more is not asked.
const MOST: usize = 256;

/// Who pays for a process, and into which account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Payer {
    pub(crate) account: AccountId,
    pub(crate) uid: Uid,
}

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
    /// What it holds now, if it is still one of those that pay, and not protected since: it may have become somebody
    /// else's.
    pub(crate) fn held_now(
        &self,
        proc: &Proc,
        payer_of: impl Fn(Pid, Uid) -> Option<Payer>,
    ) -> Option<Bytes> {
        let (weighed, payer) = weigh(proc, self.pidfd.pid(), &payer_of)?;
        let may_be_killed = payer.account == self.account && !weighed.is_protected;
        // The look was at this process if that is still there.
        (may_be_killed && !self.pidfd.has_ended().unwrap_or(true)).then_some(weighed.held)
    }

    /// Whether it has done what it was asked for its memory's sake: a server may give back a cache and stay. Who gave
    /// less than half of it back has not.
    pub(crate) fn has_given_back(&self, held_now: Bytes) -> bool {
        held_now.get() < self.held.get() / 2
    }
}

/// Who has been asked, and who is to be.
#[derive(Debug)]
pub(crate) struct Graceful {
    asked: Vec<Asked>,
    /// How accounts stood that wait for the next look through /proc.
    waiting: BTreeMap<AccountId, Level>,
    /// No look before, CLOCK_MONOTONIC.
    rests_until: Nanos,
    /// Nor for who waited already and had no process to be asked.
    reminded_at: Nanos,
    timer: Timer,
}

impl Graceful {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            asked: Vec::new(),
            waiting: BTreeMap::new(),
            rests_until: Nanos::new(0),
            reminded_at: Nanos::new(0),
            timer: Timer::polled().context("make a timer")?,
        })
    }

    /// One of this account is to be asked to end: see [`Self::take_waiting`].
    pub(crate) fn await_look(&mut self, level: Level) {
        self.waiting.insert(level.account, level);
    }

    /// The accounts to [`Self::look`] for now; none while it rests, and then the timer tells when it has.
    pub(crate) fn take_waiting(&mut self) -> Vec<Level> {
        if self.rests_until > clock::monotonic() {
            self.wind();
            return Vec::new();
        }
        std::mem::take(&mut self.waiting).into_values().collect()
    }

    /// Whether a process of this account may be asked: one at a time, for what it frees shows only when it has ended.
    pub(crate) fn may_ask(&mut self, account: AccountId) -> bool {
        self.asked
            .retain(|it| !it.pidfd.has_ended().unwrap_or(true));
        self.asked.len() < MOST && self.asked.iter().all(|it| it.account != account)
    }

    /// The processes that `payer_of` gives a payer, by account, for all that wait. Then it rests ([`rest_after`]).
    pub(crate) fn look(
        &mut self,
        proc: &Proc,
        payer_of: impl Fn(Pid, Uid) -> Option<Payer>,
    ) -> BTreeMap<AccountId, Vec<Weighed>> {
        let began = Instant::now();
        let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let pids = proc.pids().into_iter().flatten().filter_map(Result::ok);
        for (weighed, payer) in pids.filter_map(|pid| weigh(proc, pid, &payer_of)) {
            found.entry(payer.account).or_default().push(weighed);
        }
        self.rests_until = after(rest_after(began.elapsed()));
        self.wind();
        found
    }

    /// Who waits still has no process to be asked now.
    pub(crate) fn rest(&mut self) {
        self.reminded_at = after(LEAST_REST);
        self.wind();
    }

    /// Asks one process of an account to end: of `choices`, as the last look found them, the one that would be killed
    /// first at this bound. The caller checks in the ledger that the account is over its notice: /proc lags some pages
    /// behind a process that grows, and that matters at the crossing. One that has ended or changed since the look has the
    /// account wait for another one: there is no second notice.
    pub(crate) fn ask(
        &mut self,
        proc: &Proc,
        level: &Level,
        bound: Bytes,
        mut choices: Vec<Weighed>,
        payer_of: impl Fn(Pid, Uid) -> Option<Payer>,
        spared_among: impl FnOnce(Vec<Pid>) -> BTreeSet<Pid>,
    ) -> Option<&Asked> {
        if !self.may_ask(level.account) {
            return None;
        }
        let spared = spared_among(choices.iter().map(|it| it.pid).collect());
        for choice in &mut choices {
            choice.is_spared = spared.contains(&choice.pid);
        }
        let Choice::Victim(pid) = first(&choices, bound) else {
            return None;
        };
        let Some(asked) = ask_chosen(proc, pid, level.account, bound, choices, &payer_of) else {
            self.await_look(level.clone());
            self.rest();
            return None;
        };
        self.asked.push(asked);
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
            if asked.pidfd.has_ended().unwrap_or(true) {
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

    /// These could not be looked at: they are overdue again in a while.
    pub(crate) fn put_off(&mut self, overdue: Vec<Asked>) {
        let deadline = after(LEAST_REST);
        let again = overdue.into_iter().map(|it| Asked { deadline, ..it });
        self.asked.extend(again);
        self.wind();
    }

    /// Sets the timer to the next deadline, or to the next look that somebody waits for.
    fn wind(&self) {
        let look = (!self.waiting.is_empty()).then_some(self.rests_until.max(self.reminded_at));
        let deadlines = self.asked.iter().map(|it| it.deadline);
        let Some(next) = deadlines.chain(look).min() else {
            return;
        };
        if let Err(error) = self.timer.set_at(next) {
            tracing::error!(%error, "processes that were asked to end, or are to be, will not be reminded");
        }
    }
}

/// Asks a process that was chosen, if it would be still.
fn ask_chosen(
    proc: &Proc,
    pid: Pid,
    account: AccountId,
    bound: Bytes,
    mut choices: Vec<Weighed>,
    payer_of: &impl Fn(Pid, Uid) -> Option<Payer>,
) -> Option<Asked> {
    let pidfd = Pidfd::open(pid).ok().flatten()?;
    // Between the look and the hold the number may have changed hands: it is weighed again. By its stat it would
    // be told, too, but not while it is in the middle of an execve.
    let (mut of, payer) = weigh(proc, pid, payer_of)?;
    if payer.account != account {
        return None;
    }
    let comm = proc.comm(pid).ok().flatten()?;
    let chosen = choices.iter_mut().find(|it| it.pid == pid)?;
    of.is_spared = chosen.is_spared;
    chosen.clone_from(&of);
    if first(&choices, bound) != Choice::Victim(pid) || pidfd.has_ended().unwrap_or(true) {
        return None;
    }
    let is_asked = matches!(pidfd.send(Signal::TERM), Ok(Sent::Done));
    is_asked.then(|| Asked {
        pidfd,
        account,
        uid: payer.uid,
        comm: comm.as_bytes().to_vec(),
        held: of.held,
        deadline: after(GRACE),
    })
}

/// So long from now.
fn after(span: Duration) -> Nanos {
    let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    Nanos::new(clock::monotonic().get().saturating_add(span))
}

/// A process, and who pays for it.
fn weigh(
    proc: &Proc,
    pid: Pid,
    payer_of: &impl Fn(Pid, Uid) -> Option<Payer>,
) -> Option<(Weighed, Payer)> {
    let status = proc.status(pid).ok().flatten()?;
    let memory = status.memory?;
    let payer = payer_of(pid, status.uid)?;
    let adj = proc.oom_score_adj(pid).ok().flatten()?;
    let weighed = Weighed {
        pid,
        held: memory.held(),
        is_dying: status.is_kill_pending,
        is_protected: is_protected(pid, std::process::id(), adj),
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

#[cfg(test)]
mod tests {
    use bursar_model::{Bounds, Trigger};

    use super::*;
    use crate::backend::Reading;

    fn level(uid: u32) -> Level {
        Level {
            at: clock::monotonic(),
            account: AccountId::of(Uid::new(uid)),
            trigger: Trigger::Event,
            held: Bytes::from_mib(60),
            limit: Some(Bytes::from_mib(100)),
            is_observed: false,
        }
    }

    fn asked(pid: Pid) -> Asked {
        Asked {
            pidfd: Pidfd::open(pid).unwrap().unwrap(),
            account: level(60_001).account,
            uid: Uid::new(60_001),
            comm: b"sleep".to_vec(),
            held: Bytes::from_mib(100),
            deadline: Nanos::new(0),
        }
    }

    #[test]
    fn accounts_wait_until_proc_may_be_looked_through_for_all_of_them() {
        let mut graceful = Graceful::new().unwrap();
        graceful.await_look(level(60_001));
        assert_eq!(graceful.take_waiting().len(), 1);
        let (me, account) = (Pid::new(std::process::id()), level(60_001).account);
        let payer_of = |pid: Pid, uid: Uid| (pid == me).then_some(Payer { account, uid });
        let found = graceful.look(&Proc::host().unwrap(), payer_of);
        assert_eq!(found.keys().collect::<Vec<_>>(), [&account]);
        let ours = found.values().flatten();
        assert!(ours.map(|it| (it.pid, it.is_protected)).eq([(me, true)]));
        for uid in [60_002, 60_001, 60_002] {
            graceful.await_look(level(uid));
            assert!(graceful.take_waiting().is_empty(), "{uid} is looked for");
        }
        let short = Duration::from_millis(5);
        assert!(graceful.timer.take_expiry().is_err());
        graceful.rests_until = after(short);
        graceful.wind();
        std::thread::sleep(short * 2);
        assert!(graceful.timer.take_expiry().is_ok());
        let waiting = graceful.take_waiting();
        let ids: Vec<AccountId> = waiting.iter().map(|it| it.account).collect();
        assert_eq!(ids, [account, level(60_002).account]);
        assert!(graceful.take_waiting().is_empty());
    }

    #[test]
    fn without_a_limit_a_tiny_process_in_front_is_not_asked_first() {
        let mut children = [(), ()].map(|()| {
            let mut sleep = std::process::Command::new("sleep");
            sleep.arg("60").spawn().unwrap()
        });
        let [tiny, large] = [0, 1].map(|index: usize| Pid::new(children[index].id()));
        let weighed = |pid, held, raised| Weighed {
            pid,
            held,
            raised,
            is_dying: false,
            is_protected: false,
            is_spared: false,
        };
        let choices = vec![
            weighed(tiny, Bytes::new(4096), 500),
            weighed(large, Bytes::from_mib(60), 0),
        ];
        let notice = Bounds::new(Some(Bytes::from_mib(50)), None, None).unwrap();
        let level = level(60_001);
        let account = level.account;
        let bound = Reading::untouched(account, notice).ranked_by();
        let payer_of = |_, uid| Some(Payer { account, uid });
        let mut graceful = Graceful::new().unwrap();
        let proc = Proc::host().unwrap();
        let nobody = |_| BTreeSet::new();
        let asked = graceful.ask(&proc, &level, bound, choices, payer_of, nobody);
        let asked = asked.map(|it| it.pidfd.pid());
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(asked, Some(large));
    }

    #[test]
    fn who_is_another_accounts_by_now_is_not_killed() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let asked = asked(Pid::new(child.id()));
        let proc = Proc::host().unwrap();
        let held_now = |account| asked.held_now(&proc, |_, uid| Some(Payer { account, uid }));
        let found = [60_001, 60_002].map(|uid| held_now(level(uid).account));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.map(|it| it.is_some()), [true, false]);
        assert_eq!(held_now(level(60_001).account), None, "it has ended");
        assert!(asked.has_given_back(found[0].unwrap()));
        assert!(asked.has_given_back(Bytes::from_mib(49)));
        assert!(!asked.has_given_back(Bytes::from_mib(50)));
        assert!(!asked.has_given_back(Bytes::from_mib(200)));
    }

    #[test]
    fn who_could_not_be_looked_at_is_overdue_again() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let mut graceful = Graceful::new().unwrap();
        let asked = asked(Pid::new(child.id()));
        graceful.asked.push(asked);
        let overdue = graceful.overdue();
        assert_eq!((overdue.len(), graceful.asked.len()), (1, 0));
        graceful.put_off(overdue);
        assert!(!graceful.may_ask(level(60_001).account), "one at a time");
        assert!(graceful.overdue().is_empty(), "not at once");
        graceful.asked[0].deadline = Nanos::new(0);
        let overdue = graceful.overdue().len();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(overdue, 1);
    }
}
