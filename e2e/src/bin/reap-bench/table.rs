// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S2's table.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::state::{Scene, State};
use crate::trial::{Killer, Method, await_quiet};
use crate::victim::PageKind;

#[derive(Debug, Args)]
pub(crate) struct Table {
    /// Kills for each state and method
    #[arg(long, default_value_t = 15)]
    runs: usize,
    /// What a victim holds, MiB
    #[arg(long, default_value_t = 512)]
    mib: usize,
    /// Of what pages
    #[arg(long, value_enum, default_value = "4k")]
    pages: PageKind,
    /// Only these states
    #[arg(long, value_enum)]
    state: Vec<State>,
    /// Only these methods
    #[arg(long, value_enum)]
    method: Vec<Method>,
    /// Before each kill, wait so many seconds at most for the rest of the machine to be quiet
    #[arg(long, default_value_t = 0)]
    quiet: u64,
    /// No further kill of one state and method after so many seconds
    #[arg(long, default_value_t = 40)]
    seconds: u64,
    /// One JSON object for each row instead
    #[arg(long)]
    json: bool,
}

/// One cell's kills.
#[derive(Debug, Default)]
struct Cell {
    times: Vec<Duration>,
    methods: BTreeMap<String, usize>,
    /// Kills that began while others were busy.
    disturbed: usize,
}

impl Cell {
    fn median(&self) -> Duration {
        self.times
            .get(self.times.len() / 2)
            .copied()
            .unwrap_or_default()
    }

    fn worst(&self) -> Duration {
        self.times.last().copied().unwrap_or_default()
    }
}

fn rate(mib: usize, took: Duration) -> f64 {
    // S2's unit: MB/s of 1,000,000 bytes.
    (mib << 20) as f64 / 1e6 / took.as_secs_f64().max(1e-9)
}

impl Table {
    pub(crate) fn run(self) -> Result<()> {
        let states = if self.state.is_empty() {
            State::value_variants()
        } else {
            &self.state
        };
        let methods = if self.method.is_empty() {
            Method::value_variants()
        } else {
            &self.method
        };
        let killer = Killer::new()?;
        let mut minima: BTreeMap<&str, f64> = BTreeMap::new();
        if !self.json {
            println!(
                "{} MiB of {} pages; MB/s, median (minimum); ms, median (maximum)",
                self.mib,
                if self.pages == PageKind::Huge {
                    "huge"
                } else {
                    "4 KiB"
                }
            );
        }
        for &state in states {
            let mut line = format!("{:36}", state.words());
            for &method in methods {
                let cell = self.measure(&killer, state, method)?;
                let name = if method == Method::Normal {
                    "normal"
                } else {
                    "bursar"
                };
                let (median, slowest) =
                    (rate(self.mib, cell.median()), rate(self.mib, cell.worst()));
                let least = minima.entry(name).or_insert(f64::MAX);
                *least = least.min(slowest);
                if self.json {
                    println!(
                        "{}",
                        serde_json::json!({
                            "state": state.words(), "method": name, "mib": self.mib,
                            "pages": format!("{:?}", self.pages), "runs": cell.times.len(),
                            "median_ns": cell.median().as_nanos() as u64,
                            "max_ns": cell.worst().as_nanos() as u64,
                            "median_mb_s": median, "min_mb_s": slowest, "methods": cell.methods, "disturbed": cell.disturbed,
                        })
                    );
                }
                line += &format!(
                    " | {name} {median:8.0} ({slowest:8.0}) MB/s {:9.1} ({:9.1}) ms n={:<2} d={}",
                    cell.median().as_secs_f64() * 1e3,
                    cell.worst().as_secs_f64() * 1e3,
                    cell.times.len(),
                    cell.disturbed,
                );
                if method == Method::Bursar {
                    line += &format!(" {:?}", cell.methods);
                }
            }
            if !self.json {
                println!("{line}");
            }
        }
        if !self.json {
            let said: Vec<_> = minima
                .iter()
                .rev()
                .map(|(name, rate)| format!("{name} {rate:.0} MB/s"))
                .collect();
            println!("min reclaim speed: {}", said.join(" | "));
        }
        Ok(())
    }

    fn measure(&self, killer: &Killer, state: State, method: Method) -> Result<Cell> {
        let mut cell = Cell::default();
        let end = Instant::now() + Duration::from_secs(self.seconds);
        while cell.times.len() < self.runs && (cell.times.is_empty() || Instant::now() < end) {
            if self.quiet > 0 && !await_quiet(Duration::from_secs(self.quiet))? {
                cell.disturbed += 1;
            }
            let scene = Scene::set(state, self.mib, self.pages)?;
            let trial = killer.kill(&scene, method)?;
            cell.times.push(trial.took);
            for report in trial.reports {
                let how = report
                    .fate
                    .method()
                    .map_or_else(|| format!("{:?}", report.fate), str::to_owned);
                *cell.methods.entry(how).or_default() += 1;
            }
        }
        cell.times.sort();
        Ok(cell)
    }
}
