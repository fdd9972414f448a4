// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs `bursar-bench-allocator` (src/bin/allocator.rs) and reads its answer.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::load::Stage;

/// What one run is to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    /// `None`: time first touches alone.
    pub(crate) processes: Option<u64>,
    pub(crate) bytes: u64,
    pub(crate) iterations: u64,
    /// No iteration begins after this.
    pub(crate) budget: Duration,
}

/// What it took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    /// User and system time of one iteration, microseconds.
    pub(crate) microseconds: f64,
    /// One minor fault, nanoseconds; of jobs that time them.
    pub(crate) fault_ns: f64,
}

impl Job {
    /// What its processes hold together at most, bytes.
    pub(crate) fn at_once(&self) -> u64 {
        self.processes.unwrap_or(1) * self.bytes
    }

    pub(crate) fn run(&self, stage: &Stage, uid: u32, entrance: Option<&Path>) -> Result<Taken> {
        let mut command = Command::new(stage.binaries.path("bursar-bench-allocator"));
        command.arg(uid.to_string());
        command.arg(
            self.processes
                .map_or_else(|| "faults".to_owned(), |it| it.to_string()),
        );
        command
            .arg(self.bytes.to_string())
            .arg(self.iterations.to_string());
        command.arg(self.budget.as_millis().to_string());
        if let Some(entrance) = entrance {
            command.arg(entrance);
        }
        let output = command
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context(
                "run bursar-bench-allocator (is it built? cargo build --release -p bursar-bench)",
            )?;
        if !output.status.success() {
            bail!("the allocator ended with {}", output.status);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<u64> = text
            .split_whitespace()
            .filter_map(|it| it.parse().ok())
            .collect();
        let &[iterations, microseconds, _, touching] = numbers.as_slice() else {
            bail!("the allocator said {text:?}");
        };
        let pages = (iterations * self.bytes / 4096).max(1);
        Ok(Taken {
            microseconds: microseconds as f64 / iterations.max(1) as f64,
            fault_ns: touching as f64 / pages as f64,
        })
    }
}
