// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a scan decides for each account: whether a bound is passed, which process dies, and which victims have ended.

use std::collections::BTreeMap;

use bursar_host::{StartTime, clock};
use bursar_kernel::KernelHalf;
use bursar_model::{AccountId, Bounds, Bytes, Nanos, Pid, Uid};
use bursar_policy::{Choice, Crossing, Weighed, choose, goes_last};

use super::pending_victim::PendingVictim;
use super::process::Seen;
use super::{Account, Scan};
use crate::fact::{Considered, Fact, Level, Victim};

/// An account over its limit with nobody to kill is looked at again after this.
const NO_VICTIM_PAUSE_NS: u64 = 1_000_000_000;
/// One in which a kill has failed is, too.
const FAILED_PAUSE_NS: u64 = 1_000_000_000;

impl Scan {
    pub(super) fn decide(&mut self, id: AccountId, seen: &[Seen], now: Nanos) -> Vec<Fact> {
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
        match account.counters.read(held, &account.bounds) {
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
        let candidates = living
            .iter()
            .take(KernelHalf::MOST_CANDIDATES)
            .map(|it| Considered {
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
                account.counters.count_breach(&account.bounds);
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
                account.counters.count_kill(&account.bounds);
                let is_observed = account.bounds.is_observed();
                // Who would have been killed counts as dying, too: so each is named once, and the next one is
                // whom enforcing would have killed next.
                let pending = PendingVictim {
                    pidfd: held.pidfd,
                    victim: victim.clone(),
                    at: clock::monotonic(),
                };
                self.pending.insert(pid, pending);
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
    pub(in crate::backend) fn kill_failed(&mut self, victim: &Victim) {
        if let Some(mut chosen) = self.pending.remove(&victim.pid) {
            chosen.at = clock::monotonic();
            self.passed_over.insert(victim.pid, chosen);
        }
        if let Some(account) = self.accounts.get_mut(&victim.level.account) {
            account.counters.kills = account.counters.kills.saturating_sub(1);
            account.rests_until = clock::monotonic().get().saturating_add(FAILED_PAUSE_NS);
        }
    }

    /// Victims that are no longer there.
    pub(super) fn find_freed(&mut self, by_account: &BTreeMap<AccountId, Vec<Seen>>) -> Vec<Fact> {
        let is_seen = |pid: Pid| by_account.values().flatten().any(|seen| seen.pid == pid);
        let pending = self.pending.iter();
        let gone: Vec<Pid> = pending
            .filter(|(pid, it)| !it.is_there() || !is_seen(**pid))
            .map(|(&pid, _)| pid)
            .collect();
        gone.iter()
            .filter_map(|key| self.pending.remove(key))
            .map(|mut pending| {
                let now = clock::monotonic();
                let duration = Nanos::new(now.get().saturating_sub(pending.at.get()));
                pending.victim.level.at = now;
                Fact::Freed(pending.victim, duration)
            })
            .collect()
    }
}
