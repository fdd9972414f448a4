// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bursard says about the watermarks: one report for `bursar watermarks status`, `explain` and
//! `history`, which show different parts of it.

use bursar_model::{Bytes, Uid};
use serde::{Deserialize, Serialize};

/// All that bursard knows about the watermarks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WatermarksReport {
    /// `observe` or `act`, as configured.
    pub mode: String,
    /// `bursar`, `trend` or `loop`.
    pub model: String,
    /// Whether it acts now, and if not, why.
    pub standing: String,
    /// Whether it acts now.
    pub is_acting: bool,
    /// `vm.watermark_scale_factor`, ten-thousandths of a zone.
    pub scale: u32,
    /// The same before bursar moved it.
    pub scale_original: u32,
    /// The most it may become.
    pub scale_highest: u32,
    /// Free memory and its marks, by node.
    pub nodes: Vec<NodeReport>,
    /// The last forecast.
    pub forecast: ForecastReport,
    /// Stalls of all.
    pub stalls: StallReport,
    /// Stalls by user, the longest time first.
    pub users: Vec<UserStalls>,
    /// Decisions, oldest first.
    pub decisions: Vec<DecisionReport>,
    /// Decisions that are not kept any more.
    pub decisions_dropped: u64,
    /// Values that are not at their originals now.
    pub turned: Vec<TurnedReport>,
    /// Remembered names of files that do not exist, and the most there should be; absent without a cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub negative_dentries: Option<(u64, u64)>,
    /// Share of the last ten seconds in which some task waited for memory, kswapd's own work included,
    /// hundredths of a percent (PSI); absent where the kernel has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pressure_avg10: Option<u32>,
    /// Looks so far.
    pub ticks: u64,
    /// Values written so far.
    pub writes: u64,
    /// Processor time of the thread that looks, nanoseconds.
    pub cpu_ns: u64,
    /// What an administrator should know.
    pub remarks: Vec<String>,
}

/// Free memory of one node and its marks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The NUMA node.
    pub node: u16,
    /// Free memory.
    pub free: Bytes,
    /// Below it allocations stall.
    pub min: Bytes,
    /// Below it kswapd wakes.
    pub low: Bytes,
    /// Above it kswapd sleeps.
    pub high: Bytes,
    /// Of free memory, what is in blocks too small for each order, thousandths.
    pub unusable_permille: Vec<u32>,
}

/// What the model expects.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ForecastReport {
    /// Why it decided as it did last, for programs.
    pub reason: String,
    /// The same in words, with the numbers.
    pub text: String,
    /// What is asked for a second.
    pub demand: Bytes,
    /// What kswapd takes back a second while it works.
    pub supply: Bytes,
    /// What compaction moves together into large blocks a second; 0 where it was not seen, and with the default model,
    /// which does not look at orders.
    #[serde(default)]
    pub compaction: Bytes,
    /// What should be free between the marks.
    pub needed: Bytes,
    /// What others may take while a killed process's memory comes back, with watermarks.keep_reap_margin; 0 without.
    #[serde(default)]
    pub margin: Bytes,
    /// Of it, what stays free.
    #[serde(default)]
    pub margin_kept: Bytes,
    /// Seconds until memory is low, at the earliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soonest_seconds: Option<f64>,
    /// The same, most likely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub likely_seconds: Option<f64>,
}

/// Stalls since boot (counts) and since bursard started (times).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StallReport {
    /// Allocations that had to reclaim, since boot.
    pub reclaims_since_boot: u64,
    /// Allocations that had to compact, since boot.
    pub compactions_since_boot: u64,
    /// Times, since bursard started; absent where they are not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<StallTimes>,
    /// Why they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmeasured: Option<String>,
}

/// Measured stalls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallTimes {
    /// Allocations that had to reclaim.
    pub reclaims: u64,
    /// The time they took, nanoseconds.
    pub reclaim_ns: u64,
    /// Zones that allocations had to compact.
    pub compactions: u64,
    /// The time they took, nanoseconds.
    pub compaction_ns: u64,
    /// The longest of either, nanoseconds.
    pub longest_ns: u64,
    /// Times that demand woke kswapd: who does so causes the stalls.
    pub wakeups: u64,
}

/// Stalls of one user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserStalls {
    /// Who; absent: users that found no room of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// The account he pays into; absent where he has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// How long he waited.
    #[serde(flatten)]
    pub times: StallTimes,
    /// His share of all wake-ups of kswapd, thousandths: how far he is the cause.
    pub cause_permille: u32,
}

/// A decision.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DecisionReport {
    /// When it was made, RFC 3339; of several in a row the first.
    pub time: String,
    /// Of several in a row the last.
    pub until: String,
    /// How many in a row.
    pub times: u64,
    /// Why, for programs.
    pub reason: String,
    /// What was seen, expected and done, in words.
    pub text: String,
    /// What became of it: `nothing to do`, `done`, `would be done`, or why not.
    pub act: String,
    /// The factor before.
    pub scale_before: u32,
    /// The factor wanted; absent where it is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<u32>,
    /// The node to compact, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compact: Option<u16>,
    /// Stalls in the minute after; absent while it is not over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalls_after: Option<u64>,
    /// Their time, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_ns_after: Option<u64>,
}

/// A value that is not at its original.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnedReport {
    /// `vm.watermark_scale_factor`.
    pub name: String,
    /// Before.
    pub original: i64,
    /// Now.
    pub value: i64,
}

/// What became of putting values back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreReport {
    /// One line for each value.
    pub lines: Vec<String>,
    /// Values that could not be put back.
    pub failed: u32,
}
