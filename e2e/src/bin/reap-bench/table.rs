// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S2's table.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::sessions::Sessions;
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
    /// Who shares a session with whom
    #[arg(long, value_enum, default_value = "two")]
    sessions: Sessions,
    /// Reapers hear of a victim when it has been signalled, as bursard's do
    #[arg(long)]
    dying: bool,
    /// Before each kill, wait so many seconds at most for the rest of the machine to be quiet
    #[arg(long, default_value_t = 0)]
    quiet: u64,
    /// No further kill of one state and method after so many seconds with it
    #[arg(long, default_value_t = 40)]
    seconds: u64,
    /// One JSON object for each row instead
    #[arg(long)]
    json: bool,
}

/// The kills of one state by one method.
#[derive(Debug)]
struct Cell {
    state: State,
    method: Method,
    times: Vec<Duration>,
    methods: BTreeMap<String, usize>,
    /// Kills that began while others were busy.
    disturbed: usize,
    /// Setting scenes included.
    spent: Duration,
}

impl Cell {
    const fn new(state: State, method: Method) -> Self {
        Self {
            state,
            method,
            times: Vec::new(),
            methods: BTreeMap::new(),
            disturbed: 0,
            spent: Duration::ZERO,
        }
    }

    const fn name(&self) -> &'static str {
        match self.method {
            Method::Normal => "normal",
            Method::Bursar => "bursar",
        }
    }

    fn median(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }

    fn worst(&self) -> Duration {
        self.times.iter().max().copied().unwrap_or_default()
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
        let cells = self.measure(states, methods)?;
        if self.json {
            for cell in &cells {
                println!("{}", self.object(cell));
            }
            return Ok(());
        }
        println!(
            "{} MiB of {} pages; MB/s, median (minimum); ms, median (maximum); of the free core's median",
            self.mib,
            if self.pages == PageKind::Huge {
                "huge"
            } else {
                "4 KiB"
            }
        );
        for &state in states {
            let line: String = cells
                .iter()
                .filter(|cell| cell.state == state)
                .map(|cell| self.words(cell, &cells))
                .collect();
            println!("{:36}{line}", state.words());
        }
        let said: Vec<_> = methods
            .iter()
            .filter_map(|&method| {
                let cells = cells.iter().filter(|cell| cell.method == method);
                let slowest = cells.max_by_key(|cell| cell.worst())?;
                let least = rate(self.mib, slowest.worst());
                Some(format!("{} {least:.0} MB/s", slowest.name()))
            })
            .collect();
        println!("min reclaim speed: {}", said.join(" | "));
        Ok(())
    }

    fn object(&self, cell: &Cell) -> serde_json::Value {
        serde_json::json!({
            "state": cell.state.words(), "method": cell.name(), "mib": self.mib,
            "pages": format!("{:?}", self.pages), "runs": cell.times.len(),
            "median_ns": cell.median().as_nanos() as u64,
            "max_ns": cell.worst().as_nanos() as u64,
            "median_mb_s": rate(self.mib, cell.median()),
            "min_mb_s": rate(self.mib, cell.worst()),
            "times_ns": cell.times.iter().map(|it| it.as_nanos() as u64).collect::<Vec<_>>(),
            "methods": cell.methods, "disturbed": cell.disturbed,
        })
    }

    fn words(&self, cell: &Cell, cells: &[Cell]) -> String {
        let mut words = format!(
            " | {} {:8.0} ({:8.0}) MB/s {:9.1} ({:9.1}) ms n={:<2} d={}",
            cell.name(),
            rate(self.mib, cell.median()),
            rate(self.mib, cell.worst()),
            cell.median().as_secs_f64() * 1e3,
            cell.worst().as_secs_f64() * 1e3,
            cell.times.len(),
            cell.disturbed,
        );
        let is_free = |it: &&Cell| it.state == State::Free && it.method == cell.method;
        if let Some(free) = cells.iter().find(is_free) {
            let part = free.median().as_secs_f64() / cell.median().as_secs_f64();
            words += &format!(" {part:.2}");
        }
        if cell.method == Method::Bursar {
            words += &format!(" {:?}", cell.methods);
        }
        words
    }

    /// One kill of each in turn, so that the machine's slow hours are everybody's.
    fn measure(&self, states: &[State], methods: &[Method]) -> Result<Vec<Cell>> {
        let mut killer = Killer::new(self.sessions, self.dying)?;
        let each = states.iter().flat_map(|&state| {
            let cells = methods.iter();
            cells.map(move |&method| Cell::new(state, method))
        });
        let mut cells: Vec<Cell> = each.collect();
        let most = Duration::from_secs(self.seconds);
        for _ in 0..self.runs {
            let is_due = |cell: &&mut Cell| cell.times.is_empty() || cell.spent < most;
            for cell in cells.iter_mut().filter(is_due) {
                let began = Instant::now();
                self.add(&mut killer, cell)?;
                cell.spent += began.elapsed();
            }
        }
        Ok(cells)
    }

    fn add(&self, killer: &mut Killer, cell: &mut Cell) -> Result<()> {
        if self.quiet > 0 && !await_quiet(Duration::from_secs(self.quiet))? {
            cell.disturbed += 1;
        }
        let scene = Scene::set(cell.state, self.mib, self.pages, self.sessions.are_apart())?;
        let trial = killer.kill(&scene, cell.method)?;
        cell.times.push(trial.took);
        for outcome in trial.outcomes {
            *cell.methods.entry(outcome.how).or_default() += 1;
        }
        Ok(())
    }
}
