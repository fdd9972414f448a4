// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From what was counted to what people and programs are told: who faults most, where, and what to do.
//! Pure but for the names, which [`Symbols`] knows.

use std::collections::BTreeMap;

use bursar_model::Pid;
use serde::Serialize;

use crate::{
    Bucket, Cause, Faults, Histogram, Losses, Mapping, MappingKind, Residency, Resident, Snapshot,
    WatchedProcess, maps::Symbols,
};

/// One process's faults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessReport {
    /// Its number.
    pub pid: u32,
    /// Its real user.
    pub uid: u32,
    /// Its name, harmless.
    pub comm: String,
    /// Minor and major.
    #[serde(flatten)]
    pub faults: Faults,
    /// Since the report before, faults per second.
    pub per_second: u64,
    /// The mappings in which they happened, most faults first.
    pub mappings: Vec<MappingReport>,
}

/// Faults in one mapping.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MappingReport {
    /// What kind of mapping it is.
    pub kind: MappingKind,
    /// The file, or the kind's name.
    pub name: String,
    /// `rw-p` and the like; empty without a mapping.
    pub permissions: String,
    /// Its addresses, `None` without.
    pub range: Option<(u64, u64)>,
    /// Minor and major.
    #[serde(flatten)]
    pub faults: Faults,
    /// What of it is resident and locked; `None` where nothing lies there any more, or nobody looked.
    #[serde(flatten)]
    pub resident: Option<Resident>,
    /// Instructions that touched it, most first, of the faults that were timed.
    pub sites: Vec<SiteReport>,
    /// Why most of them came.
    pub cause: Cause,
    /// What to do about it.
    pub advice: &'static str,
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SiteReport {
    /// Function and file, or the address.
    pub symbol: String,
    /// Of the faults that were timed.
    pub count: u64,
}

/// How long faults took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LatencyReport {
    /// How many were timed.
    pub timed: u64,
    /// Nanoseconds, as are the following.
    pub mean_ns: Option<u64>,
    /// Half of them took no longer.
    pub p50_ns: Option<u64>,
    /// 99 of 100 took no longer.
    pub p99_ns: Option<u64>,
    /// The longest.
    pub max_ns: Option<u64>,
    /// How many faults took how long.
    pub histogram: Vec<Bucket>,
}

/// A whole report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// `kernel` (faults seen one by one) or `proc` (rates of /proc/PID/stat).
    pub source: &'static str,
    /// Since the watch began, nanoseconds.
    pub elapsed_ns: u64,
    /// Whether it is the last.
    pub is_final: bool,
    /// Of all that is watched.
    #[serde(flatten)]
    pub faults: Faults,
    /// Since the report before, faults per second.
    pub per_second: u64,
    /// Minor faults of a flood that nobody saw one by one: counted, and shared out among their process'
    /// mappings as those that were seen.
    pub shared_out: u64,
    /// Worst first.
    pub processes: Vec<ProcessReport>,
    /// Of minor faults.
    pub minor_latency: Option<LatencyReport>,
    /// Of major faults.
    pub major_latency: Option<LatencyReport>,
    /// What could not be told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub losses: Option<Losses>,
}

/// Sites named for a mapping.
const SITES: usize = 3;

impl LatencyReport {
    fn of(histogram: &Histogram) -> Option<Self> {
        (histogram.count() > 0).then(|| Self {
            timed: histogram.count(),
            mean_ns: histogram.mean_ns(),
            p50_ns: histogram.quantile_ns(500),
            p99_ns: histogram.quantile_ns(990),
            max_ns: histogram.max_ns(),
            histogram: histogram.buckets(),
        })
    }
}

impl MappingReport {
    /// Of one mapping, without sites.
    pub fn of(mapping: &Mapping, path: Option<String>) -> Self {
        let faults = Faults {
            minor: mapping.minor,
            major: mapping.major,
        };
        let name = path.or_else(|| mapping.file.clone());
        let cause = Cause::of(mapping);
        let is_mapping = mapping.end > 0;
        Self {
            kind: mapping.kind,
            name: name.unwrap_or_else(|| mapping.kind.name().to_owned()),
            permissions: if is_mapping {
                mapping.permissions.clone()
            } else {
                String::new()
            },
            range: is_mapping.then_some((mapping.start, mapping.end)),
            faults,
            resident: None,
            sites: Vec::new(),
            cause,
            advice: cause.advice(mapping),
        }
    }

    /// With what of it is resident.
    #[must_use]
    pub fn with_residency(mut self, pid: Pid, residency: &Residency) -> Self {
        self.resident = self.range.and_then(|range| residency.of(pid, range));
        self
    }

    /// `r-xp 7f00-7f10 /lib/x.so`.
    pub fn place(&self) -> String {
        match self.range {
            Some((start, end)) => {
                format!("{} {} {start:x}-{end:x}", self.name, self.permissions)
            }
            None => self.name.clone(),
        }
    }
}

/// Mappings of one process that belong together, as one each: anonymous memory grows downwards, and
/// then begins elsewhere than when it was first met. With the indexes of its parts.
pub fn merged(mappings: &[Mapping]) -> Vec<(Mapping, Vec<usize>)> {
    let mut sorted: Vec<&Mapping> = mappings.iter().collect();
    sorted.sort_by_key(|it| (it.process, it.kind, it.start));
    let mut whole: Vec<(Mapping, Vec<usize>)> = Vec::new();
    for mapping in sorted {
        if let Some((last, parts)) = whole.last_mut()
            && mapping.kind == MappingKind::Anon
            && last.kind == MappingKind::Anon
            && last.process == mapping.process
            && last.permissions == mapping.permissions
            && mapping.start <= last.end
        {
            last.end = last.end.max(mapping.end);
            last.minor = last.minor.saturating_add(mapping.minor);
            last.major = last.major.saturating_add(mapping.major);
            last.timed = last.timed.saturating_add(mapping.timed);
            last.timed_protected = last.timed_protected.saturating_add(mapping.timed_protected);
            parts.push(mapping.index);
        } else {
            whole.push((mapping.clone(), vec![mapping.index]));
        }
    }
    whole
}

