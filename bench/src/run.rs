// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures the tables that were asked for.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::arguments::{self, How, Table};
use crate::load::{self, Stage};
use crate::lock::Lock;
use crate::machine::Machine;
use crate::results::Results;
use crate::show;
use crate::table::{gate, instructions, malloc, observe, overcommit, peers, scale, speed, system};

/// How often each table repeats: (quick, whole).
const SPEED_ROUNDS: (usize, usize) = (6, 115);
const OVERCOMMIT_RUNS: (usize, usize) = (3, 10);
const SCALE_ROUNDS: (usize, usize) = (1, 3);
const OBSERVE_ROUNDS: (usize, usize) = (2, 9);
const SYSTEM_ROUNDS: (usize, usize) = (2, 6);
const GATE_ROUNDS: (usize, usize) = (3, 11);
const INSTRUCTION_ROUNDS: (usize, usize) = (1, 3);
const MALLOC_ROUNDS: (usize, usize) = (3, 16);

/// Runs them, printing each as soon as it is there unless JSON was asked for. What there is is kept in
/// `path` after each table: a run that ends early leaves those that are whole.
pub(crate) fn run(table: &Table, how: &How, path: &Path) -> Result<Results> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "it loads BPF programs and becomes other users: run it as root"
    );
    load::sweep()?;
    let stage = Stage::new(how.first_uid)?;
    let lock = Lock::open(how.lock.as_deref())?;
    let began = Instant::now();
    let count = |(quick, whole): (usize, usize)| {
        how.rounds
            .unwrap_or(if how.quick { quick } else { whole })
            .max(1)
    };
    let mut results = Results {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        is_quick: how.quick,
        machine: Machine::observe(),
        ..Results::default()
    };
    let say = |text: String| {
        if !how.json {
            println!("{text}");
        }
    };
    let keep = |results: &mut Results| {
        results.seconds = began.elapsed().as_secs_f64();
        results.waited_seconds = lock.waited().as_secs_f64();
        results.save(path)
    };
    say(show::machine(&results.machine).plain());
    let is_all = matches!(table, Table::All);
    if is_all || matches!(table, Table::Overcommit(_)) {
        let all = arguments::Overcommit::default();
        let chosen = match table {
            Table::Overcommit(chosen) => chosen,
            _ => &all,
        };
        let found = overcommit::measure(&stage, count(OVERCOMMIT_RUNS), chosen, &lock)?;
        say(show::titled("Over-commit", &show::overcommit(&found)));
        results.overcommit = Some(found);
        keep(&mut results)?;
    }
    if is_all || matches!(table, Table::Speed(_)) {
        let all = arguments::Speed::default();
        let only = match table {
            Table::Speed(chosen) => chosen,
            _ => &all,
        };
        let found = speed::measure(&stage, count(SPEED_ROUNDS), how.quick, only, &lock)?;
        say(show::titled("Speed of allocation", &show::speed(&found)));
        results.speed = Some(found);
        keep(&mut results)?;
    }
    if is_all || matches!(table, Table::Scale) {
        let found = scale::measure(&stage, count(SCALE_ROUNDS), &lock)?;
        say(show::titled("Scale", &show::scale(&found)));
        results.scale = Some(found);
        keep(&mut results)?;
    }
    if is_all || matches!(table, Table::Observe) {
        let found = observe::measure(&stage, count(OBSERVE_ROUNDS), &lock)?;
        say(show::titled("Observing", &show::observe(&found)));
        results.observe = Some(found);
        keep(&mut results)?;
    }
    if is_all || matches!(table, Table::System) {
        let found = system::measure(&stage, count(SYSTEM_ROUNDS), how.quick, &lock)?;
        say(show::titled(
            "The rest of the system",
            &show::system(&found),
        ));
        results.system = Some(found);
        keep(&mut results)?;
    }
    if is_all || matches!(table, Table::Gate) {
        let found = gate::measure(&stage, count(GATE_ROUNDS), how.quick, &lock)?;
        say(show::titled("The gate", &show::gate(&found)));
        results.gate = Some(found);
        keep(&mut results)?;
    }
    // Not part of all: on a machine whose clock runs on it shows noise.
    if matches!(table, Table::Instructions) {
        let found = instructions::measure(&stage, count(INSTRUCTION_ROUNDS), &lock)?;
        say(show::titled(
            "The kernel half by the number of CPUs",
            &show::instructions(&found),
        ));
        results.instructions = Some(found);
        keep(&mut results)?;
    }
    if is_all || matches!(table, Table::Malloc(_)) {
        let only = match table {
            Table::Malloc(chosen) => chosen.only.as_slice(),
            _ => &[],
        };
        let found = malloc::measure(&stage, count(MALLOC_ROUNDS), only, &lock)?;
        say(show::titled("Mallocs", &show::malloc(&found)));
        results.malloc = Some(found);
        keep(&mut results)?;
    }
    if is_all || matches!(table, Table::Peers) {
        let found = peers::observe();
        say(format!("Peers\n{}", show::peers_in_lines(&found)));
        results.peers = Some(found);
        keep(&mut results)?;
    }
    Ok(results)
}
