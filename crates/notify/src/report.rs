// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--status`: what the queue has counted, and what waits in it. Read from the file, while another one works on it,
//! too.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::queue::journal::{is_in_use, read};
use crate::queue::state::{RuleCounts, State};

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

/// What the queue in that directory has, and whether somebody works on it.
pub(crate) fn look(directory: &Path) -> Result<(State, bool)> {
    let path = directory.join("queue");
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok((State::default(), false));
        }
        Err(error) => return Err(error).with_context(|| format!("read {path:?} (root may)")),
    };
    let found = read(&file).with_context(|| format!("read {path:?}"))?;
    Ok((found.state, is_in_use(&file)))
}

/// As JSON, in several lines.
pub(crate) fn report(directory: &Path) -> Result<String> {
    let (state, _) = look(directory)?;
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
