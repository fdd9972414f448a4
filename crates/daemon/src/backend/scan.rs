// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The accounts where no kernel half keeps them: read from /proc, decided by the same rules
//! (bursar-policy), for the poll and trace triggers.
//!
//! What /proc cannot tell is not known here: two processes that share an address space (CLONE_VM)
//! count twice, a dead first thread hides its process's memory, and what a process allocates between
//! two scans is seen late.

mod condemned;
mod hold;
mod measure;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use anyhow::{Context, Result};
use bursar_config::Program;
use bursar_host::{ExemptCgroups, Memory, Proc, StartTime, Status, UserNamespaces, clock};
use bursar_model::{
    AccountId, BackendKind, Bounds, Bytes, KernelHalfStatus, Nanos, Pid, Trigger, Uid,
};
use bursar_policy::{Choice, Crossing, Plan, Tally, Weighed, choose, goes_last};
use bursar_watchdog::TimedQuery;

use self::condemned::Condemned;
use super::reading::Reading;
use crate::fact::{Considered, Fact, Level, Victim};
use crate::payers::{Coverage, Payers, owner_of};
use crate::spared_programs::SparedFiles;

/// As many as the kernel half keeps (abi.h CANDIDATES).
const CANDIDATES: usize = 8;
/// As many as the kernel half keeps (abi.h SUBUIDS_MET).
const MOST_SUBUIDS_MET: usize = 256;
/// An account over its limit with nobody to kill is looked at again after this.
const NO_VICTIM_PAUSE_NS: u64 = 1_000_000_000;
/// One in which a kill has failed is, too.
const FAILED_PAUSE_NS: u64 = 1_000_000_000;

/// One process seen by a scan.
#[derive(Debug, Clone)]
struct Seen {
    /// Who pays for it.
    uid: Uid,
    pid: Pid,
    comm: Vec<u8>,
    held: Bytes,
    is_dying: bool,
    /// Dying only as far as decisions go: it would have been killed.
    is_forgone: bool,
    is_protected: bool,
    raised: i16,
}

#[derive(Debug, Default)]
struct Account {
    bounds: Bounds,
    is_default: bool,
    tally: Tally,
    dying: Bytes,
    /// By whom would have been killed, and is there.
    forgone: Bytes,
    processes: u32,
    /// CLOCK_MONOTONIC, nanoseconds.
    quiet_until: u64,
    /// The same for kills: the last one has failed.
    rests_until: u64,
}

impl Seen {
    fn weigh(&self, is_spared: bool) -> Weighed {
        Weighed {
            pid: self.pid,
            held: self.held,
            is_dying: self.is_dying,
            is_protected: self.is_protected,
            raised: self.raised,
            is_spared,
        }
    }
}

/// Accounts kept by scanning /proc.
#[derive(Debug)]
pub(super) struct Scan {
    proc: Proc,
    query: TimedQuery,
    coverage: Coverage,
    payers: Payers,
    exempt: Arc<ExemptCgroups>,
    spared: SparedFiles,
    accounts: BTreeMap<AccountId, Account>,
    condemned: HashMap<Pid, Condemned>,
    /// Chosen as well, and not signalled: others go before it for a while.
    passed_over: HashMap<Pid, Condemned>,
    /// Why somebody who was chosen in the last scan could not be held, and so not killed.
    unheld: Option<String>,
    subuids_met: BTreeSet<Uid>,
    counts_files: bool,
    trigger: Trigger,
    scans: u64,
    scan_ns: u64,
    scan_max_ns: u64,
    processes: u64,
}

impl Scan {
    pub(super) fn new(
        coverage: Coverage,
        counts_files: bool,
        trigger: Trigger,
        query: TimedQuery,
        exempt: Arc<ExemptCgroups>,
    ) -> Result<Self> {
        let proc = Proc::host().context("open /proc")?;
        let payers = Payers::new(&Plan::default(), coverage.clone());
        Ok(Self {
            proc,
            query,
            coverage,
            payers,
            exempt,
            spared: SparedFiles::default(),
            accounts: BTreeMap::new(),
            condemned: HashMap::new(),
            passed_over: HashMap::new(),
            unheld: None,
            subuids_met: BTreeSet::new(),
            counts_files,
            trigger,
            scans: 0,
            scan_ns: 0,
            scan_max_ns: 0,
            processes: 0,
        })
    }

