// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An account as `bursar status --json` shows it (docs/reference/commands.md).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Bean, Bytes, GateStatus, Mode, ReapStatus, Resource, Row, Uid};

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

/// How an account's processes are killed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillManner {
    /// Over the limit, at once, and not before.
    #[default]
    AtOnce,
    /// Over the notice the largest process is asked to end (SIGTERM) and given some seconds; over the
    /// limit as above.
    Graceful,
}

/// An account's rows by name: memory, and those beancounters on which somebody has set a limit. One map
/// to programs that read JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    rows: BTreeMap<Resource, Row>,
    /// Rows with a limit.
    pub beans: BTreeMap<Resource, Bean>,
}

impl Deref for Rows {
    type Target = BTreeMap<Resource, Row>;

    fn deref(&self) -> &Self::Target {
        &self.rows
    }
}

impl DerefMut for Rows {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.rows
    }
}

impl<const N: usize> From<[(Resource, Row); N]> for Rows {
    fn from(rows: [(Resource, Row); N]) -> Self {
        Self {
            rows: rows.into(),
            beans: BTreeMap::new(),
        }
    }
}

impl Serialize for Rows {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let count = self.rows.len().saturating_add(self.beans.len());
        let mut map = serializer.serialize_map(Some(count))?;
        for (resource, row) in &self.rows {
            map.serialize_entry(resource, row)?;
        }
        for (resource, bean) in &self.beans {
            map.serialize_entry(resource, bean)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Rows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyRow;

        impl<'de> Visitor<'de> for AnyRow {
            type Value = Rows;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("rows by the names of their resources")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Rows, A::Error> {
                let mut found = Rows::default();
                while let Some(resource) = map.next_key::<Resource>()? {
                    if resource == Resource::Memory {
                        found.rows.insert(resource, map.next_value()?);
                    } else {
                        found.beans.insert(resource, map.next_value()?);
                    }
                }
                Ok(found)
            }
        }

        deserializer.deserialize_map(AnyRow)
    }
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
    /// Whether its bounds on memory are enforced.
    #[serde(default, skip_serializing_if = "Mode::is_usual")]
    pub mode: Mode,
    /// Address spaces charged to it.
    pub processes: u32,
    /// Its rows by name.
    pub resources: Rows,
    /// Memory of processes already killed that is not back yet; not part of held.
    pub dying: Bytes,
    /// Of held: of processes already killed that have given nothing back for a second. No kill frees it.
    #[serde(default, rename = "lingering")]
    pub unkillable: Bytes,
    /// What could come to be held without asking again, where the gate measures that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed: Option<Bytes>,
    /// Of held: in files of its users in tmpfs, memfd, System V segments beyond what their processes map.
    #[serde(default)]
    pub unmapped: Bytes,
    /// Of those: what would stay if all of its processes were killed.
    #[serde(default)]
    pub stuck: Bytes,
    /// Granted in advance and not yet held (S1 section 5.2).
    #[serde(default)]
    pub reserved: Bytes,
    /// What was taken off held because several of its processes map the same pages; absent while nobody
    /// has looked, and then each process counts in full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correction: Option<Correction>,
    /// Processes killed because of it.
    pub kills: u64,
    /// Notices given.
    pub notices: u64,
}

/// What the sum of an account's resident sets counts more than once. It only sinks until it is renewed,
/// and ends if it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correction {
    /// Taken off the sum.
    pub bytes: Bytes,
    /// How long ago it was found, nanoseconds.
    pub age_ns: u64,
    /// How long it is good yet if nobody looks again, nanoseconds.
    pub left_ns: u64,
}

/// What decides here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
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
    pub trigger: Option<BackendKind>,
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
    /// CPUs that may keep part of a counter back: far from a bound …
    #[serde(default)]
    pub counter_cpus: u32,
    /// … and so many pages each, at most.
    #[serde(default)]
    pub counter_batch_pages: u32,
    /// A page, bytes.
    #[serde(default)]
    pub page_bytes: u64,
    /// Ledger differences found and repaired.
    pub drift_repaired_bytes: Bytes,
    /// The same for each re-sum, on the average, rounded up.
    #[serde(default)]
    pub drift_repaired_bytes_per_resum: Bytes,
    /// How often.
    pub drift_repairs: u64,
    /// Processes whose end no event told.
    pub stale_records: u64,
    /// Processes whose beginning no event told.
    pub missed_processes: u64,
    /// Events that did not fit the ring buffer.
    pub events_lost: u64,
    /// Events, at most, that are gone with a bursard that was killed: they happened and are not recorded.
    #[serde(default)]
    pub events_unrecorded: u64,
    /// Processes that did not fit the ledger.
    pub records_full: u64,
    /// Users that did not fit the ledger.
    pub accounts_full: u64,
    /// Kills sent at a second try.
    pub kills_retried: u64,
    /// Runs of the ledger's programs that the kernel skipped.
    pub skipped_runs: u64,
    /// Whether files in tmpfs count although nobody maps them.
    #[serde(default)]
    pub counts_files: bool,
    /// How many files the last count met.
    #[serde(default)]
    pub files: u64,
    /// Time it took, nanoseconds.
    #[serde(default)]
    pub files_count_ns: u64,
    /// Time the longest one took, nanoseconds.
    #[serde(default)]
    pub files_count_max_ns: u64,
    /// Counts that ended before the last file.
    #[serde(default)]
    pub files_skipped: u64,
    /// Children that could not be kept in the account their parents have entered.
    #[serde(default)]
    pub members_lost: u64,
    /// Looks at what processes share.
    #[serde(default)]
    pub surveys: PssScanStatus,
    /// What refuses growth at the barrier.
    #[serde(default)]
    pub gate: GateStatus,
}

/// PSS scans: looks at how much of an account several of its processes share, since bursard started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PssScanStatus {
    /// Made to their end.
    pub made: u64,
    /// That failed, or whose account had changed meanwhile: it counts in full.
    pub failed: u64,
    /// Time the last one took, nanoseconds.
    pub last_ns: u64,
    /// Time the longest one took, nanoseconds.
    pub longest_ns: u64,
    /// Time all of them took, nanoseconds.
    pub spent_ns: u64,
    /// Accounts that are scanned again and again at the moment: near a bound, with shared pages.
    pub accounts: u64,
    /// Whether copies of shared pages are watched for at the moment.
    pub watching: bool,
}

/// What went wrong in bursard since it started, or was refused by it. Users can cause some of it. Each is a remark as well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonCounts {
    /// How many of the remarks are counts, of the kernel half's too: the last ones.
    pub remarks: u64,
    /// Connections refused or cut.
    pub connections_cut: u64,
    /// Requests that had to wait for their user's share of bursard's time.
    pub requests_delayed: u64,
    /// Readers of a message who were left out.
    pub readers_left_out: u64,
    /// Events that could not be written to the history.
    pub history_unwritten: u64,
    /// Lines of the history that were no events.
    pub history_unreadable: u64,
    /// Samples of usage that could not be written.
    pub usage_unwritten: u64,
    /// Records and files of usage that could not be read.
    pub usage_damaged: u64,
}

impl DaemonCounts {
    /// Whether there is nothing to tell.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
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
    /// Root's; absent: all are 0.
    #[serde(default, skip_serializing_if = "DaemonCounts::is_zero")]
    pub counts: DaemonCounts,
}
