// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `watermarks`: the experiments behind docs/design/measured-watermarks.md. `study` plays them in guests, one after
//! the other and interleaved; the other commands are what runs inside.

mod cost;
mod guest;
mod load;
mod stall_time;
mod study;
mod survive;
mod table;
mod tune;

use std::process::ExitCode;

use clap::Parser;

#[derive(Debug, Parser)]
enum Arguments {
    /// What looking ten times a second costs on this machine, which is not touched
    Cost(cost::Cost),
    /// The workload alone
    Load(load::Load),
    /// One run inside a guest
    Guest(guest::Run),
    /// All runs, in guests
    Study(study::Study),
    /// A real bursard in a storm, killed and restarted; inside a guest
    Survive(survive::Survive),
    /// The tables of docs/design/measured-watermarks.md
    Table(table::Table),
    /// A tuner alone, acting until SIGTERM
    Tune(tune::Tune),
}

fn main() -> ExitCode {
    let done = match Arguments::parse() {
        Arguments::Load(load) => load::run(&load).and_then(|done| {
            println!("{}", serde_json::to_string(&done)?);
            Ok(())
        }),
        Arguments::Cost(cost) => cost::run(&cost),
        Arguments::Guest(run) => guest::run(&run),
        Arguments::Study(study) => study::run(&study),
        Arguments::Survive(survive) => survive::run(&survive),
        Arguments::Table(table) => table::run(&table),
        Arguments::Tune(tune) => tune::run(&tune),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("watermarks: {error:#}");
            ExitCode::FAILURE
        }
    }
}
