// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a reap costs everybody else: how late ordinary threads wake up while memory comes back.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::probe::Probes;
use crate::sessions::Sessions;
use crate::state::{Scene, State};
use crate::trial::{Killer, Method, await_quiet};
use crate::victim::PageKind;

#[derive(Debug, Args)]
pub(crate) struct Neighbours {
    /// Pairs of kills for each state: one normal, one by bursar
    #[arg(long, default_value_t = 30)]
    kills: usize,
    /// What a victim holds, MiB
    #[arg(long, default_value_t = 512)]
    mib: usize,
    /// Processes that wake up
    #[arg(long, default_value_t = 2)]
    probes: usize,
    /// At real-time priority, above reapers: nobody can be served sooner, whatever the plan
    #[arg(long)]
    above: bool,
    /// Only these states
    #[arg(long, value_enum)]
    state: Vec<State>,
    /// Who shares a session with whom
    #[arg(long, value_enum, default_value = "two")]
    sessions: Sessions,
    /// Reapers hear of a victim when it has been signalled, as bursard's do
    #[arg(long)]
    dying: bool,
    /// Before each kill, wait so many seconds at most for the rest of the machine to be quiet
    #[arg(long, default_value_t = 0)]
    quiet: u64,
    /// No further pair of one state after so many seconds
    #[arg(long, default_value_t = 40)]
    seconds: u64,
}

/// So long the probes run before a kill: what the machine is like without one.
const BEFORE_MS: u64 = 30;

impl Neighbours {
    pub(crate) fn run(self) -> Result<()> {
        let some = [State::Free, State::Busy, State::Nice19];
        let states = if self.state.is_empty() {
            &some[..]
        } else {
            &self.state
        };
        let mut killer = Killer::new(self.sessions, self.dying)?;
        println!(
            "wake-up latency of {} probes during a reap of {} MiB, us",
            self.probes, self.mib
        );
        for &state in states {
            let mut cells: [Cell; 4] = Default::default();
            let end = Instant::now() + Duration::from_secs(self.seconds);
            let mut pairs = 0;
            while pairs < self.kills && (pairs == 0 || Instant::now() < end) {
                let mut usual = Duration::ZERO;
                // In turn, so that what else the machine does meets both alike.
                for (&method, index) in Method::value_variants().iter().zip(1..) {
                    let is_quiet = self.quiet == 0 || await_quiet(Duration::from_secs(self.quiet))?;
                    let scene =
                        Scene::set(state, self.mib, PageKind::Small, self.sessions.are_apart())?;
                    let probes = Probes::start(self.probes, self.sessions.are_apart(), self.above)?;
                    std::thread::sleep(Duration::from_millis(BEFORE_MS));
                    let trial = killer.kill(&scene, method)?;
                    let (from, to) = (trial.window.0.get(), trial.window.1.get());
                    if method == Method::Normal {
                        usual = trial.took;
                    }
                    // What a neighbour meets in the time that a normal kill takes.
                    let span = from + u64::try_from(usual.as_nanos())?;
                    std::thread::sleep(usual.saturating_sub(trial.took));
                    let all = probes.finish()?;
                    let within =
                        |to: u64| move |&&(at, late): &&(u64, u64)| at + late >= from && at <= to;
                    let earlier = |&&(at, late): &&(u64, u64)| at + late < from;
                    let only_late = |it: &(u64, u64)| it.1;
                    let before: Vec<_> = all.iter().filter(earlier).map(only_late).collect();
                    cells[0].add(before, Duration::from_millis(BEFORE_MS), is_quiet);
                    let inside = all.iter().filter(within(to)).map(only_late).collect();
                    cells[index].add(inside, trial.took, is_quiet);
                    if method == Method::Bursar {
                        let meanwhile = all.iter().filter(within(to.max(span)));
                        let meanwhile = meanwhile.map(only_late).collect();
                        cells[3].add(meanwhile, usual.max(trial.took), is_quiet);
                    }
                }
                pairs += 1;
            }
            let names = [
                "before",
                "normal",
                "bursar",
                "bursar, for as long as the normal kill took",
            ];
            for (name, cell) in names.iter().zip(&cells) {
                println!("{:28} {name}: {}", state.words(), cell.words());
            }
            for (cell, name) in [(2, ""), (3, ", for as long as the normal kill took")] {
                let ratio =
                    |of: fn(&Cell) -> u64| of(&cells[cell]) as f64 / of(&cells[1]).max(1) as f64;
                println!(
                    "{:28} bursar / normal{name}: p99 of all {:.2}, median kill's p99 {:.2}",
                    state.words(),
                    ratio(|it| it.of_all(990)),
                    ratio(Cell::median_p99),
                );
            }
        }
        Ok(())
    }
}

/// The wake-ups of one method's kills.
#[derive(Debug, Default)]
struct Cell {
    all: Vec<u64>,
    p99s: Vec<u64>,
    disturbed: usize,
    /// How long each was looked at.
    took: Vec<Duration>,
}

fn permille(sorted: &[u64], permille: usize) -> u64 {
    let index = (sorted.len() * permille / 1000).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or(0)
}

impl Cell {
    fn add(&mut self, mut late: Vec<u64>, took: Duration, is_quiet: bool) {
        self.took.push(took);
        self.took.sort_unstable();
        late.sort_unstable();
        self.p99s.push(permille(&late, 990));
        self.p99s.sort_unstable();
        self.all.extend(late);
        self.all.sort_unstable();
        self.disturbed += usize::from(!is_quiet);
    }

    fn of_all(&self, of: usize) -> u64 {
        permille(&self.all, of)
    }

    fn median_p99(&self) -> u64 {
        permille(&self.p99s, 500)
    }

    fn words(&self) -> String {
        let us = |of| self.of_all(of) / 1000;
        format!(
            "p50 {} p90 {} p99 {} max {}, median kill's p99 {}; {} ms ({} wake-ups, {} kills, {} disturbed)",
            us(500),
            us(900),
            us(990),
            us(1000),
            self.median_p99() / 1000,
            self.took
                .get(self.took.len() / 2)
                .map_or(0, Duration::as_millis),
            self.all.len(),
            self.p99s.len(),
            self.disturbed,
        )
    }
}
