// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `bursar faults verify` found, for people and programs.

use bursar_faults::report::MappingReport;
use bursar_faults::{FaultRecord, Faults, Symbols};
use bursar_model::Pid;
use serde::Serialize;

use crate::style::Style;
use crate::view::faults::residency;

/// What it came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// No more faults than allowed, for the whole time.
    Passed,
    /// More than allowed.
    Failed,
    /// No more than allowed, and not for the whole time, or not as asked.
    Unproven,
}

/// What `bursar faults verify` found.
#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) passed: bool,
    pub(super) outcome: Outcome,
    pub(super) pid: u32,
    /// The threads that were counted; all of the process's, if none is named.
    pub(super) threads: Vec<u32>,
    #[serde(flatten)]
    pub(super) faults: Faults,
    pub(super) allowed: u64,
    pub(super) start_faults: u64,
    pub(super) counted_ns: u64,
    pub(super) locked_bytes: u64,
    /// `kernel` or `proc`.
    pub(super) source: &'static str,
    pub(super) mappings: Vec<MappingReport>,
    pub(super) records: Vec<RecordReport>,
    /// Why it is unproven.
    pub(super) remark: Option<String>,
}

/// A single fault.
#[derive(Debug, Serialize)]
pub(super) struct RecordReport {
    tid: u32,
    comm: String,
    address: u64,
    is_major: bool,
    in_kernel: bool,
    latency_ns: Option<u64>,
    mapping: String,
    stack: Vec<String>,
}

impl RecordReport {
    pub(super) fn of(
        record: &FaultRecord,
        mapping: String,
        pid: Pid,
        symbols: &mut Symbols,
    ) -> Self {
        Self {
            tid: record.tid.get(),
            comm: record.comm.clone(),
            address: record.address,
            is_major: record.is_major,
            in_kernel: record.in_kernel,
            latency_ns: record.latency_ns,
            mapping,
            stack: record
                .stack
                .iter()
                .map(|at| symbols.name(pid, *at))
                .collect(),
        }
    }
}

impl Outcome {
    pub(super) const fn of(faults: Faults, allowed: u64, remark: Option<&String>) -> Self {
        if faults.total() > allowed {
            Self::Failed
        } else if remark.is_some() {
            Self::Unproven
        } else {
            Self::Passed
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Unproven => "not proven",
        }
    }
}

impl Verdict {
    /// For people.
    pub(super) fn text(&self, style: &Style) -> String {
        let seconds = self.counted_ns as f64 / 1e9;
        let who = match self.threads.len() {
            0 => format!("process {}", self.pid),
            1 => format!("1 real-time thread of process {}", self.pid),
            count => format!("{count} real-time threads of process {}", self.pid),
        };
        let mut text = format!(
            "{}: {who} took {} minor and {} major faults in {seconds:.1} s after its start phase ({} \
             before); {} KiB locked\n",
            self.outcome.word(),
            self.faults.minor,
            self.faults.major,
            self.start_faults,
            self.locked_bytes / 1024,
        );
        if let Some(remark) = &self.remark {
            text.push_str(&format!("{remark}\n"));
        }
        for mapping in &self.mappings {
            text.push_str(&mapping_lines(mapping, style));
        }
        if !self.records.is_empty() {
            text.push_str("the first of them:\n");
        }
        for record in &self.records {
            text.push_str(&record_lines(record, style));
        }
        text
    }
}

fn mapping_lines(mapping: &MappingReport, style: &Style) -> String {
    let mut text = format!(
        "  {:>9}  {}\n",
        mapping.faults.total(),
        style.shown(&mapping.place())
    );
    for line in mapping
        .resident
        .as_ref()
        .map(residency)
        .into_iter()
        .chain((!mapping.advice.is_empty()).then(|| mapping.advice.to_owned()))
    {
        text.push_str(&format!("             {line}\n"));
    }
    text
}

fn record_lines(record: &RecordReport, style: &Style) -> String {
    let mut text = format!(
        "  thread {} ({}) at {:#x} in {}{}{}\n",
        record.tid,
        style.shown(&record.comm),
        record.address,
        style.shown(&record.mapping),
        if record.is_major { ", major" } else { "" },
        if record.in_kernel {
            ", in a system call"
        } else {
            ""
        },
    );
    for frame in &record.stack {
        text.push_str(&format!("      {}\n", style.shown(frame)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ended_early_without_faults_has_not_failed() {
        let (none, some) = (Faults::default(), Faults { minor: 3, major: 1 });
        let remark = Some("it ended".to_owned());
        let table = [
            (none, 0, None, Outcome::Passed),
            (some, 4, None, Outcome::Passed),
            (some, 3, None, Outcome::Failed),
            (none, 0, remark.as_ref(), Outcome::Unproven),
            (some, 3, remark.as_ref(), Outcome::Failed),
        ];
        for (faults, allowed, remark, outcome) in table {
            assert_eq!(Outcome::of(faults, allowed, remark), outcome);
        }
    }
}
