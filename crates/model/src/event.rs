// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What happened: one event for one fact (`bursar events --json`, docs/reference/events.md).

use serde::{Deserialize, Serialize};

use crate::{Actor, Bytes, EntrySpec, Nanos, Pid, Reason, Request, Resource, Uid};

/// What kind of fact an event tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// An account rose over its notice level.
    Notice,
    /// A request was refused at the barrier.
    Refused,
    /// A process was sent SIGKILL because its account was over its limit.
    Kill,
    /// An account that is only observed rose over its notice level.
    WouldNotice,
    /// A request at the barrier of an account that is only observed: it was granted.
    WouldRefuse,
    /// A process would have been sent SIGKILL: its account is only observed, or bursard runs dry.
    WouldKill,
    /// A killed process's memory is back, or will not come back soon (the reason says why).
    Reaped,
    /// A process was asked to end (SIGTERM): its account is over its notice and wants to be asked first.
    Asked,
    /// An account is over its limit and holds nothing that may be killed.
    NoVictim,
    /// A kill was decided and could not be carried out.
    KillFailed,
    /// Somebody changed a limit.
    LimitChanged,
    /// The kernel half was loaded or taken over.
    Attached,
    /// The kernel half was taken away.
    Released,
    /// The configuration was read again.
    Reloaded,
    /// Facts were lost: events, records, accounts (the reason says which and how many).
    Lost,
}

/// Which trigger decided (GLOSSARY.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trigger {
    /// The RSS event itself, in the kernel half.
    Event,
    /// The kernel half's 200 ms timer.
    Timer,
    /// The user half on an event of the kernel half, or on the trace pipe.
    Notifier,
    /// The user half's 200 ms scan of /proc.
    Poll,
}

/// A process that was weighed when a victim was chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The process.
    pub pid: Pid,
    /// Its command name, made printable.
    pub comm: String,
    /// What it held.
    pub bytes: Bytes,
    /// It goes after others, for the program that it runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spared: bool,
    /// Who began it, or has adopted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Pid>,
    /// The command name of that one, made printable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_comm: Option<String>,
    /// Its command line, made printable and cut; in a user's own account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// When it began, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<String>,
}

impl Candidate {
    /// What every decision knows of it.
    pub const fn new(pid: Pid, comm: String, bytes: Bytes) -> Self {
        Self {
            pid,
            comm,
            bytes,
            spared: false,
            parent: None,
            parent_comm: None,
            command: None,
            began: None,
        }
    }
}

/// Processes of an account that have the same name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramGroup {
    /// Their command name, made printable.
    pub comm: String,
    /// How many there are.
    pub count: u32,
    /// What they hold together.
    pub bytes: Bytes,
    /// The command name of the process that began most of them, made printable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_by: Option<String>,
}

/// A file in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldFile {
    /// Where it is, made printable: a path, `memfd:NAME (process N)`, `System V segment N`.
    pub place: String,
    /// What it holds.
    pub bytes: Bytes,
}

/// A request that a beancounter refused; numbers are in the row's own unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowRefusal {
    /// Which row.
    pub resource: Resource,
    /// Held at the moment.
    pub held: u64,
    /// What was asked for on top of it.
    pub asked: u64,
    /// The bound that would have been passed.
    pub barrier: u64,
}

/// A fact. Fields that a kind does not have are absent from its JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When it happened, in RFC 3339 with microseconds, UTC.
    pub time: String,
    /// What kind of fact.
    pub event: EventKind,
    /// Which it is of all that this machine's bursard has recorded: 1, 2, 3 …, also across restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The account's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The account's user, or the victim's where the account is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// The process concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<Pid>,
    /// Its command name, made printable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// Its command line, made printable, where it could be read; not of a shared account's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// When it began, in RFC 3339 with microseconds, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<String>,
    /// The number that it has in its own pid namespace, as in a container; absent where that is ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_pid: Option<Pid>,
    /// Programs of which the account had several processes, the largest sum first, at most three.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<ProgramGroup>,
    /// Who decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    /// Held by the account at the moment, living processes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Bytes>,
    /// The account's limit at the moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Bytes>,
    /// What a refused program asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    /// How much it asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_bytes: Option<Bytes>,
    /// Requests of the account refused since the last such event, this one included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusals: Option<u64>,
    /// The account's barrier at the moment of a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barrier: Option<Bytes>,
    /// What a beancounter refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row: Option<RowRefusal>,
    /// held − limit at the moment of a kill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overcommit: Option<Bytes>,
    /// What the victim held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub victim_bytes: Option<Bytes>,
    /// The largest processes weighed, largest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<Candidate>,
    /// How many were weighed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidates_met: Option<u32>,
    /// From the trigger to the signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<Nanos>,
    /// Memory given back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freed_bytes: Option<Bytes>,
    /// From the signal to the memory being back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<Nanos>,
    /// freed_bytes over duration_ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<Bytes>,
    /// How the memory came back: `process_mrelease`, `exit`, `raised_exit`. Absent when it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// What was peculiar about the victim: `stopped`, `frozen`, `throttled` …
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub found: Vec<String>,
    /// Shared memory of the victim that stays although it is dead, at most so much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stays_bytes: Option<Bytes>,
    /// Files that hold what no kill would free, all of them together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_bytes: Option<Bytes>,
    /// The largest of the account's files in memory, largest first, at most eight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<HeldFile>,
    /// Living processes that hold it, at most eight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Pid>,
    /// Stored events only: so many before it, of the same account and kind, were left out of the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more: Option<u64>,
    /// In words, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Of a limit that was changed: what its entry said before; absent: there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<Box<EntrySpec>>,
    /// What it says now; absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<Box<EntrySpec>>,
    /// Who changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Box<Actor>>,
    /// Why, in the administrator's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stated_reason: Option<Reason>,
}

impl Event {
    /// An event of which only the kind is known yet.
    pub fn new(event: EventKind) -> Self {
        Self {
            time: String::new(),
            event,
            number: None,
            account: None,
            uid: None,
            pid: None,
            comm: None,
            command: None,
            began: None,
            namespace_pid: None,
            programs: Vec::new(),
            trigger: None,
            held: None,
            limit: None,
            request: None,
            request_bytes: None,
            refusals: None,
            barrier: None,
            row: None,
            overcommit: None,
            victim_bytes: None,
            candidates: Vec::new(),
            candidates_met: None,
            latency_ns: None,
            freed_bytes: None,
            duration_ns: None,
            bytes_per_second: None,
            method: None,
            found: Vec::new(),
            stays_bytes: None,
            files_bytes: None,
            files: Vec::new(),
            holders: Vec::new(),
            more: None,
            reason: None,
            old: None,
            new: None,
            actor: None,
            stated_reason: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_shows_only_what_its_kind_has() {
        let mut event = Event::new(EventKind::Notice);
        event.time = "2026-11-21T05:00:00.000000Z".into();
        event.account = Some("alice".into());
        event.held = Some(Bytes::new(5));
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(
            json,
            r#"{"time":"2026-11-21T05:00:00.000000Z","event":"notice","account":"alice","held":5}"#
        );
        assert_eq!(serde_json::from_str::<Event>(&json).unwrap(), event);
    }
}
