// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ends of victims. The kernel half says when a victim's memory is gone, the reapers how, in any order:
//! one event tells both.

use std::collections::{HashMap, HashSet};

use bursar_model::{AccountId, Bytes, Event, EventKind, Nanos, Pid, ReapStatus, Uid, printable};
use bursar_reap::{Fate, Priority, Report, Stays};

use crate::fact::Victim;
use crate::limit_table::LimitTable;

/// Victims whose end is awaited; with more, a fork storm of kills, all of them are given up, and counted.
const AWAITED: usize = 4096;

/// Victims' ends that are still to be told, and those that were, added up.
#[derive(Debug, Default)]
pub(super) struct Reaps {
    status: ReapStatus,
    /// Victims that the reapers have not reported on yet.
    awaited: HashMap<Pid, Awaited>,
    /// Victims that they have reported on before the kernel half did.
    settled: HashSet<Pid>,
}

/// A victim whose reapers have not reported yet.
#[derive(Debug)]
struct Awaited {
    /// Whose it is; the rest follows.
    event: Event,
    /// What it held when it was chosen.
    held: Bytes,
    /// When the kernel half saw its memory go, and how long after the signal.
    freed: Option<(Nanos, Nanos)>,
    /// Why it was killed, where that is not written in a kill event.
    reason: Option<&'static str>,
    /// We have not killed it.
    is_others: bool,
}

const OTHERS: &str = "not killed by bursar: by others, or it ended by itself";

/// An event, and when what it tells was.
type End = (Event, Nanos);

/// So many events before us are looked through for ends that were told.
const LOOKED_BACK: usize = 1024;

impl Reaps {
    /// Of victims whose end was told before we were there the kernel half may have a word still.
    pub(super) fn after<'a>(events: impl DoubleEndedIterator<Item = &'a Event>) -> Self {
        let last: Vec<&Event> = events.rev().take(LOOKED_BACK).collect();
        let mut reaps = Self::default();
        for event in last.into_iter().rev() {
            match (event.event, event.pid) {
                (EventKind::Reaped, Some(pid)) => reaps.settled.insert(pid),
                (EventKind::Kill, Some(pid)) => reaps.settled.remove(&pid),
                _ => false,
            };
        }
        reaps
    }

    /// Victims of whose end half is known, which is told with the other half.
    pub(super) fn half_known(&self) -> u64 {
        let known = self.awaited.values().filter(|it| it.freed.is_some());
        known.count() as u64
    }

    pub(super) fn status(&self) -> &ReapStatus {
        &self.status
    }

    /// How the reapers compete here.
    pub(super) fn introduce(&mut self, priority: Priority) {
        self.status.priority = Some(priority.word().to_owned());
    }

    pub(super) fn expect(
        &mut self,
        pid: Pid,
        event: Event,
        held: Bytes,
        reason: Option<&'static str>,
    ) {
        if self.awaited.len() >= AWAITED {
            let given_up = u64::try_from(self.awaited.len()).unwrap_or(u64::MAX);
            self.status.untold = self.status.untold.saturating_add(given_up);
            self.awaited.clear();
        }
        // Another had this number, and the kernel half's word of its end was lost.
        self.settled.remove(&pid);
        let awaited = Awaited {
            event,
            held,
            freed: None,
            reason,
            is_others: false,
        };
        self.awaited.insert(pid, awaited);
    }

    /// Of one that we have not killed.
    pub(super) fn expect_others(&mut self, pid: Pid, event: Event, held: Bytes) {
        self.expect(pid, event, held, Some(OTHERS));
        if let Some(awaited) = self.awaited.get_mut(&pid) {
            awaited.is_others = true;
        }
    }

    /// Whether it is a victim whose reason is known.
    pub(super) fn awaits(&self, pid: Pid) -> bool {
        self.awaited.get(&pid).is_some_and(|it| !it.is_others)
    }

    pub(super) fn awaits_any(&self, pid: Pid) -> bool {
        self.awaited.contains_key(&pid)
    }

    /// A victim's memory is gone. The event follows when the reapers say how; where they have, or nobody
    /// reaps it, there is nothing to wait for.
    pub(super) fn freed(
        &mut self,
        victim: &Victim,
        duration: Nanos,
        limit_table: &mut LimitTable,
    ) -> Option<End> {
        let at = victim.level.at;
        if let Some(awaited) = self.awaited.get_mut(&victim.pid) {
            awaited.freed = Some((at, duration));
            return None;
        }
        if self.settled.remove(&victim.pid) {
            return None;
        }
        // Killed before we were there.
        let event = reaped_event(victim, limit_table);
        let event = self.complete(event, victim.held, duration, "exit");
        Some((event, at))
    }

    /// The reapers are done with a victim.
    pub(super) fn settled(&mut self, report: &Report) -> Option<End> {
        let Awaited {
            mut event,
            held,
            freed,
            reason,
            is_others,
        } = self.awaited.remove(&report.pid)?;
        let is_helped = matches!(report.fate, Fate::Released | Fate::Raised | Fate::Stuck(_));
        if is_others && !is_helped {
            return None;
        }
        event.found = report.found.iter().map(|it| it.word().to_owned()).collect();
        event.reason = reason.map(str::to_owned);
        if let Some(stays) = &report.stays {
            tell_what_stays(&mut event, stays);
        }
        let end = Nanos::new(report.signalled.get().saturating_add(report.took.get()));
        let Some(method) = report.fate.method() else {
            // First why it is not back, then what else there is to say.
            let other = event.reason.replace(why_unreaped(&report.fate));
            other.into_iter().for_each(|it| add_reason(&mut event, it));
            event.duration_ns = Some(report.took);
            event.freed_bytes = Some(Bytes::ZERO);
            self.status.unreaped = self.status.unreaped.saturating_add(1);
            return Some((event, end));
        };
        if freed.is_none() && !is_others {
            // The kernel half will tell when its shell is gone, too: nothing new.
            if self.settled.len() >= AWAITED {
                self.settled.clear();
            }
            self.settled.insert(report.pid);
        }
        // The kernel half saw the very moment. Of what it counted as held, shared memory stays.
        let (at, took) = match (&report.fate, freed) {
            (Fate::Released, _) | (_, None) => (end, report.took),
            (_, Some(freed)) => freed,
        };
        let stays = report.stays.as_ref().map_or(Bytes::ZERO, |it| it.bytes);
        let amount = report.freed.unwrap_or(held.saturating_sub(stays));
        Some((self.complete(event, amount, took, method), at))
    }

    fn complete(&mut self, mut event: Event, freed: Bytes, took: Nanos, method: &str) -> Event {
        event.freed_bytes = Some(freed);
        event.duration_ns = Some(took);
        event.bytes_per_second = Some(freed.scaled(1_000_000_000, took.get().max(1)));
        event.method = Some(method.to_owned());
        self.status.count(freed, took, method);
        event
    }
}

