// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From facts to events: named, timed, logged, stored, sent to who follows, told to who is concerned.

use std::collections::{HashMap, HashSet};

use bursar_host::{MemoryFiles, clock};
use bursar_model::{
    AccountId, Bytes, Candidate, Event, EventKind, HeldFile, Nanos, Pid, ReapStatus, Trigger, Uid,
    printable,
};
use bursar_reap::{Fate, Priority, Report};

use crate::courtesy::{Asked, GRACE};
use crate::fact::{Level, Refused, RefusedRow, Victim};
use crate::history::History;
use crate::roster::Roster;

/// A comm has at most 15 bytes; escapes make it longer.
const COMM_WIDTH: usize = 64;
/// Of a file's place.
const PLACE_WIDTH: usize = 256;
/// Files named in a sentence.
const FILES_IN_WORDS: usize = 3;
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
}

impl Recorder {
    pub(crate) fn new(history: History) -> Self {
        Self {
            history,
            reaps: ReapStatus::default(),
            awaited: HashMap::new(),
            settled: HashSet::new(),
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
        self.tell(event)
    }

    /// An event of this moment.
    pub(crate) fn tell(&mut self, event: Event) -> Event {
        self.record(event, clock::monotonic())
    }

    pub(crate) fn notice(&mut self, level: &Level, roster: &mut Roster) -> (Event, Message) {
        let mut event = about(EventKind::Notice, level, roster);
        event.uid = level.account.uid();
        let (reason, text) = words_of_notice(level.held, level.limit);
        event.reason = Some(reason);
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
        reason: Option<String>,
        roster: &mut Roster,
    ) -> (Event, Message) {
        let mut event = describe(EventKind::Kill, victim, roster);
        event.trigger = Some(trigger);
        let level = &victim.level;
        let limit = level.limit.unwrap_or_default();
        event.overcommit = Some(level.held.saturating_sub(limit));
        event.reason = Some(reason.unwrap_or_else(|| match victim.candidates_met {
            0 | 1 => "the account's only process".to_owned(),
            several => format!("the largest of the account's {several} processes"),
        }));
        let text = format!(
            "bursar: killed your program {} (pid {}, {}): your programs held {}, your limit is {limit} \
             (see: bursar why)",
            printable(&victim.comm, COMM_WIDTH),
            victim.pid,
            victim.held,
            level.held,
        );
        let awaited = reaped_event(victim.pid, victim.uid, level.account, roster);
        self.expect(victim.pid, awaited, victim.held, None);
        (
            self.record(event, level.at),
            Message {
                account: level.account,
                text,
            },
        )
    }

    pub(crate) fn refused(
        &mut self,
        level: &Level,
        refused: &Refused,
        roster: &mut Roster,
    ) -> Event {
        let mut event = about(EventKind::Refused, level, roster);
        event.trigger = None;
        event.uid = Some(refused.uid);
        event.pid = Some(refused.pid);
        event.comm = Some(printable(&refused.comm, COMM_WIDTH));
        event.request = Some(refused.request);
        event.request_bytes = Some(refused.size);
        event.refusals = Some(refused.count);
        event.barrier = refused.barrier;
        let barrier = refused.barrier.map_or_else(
            || "no barrier".to_owned(),
            |it| format!("a barrier of {it}"),
        );
        event.reason = Some(format!(
            "{} of {} on top of {} and {barrier}",
            refused.request.name(),
            refused.size,
            refused.level
        ));
        self.record(event, level.at)
    }

    pub(crate) fn row_refused(
        &mut self,
        level: &Level,
        refused: &RefusedRow,
        roster: &mut Roster,
    ) -> Event {
        let mut event = about(EventKind::Refused, level, roster);
        event.trigger = None;
        // These are bytes, and the row's are not.
        event.held = None;
        event.limit = None;
        // Nobody asked where a connection came in.
        if refused.pid.get() != 0 {
            event.uid = Some(refused.uid);
            event.pid = Some(refused.pid);
            event.comm = Some(printable(&refused.comm, COMM_WIDTH));
        }
        event.refusals = Some(refused.count);
        let row = &refused.row;
        event.reason = Some(format!(
            "{} more of {} on top of {} and a barrier of {}",
            row.asked,
            row.resource.name(),
            row.held,
            row.barrier
        ));
        event.row = Some(row.clone());
        self.record(event, level.at)
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

    /// Over its limit by files that no kill would free. The message is for who can remove them.
    pub(crate) fn files(
        &mut self,
        level: &Level,
        stuck: Bytes,
        files: &MemoryFiles,
        roster: &mut Roster,
    ) -> (Event, Message) {
        let mut event = about(EventKind::NoVictim, level, roster);
        event.uid = level.account.uid();
        event.files_bytes = Some(stuck);
        event.files = files
            .largest
            .iter()
            .map(|it| HeldFile {
                place: printable(&it.place, PLACE_WIDTH),
                bytes: it.bytes,
            })
            .collect();
        let named: Vec<String> = event
            .files
            .iter()
            .take(FILES_IN_WORDS)
            .map(|it| format!("{} ({})", it.place, it.bytes))
            .collect();
        let mut largest = match named.as_slice() {
            [] => "none of them was found by name".to_owned(),
            named => format!("the largest: {}", named.join(", ")),
        };
        if files.is_partial {
            largest.push_str("; not all could be looked at");
        }
        let limit = level.limit.unwrap_or_default();
        event.reason = Some(format!(
            "over its limit by files in memory, which no kill would free; {largest}"
        ));
        let text = words_of_files(level.held, limit, stuck, &largest);
        let message = Message {
            account: level.account,
            text,
        };
        (self.record(event, level.at), message)
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

    /// How the reapers compete here.
    pub(crate) fn introduce_reapers(&mut self, priority: Priority) {
        self.reaps.priority = Some(priority.word().to_owned());
    }

    fn expect(&mut self, pid: Pid, event: Event, held: Bytes, reason: Option<&'static str>) {
        if self.awaited.len() >= AWAITED {
            self.awaited.clear();
        }
        let awaited = Awaited {
            event,
            held,
            freed: None,
            reason,
        };
        self.awaited.insert(pid, awaited);
    }

    /// Whether a victim's end is still to be reported.
    pub(crate) fn awaits(&self, pid: Pid) -> bool {
        self.awaited.contains_key(&pid)
    }

    /// The kernel's OOM killer chose somebody of an account with a limit.
    pub(crate) fn expect_oom_victim(
        &mut self,
        pid: Pid,
        uid: Uid,
        account: AccountId,
        roster: &mut Roster,
    ) {
        let event = reaped_event(pid, uid, account, roster);
        self.expect(
            pid,
            event,
            Bytes::ZERO,
            Some("killed by the kernel's OOM killer"),
        );
    }

    /// A process was asked to end.
    pub(crate) fn asked(
        &mut self,
        asked: &Asked,
        level: &Level,
        roster: &mut Roster,
    ) -> (Event, Message) {
        let mut event = about(EventKind::Asked, level, roster);
        event.uid = Some(asked.uid);
        event.pid = Some(asked.pidfd.pid());
        event.comm = Some(printable(&asked.comm, COMM_WIDTH));
        event.victim_bytes = Some(asked.held);
        let seconds = GRACE.as_secs();
        event.reason = Some(format!(
            "the account is over its notice; killed in {seconds} s unless it is below it then"
        ));
        let text = format!(
            "bursar: asked your program {} (pid {}, {}) to end: your programs hold {}; it is killed in \
             {seconds} s unless they hold less then",
            printable(&asked.comm, COMM_WIDTH),
            asked.pidfd.pid(),
            asked.held,
            level.held,
        );
        let message = Message {
            account: level.account,
            text,
        };
        (self.record(event, clock::monotonic()), message)
    }

    /// The kernel half, or a scan, says that a victim's memory is gone. The event follows when the
    /// reapers say how; where they have, or nobody reaps it, there is nothing to wait for.
    pub(crate) fn freed(
        &mut self,
        victim: &Victim,
        duration: Nanos,
        roster: &mut Roster,
    ) -> Option<Event> {
        let at = victim.level.at;
        if let Some(awaited) = self.awaited.get_mut(&victim.pid) {
            awaited.freed = Some((at, duration));
            return None;
        }
        if self.settled.remove(&victim.pid) {
            return None;
        }
        // Killed before we were there.
        let event = reaped_event(victim.pid, victim.uid, victim.level.account, roster);
        Some(self.complete(event, victim.held, at, duration, "exit"))
    }

    /// The reapers are done with a victim.
    pub(crate) fn settled(&mut self, report: &Report) -> Option<Event> {
        let Awaited {
            mut event,
            held,
            freed,
            reason,
        } = self.awaited.remove(&report.pid)?;
        event.found = report.found.iter().map(|it| it.word().to_owned()).collect();
        event.reason = reason.map(str::to_owned);
        if let Some(stays) = &report.stays {
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
            add_reason(&mut event, text);
        }
        let end = Nanos::new(report.signalled.get().saturating_add(report.took.get()));
        let Some(method) = report.fate.method() else {
            let why = match &report.fate {
                Fate::Twin(pid) => {
                    format!("its memory stays: process {pid} has the same and lives")
                }
                Fate::Stuck(why) | Fate::Spared(why) => format!("its memory is not back: {why}"),
                Fate::Released | Fate::Exited | Fate::Raised | Fate::Gone => String::new(),
            };
            add_reason(&mut event, why);
            event.duration_ns = Some(report.took);
            event.freed_bytes = Some(Bytes::ZERO);
            self.reaps.unreaped = self.reaps.unreaped.saturating_add(1);
            return Some(self.record(event, end));
        };
        if freed.is_none() {
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
        let amount = match report.freed {
            Some(amount) => amount,
            None => held.saturating_sub(stays),
        };
        Some(self.complete(event, amount, at, took, method))
    }

    fn complete(
        &mut self,
        mut event: Event,
        freed: Bytes,
        at: Nanos,
        took: Nanos,
        method: &str,
    ) -> Event {
        event.freed_bytes = Some(freed);
        event.duration_ns = Some(took);
        event.bytes_per_second = Some(freed.scaled(1_000_000_000, took.get().max(1)));
        event.method = Some(method.to_owned());
        self.reaps.count(freed, took, method);
        self.record(event, at)
    }
}

/// For the log, and for the user. A notice needs no limit.
fn words_of_notice(held: Bytes, limit: Option<Bytes>) -> (String, String) {
    let told = format!("bursar: your programs hold {held} of memory");
    match limit {
        Some(limit) => (
            format!("holds {held} of {limit}"),
            format!(
                "{told}, your limit is {limit}; above it the largest of them is killed (see: bursar quota)"
            ),
        ),
        None => (
            format!("holds {held}, more than its notice; it has no limit"),
            format!("{told}, more than your notice; no limit ends them (see: bursar quota)"),
        ),
    }
}

fn words_of_files(held: Bytes, limit: Bytes, stuck: Bytes, largest: &str) -> String {
    format!(
        "bursar: you hold {held}, your limit is {limit}; {stuck} of it are files in memory: remove some \
         ({largest})"
    )
}

fn add_reason(event: &mut Event, text: String) {
    event.reason = Some(match event.reason.take() {
        Some(reason) => format!("{reason}; {text}"),
        None => text,
    });
}

fn reaped_event(pid: Pid, uid: Uid, account: AccountId, roster: &mut Roster) -> Event {
    let mut event = Event::new(EventKind::Reaped);
    event.account = Some(roster.name_of(account).0);
    event.uid = Some(uid);
    event.pid = Some(pid);
    event
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
    let pid = event.pid.map(Pid::get);
    let uid = event.uid.map(Uid::get);
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
            found = event.found.join(" "),
            "{}",
            match (&event.method, reason.as_str()) {
                (Some(_), "") => "memory is back",
                (_, reason) => reason,
            }
        ),
        EventKind::KillFailed | EventKind::NoVictim | EventKind::Lost => {
            tracing::error!(account, uid, pid, event = ?event.event, "{reason}");
        }
        EventKind::Refused => tracing::info!(
            account,
            uid,
            pid,
            comm = text(&event.comm),
            refusals = event.refusals,
            "refused: {reason}"
        ),
        EventKind::Notice => tracing::info!(account, uid, "notice: {reason}"),
        EventKind::LimitChanged if event.overcommit.is_some() => tracing::warn!(
            account,
            uid,
            held = event.held.map(Bytes::get),
            limit = event.limit.map(Bytes::get),
            "{account} is over by {}: {reason}",
            event.overcommit.unwrap_or_default()
        ),
        kind => tracing::info!(account, event = ?kind, "{reason}"),
    }
}

/// The numbers of a status line that a recorder knows.
impl Recorder {
    /// Whether a user may see an event: his own account's or his own process's.
    pub(crate) fn concerns(event: &Event, uid: Uid, account: Option<&str>) -> bool {
        let told_of = event.account.as_deref();
        // By his number where his name was not known at the time.
        let is_his = || told_of.is_some_and(|it| it.parse() == Ok(uid.get()));
        event.uid == Some(uid) || (account.is_some() && told_of == account) || is_his()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_without_a_limit_threatens_nobody() {
        let (held, limit) = (Bytes::from_mib(950), Bytes::from_mib(1000));
        let (reason, text) = words_of_notice(held, Some(limit));
        assert_eq!(reason, "holds 950 MiB of 1000 MiB");
        assert!(text.contains("your limit is 1000 MiB; above it the largest of them is killed"));
        let (reason, text) = words_of_notice(held, None);
        assert_eq!(
            reason,
            "holds 950 MiB, more than its notice; it has no limit"
        );
        assert_eq!(
            text,
            "bursar: your programs hold 950 MiB of memory, more than your notice; no limit ends them \
             (see: bursar quota)"
        );
    }

    #[test]
    fn who_is_to_remove_files_is_told_in_one_line() {
        let [held, limit, stuck] = [120, 100, 90].map(Bytes::from_mib);
        assert_eq!(
            words_of_files(held, limit, stuck, "the largest: /dev/shm/a (90 MiB)"),
            "bursar: you hold 120 MiB, your limit is 100 MiB; 90 MiB of it are files in memory: remove some \
             (the largest: /dev/shm/a (90 MiB))"
        );
    }
}
