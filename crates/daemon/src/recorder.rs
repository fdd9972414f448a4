// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From facts to events: named, timed, logged, stored, sent to who follows, told to who is concerned.

use std::collections::HashMap;

use bursar_host::clock;
use bursar_model::{
    AccountId, Bytes, Candidate, Event, EventKind, Nanos, Pid, ReapStatus, Trigger, Uid, printable,
};

use crate::fact::{Level, Victim};
use crate::history::History;
use crate::reaper::Method;
use crate::roster::Roster;

/// A comm has at most 15 bytes; escapes make it longer.
const COMM_WIDTH: usize = 64;
/// Reaping of less than this tells nothing about speed.
const MEASURABLE: Bytes = Bytes::from_mib(16);
/// Victims whose end is awaited; more is a fork storm of kills, and the oldest are given up.
const AWAITED: usize = 4096;

/// Something to be told on a user's terminals.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) account: AccountId,
    pub(crate) text: String,
}

/// Writes down what happened.
#[derive(Debug)]
pub(crate) struct Recorder {
    history: History,
    reaps: ReapStatus,
    /// Victims that the reaper has not reported on yet, or has before the kernel half did.
    awaited: HashMap<Pid, Awaited>,
}

#[derive(Debug)]
enum Awaited {
    /// Killed; neither has reported.
    Both,
    /// The reaper is done.
    Freed(Method),
    /// The kernel half says the memory is gone; the reaper is still at it.
    Method(Box<Event>),
}

impl Recorder {
    pub(crate) fn new(history: History) -> Self {
        Self {
            history,
            reaps: ReapStatus::default(),
            awaited: HashMap::new(),
        }
    }

    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    pub(crate) fn reaps(&self) -> &ReapStatus {
        &self.reaps
    }

    /// Completes an event with the time, logs it and stores it. Returns it as others may see it.
    pub(crate) fn record(&mut self, mut event: Event, at: Nanos) -> Event {
        event.time = clock::rfc3339(clock::to_wall(at));
        log(&event);
        self.history.add(event.clone());
        event
    }

    /// An event about ourselves.
    pub(crate) fn remark(
        &mut self,
        kind: EventKind,
        account: Option<String>,
        reason: String,
    ) -> Event {
        let mut event = Event::new(kind);
        event.account = account;
        event.reason = Some(reason);
        self.record(event, clock::monotonic())
    }

    pub(crate) fn notice(&mut self, level: &Level, roster: &mut Roster) -> (Event, Message) {
        let mut event = about(EventKind::Notice, level, roster);
        event.uid = level.account.uid();
        let limit = level
            .limit
            .map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
        let text = format!(
            "bursar: your programs hold {} of memory, your limit is {limit}; above it the largest of \
             them is killed (see: bursar quota)",
            level.held
        );
        event.reason = Some(format!("holds {} of {limit}", level.held));
        (
            self.record(event, level.at),
            Message {
                account: level.account,
                text,
            },
        )
    }

    pub(crate) fn kill(
        &mut self,
        victim: &Victim,
        trigger: Trigger,
        roster: &mut Roster,
    ) -> (Event, Message) {
        let mut event = describe(EventKind::Kill, victim, roster);
        event.trigger = Some(trigger);
        let level = &victim.level;
        let limit = level.limit.unwrap_or_default();
        event.overcommit = Some(level.held.saturating_sub(limit));
        event.reason = Some(format!(
            "the account held {}, {} over its limit of {limit}; of its {} processes this one held most",
            level.held,
            level.held.saturating_sub(limit),
            victim.candidates_met,
        ));
        let text = format!(
            "bursar: killed your program {} (pid {}, {}): your programs held {}, your limit is {limit} \
             (see: bursar why)",
            printable(&victim.comm, COMM_WIDTH),
            victim.pid,
            victim.held,
            level.held,
        );
        if self.awaited.len() >= AWAITED {
            self.awaited.clear();
        }
        self.awaited.insert(victim.pid, Awaited::Both);
        (
            self.record(event, level.at),
            Message {
                account: level.account,
                text,
            },
        )
    }

    pub(crate) fn no_victim(&mut self, victim: &Victim, roster: &mut Roster) -> Event {
        let mut event = describe(EventKind::NoVictim, victim, roster);
        event.pid = None;
        event.comm = None;
        event.victim_bytes = None;
        event.reason = Some(
            "over its limit, and all of its processes are dying, exempt (oom_score_adj -1000) or \
             protected"
                .to_owned(),
        );
        self.record(event, victim.level.at)
    }

    pub(crate) fn kill_failed(&mut self, victim: &Victim, why: &str, roster: &mut Roster) -> Event {
        let mut event = describe(EventKind::KillFailed, victim, roster);
        event.reason = Some(why.to_owned());
        self.record(event, victim.level.at)
    }

    pub(crate) fn would_kill(&mut self, victim: &Victim, roster: &mut Roster) -> Event {
        let mut event = describe(EventKind::WouldKill, victim, roster);
        event.reason = Some("dry run: nothing was killed".to_owned());
        self.record(event, victim.level.at)
    }