/// The time that a report is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Since the watch began, nanoseconds.
    pub elapsed_ns: u64,
    /// Since the report before, nanoseconds.
    pub latest_ns: u64,
}

impl Span {
    fn per_second(self, count: u64) -> u64 {
        let rate = u128::from(count) * 1_000_000_000 / u128::from(self.latest_ns.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// Reports a snapshot. Symbols and residency are what is known of the processes; symbols learn more of those
/// that fault.
pub fn report(
    snapshot: &Snapshot,
    before: &Snapshot,
    span: Span,
    symbols: &mut Symbols,
    residency: &Residency,
) -> Report {
    let mut growth: BTreeMap<usize, u64> = BTreeMap::new();
    for mapping in snapshot.since(before) {
        let sum = growth.entry(mapping.process).or_default();
        *sum = sum.saturating_add(mapping.total());
    }
    let mut mappings: BTreeMap<usize, Vec<(Mapping, Vec<usize>)>> = BTreeMap::new();
    let faulted = snapshot
        .mappings
        .iter()
        .filter(|mapping| mapping.total() > 0);
    for (mapping, parts) in merged(&faulted.cloned().collect::<Vec<_>>()) {
        mappings
            .entry(mapping.process)
            .or_default()
            .push((mapping, parts));
    }
    let mut processes = Vec::new();
    for (index, found) in mappings {
        let Some(process) = snapshot.processes.get(index) else {
            continue;
        };
        let grown = growth.get(&index).copied();
        if grown.is_some() {
            symbols.look_at(process.pid);
        }
        let reports = mapping_reports(process.pid, &found, snapshot, symbols, residency);
        let mut report = process_report(process, &found, reports);
        report.per_second = span.per_second(grown.unwrap_or(0));
        if index == 0 {
            report.comm = "(others)".to_owned();
        }
        processes.push(report);
    }
    processes
        .sort_by_key(|process| std::cmp::Reverse((process.per_second, process.faults.total())));
    let (minor, major) = snapshot.totals();
    Report {
        source: "kernel",
        elapsed_ns: span.elapsed_ns,
        is_final: false,
        faults: Faults { minor, major },
        per_second: span.per_second(growth.values().sum()),
        shared_out: snapshot.shared_out,
        processes,
        minor_latency: LatencyReport::of(&snapshot.minor),
        major_latency: LatencyReport::of(&snapshot.major),
        losses: snapshot.losses.is_any().then_some(snapshot.losses),
    }
}

/// The mappings of one process, most faults first.
fn mapping_reports(
    pid: Pid,
    found: &[(Mapping, Vec<usize>)],
    snapshot: &Snapshot,
    symbols: &mut Symbols,
    residency: &Residency,
) -> Vec<MappingReport> {
    let mut reports: Vec<MappingReport> = Vec::new();
    for (mapping, parts) in found {
        let path = symbols.path(pid, mapping);
        let mut report = MappingReport::of(mapping, path).with_residency(pid, residency);
        let sites = snapshot
            .sites
            .iter()
            .filter(|site| parts.contains(&site.mapping));
        report.sites = sites
            .take(SITES)
            .map(|site| SiteReport {
                symbol: symbols.name(pid, site.instruction),
                count: site.count,
            })
            .collect();
        reports.push(report);
    }
    reports.sort_by_key(|mapping| std::cmp::Reverse(mapping.faults.total()));
    reports
}

fn process_report(
    process: &WatchedProcess,
    found: &[(Mapping, Vec<usize>)],
    mappings: Vec<MappingReport>,
) -> ProcessReport {
    let faults = found
        .iter()
        .fold(Faults::default(), |sum, (mapping, _)| Faults {
            minor: sum.minor.saturating_add(mapping.minor),
            major: sum.major.saturating_add(mapping.major),
        });
    ProcessReport {
        pid: process.pid.get(),
        uid: process.uid.get(),
        comm: process.comm.clone(),
        faults,
        per_second: 0,
        mappings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anon(index: usize, process: usize, start: u64, end: u64, minor: u64) -> Mapping {
        Mapping {
            index,
            process,
            kind: MappingKind::Anon,
            start,
            end,
            permissions: "rw-p".to_owned(),
            file: None,
            inode: 0,
            device: String::new(),
            is_written_back: false,
            minor,
            major: 1,
            timed: 1,
            timed_protected: 0,
        }
    }

    #[test]
    fn memory_that_grew_downwards_is_one_mapping() {
        let parts = [
            anon(1, 1, 50, 90, 5),
            anon(2, 1, 20, 90, 7),
            anon(3, 1, 95, 99, 1),
            anon(4, 2, 30, 60, 2),
        ];
        let whole = merged(&parts);
        assert_eq!(whole.len(), 3);
        assert_eq!(
            (
                whole[0].0.start,
                whole[0].0.end,
                whole[0].0.minor,
                whole[0].0.major
            ),
            (20, 90, 12, 2)
        );
        assert_eq!(whole[0].1, [2, 1]);
    }
}
