// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What came of comparing the kernel half's ledger with /proc.

use bursar_model::{Bytes, Uid};
use serde::{Deserialize, Serialize};

/// The ledger check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerCheck {
    /// The accounts, the worst verdict first, then by name. Those that hold nothing in either are left
    /// out.
    pub accounts: Vec<AccountCheck>,
    /// Processes of the machine that were looked at, in the last round.
    pub processes: u64,
    /// Those there was no time for.
    pub left: u64,
    /// How often everything was looked at: again where something was out.
    pub rounds: u32,
    /// How long it took, nanoseconds.
    pub duration_ns: u64,
    /// Whether /proc shows counters exactly (Linux 6.16 and newer); where it does not, bounds are wider.
    pub proc_is_exact: bool,
    /// Processes and users that did not fit the ledger so far: they count only roughly, or not.
    pub unfit: u64,
}

/// One account in it. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountCheck {
    /// Its name.
    pub account: String,
    /// Its user; absent for a shared account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// What came of it.
    pub verdict: Verdict,
    /// Held by the ledger, as `bursar status` says it, at the end.
    pub held: Bytes,
    /// The same by /proc: what its processes have, less the correction, with its files in memory.
    pub held_by_proc: Bytes,
    /// Taken off both: what its processes share.
    pub correction: Bytes,
    /// Added to both: files in memory beyond what its processes map, which /proc does not show.
    pub unmapped: Bytes,
    /// By so much they may differ.
    pub bound: Bytes,
    /// By so much they do, at the least: what moved while we looked is taken into account.
    pub apart: Bytes,
    /// By so much the ledger moved while we looked.
    pub moved: Bytes,
    /// Address spaces by the ledger.
    pub processes: u32,
    /// The same by /proc.
    pub processes_by_proc: u32,
}

/// What came of comparing an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Ledger and /proc agree within the bound.
    Within,
    /// They do not, but it grows and shrinks by more than that all the time.
    Moving,
    /// There was not enough time to look at all processes.
    Unfinished,
    /// They do not agree, and nothing moved.
    Out,
}
