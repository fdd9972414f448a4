// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is asked and what is answered.

use std::collections::BTreeMap;

use bursar_model::{
    AccountStatus, Bill, BoundsSpec, Bytes, DaemonStatus, Event, Pid, Reason, Resource, RowBounds,
    Until, UsageSeries, UsageSummary, WatchLevel, Who,
};
use serde::{Deserialize, Serialize};

use crate::{
    Applied, Apply, Brief, DirtyReport, EntryChange, LedgerCheck, LimitEntry, LimitsText,
    PhyspagesReply, Preview, RestoreReport, Terms, WatermarksReport,
};

/// The language's version. A daemon refuses another one and names its own.
pub const VERSION: u32 = 1;
/// A longer request is refused and its sender disconnected, bytes.
pub const MAX_REQUEST: usize = 64 << 10;
/// The same of root's: a whole file of limits, as JSON, bytes.
pub const MAX_ROOT_REQUEST: usize = 16 << 20;
/// A client gives up on a longer reply, bytes.
pub const MAX_REPLY: usize = 64 << 20;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`] of the sender.
    pub version: u32,
    /// What is asked.
    #[serde(flatten)]
    pub ask: Operation,
}

/// What can be asked. Root may ask everything; others what is marked so, about themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Operation {
    /// The daemon and its accounts; with `who`, that account only. An ordinary user gets his own.
    Status {
        /// The account; absent: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        who: Option<Who>,
    },
    /// The asker's own account, and the shared ones he may enter or is in. Any user.
    Quota,
    /// The asker's own account in short, with the kills since such an answer was last given. Any user.
    Brief,
    /// The limits as configured; with `who`, that one only. An ordinary user gets his own.
    Limits {
        /// The entry; absent: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        who: Option<Who>,
    },
    /// Sets a limit. Root.
    SetLimit(LimitChange),
    /// Makes `limits.toml` say what a file says, all of it at once. Root; may be [`MAX_ROOT_REQUEST`] long.
    ApplyLimits(Apply),
    /// What a file of limits would change; without one, what a reload would. Root; may be [`MAX_ROOT_REQUEST`] long.
    Preview {
        /// The file of limits; absent: the configured one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<LimitsText>,
    },
    /// Sets limits of beancounters. Root.
    SetRows(RowsChange),
    /// Sets a limit and limits of beancounters, both or neither. Root.
    SetLimitAndRows(LimitAndRowsChange),
    /// Bills: what accounts hold of each resource; with `who`, that account's only. An ordinary user
    /// gets his own.
    Beancounters {
        /// The account; absent: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        who: Option<Who>,
    },
    /// Takes a limit away. Root.
    ClearLimit {
        /// The entry.
        who: Who,
        /// Also when what holds then lies below what is held, although somebody will be killed.
        #[serde(default)]
        force: bool,
        /// On which terms.
        #[serde(flatten)]
        terms: Terms,
    },
    /// Past events, oldest first. An ordinary user gets those about himself.
    Events {
        /// Not older than this, RFC 3339.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<String>,
        /// And then those to come, until the client closes.
        #[serde(default)]
        follow: bool,
    },
    /// Events of all accounts by their numbers: the next page after a number, oldest first, and once that is the last
    /// page those to come, until the client closes. Root, and whoever comes by [`crate::events_socket`].
    Stream {
        /// After which number; absent: only what is to come.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<u64>,
    },
    /// The last kill, or the last of this process, with what belongs to it. An ordinary user gets
    /// those of his own processes.
    Why {
        /// Which process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<Pid>,
        /// Of whom: one user or one shared account; then also what was refused since, or why nobody was
        /// killed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        who: Option<Who>,
    },
    /// Memory to be, for the asker's process (S1 section 5.2). Any user. It lasts until it is
    /// committed, or the connection or the process ends, whichever comes first.
    Reserve(Reserve),
    /// Gives back what was reserved over this connection, once it is resident or not wanted. Any
    /// user.
    Commit {
        /// How much, 1 ..= what is reserved.
        pages: u64,
    },
    /// Replaces what the asker's process has reserved; the reservation lasts as long as the process, whatever
    /// becomes of this connection. Any user.
    Renew(Renew),
    /// Counts anew and kills where a limit is passed (S1 section 4.1, `run_oom_killer`). Root.
    RunKiller,
    /// Compares the kernel half's ledger with /proc, account by account. Root. Answered when that is
    /// done, after some seconds at most; one at a time.
    CheckLedger,
    /// What is known about the watermarks. Root.
    Watermarks,
    /// Puts back what was changed about them, and from now on only observes. Root.
    RestoreWatermarks,
    /// Who has dirtied how much of the page cache. Root; counted from the first time on.
    Dirty,
    /// Makes the asker's process, and all it begets, pay into a shared account; it never leaves it. Root,
    /// and whom it is granted.
    Enter {
        /// Which: `=name`.
        account: Who,
    },
    /// Waits until the account that the asker pays into holds as much as this. Any user. Answered when it does.
    Wait {
        /// The level: notice, barrier, or a part of the limit.
        at: WatchLevel,
        /// And each time that it does so again, after it has held a sixteenth less.
        #[serde(default)]
        follow: bool,
    },
    /// What one account held over time; without `who`, the asker's. An ordinary user asks about himself. Answered when
    /// the files have been read; a user has one such question under way.
    Usage {
        /// The account; root has to name it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        who: Option<Who>,
        /// From then on, RFC 3339; absent: a week ago.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<String>,
    },
    /// What accounts held and met over a time, in figures: all of root's choice, or the asker's own. Answered as
    /// `usage`.
    UsageSummary {
        /// The account; absent: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        who: Option<Who>,
        /// From then on, RFC 3339; absent: a week ago.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<String>,
    },
    /// Who has which part of the pages that are mapped (S5 section 3.2). Counted when root asks; an
    /// ordinary user gets his own part, as of a count that may be some seconds old.
    Physpages {
        /// The account; absent: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        who: Option<Who>,
        /// The count that was promised; absent: begin one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ticket: Option<u64>,
    },
}

/// A reservation asked for. Decided at once and as a whole: two who ask at the same time cannot both
/// get the last page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserve {
    /// How much would be welcome, 1 or more.
    pub pages: u64,
    /// How little is enough; absent: all or nothing. With less than `pages` the daemon gives a share
    /// of what is free, so that others who ask find something too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<u64>,
    /// Given back first, whatever becomes of the rest.
    #[serde(default)]
    pub commit: u64,
    /// Up to where.
    #[serde(default)]
    pub bound: ReserveBound,
    /// A refusal is not the last word: the asker frees what it can and asks once more. Not counted
    /// in failcnt.
    #[serde(default)]
    pub tentative: bool,
}

/// What a process needs reserved from now on, up to the account's barrier; without one, its limit. Decided
/// like [`Reserve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renew {
    /// Granted before and not resident yet: this much stays, whatever becomes of the rest. A bursard that
    /// has been restarted counts it as far as there is room.
    pub keep: u64,
    /// How much of that lies in memory that it has mapped: once it is unmapped it needs no reservation.
    /// Absent: none.
    #[serde(default)]
    pub untouched: u64,
    /// How much more would be welcome; 0: nothing, and nothing is refused.
    #[serde(default)]
    pub pages: u64,
    /// How little more is enough; absent: all or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<u64>,
    /// A refusal is not the last word, as in [`Reserve`].
    #[serde(default)]
    pub tentative: bool,
    /// Requests that the process refused by itself since it last asked, because it had just been refused as
    /// much: they count in failcnt, too.
    #[serde(default)]
    pub refused: u64,
}

