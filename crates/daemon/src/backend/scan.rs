// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The accounts where no kernel half keeps them: read from /proc, decided by the same rules
//! (bursar-policy), for the poll and trace triggers.
//!
//! What /proc cannot tell is not known here: two processes that share an address space (CLONE_VM)
//! count twice, a dead first thread hides its process's memory, and what a process allocates between
//! two scans is seen late.

mod decision;
mod hold;
mod measure;
mod pending_victim;
mod process;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use anyhow::{Context, Result};
use bursar_config::Program;
use bursar_host::{ExemptCgroups, Proc, UserNamespaces, clock};
use bursar_model::{AccountId, BackendKind, Bounds, Bytes, KernelHalfStatus, Pid, Trigger, Uid};
use bursar_policy::{AccountCounters, Plan};
use bursar_watchdog::TimedQuery;

use self::pending_victim::PendingVictim;
use self::process::Seen;
use super::reading::Reading;
use crate::fact::Fact;
use crate::payers::{Coverage, Payers};
use crate::spared_programs::SparedFiles;

#[derive(Debug, Default)]
struct Account {
    bounds: Bounds,
    is_default: bool,
    counters: AccountCounters,
    dying: Bytes,
    /// By whom would have been killed, and is there.
    forgone: Bytes,
    processes: u32,
    /// CLOCK_MONOTONIC, nanoseconds.
    quiet_until: u64,
    /// The same for kills: the last one has failed.
    rests_until: u64,
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
    pending: HashMap<Pid, PendingVictim>,
    /// Chosen as well, and not signalled: others go before it for a while.
    passed_over: HashMap<Pid, PendingVictim>,
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
            pending: HashMap::new(),
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
        self.pending.retain(|_, it| {
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

    /// Whether a victim's end is still to be seen.
    pub(super) fn awaits_ends(&self) -> bool {
        let now = clock::monotonic();
        let mut pending = self.pending.values();
        pending.any(|it| !it.is_forgone() && !it.has_lapsed(now))
    }

    pub(super) fn readings(&self) -> Vec<Reading> {
        self.accounts
            .iter()
            .map(|(&id, account)| Reading {
                id,
                is_default: account.is_default,
                held: account.counters.held.saturating_add(account.forgone),
                correction: None,
                dying: account.dying,
                committed: None,
                unmapped: Bytes::ZERO,
                stuck: Bytes::ZERO,
                // Who is dying does not count here, however long that takes.
                unkillable: Bytes::ZERO,
                reserved: Bytes::ZERO,
                maxheld: account
                    .counters
                    .maxheld
                    .max(account.counters.held.saturating_add(account.forgone)),
                processes: account.processes,
                bounds: account.bounds,
                failcnt: account.counters.failcnt,
                kills: account.counters.kills,
                notices: account.counters.notices,
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
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use bursar_model::{AccountKind, Nanos, Who};
    use bursar_policy::Planned;

    use super::*;
    use crate::fact::Victim;

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
