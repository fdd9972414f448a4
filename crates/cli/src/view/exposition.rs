// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prometheus's text format 0.0.4, not OpenMetrics: node_exporter's textfile collector reads no other and
//! rejects a file with one line that it does not know (`info`); Prometheus reads it too.

use std::fmt::{self, Display, Write};

/// Only grows while the kernel half or bursard stays; or how much there is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    Number(u64),
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

pub(super) type Labels = Vec<(&'static str, String)>;

/// The value of a label, between its quotes.
fn quotable(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// What it means, how it is counted, and every sample of one metric.
pub(super) fn write_metric(
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

#[cfg(test)]
pub(super) mod tests {
    /// As node_exporter's textfile collector does (prometheus/common expfmt, text format 0.0.4): of other types
    /// it rejects the whole file, and what is said of another name than the samples' is lost.
    pub(crate) fn assert_understood(text: &str) {
        let mut told = std::collections::BTreeSet::new();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let (name, help) = line
                .strip_prefix("# HELP ")
                .and_then(|rest| rest.split_once(' '))
                .unwrap_or_else(|| panic!("not what it means: {line}"));
            assert!(!help.contains('\\'), "{line}");
            assert!(told.insert(name), "{name} comes twice");
            let line = lines.next().unwrap();
            let kind = line.strip_prefix(&format!("# TYPE {name} ")).unwrap();
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            let mut samples = 0;
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                let end = line.find(['{', ' ']).unwrap();
                assert_eq!(&line[..end], name, "{line}");
                let (_, value) = line.rsplit_once(' ').unwrap();
                assert!(value.parse::<f64>().is_ok(), "{line}");
                samples += 1;
            }
            assert!(samples > 0, "{name} has no sample");
        }
        assert!(text.ends_with('\n'));
    }
}