    pub(super) fn apply(&mut self, plan: &Plan) {
        self.payers = Payers::new(plan, self.coverage.clone()).without(&self.exempt);
        let before: BTreeMap<AccountId, Bounds> = self
            .accounts
            .iter()
            .map(|(&id, it)| (id, it.bounds))
            .collect();
        let covered = |&id: &AccountId| self.payers.of(id).is_some_and(|(paid, _)| paid == id);
        self.accounts
            .retain(|id, _| plan.accounts.contains_key(id) || covered(id));
        for (id, account) in &mut self.accounts {
            if let (false, Some(bounds)) = (plan.accounts.contains_key(id), plan.default) {
                account.bounds = bounds;
                account.is_default = true;
            }
        }
        for (&id, planned) in &plan.accounts {
            let account = self.accounts.entry(id).or_default();
            account.bounds = planned.bounds;
            account.is_default = false;
        }
        // Other bounds: who would have been killed for those before is one of the others again.
        let accounts = &self.accounts;
        self.condemned.retain(|_, it| {
            let id = &it.victim.level.account;
            let now = accounts.get(id).map(|it| &it.bounds);
            !it.is_forgone() || now == before.get(id)
        });
    }

    pub(super) fn spare(&mut self, programs: &[Program]) {
        self.spared.replace(programs);
    }

    pub(super) fn subuids_met(&self) -> BTreeSet<Uid> {
        self.subuids_met.clone()
    }

    pub(super) fn bounds_of(&self, id: AccountId) -> Bounds {
        self.accounts
            .get(&id)
            .map_or(Bounds::NONE, |account| account.bounds)
    }

    /// The account that a process pays into.
    pub(super) fn account_of(&mut self, pid: Pid) -> Option<AccountId> {
        let status = self.proc.status(pid).ok().flatten()?;
        let mut namespaces = self.namespaces().ok()?;
        Some(self.payer_of(&status, &mut namespaces)?.0)
    }

    /// The account that a process pays into, and who pays, as the kernel half has it: nobody dies here for what another one
    /// holds.
    fn payer_of(
        &mut self,
        status: &Status,
        namespaces: &mut UserNamespaces,
    ) -> Option<(AccountId, Uid)> {
        let (holder, uid) = (status.tid, status.uid);
        let owner = owner_of(namespaces, &self.proc, holder, uid, &mut self.query)?;
        let payer = self.payers.payer(owner);
        if self.payers.subuid_payer(payer).is_some() && self.subuids_met.len() < MOST_SUBUIDS_MET {
            self.subuids_met.insert(payer);
        }
        Some((self.payers.of(payer)?.0, payer))
    }

    /// For one look: their numbers come again.
    fn namespaces(&self) -> Result<UserNamespaces> {
        Ok(UserNamespaces::new(&self.proc)?.shifting_in_doubt())
    }

    fn pids(&self) -> Result<Vec<Pid>> {
        let pids = self.proc.pids().context("list /proc")?;
        Ok(pids.filter_map(Result::ok).collect())
    }

    /// S1's killer: sums up all processes of all accounts and decides for each.
    pub(super) fn run(&mut self) -> Result<Vec<Fact>> {
        let began = clock::monotonic();
        self.passed_over
            .retain(|_, it| it.is_there() && !it.has_lapsed(began));
        let mut by_account: BTreeMap<AccountId, Vec<Seen>> = BTreeMap::new();
        let mut processes = 0;
        self.subuids_met.clear();
        let mut namespaces = self.namespaces()?;
        for pid in self.pids()? {
            if let Some((id, seen)) = self.look_at(pid, &mut namespaces) {
                by_account.entry(id).or_default().push(seen);
            }
            processes += 1;
        }
        let unheld_before = self.unheld.take();
        let mut facts = self.find_freed(&by_account);
        for account in self.accounts.values_mut() {
            account.processes = 0;
            account.dying = Bytes::ZERO;
            account.forgone = Bytes::ZERO;
        }
        let known: Vec<AccountId> = self.accounts.keys().copied().collect();
        for id in known {
            by_account.entry(id).or_default();
        }
        for (id, seen) in by_account {
            facts.extend(self.decide(id, &seen, began));
        }
        if let Some(why) = &self.unheld
            && unheld_before.as_ref() != Some(why)
        {
            tracing::error!("processes that are chosen cannot be held, and are not killed: {why}");
        }
        let spent = clock::monotonic().get().saturating_sub(began.get());
        self.scans = self.scans.saturating_add(1);
        self.scan_ns = spent;
        self.scan_max_ns = self.scan_max_ns.max(spent);
        self.processes = processes;
        Ok(facts)
    }

