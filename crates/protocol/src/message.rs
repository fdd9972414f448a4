// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is asked and what is answered.

use bursar_model::{AccountStatus, BoundsSpec, Bytes, DaemonStatus, Event, Pid, Who};
use serde::{Deserialize, Serialize};

/// The language's version. A daemon refuses another one and names its own.
pub const VERSION: u32 = 1;
/// A longer request is refused and its sender disconnected, bytes.
pub const MAX_REQUEST: usize = 64 << 10;
/// A client gives up on a longer reply, bytes.
pub const MAX_REPLY: usize = 64 << 20;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`] of the sender.
    pub version: u32,
    /// What is asked.
    #[serde(flatten)]
    pub ask: Ask,
}

/// What can be asked. Root may ask everything; others what is marked so, about themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// The daemon and its accounts; with `who`, that account only. An ordinary user gets his own.
    Status {
        /// Whom, or all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        who: Option<Who>,
    },
    /// The asker's own account. Any user.
    Quota,
    /// The limits as configured; with `who`, that one only. An ordinary user gets his own.
    Limits {
        /// Whom, or all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        who: Option<Who>,
    },
    /// Sets a limit. Root.
    SetLimit(LimitChange),
    /// Takes a limit away. Root.
    ClearLimit {
        /// Whose.
        who: Who,
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
    /// The last kill, or the last of this process, with what belongs to it. An ordinary user gets
    /// those of his own processes.
    Why {
        /// Which process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<Pid>,
    },
}

/// A new limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitChange {
    /// Whose.
    pub who: Who,
    /// What.
    pub memory: BoundsSpec,
    /// Also when it lies below what is held, although somebody will be killed.
    #[serde(default)]
    pub force: bool,
}

/// One reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// To `status`.
    Status(Box<DaemonStatus>),
    /// To `quota`.
    Quota(Box<Quota>),
    /// To `limits`.
    Limits(Vec<LimitEntry>),
    /// To `set_limit` and `clear_limit`: done, in force, written down; what is worth knowing.
    Changed {
        /// A limit above RAM, an unknown user.
        remarks: Vec<String>,
    },
    /// To `events`.
    Events(Vec<Event>),
    /// To `why`: the kill and what followed it, oldest first; empty when there was none.
    Why(Vec<Event>),
    /// It was not done.
    Refused(Refusal),
}

/// The asker's own account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// It; absent when no limit concerns him.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountStatus>,
    /// Most by which held may be off.
    pub error_bound_bytes: Bytes,
}

/// A limit as configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitEntry {
    /// Whose.
    pub who: Who,
    /// As written.
    pub memory: BoundsSpec,
    /// Whom it concerns now: names or uids, at most a hundred.
    pub accounts: Vec<String>,
    /// What is wrong with it: a name nobody has, an unreachable directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs.
    pub kind: ErrorKind,
    /// For people: what failed, on what, why, what to do.
    pub message: String,
}

/// Kinds of refusal; each has an exit code of the command line (DESIGN.md "Contract").
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
