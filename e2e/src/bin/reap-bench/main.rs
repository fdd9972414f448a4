// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `reap-bench`: S2's table, normal kills against bursar's, for every state a victim can be in.
//!
//! ```text
//! reap-bench table [--runs 15] [--mib 512] [--pages 4k|huge] [--state NAME]… [--method NAME]… [--sessions two]
//! reap-bench neighbours [--kills 20] [--state NAME]… [--sessions two]
//! ```
//!
//! Needs root: it makes control groups and real-time threads. Everything is gone afterwards.

mod group;
mod neighbours;
mod pool;
mod probe;
mod sessions;
mod state;
mod table;
mod trial;
mod victim;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// How fast a killed process's memory comes back
    Table(table::Table),
    /// What a reap costs everybody else
    Neighbours(neighbours::Neighbours),
    /// A process that holds memory (started by the others)
    #[command(hide = true)]
    Victim(victim::Hold),
    /// A process that wants a CPU (started by the others)
    #[command(hide = true)]
    Loop {
        cpu: usize,
        #[arg(long)]
        apart: bool,
    },
    /// The reapers (started by the others)
    #[command(hide = true)]
    Pool {
        #[arg(long)]
        apart: bool,
        #[arg(long)]
        dying: bool,
    },
    /// A process that wakes up often (started by the others)
    #[command(hide = true)]
    Probe {
        #[arg(long)]
        apart: bool,
        #[arg(long)]
        above: bool,
    },
}

fn main() -> ExitCode {
    let what = Arguments::parse().what;
    if !matches!(what, What::Table(_) | What::Neighbours(_)) {
        // Whoever ends us leaves no busy loops behind.
        // SAFETY: a plain system call on numbers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    }
    let done: Result<()> = match what {
        What::Table(table) => table.run(),
        What::Neighbours(neighbours) => neighbours.run(),
        What::Victim(hold) => hold.run(),
        What::Loop { cpu, apart } => victim::spin(cpu, apart),
        What::Pool { apart, dying } => pool::serve(apart, dying),
        What::Probe { apart, above } => probe::run(apart, above),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reap-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
