// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prometheus's text format 0.0.4, not OpenMetrics: node_exporter's textfile collector reads no other and
//! rejects a file with one line that it does not know (`info`); Prometheus reads it too.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Write};

/// Only grows while the kernel half or bursard stays; or how much there is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Its name ends in `_total`.
    Counter,
    /// May fall.
    Gauge,
}

/// Of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// Of things, bytes, or 0 and 1.
    Number(u64),
    /// A time, with a fraction.
    Seconds(f64),
}

impl Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        })
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Seconds(number) => number.fmt(f),
        }
    }
}

/// Names and values, in their order.
pub type Labels = Vec<(&'static str, String)>;

/// The value of a label, between its quotes.
fn quotable(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// What it means, how it is counted, and every sample of one metric.
///
/// # Errors
/// Never, of a String.
pub fn write_metric(
    text: &mut String,
    name: &str,
    kind: Kind,
    help: &str,
    samples: &[(Labels, Value)],
) -> fmt::Result {
    // Our own words: one line each, without a backslash.
    writeln!(text, "# HELP {name} {help}")?;
    writeln!(text, "# TYPE {name} {kind}")?;
    for (labels, value) in samples {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", quotable(value)))
            .collect();
        match labels.as_slice() {
            [] => writeln!(text, "{name} {value}")?,
            labels => writeln!(text, "{name}{{{}}} {value}", labels.join(","))?,
        }
    }
    Ok(())
}

/// What node_exporter's textfile collector (prometheus/common expfmt, text format 0.0.4) has against it: of other types
/// it rejects the whole file, and what is said of another name than the samples' is lost.
///
/// # Errors
/// With the line.
pub fn understand(text: &str) -> Result<(), String> {
    let mut told = BTreeSet::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let rest = line.strip_prefix("# HELP ");
        let (name, help) = rest
            .and_then(|it| it.split_once(' '))
            .ok_or_else(|| format!("not what it means: {line}"))?;
        if help.contains('\\') || !told.insert(name) {
            return Err(format!("a backslash, or twice: {line}"));
        }
        let line = lines.next().unwrap_or_default();
        let kind = line.strip_prefix(&format!("# TYPE {name} "));
        if !kind.is_some_and(|it| ["counter", "gauge"].contains(&it)) {
            return Err(format!("no kind: {line}"));
        }
        let mut samples = 0_usize;
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let its = line.split(['{', ' ']).next();
            let value = line.rsplit_once(' ').map(|(_, value)| value.parse::<f64>());
            if its != Some(name) || !matches!(value, Some(Ok(_))) {
                return Err(format!("no sample of {name}: {line}"));
            }
            samples = samples.saturating_add(1);
        }
        if samples == 0 {
            return Err(format!("{name} has no sample"));
        }
    }
    match text.ends_with('\n') {
        true => Ok(()),
        false => Err("the last line has no end".to_owned()),
    }
}