/// What is known of a victim before its end.
pub(super) fn reaped_event(victim: &Victim, limit_table: &mut LimitTable) -> Event {
    let comm = (!victim.comm.is_empty()).then(|| printable(&victim.comm, super::COMM_WIDTH));
    let Victim {
        pid, uid, level, ..
    } = victim;
    end_event(*pid, *uid, comm, level.account, limit_table)
}

/// The same of a process that is no victim of ours.
pub(super) fn end_event(
    pid: Pid,
    uid: Uid,
    comm: Option<String>,
    account: AccountId,
    limit_table: &mut LimitTable,
) -> Event {
    let mut event = Event::new(EventKind::Reaped);
    event.comm = comm;
    event.account = Some(limit_table.name_of(account).0);
    event.uid = Some(uid);
    event.pid = Some(pid);
    event
}

fn tell_what_stays(event: &mut Event, stays: &Stays) {
    event.stays_bytes = Some(stays.bytes);
    event.holders.clone_from(&stays.holders);
    let mut text = format!(
        "up to {} of shared memory stays ({})",
        stays.bytes,
        stays.names.join(", ")
    );
    if stays.holders.is_empty() {
        text.push_str("; no process maps it: remove the file or segment to free it");
    }
    add_reason(event, text);
}

fn why_unreaped(fate: &Fate) -> String {
    match fate {
        Fate::MmShared(pid) => format!(
            "process {pid} shares its memory and is still running; end it to free the memory"
        ),
        Fate::Stuck(why) | Fate::NotKilled(why) => why.clone(),
        Fate::NotPermitted => "not permitted".to_owned(),
        Fate::Released | Fate::Exited | Fate::Raised | Fate::Gone => String::new(),
    }
}

fn add_reason(event: &mut Event, text: String) {
    event.reason = Some(match event.reason.take() {
        Some(reason) => format!("{reason}; {text}"),
        None => text,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expect(reaps: &mut Reaps, pid: u32) {
        let event = Event::new(EventKind::Reaped);
        reaps.expect(Pid::new(pid), event, Bytes::from_mib(1), None);
    }

    fn report(pid: u32) -> Report {
        Report {
            tag: 0,
            pid: Pid::new(pid),
            fate: Fate::Released,
            signalled: Nanos::new(1),
            took: Nanos::new(1),
            freed: None,
            stays: None,
            found: Vec::new(),
        }
    }

    #[test]
    fn ends_that_are_awaited_no_more_are_counted() {
        let mut reaps = Reaps::default();
        let awaited = u32::try_from(AWAITED).unwrap();
        (0..awaited).for_each(|pid| expect(&mut reaps, pid + 1));
        assert_eq!(reaps.status.untold, 0);
        expect(&mut reaps, awaited + 1);
        assert_eq!(reaps.status.untold, u64::from(awaited));
        assert!(reaps.settled(&report(1)).is_none());
        assert!(reaps.settled(&report(awaited + 1)).is_some());
    }

    #[test]
    fn a_death_by_others_is_told_only_where_it_was_helped() {
        for (fate, is_told) in [
            (Fate::Exited, false),
            (Fate::Gone, false),
            (Fate::MmShared(Pid::new(2)), false),
            (Fate::NotKilled(String::new()), false),
            (Fate::Released, true),
            (Fate::Raised, true),
            (Fate::Stuck(String::new()), true),
        ] {
            let mut reaps = Reaps::default();
            let event = Event::new(EventKind::Reaped);
            reaps.expect_others(Pid::new(7), event, Bytes::from_mib(1));
            assert!(!reaps.awaits(Pid::new(7)));
            let report = Report { fate, ..report(7) };
            let told = reaps.settled(&report);
            assert_eq!(told.is_some(), is_told, "{:?}", report.fate);
            let reason = told.and_then(|it| it.0.reason);
            assert_eq!(reason.is_some_and(|it| it.contains(OTHERS)), is_told);
            assert!(!reaps.awaits_any(Pid::new(7)) && reaps.settled.is_empty());
        }
    }

    #[test]
    fn a_number_that_comes_again_is_another_victim() {
        let mut reaps = Reaps::default();
        expect(&mut reaps, 7);
        assert!(reaps.settled(&report(7)).is_some());
        assert!(reaps.settled.contains(&Pid::new(7)));
        expect(&mut reaps, 7);
        assert!(reaps.settled.is_empty());
    }
}
