// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far it is: a bar on a terminal, a line a tenth elsewhere. On standard error, so that tables
//! and JSON stay clean.

use std::io::{IsTerminal, Write};
use std::time::Instant;

/// One table's progress.
#[derive(Debug)]
pub(crate) struct Progress {
    table: &'static str,
    steps: usize,
    done: usize,
    told_tenths: usize,
    began: Instant,
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn new(table: &'static str, steps: usize) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self {
            table,
            steps: steps.max(1),
            done: 0,
            told_tenths: 0,
            began: Instant::now(),
            is_terminal,
        }
    }

    /// One step is done; `what` is next.
    pub(crate) fn step(&mut self, what: &str) {
        self.done = (self.done + 1).min(self.steps);
        let spent = self.began.elapsed().as_secs_f64();
        let left = spent / self.done as f64 * (self.steps - self.done) as f64;
        let tenths = self.done * 10 / self.steps;
        let mut stderr = std::io::stderr();
        if self.is_terminal {
            let filled = self.done * 30 / self.steps;
            let bar = format!("{}{}", "#".repeat(filled), ".".repeat(30 - filled));
            let _ = write!(
                stderr,
                "\r{:<12} [{bar}] {left:4.0} s left  {what:<40.40}",
                self.table
            );
        } else if tenths > self.told_tenths {
            self.told_tenths = tenths;
            let _ = writeln!(
                stderr,
                "{}: {} % after {spent:.0} s, {left:.0} s left",
                self.table,
                tenths * 10
            );
        }
        let _ = stderr.flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal {
            eprintln!();
        }
    }
}
