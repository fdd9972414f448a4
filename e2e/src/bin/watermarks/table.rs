// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tables of docs/design/measured-watermarks.md out of the results of a study, between two marks in the page.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::guest::{Outcome, Segment};
use crate::study::WORKLOADS;

const BEGIN: &str = "<!-- study: begin -->\n";
const END: &str = "<!-- study: end -->\n";
const ARMS: [(&str, &str); 4] = [
    ("none", "untouched"),
    ("trend", "trend (S4's rule)"),
    ("loop", "ten-line loop"),
    ("bursar", "**bursar**"),
];

/// Where from and where to.
#[derive(Debug, Args)]
pub(crate) struct Table {
    /// The results
    #[arg(long, default_value = "docs/data/watermarks")]
    results: PathBuf,
    /// The page
    #[arg(long, default_value = "docs/design/measured-watermarks.md")]
    page: PathBuf,
}

pub(crate) fn run(table: &Table) -> Result<()> {
    let page = fs::read_to_string(&table.page).with_context(|| format!("read {:?}", table.page))?;
    let Some((before, rest)) = page.split_once(BEGIN) else {
        bail!("{:?} has no mark {BEGIN:?}", table.page);
    };
    let Some((_, after)) = rest.split_once(END) else {
        bail!("{:?} has no mark {END:?}", table.page);
    };
    let text = format!("{before}{BEGIN}\n{}{END}{after}", tables(table)?);
    fs::write(&table.page, text).with_context(|| format!("write {:?}", table.page))
}

/// workload → arm → its runs.
type Results = BTreeMap<String, BTreeMap<String, Vec<Outcome>>>;

fn results(table: &Table) -> Result<Results> {
    let mut results = Results::new();
    let mut paths: Vec<PathBuf> = fs::read_dir(&table.results)
        .with_context(|| format!("list {:?}", table.results))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|it| it == "json"))
        .collect();
    paths.sort();
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let mut parts = name.split('-');
        let (Some(workload), Some(arm)) = (parts.next(), parts.next()) else {
            continue;
        };
        let text = fs::read(&path).with_context(|| format!("read {path:?}"))?;
        let outcome = serde_json::from_slice(&text).with_context(|| format!("read {path:?}"))?;
        let arms = results.entry(workload.to_owned()).or_default();
        arms.entry(arm.to_owned()).or_default().push(outcome);
    }
    Ok(results)
}

fn tables(table: &Table) -> Result<String> {
    let results = results(table)?;
    let mut text = String::new();
    for workload in &WORKLOADS {
        let Some(arms) = results.get(workload.name) else {
            continue;
        };
        text.push_str(&format!("### {}\n\n{}\n\n", workload.name, workload.about));
        let segments = arms.values().flatten().map(|it| it.segments.len()).max();
        for segment in 0..segments.unwrap_or(0) {
            text.push_str(&format!("Segment {}:\n\n", segment + 1));
            text.push_str(
                "| | runs | stalls a minute, each run | stall time a minute, median (worst) | huge pages refused | idle memory, mean | scale factor, mean | MiB read a second | bursts a minute |\n|---|---|---|---|---|---|---|---|---|\n",
            );
            for (arm, name) in ARMS {
                let runs = arms.get(arm).map(Vec::as_slice).unwrap_or_default();
                let segments: Vec<&Segment> = runs
                    .iter()
                    .filter_map(|run| run.segments.get(segment))
                    .collect();
                if !segments.is_empty() {
                    text.push_str(&row(name, &segments));
                }
            }
            text.push('\n');
        }
    }
    Ok(text)
}

fn per_minute(segment: &Segment, count: u64) -> f64 {
    count as f64 * 60.0 / segment.seconds.max(1.0)
}

fn row(name: &str, segments: &[&Segment]) -> String {
    let each =
        |of: &dyn Fn(&Segment) -> f64| -> Vec<f64> { segments.iter().map(|it| of(it)).collect() };
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let mut stalls = each(&|it| per_minute(it, it.alloc_stalls + it.compact_stalls));
    stalls.sort_by(f64::total_cmp);
    let stalls: Vec<String> = stalls.iter().map(|it| format!("{it:.0}")).collect();
    let mut times = each(&|it| per_minute(it, it.reclaim.total_us + it.compaction.total_us) / 1e6);
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).copied().unwrap_or(0.0);
    let worst = times.last().copied().unwrap_or(0.0);
    let (failed, asked) = segments.iter().fold((0, 0), |(failed, asked), it| {
        (
            failed + it.thp_fallbacks,
            asked + it.thp_fallbacks + it.thp_faults,
        )
    });
    let refused = match asked {
        0 => "–".to_owned(),
        asked => format!("{:.1} %", 100.0 * failed as f64 / asked as f64),
    };
    format!(
        "| {name} | {} | {} | {median:.2} s ({worst:.2} s) | {refused} | {:.0} MiB | {:.0} | {:.0} | {:.0} |\n",
        segments.len(),
        stalls.join(", "),
        mean(each(&|it| it.idle_when_full_mib)),
        mean(each(&|it| it.scale_mean)),
        mean(each(&|it| it.done.read_mib as f64 / it.seconds.max(1.0))),
        mean(each(&|it| per_minute(it, it.done.bursts))),
    )
}
