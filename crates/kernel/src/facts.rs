// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel half counted about itself, bad days above all.

use bursar_model::{Nanos, Pages};

use crate::abi::ledger_state;

/// Counters since the kernel half was loaded; they only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Whether the RSS event decides.
    pub event_trigger: bool,
    /// Whether the timer has been started.
    pub timer_running: bool,
    /// Whether the RSS event itself can kill another process.
    pub signals_others: bool,
    /// Exact re-sums made.
    pub resums: u64,
    /// What the last one took.
    pub resum: Nanos,
    /// What the longest one took.
    pub resum_max: Nanos,
    /// Processes that the last one met.
    pub resum_processes: u64,
    /// Decisions made (S1's runs of the killer).
    pub decisions: u64,
    /// What the longest one took.
    pub decision_max: Nanos,
    /// Differences between ledger and kernel that were repaired, absolute values added up.
    pub drift_repaired: Pages,
    /// How often.
    pub drift_repairs: u64,
    /// Processes whose end no event told.
    pub stale_records: u64,
    /// Processes whose beginning no event told: those before the ledger included.
    pub missed_processes: u64,
    /// Events that did not fit the ring buffer.
    pub events_lost: u64,
    /// Events, at most, that are gone with a user half that was killed.
    pub events_unrecorded: u64,
    /// Processes that did not fit the ledger.
    pub records_full: u64,
    /// Users under `default` that did not fit the accounts.
    pub accounts_full: u64,
    /// Kills sent at a second try.
    pub kills_retried: u64,
    /// Runs of the ledger's program that the kernel skipped, because they would have interrupted themselves on a CPU.
    pub skipped_runs: u64,
    /// Whether files in tmpfs are counted.
    pub counts_files: bool,
    /// Inodes that the last count of files met.
    pub files: u64,
    /// What it took.
    pub files_count: Nanos,
    /// What the longest one took.
    pub files_count_max: Nanos,
    /// Counts that ended before the last file: the timer's beyond 8192 files, or where they changed
    /// too fast.
    pub files_skipped: u64,
    /// Children that could not be made members of their parent's account: refused where the kernel
    /// lets LSM programs be attached, lost to it elsewhere.
    pub members_lost: u64,
    /// Processes whose oom_score_adj is not what the limits want.
    pub oom_score_due: u32,
}

impl Facts {
    pub(crate) fn new(state: &ledger_state, event_trigger: bool, skipped_runs: u64) -> Self {
        Self {
            event_trigger,
            timer_running: state.timer_running != 0,
            signals_others: state.signals_others != 0,
            resums: state.resums,
            resum: Nanos::new(state.resum_ns),
            resum_max: Nanos::new(state.resum_max_ns),
            resum_processes: state.resum_tasks,
            decisions: state.decisions,
            decision_max: Nanos::new(state.longest_decision_ns),
            drift_repaired: Pages::new(state.drift_repaired_pages),
            drift_repairs: state.drift_repairs,
            stale_records: state.stale_records,
            missed_processes: state.missed_processes,
            events_lost: state.events_lost,
            events_unrecorded: state.events_unrecorded,
            records_full: state.records_full,
            accounts_full: state.accounts_full,
            kills_retried: state.kills_retried,
            skipped_runs,
            counts_files: state.files_timer != 0,
            files: state.files_met,
            files_count: Nanos::new(state.files_ns),
            files_count_max: Nanos::new(state.files_max_ns),
            files_skipped: state.files_skipped,
            members_lost: state.members_lost,
            oom_score_due: state.undefended,
        }
    }
}
