// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--status`: what the queue has counted, and what waits in it. Read from the file, while another one works on it,
//! too.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::queue::journal::read;
use crate::queue::state::RuleCounts;

#[derive(Debug, Default, Serialize)]
struct Report {
    /// The number of the event read last.
    read_up_to: Option<u64>,
    missed: u64,
    repaired: u64,
    rules: BTreeMap<String, RuleReport>,
}

#[derive(Debug, Default, Serialize)]
struct RuleReport {
    #[serde(flatten)]
    counts: RuleCounts,
    waiting: u64,
}

/// As JSON, in several lines.
pub(crate) fn report(state: &Path) -> Result<String> {
    let path = state.join("queue");
    let file = match File::open(&path) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("read {path:?} (root may)")),
    };
    let found = file.map(|file| read(&file)).transpose();
    let found = found.with_context(|| format!("read {path:?}"))?;
    let state = found.unwrap_or_default().state;
    let mut report = Report {
        read_up_to: state.cursor.map(|it| it.number),
        missed: state.counts.missed,
        repaired: state.counts.repaired,
        rules: BTreeMap::new(),
    };
    for (name, counts) in state.counts.rules {
        report.rules.entry(name).or_default().counts = counts;
    }
    for delivery in state.waiting.values() {
        let rule = report.rules.entry(delivery.rule.clone()).or_default();
        rule.waiting = rule.waiting.saturating_add(delivery.count());
    }
    Ok(serde_json::to_string_pretty(&report)?)
}