/// Up to which bound of the account something is reserved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReserveBound {
    /// Its limit.
    #[default]
    Limit,
    /// Its barrier; where it has none, its limit.
    Barrier,
}

/// A new limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitChange {
    /// The entry.
    pub who: Who,
    /// Its new bounds.
    pub memory: BoundsSpec,
    /// Also when it lies below what is held, although somebody will be killed.
    #[serde(default)]
    pub force: bool,
    /// On which terms.
    #[serde(flatten)]
    pub terms: Terms,
}

/// New limits of beancounters. Those that are not named stay; an unlimited one goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsChange {
    /// The entry.
    pub who: Who,
    /// The new bounds, in the unit of each row.
    pub rows: BTreeMap<Resource, RowBounds>,
    /// Also when a limit on memory then lies below what is held, although somebody will be killed.
    #[serde(default)]
    pub force: bool,
    /// On which terms.
    #[serde(flatten)]
    pub terms: Terms,
}

/// A new limit and new limits of beancounters, in force together or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitAndRowsChange {
    /// Of memory.
    pub memory: BoundsSpec,
    /// Of beancounters, and of whom.
    #[serde(flatten)]
    pub rows: RowsChange,
}

/// What accounts hold of each resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beancounters {
    /// By the account's number.
    pub bills: Vec<Bill>,
    /// Memory of the machine.
    pub ram_bytes: Bytes,
    /// Its swap.
    pub swap_bytes: Bytes,
    /// How much of the machine all of them use; absent where these are not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<UtilisationReport>,
    /// A look is under way that takes its time: these are of the one before, if there was any. Operation again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_looking: bool,
    /// What is worth knowing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// OpenVZ's shares (vzmemcheck), thousandths; kernel memory and buffers are in each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UtilisationReport {
    /// Resident, of memory.
    pub ram_permille: u64,
    /// Resident and swapped, of memory and swap.
    pub memory_and_swap_permille: u64,
    /// Private writable, touched or not, of memory and swap; above 1000 more was promised than there is.
    pub allocated_permille: u64,
}