    fn look_at(&mut self, pid: Pid, namespaces: &mut UserNamespaces) -> Option<(AccountId, Seen)> {
        let status = self.proc.status(pid).ok().flatten()?;
        let memory = status.memory?;
        let (id, payer) = self.payer_of(&status, namespaces)?;
        if self.payers.is_exempt(pid) {
            return None;
        }
        let comm = self.proc.comm(pid).ok().flatten()?;
        let adj = self.proc.oom_score_adj(pid).ok().flatten()?;
        let now = clock::monotonic();
        let condemned = self.condemned.get(&pid);
        let condemned = condemned.filter(|it| it.is_there() && !it.has_lapsed(now));
        let is_forgone = condemned.is_some_and(Condemned::is_forgone);
        let seen = Seen {
            uid: payer,
            pid,
            comm: comm.as_bytes().to_vec(),
            held: self.counted(&memory),
            is_dying: condemned.is_some() || status.is_kill_pending || status.is_dead,
            is_forgone: is_forgone && !status.is_kill_pending && !status.is_dead,
            is_protected: pid.get() <= 1
                || pid.get() == std::process::id()
                || adj <= -1000
                || self.passed_over.contains_key(&pid),
            raised: adj,
        };
        Some((id, seen))
    }

    /// At one alone.
    fn look_again(&mut self, pid: Pid) -> Option<(AccountId, Seen)> {
        let mut namespaces = self.namespaces().ok()?;
        self.look_at(pid, &mut namespaces)
    }

    fn decide(&mut self, id: AccountId, seen: &[Seen], now: Nanos) -> Vec<Fact> {
        let mut facts = Vec::new();
        let sum = |dying: bool| {
            let some = seen.iter().filter(|it| it.is_dying == dying);
            some.fold(Bytes::ZERO, |sum, it| sum.saturating_add(it.held))
        };
        let (held, dying) = (sum(false), sum(true));
        let default = self.payers.of(id.uid().unwrap_or(Uid::new(0)));
        let account = self.accounts.entry(id).or_insert_with(|| Account {
            bounds: default.map_or(Bounds::NONE, |(_, bounds)| bounds),
            is_default: true,
            ..Account::default()
        });
        account.processes = u32::try_from(seen.len()).unwrap_or(u32::MAX);
        let forgone = seen.iter().filter(|it| it.is_forgone);
        account.forgone = forgone.fold(Bytes::ZERO, |sum, it| sum.saturating_add(it.held));
        account.dying = dying.saturating_sub(account.forgone);
        let level = Level {
            at: now,
            account: id,
            trigger: self.trigger,
            held,
            limit: account.bounds.limit(),
            is_observed: account.bounds.is_observed(),
        };
        match account.tally.read(held, &account.bounds) {
            Crossing::None => {}
            Crossing::Notice => facts.push(Fact::Notice(level)),
            Crossing::Limit => facts.extend(self.answer_breach(level, seen)),
        }
        facts
    }

