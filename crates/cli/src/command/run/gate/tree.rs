// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The processes that a command has become. All of them descend from the rlimit gate: it is their subreaper,
//! so one whose parent has ended is left to it and not to init.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bursar_host::{DataLimit, HostError, Limited, Pidfd, Proc, data_limit, set_data_limit};
use bursar_model::{Bytes, Pid};

use super::headroom::{Activity, Untouched, is_steered};

/// Processes that are steered; the rest keep what they inherited.
const MOST: usize = 4096;
/// Threads of one process that are asked for children.
const THREADS: usize = 1024;

/// One process of the tree.
#[derive(Debug)]
pub(super) struct Member {
    pidfd: Pidfd,
    /// VmData at the last look, bytes.
    pub(super) data: u64,
    /// Resident or swapped out, private, at the last look, bytes.
    touched: u64,
    /// By how much `data` grew since the look before.
    pub(super) grown: u64,
    pub(super) activity: Activity,
    forgiving: Untouched,
    /// Mapped lately and not touched yet, bytes.
    pub(super) untouched: u64,
    /// The soft limit it would have without us; `None`: none.
    pub(super) own: Option<u64>,
}

/// The command's processes.
#[derive(Debug)]
pub(super) struct Tree {
    proc: Proc,
    root: Pid,
    members: BTreeMap<Pid, Member>,
    /// Somebody else's (set-uid programs): not ours to steer.
    foreign: BTreeSet<Pid>,
    last_pid: Option<Pid>,
    /// What orphans get whose parent is not known any more: the least that any member set for itself.
    least_own: Option<u64>,
    is_overfull: bool,
}

impl Tree {
    /// Of the descendants of `root`, whose soft limit was `own`; `None` where this kernel does not
    /// say whose children a process has.
    pub(super) fn of(root: Pid, own: Option<u64>) -> Result<Option<Self>, HostError> {
        let proc = Proc::host()?;
        if proc.children(root, 1)?.is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            proc,
            root,
            members: BTreeMap::new(),
            foreign: BTreeSet::new(),
            last_pid: None,
            least_own: own,
            is_overfull: false,
        }))
    }

    /// Whether somebody on this machine may have made a process since the last look.
    pub(super) fn may_have_grown(&self) -> bool {
        self.proc.last_pid().ok() != self.last_pid
    }

    /// Looks at all of them, `elapsed` after the last time.
    pub(super) fn style(&mut self, elapsed: Duration) -> Result<(), HostError> {
        // Read before: one that is made while we look is met the next time.
        let last_pid = self.proc.last_pid()?;
        if self.last_pid != Some(last_pid) {
            self.find()?;
            self.last_pid = Some(last_pid);
        }
        let mut gone = Vec::new();
        for (&pid, member) in &mut self.members {
            if !member.style(&self.proc, pid, elapsed)? {
                gone.push(pid);
            }
        }
        for pid in gone {
            self.members.remove(&pid);
        }
        Ok(())
    }

    /// Those at hand, in the order of their numbers.
    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// Whether there were more than can be steered; says so once.
    pub(super) fn told_overfull(&mut self) -> bool {
        std::mem::take(&mut self.is_overfull)
    }

    /// Gives each the soft limit that `choose` says; what they set for themselves meanwhile is learnt
    /// first.
    pub(super) fn limit(
        &mut self,
        mut choose: impl FnMut(usize, &Member) -> Option<u64>,
    ) -> Result<(), HostError> {
        let mut denied = Vec::new();
        for (index, (&pid, member)) in self.members.iter_mut().enumerate() {
            let Limited::Done(found) = data_limit(pid)? else {
                continue;
            };
            let soft = found.soft.map(Bytes::get);
            if !is_steered(soft) {
                member.own = effective(found);
                self.least_own = least(self.least_own, member.own);
            }
            let chosen = choose(index, member);
            // Never above the hard limit, which somebody may have lowered under us.
            let chosen = least(chosen, found.hard.map(Bytes::get));
            if chosen != soft && !member.set(pid, found, chosen)? {
                denied.push(pid);
            }
        }
        for pid in denied {
            self.members.remove(&pid);
            self.foreign.insert(pid);
        }
        Ok(())
    }

    /// Finds new ones.
    fn find(&mut self) -> Result<(), HostError> {
        let mut open = vec![(self.root, self.least_own)];
        let mut met = BTreeSet::new();
        let is_orphan_of = |parent| parent == self.root;
        while let Some((parent, inherited)) = open.pop() {
            let children = self.proc.children(parent, THREADS)?.unwrap_or_default();
            for child in children {
                if !met.insert(child) || met.len() > 16 * MOST {
                    continue;
                }
                let own = if is_orphan_of(parent) {
                    self.least_own
                } else {
                    inherited
                };
                if !self.members.contains_key(&child) && !self.foreign.contains(&child) {
                    if self.members.len() >= MOST {
                        self.is_overfull = true;
                    } else if let Some(member) = Member::meet(&self.proc, child, own)? {
                        self.members.insert(child, member);
                    }
                }
                let own = self.members.get(&child).map_or(own, |member| member.own);
                open.push((child, own));
            }
        }
        self.foreign.retain(|pid| met.contains(pid));
        Ok(())
    }
}