/// One reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// To `status`.
    Status(Box<DaemonStatus>),
    /// To `quota`.
    Quota(Box<Quota>),
    /// To `brief`.
    Brief(Box<Brief>),
    /// To `limits`.
    Limits(Vec<LimitEntry>),
    /// To `set_limit` and `clear_limit`: done, in force, written down; what is worth knowing.
    Changed {
        /// A limit above RAM, an unknown user.
        remarks: Vec<String>,
        /// What it did to the entry; alike before and after: nothing, for it was so already.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        change: Option<Box<EntryChange>>,
    },
    /// To `apply_limits`.
    Applied(Box<Applied>),
    /// To `preview`, and to a change that is only asked about.
    Preview(Box<Preview>),
    /// To `beancounters`.
    Beancounters(Box<Beancounters>),
    /// To `events`.
    Events(Vec<Event>),
    /// To `stream`.
    Stream(Box<EventPage>),
    /// To `why`: the kill and what followed it, oldest first; empty when there was none. To one about
    /// somebody it may also be, or end with, a refusal or nobody having been killed.
    Why(Vec<Event>),
    /// To `reserve` and `commit`.
    Granted(Granted),
    /// To `run_killer`.
    KillerRan {
        /// Processes killed by it.
        kills: u64,
    },
    /// To `check_ledger`.
    LedgerChecked(Box<LedgerCheck>),
    /// To `watermarks`.
    Watermarks(Box<WatermarksReport>),
    /// To `restore_watermarks`.
    WatermarksRestored(RestoreReport),
    /// To `dirty`.
    Dirty(Box<DirtyReport>),
    /// To `enter`: done.
    Entered {
        /// The account.
        account: String,
    },
    /// To `wait`.
    Reached(Box<Reached>),
    /// To `usage`; without a name where nothing is kept of whom was asked about.
    Usage(Box<UsageSeries>),
    /// To `usage_summary`.
    UsageSummary(Box<UsageSummary>),
    /// To `physpages`.
    Physpages(Box<PhyspagesReply>),
    /// It was not done.
    Refused(Refusal),
}

/// Events by their numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventPage {
    /// The number given last, to whatever event; 0: none yet.
    pub newest: u64,
    /// After the number that was named. Numbers that are missing are of events that are not kept.
    pub events: Vec<Event>,
    /// There are no more: those to come follow.
    pub is_last: bool,
}

/// What is reserved now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// Granted by this request; of a commit, given back.
    pub pages: u64,
    /// Reserved over this connection now, or by this process ([`Renew`]).
    pub reserved: u64,
    /// No limit applies to the asker: nothing is reserved, and nothing has to be.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unlimited: bool,
}

/// An account is at a level that somebody has waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// Its name.
    pub account: String,
    /// The level, as it was asked for.
    pub at: WatchLevel,
    /// Where that is.
    pub level: Bytes,
    /// Held now.
    pub held: Bytes,
    /// The account's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Bytes>,
    /// A request was refused at the barrier, whatever is held.
    #[serde(default, skip_serializing_if = "is_false")]
    pub refused: bool,
}

/// The asker's own account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// It; absent when no limit concerns him.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountStatus>,
    /// Shared ones besides it that he may enter, or that processes of his are in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<AccountStatus>,
    /// Most by which held may be off.
    pub error_bound_bytes: Bytes,
    /// Whether requests beyond the barrier are refused.
    #[serde(default)]
    pub barrier_refuses: bool,
    /// The last kills and refusals in his account, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<Event>,
    /// What the administrator wants users to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Why the limit is what it is, in his words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// When it ends, and another one holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs.
    pub kind: ErrorKind,
    /// Of a renewal: pages reserved now, where these are fewer than the process has said that it keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u64>,
    /// For people: what failed, on what, why, what to do.
    pub message: String,
}

/// Kinds of refusal; each has an exit code of the command line (docs/reference/commands.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request makes no sense: exit 2.
    BadRequest,
    /// Not for this user: exit 3.
    NotPermitted,
    /// There is no such thing: exit 1.
    NotFound,
    /// Refused as things stand, with the facts: exit 1.
    Refused,
    /// The daemon could not: exit 1.
    Failed,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_why_of_nobody_in_particular_says_what_was_always_said() {
        let pid = Some(Pid::new(5));
        let who = Some(Who::User("alice".into()));
        let table = [
            (None, None, r#"{"version":1,"ask":"why"}"#),
            (pid, None, r#"{"version":1,"ask":"why","pid":5}"#),
            (None, who, r#"{"version":1,"ask":"why","who":"alice"}"#),
        ];
        for (pid, who, text) in table {
            let request = Request {
                version: VERSION,
                ask: Operation::Why { pid, who },
            };
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
            assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        }
    }
}