    fn answer_breach(&mut self, level: Level, seen: &[Seen]) -> Option<Fact> {
        let (id, limit) = (level.account, level.limit?);
        let pids = seen.iter().map(|it| it.pid).collect();
        let spared = self.spared.among(id, pids, &mut self.query);
        let weigh = |it: &Seen| it.weigh(spared.contains(&it.pid));
        let mut weighed: Vec<Weighed> = seen.iter().map(weigh).collect();
        let mut living: Vec<&Seen> = seen.iter().filter(|it| !it.is_dying).collect();
        living.sort_by_key(|it| std::cmp::Reverse(it.held));
        let candidates = living.iter().take(CANDIDATES).map(|it| Considered {
            pid: it.pid,
            comm: it.comm.clone(),
            held: it.held,
            is_spared: goes_last(it.held, limit, spared.contains(&it.pid)),
        });
        let mut victim = Victim {
            pid: Pid::new(0),
            uid: level.account.uid().unwrap_or(Uid::new(0)),
            comm: Vec::new(),
            started: None,
            number: None,
            namespace_pid: None,
            shares_with: None,
            held: Bytes::ZERO,
            latency: Nanos::new(clock::monotonic().get().saturating_sub(level.at.get())),
            candidates_met: u32::try_from(living.len()).unwrap_or(u32::MAX),
            candidates: candidates.collect(),
            level,
        };
        match choose(&weighed, limit) {
            Choice::Within => None,
            Choice::Nobody => {
                let account = self.accounts.get_mut(&id)?;
                let now = clock::monotonic().get();
                if now < account.quiet_until {
                    return None;
                }
                account.quiet_until = now.saturating_add(NO_VICTIM_PAUSE_NS);
                account.tally.count_breach(&account.bounds);
                Some(Fact::NoVictim(victim))
            }
            Choice::Victim(_) if self.rests(id) => None,
            Choice::Victim(pid) => {
                let held = self.hold(pid)?;
                // Weighed again, now that its number stays its own for as long as the hold has not ended.
                let (pays_for, fresh) = self.look_again(pid)?;
                let chosen = weighed.iter_mut().find(|it| it.pid == pid)?;
                chosen.clone_from(&weigh(&fresh));
                if pays_for != id || choose(&weighed, limit) != Choice::Victim(pid) {
                    return None;
                }
                victim.pid = pid;
                victim.uid = fresh.uid;
                victim.comm = fresh.comm;
                victim.started = held.start.map(StartTime::since_boot);
                victim.number = held.number;
                victim.held = fresh.held;
                let account = self.accounts.get_mut(&id)?;
                account.tally.count_kill(&account.bounds);
                let is_observed = account.bounds.is_observed();
                // Who would have been killed counts as dying, too: so each is named once, and the next one is
                // whom enforcing would have killed next.
                let condemned = Condemned {
                    pidfd: held.pidfd,
                    victim: victim.clone(),
                    at: clock::monotonic(),
                };
                self.condemned.insert(pid, condemned);
                Some(match is_observed {
                    true => Fact::WouldKill(victim),
                    false => Fact::KillAsked(victim, held.to_signal),
                })
            }
        }
    }

    /// Whether a kill in this account failed a moment ago.
    fn rests(&self, id: AccountId) -> bool {
        let account = self.accounts.get(&id);
        account.is_some_and(|it| clock::monotonic().get() < it.rests_until)
    }

    /// Nothing was sent to it: it counts as before, and is no candidate until it lapses. Chosen again at each scan, it would
    /// keep every other process of its account alive.
    pub(super) fn kill_failed(&mut self, victim: &Victim) {
        if let Some(mut chosen) = self.condemned.remove(&victim.pid) {
            chosen.at = clock::monotonic();
            self.passed_over.insert(victim.pid, chosen);
        }
        if let Some(account) = self.accounts.get_mut(&victim.level.account) {
            account.tally.kills = account.tally.kills.saturating_sub(1);
            account.rests_until = clock::monotonic().get().saturating_add(FAILED_PAUSE_NS);
        }
    }

    /// Victims that are no longer there.
    fn find_freed(&mut self, by_account: &BTreeMap<AccountId, Vec<Seen>>) -> Vec<Fact> {
        let is_seen = |pid: Pid| by_account.values().flatten().any(|seen| seen.pid == pid);
        let condemned = self.condemned.iter();
        let gone: Vec<Pid> = condemned
            .filter(|(pid, it)| !it.is_there() || !is_seen(**pid))
            .map(|(&pid, _)| pid)
            .collect();
        gone.iter()
            .filter_map(|key| self.condemned.remove(key))
            .map(|mut condemned| {
                let now = clock::monotonic();
                let duration = Nanos::new(now.get().saturating_sub(condemned.at.get()));
                condemned.victim.level.at = now;
                Fact::Freed(condemned.victim, duration)
            })
            .collect()
    }

    /// Whether a victim's end is still to be seen.
    pub(super) fn awaits_ends(&self) -> bool {
        let now = clock::monotonic();
        let mut condemned = self.condemned.values();
        condemned.any(|it| !it.is_forgone() && !it.has_lapsed(now))
    }