    /// The kernel half, or a scan, says that a victim's memory is gone.
    pub(crate) fn freed(
        &mut self,
        victim: &Victim,
        duration: Nanos,
        roster: &mut Roster,
    ) -> Option<Event> {
        let mut event = about(EventKind::Reaped, &victim.level, roster);
        event.held = None;
        event.limit = None;
        event.trigger = None;
        event.uid = Some(victim.uid);
        event.pid = Some(victim.pid);
        event.freed_bytes = Some(victim.held);
        event.duration_ns = Some(duration);
        let rate = victim.held.scaled(1_000_000_000, duration.get().max(1));
        event.bytes_per_second = Some(rate);
        self.measure(victim.held, duration, rate);
        let at = victim.level.at;
        event.time = clock::rfc3339(clock::to_wall(at));
        match self.awaited.remove(&victim.pid) {
            Some(Awaited::Freed(method)) => Some(self.complete(event, method)),
            Some(Awaited::Both | Awaited::Method(_)) => {
                self.awaited
                    .insert(victim.pid, Awaited::Method(Box::new(event)));
                None
            }
            // Killed before we were there: nobody reaps it.
            None => Some(self.complete(event, Method::Exit)),
        }
    }

    /// The reaper is done with a victim.
    pub(crate) fn reaped(&mut self, pid: Pid, method: Method) -> Option<Event> {
        match self.awaited.remove(&pid) {
            Some(Awaited::Method(event)) => Some(self.complete(*event, method)),
            Some(Awaited::Both | Awaited::Freed(_)) => {
                self.awaited.insert(pid, Awaited::Freed(method));
                None
            }
            None => None,
        }
    }

    fn complete(&mut self, mut event: Event, method: Method) -> Event {
        let name = match method {
            Method::Released => "process_mrelease",
            Method::Exit => "exit",
        };
        event.method = Some(name.to_owned());
        log(&event);
        self.history.add(event.clone());
        event
    }

    fn measure(&mut self, freed: Bytes, duration: Nanos, rate: Bytes) {
        self.reaps.reaped = self.reaps.reaped.saturating_add(1);
        self.reaps.freed = self.reaps.freed.saturating_add(freed);
        self.reaps.longest = self.reaps.longest.max(Some(duration));
        if freed >= MEASURABLE {
            let slowest = self
                .reaps
                .slowest_bytes_per_second
                .map_or(rate, |it| it.min(rate));
            self.reaps.slowest_bytes_per_second = Some(slowest);
        }
    }
}

fn about(kind: EventKind, level: &Level, roster: &mut Roster) -> Event {
    let mut event = Event::new(kind);
    event.account = Some(roster.name_of(level.account).0);
    event.trigger = Some(level.trigger);
    event.held = Some(level.held);
    event.limit = level.limit;
    event
}

fn describe(kind: EventKind, victim: &Victim, roster: &mut Roster) -> Event {
    let mut event = about(kind, &victim.level, roster);
    event.uid = Some(victim.uid);
    event.pid = Some(victim.pid);
    event.comm = Some(printable(&victim.comm, COMM_WIDTH));
    event.victim_bytes = Some(victim.held);
    event.latency_ns = Some(victim.latency);
    event.candidates_met = Some(victim.candidates_met);
    event.candidates = victim
        .candidates
        .iter()
        .map(|(pid, comm, bytes)| Candidate {
            pid: *pid,
            comm: printable(comm, COMM_WIDTH),
            bytes: *bytes,
        })
        .collect();
    event
}

/// One line a fact. Everything in it that a user chose has been made printable.
fn log(event: &Event) {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let account = text(&event.account);
    let reason = text(&event.reason);
    let pid = event.pid.map_or(0, Pid::get);
    let uid = event.uid.map_or(0, Uid::get);
    match event.event {
        EventKind::Kill => tracing::warn!(
            account,
            uid,
            pid,
            comm = text(&event.comm),
            victim_bytes = event.victim_bytes.map(Bytes::get),
            held = event.held.map(Bytes::get),
            limit = event.limit.map(Bytes::get),
            latency_ns = event.latency_ns.map(Nanos::get),
            "killed: {reason}"
        ),
        EventKind::Reaped => tracing::info!(
            account,
            uid,
            pid,
            freed_bytes = event.freed_bytes.map(Bytes::get),
            duration_ns = event.duration_ns.map(Nanos::get),
            method = text(&event.method),
            "memory is back"
        ),
        EventKind::KillFailed | EventKind::NoVictim | EventKind::Lost => {
            tracing::error!(account, uid, pid, event = ?event.event, "{reason}");
        }
        EventKind::Notice => tracing::info!(account, uid, "notice: {reason}"),
        kind => tracing::info!(account, event = ?kind, "{reason}"),
    }
}

/// The numbers of a status line that a recorder knows.
impl Recorder {
    /// Whether a user may see an event: his own account's or his own process's.
    pub(crate) fn concerns(event: &Event, uid: Uid, account: Option<&str>) -> bool {
        event.uid == Some(uid) || (account.is_some() && event.account.as_deref() == account)
    }
}
