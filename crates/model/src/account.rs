// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An account as `bursar status --json` shows it (DESIGN.md "Contract").

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Bytes, Nanos, Resource, Row, Uid};

/// Where an account's limit comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccountKind {
    /// A limit for this user.
    User,
    /// A limit for each member of a Unix group.
    Group,
    /// One limit for several users together.
    Shared,
    /// The limit for everybody.
    Default,
}

/// One account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountStatus {
    /// Its name: the user's, or the shared account's with `=`.
    pub account: String,
    /// Its user; absent for a shared account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// Where its limit comes from.
    pub kind: AccountKind,
    /// Address spaces charged to it.
    pub processes: u32,
    /// Its rows by name.
    pub resources: BTreeMap<Resource, Row>,
    /// Memory of processes already killed that is not back yet; not part of held.
    pub dying: Bytes,
    /// Processes killed because of it.
    pub kills: u64,
    /// Notices given.
    pub notices: u64,
}

/// What decides here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TriggerKind {
    /// The kernel half.
    Bpf,
    /// The trace pipe (S1 section 4.2).
    Trace,
    /// A scan of /proc every 200 ms.
    Poll,
}

/// The kernel half and its bad days. Counters only grow while the kernel half stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelHalfStatus {
    /// Whether it is there.
    pub attached: bool,
    /// What decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<TriggerKind>,
    /// Whether an RSS event itself can decide.
    pub event_trigger: bool,
    /// Whether the 200 ms timer runs.
    pub timer: bool,
    /// Whether another process can be killed from the event (bpf_send_signal_task).
    pub signals_others: bool,
    /// Exact re-sums made.
    pub resums: u64,
    /// Time the last one took, nanoseconds.
    pub resum_ns: u64,
    /// Time the longest one took, nanoseconds.
    pub resum_max_ns: u64,
    /// Processes met by the last one.
    pub resum_processes: u64,
    /// Time the longest decision took, nanoseconds.
    pub decision_max_ns: u64,
    /// Ledger differences found and repaired.
    pub drift_repaired_bytes: Bytes,
    /// How often.
    pub drift_repairs: u64,
    /// Processes whose end no event told.
    pub stale_records: u64,
    /// Processes whose beginning no event told.
    pub missed_processes: u64,
    /// Events that did not fit the ring buffer.
    pub events_lost: u64,
    /// Processes that did not fit the ledger.
    pub records_full: u64,
    /// Users that did not fit the ledger.
    pub accounts_full: u64,
    /// Kills sent at a second try.
    pub kills_retried: u64,
    /// Runs of the ledger's programs that the kernel skipped.
    pub skipped_runs: u64,
}

/// How fast killed processes' memory came back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReapStatus {
    /// Victims whose memory is back.
    pub reaped: u64,
    /// Memory that came back.
    pub freed: Bytes,
    /// The slowest, of those large enough to measure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowest_bytes_per_second: Option<Bytes>,
    /// The longest wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest: Option<Nanos>,
}

/// All of `bursar status --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// The daemon's version.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
    /// Whether it only says what it would do.
    #[serde(default)]
    pub dry_run: bool,
    /// The kernel half.
    pub kernel_half: KernelHalfStatus,
    /// Most by which held may be off, for one account near a limit.
    pub error_bound_bytes: Bytes,
    /// Memory of the machine.
    pub ram_bytes: Bytes,
    /// Reaping so far.
    pub reaps: ReapStatus,
    /// The accounts, by name.
    pub accounts: Vec<AccountStatus>,
    /// What an administrator should know: unknown users, limits above RAM, facts lost.
    pub remarks: Vec<String>,
}