    pub(super) fn readings(&self) -> Vec<Reading> {
        self.accounts
            .iter()
            .map(|(&id, account)| Reading {
                id,
                is_default: account.is_default,
                held: account.tally.held.saturating_add(account.forgone),
                correction: None,
                dying: account.dying,
                committed: None,
                unmapped: Bytes::ZERO,
                stuck: Bytes::ZERO,
                // Who is dying does not count here, however long that takes.
                unkillable: Bytes::ZERO,
                reserved: Bytes::ZERO,
                maxheld: account
                    .tally
                    .maxheld
                    .max(account.tally.held.saturating_add(account.forgone)),
                processes: account.processes,
                bounds: account.bounds,
                failcnt: account.tally.failcnt,
                kills: account.tally.kills,
                notices: account.tally.notices,
            })
            .collect()
    }

    /// What is told of scanning; a kernel half that there is none of.
    pub(super) fn status(&self, trigger: BackendKind) -> KernelHalfStatus {
        KernelHalfStatus {
            trigger: Some(trigger),
            signals_others: true,
            resums: self.scans,
            resum_ns: self.scan_ns,
            resum_max_ns: self.scan_max_ns,
            resum_processes: self.processes,
            ..KernelHalfStatus::default()
        }
    }

    /// What of a process's memory counts.
    fn counted(&self, memory: &Memory) -> Bytes {
        if self.counts_files {
            return memory.rss();
        }
        memory
            .rss_anon
            .saturating_add(memory.rss_shmem)
            .saturating_add(memory.swap)
            .saturating_add(memory.page_tables)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use bursar_model::{AccountKind, Who};
    use bursar_policy::Planned;

    use super::*;

    const USER: Uid = Uid::new(60_930);

    /// With a limit of one page on [`USER`].
    fn scan() -> Scan {
        let query = TimedQuery::new("scan-test", Arc::default()).unwrap();
        let coverage = Coverage {
            uid_min: Uid::new(1000),
            exempt: Vec::new(),
        };
        let mut scan = Scan::new(coverage, false, Trigger::Poll, query, Arc::default()).unwrap();
        let planned = Planned {
            who: Who::Uid(USER),
            memory_of: Who::Uid(USER),
            kind: AccountKind::User,
            bounds: Bounds::new(None, None, Some(Bytes::new(4096))).unwrap(),
            rows: BTreeMap::new(),
            payers: [USER].into(),
        };
        scan.apply(&Plan {
            accounts: [(AccountId::of(USER), planned)].into(),
            ..Plan::default()
        });
        scan
    }

    /// What comes of the breach once the last failure is no news: a victim, or nobody.
    fn decided(scan: &mut Scan) -> Option<Victim> {
        let begun = Instant::now();
        loop {
            for account in scan.accounts.values_mut() {
                (account.rests_until, account.quiet_until) = (0, 0);
            }
            for fact in scan.run().unwrap() {
                match fact {
                    Fact::KillAsked(victim, _) => return Some(victim),
                    Fact::NoVictim(_) => return None,
                    _ => {}
                }
            }
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "nothing is decided"
            );
        }
    }

    fn sleeper() -> Child {
        let mut command = Command::new("sleep");
        command.arg("60").uid(USER.get()).spawn().unwrap()
    }

    #[test]
    fn who_could_not_be_signalled_keeps_no_other_of_its_account_alive() {
        let mut children = [sleeper(), sleeper()];
        let mut scan = scan();
        let first = decided(&mut scan).unwrap();
        scan.kill_failed(&first);
        let second = decided(&mut scan).unwrap();
        assert_ne!(second.pid, first.pid);
        scan.kill_failed(&second);
        assert!(decided(&mut scan).is_none(), "nobody else is there");
        assert_eq!(scan.readings()[0].kills, 0);
        // After its time it is a candidate like any other.
        scan.passed_over.get_mut(&first.pid).unwrap().at = Nanos::new(0);
        assert_eq!(decided(&mut scan).unwrap().pid, first.pid);
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        scan.run().unwrap();
        assert!(scan.passed_over.is_empty(), "who has ended is forgotten");
    }
}