impl Member {
    fn meet(proc: &Proc, pid: Pid, own: Option<u64>) -> Result<Option<Self>, HostError> {
        let Some(stat) = proc.stat(pid)? else {
            return Ok(None);
        };
        let Some(pidfd) = Pidfd::open_verified(proc, pid, stat.start)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            pidfd,
            data: 0,
            touched: 0,
            grown: 0,
            activity: Activity::Growing,
            forgiving: Untouched::default(),
            untouched: 0,
            own,
        }))
    }

    /// Reads its memory; false when it has ended.
    fn style(&mut self, proc: &Proc, pid: Pid, elapsed: Duration) -> Result<bool, HostError> {
        let status = proc.status(pid)?;
        // Asked after: what was read is its own.
        if self.has_ended()? {
            return Ok(false);
        }
        let Some(memory) = status.and_then(|status| status.memory) else {
            // Its first thread has ended, the others' memory is not shown: it stays as it is.
            return Ok(true);
        };
        let data = memory.data.get();
        let touched = memory.rss_anon.saturating_add(memory.swap).get();
        self.grown = data.saturating_sub(self.data);
        self.activity = if self.grown > 0 {
            Activity::Growing
        } else if (data, touched) != (self.data, self.touched) {
            Activity::Busy
        } else {
            Activity::Still
        };
        (self.data, self.touched) = (data, touched);
        let untouched = data.saturating_sub(touched);
        self.untouched = self.forgiving.after(untouched, elapsed);
        Ok(true)
    }

    fn has_ended(&self) -> Result<bool, HostError> {
        self.pidfd.has_ended()
    }

    /// Sets its soft limit; false when it is not ours to steer.
    ///
    /// prlimit(2) knows numbers only. The number is the process's own as long as that one has not
    /// ended, which is asked before and after; if it did in between, whoever has the number now (the
    /// same user's, or we were denied) gets back what he had.
    fn set(&self, pid: Pid, found: DataLimit, soft: Option<u64>) -> Result<bool, HostError> {
        if self.has_ended()? {
            return Ok(true);
        }
        let limit = DataLimit {
            soft: soft.map(Bytes::new),
            ..found
        };
        match set_data_limit(pid, limit)? {
            Limited::Denied => return Ok(false),
            Limited::Gone => {}
            // Read and set again are two steps: what was set in between was the process's wish.
            Limited::Done(before) if before != found || self.has_ended()? => {
                set_data_limit(pid, before)?;
            }
            Limited::Done(_) => {}
        }
        Ok(true)
    }
}

/// The soft limit as the kernel understands it: 0 is "use the hard one".
fn effective(limit: DataLimit) -> Option<u64> {
    let soft = limit.soft.map(Bytes::get);
    if soft == Some(0) {
        limit.hard.map(Bytes::get)
    } else {
        soft
    }
}

/// The lower one; `None` is no limit.
fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_higher_than_any() {
        assert_eq!(least(None, Some(3)), Some(3));
        assert_eq!(least(Some(2), Some(3)), Some(2));
        assert_eq!(least(None, None), None);
    }

    #[test]
    fn a_soft_limit_of_nothing_means_the_hard_one() {
        let limit = |soft, hard| DataLimit {
            soft: Some(Bytes::new(soft)),
            hard,
        };
        assert_eq!(effective(limit(0, None)), None);
        assert_eq!(effective(limit(0, Some(Bytes::new(7)))), Some(7));
        assert_eq!(effective(limit(5, Some(Bytes::new(7)))), Some(5));
    }

    #[test]
    fn children_and_their_children_are_found() {
        let own = Pid::new(std::process::id());
        let mut tree = Tree::of(own, None).unwrap().unwrap();
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & wait"])
            .spawn()
            .unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        let sleeper = loop {
            tree.style(Duration::ZERO).unwrap();
            let shell = Pid::new(child.id());
            let sons = tree.proc.children(shell, 1).unwrap().unwrap_or_default();
            if let Some(&it) = sons.iter().find(|it| tree.members.contains_key(it)) {
                assert!(tree.members.contains_key(&shell));
                break it;
            }
            assert!(std::time::Instant::now() < deadline);
        };
        child.kill().unwrap();
        child.wait().unwrap();
        let orphan = rustix::process::Pid::from_raw(sleeper.get().cast_signed()).unwrap();
        rustix::process::kill_process(orphan, rustix::process::Signal::KILL).unwrap();
        while !tree.members.is_empty() {
            // Other tests of this process may have children of their own for a while.
            tree.style(Duration::ZERO).unwrap();
            assert!(std::time::Instant::now() < deadline);
        }
    }
}
