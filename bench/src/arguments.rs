// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// What limits cost, and how well they hold: S1's two evaluations and more, with the peers a user
/// would pick instead, on this machine.
#[derive(Debug, Parser)]
#[command(name = "bursar-bench", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) table: Table,
    #[command(flatten)]
    pub(crate) how: How,
}

/// How to measure and what to print.
#[derive(Debug, Clone, Args)]
pub(crate) struct How {
    /// Fewer rounds: a first impression, with wide intervals
    #[arg(long, global = true)]
    pub(crate) quick: bool,
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Where JSON, pictures and the page go
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = "target/bench"
    )]
    pub(crate) out: PathBuf,
    /// The first of ten uids that nobody on this machine has
    #[arg(
        long,
        global = true,
        value_name = "UID",
        default_value_t = 2_147_352_576
    )]
    pub(crate) first_uid: u32,
    /// Hold this lock (flock) during every round of measurements, for machines that others build on
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) lock: Option<PathBuf>,
    /// How many rounds, instead of what suits the table
    #[arg(long, global = true, value_name = "N")]
    pub(crate) rounds: Option<usize>,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Table {
    /// Every table, then pictures and the page
    All,
    /// How far a user gets over his limit before the kill, and how long he lives on
    #[command(visible_alias = "over-commit")]
    Overcommit(Overcommit),
    /// User and system time of S1's eleven allocation cases, against the plain kernel
    Speed(Speed),
    /// What grows with the number of processes and accounts: re-sum, search, event, memory
    Scale,
    /// What observing costs beside enforcing: 1,000 processes of 200 users
    Observe,
    /// What the rest of the system notices: processes, execs, pipes, scripts, files
    System,
    /// What the gate's decision costs mmap, brk, and a reservation
    Gate,
    /// What the kernel half costs with as many CPUs as this machine may have: for guests (make instructions)
    Instructions,
    /// tmalloc beside glibc's malloc, jemalloc and mimalloc: time and resident memory
    Malloc(Malloc),
    /// What killers that are Debian packages can do about one user at a limit
    Peers,
    /// Pictures, page and Markdown from the JSON of an earlier run; measures nothing
    Report(Report),
}

#[derive(Debug, Clone, Args, Default)]
pub(crate) struct Speed {
    /// Only these contenders, by key: empty, unlimited, far, near, trace, trivial, cgroup
    #[arg(long, value_delimiter = ',', value_name = "KEY")]
    pub(crate) only: Vec<String>,
    /// Only these of S1's cases, 1 to 11 in S1's order; 12 is the first touch of pages alone
    #[arg(long, value_delimiter = ',', value_name = "CASE")]
    pub(crate) cases: Vec<usize>,
}

#[derive(Debug, Clone, Args, Default)]
pub(crate) struct Overcommit {
    /// Only these contenders, by key: event, timer, trace, poll-200ms, poll-10ms, cgroup, trivial
    #[arg(long, value_delimiter = ',', value_name = "KEY")]
    pub(crate) only: Vec<String>,
    /// Idle processes of the user's beside those that grow
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) siblings: u32,
}

#[derive(Debug, Clone, Args, Default)]
pub(crate) struct Malloc {
    /// Only these patterns: lifetimes, lifetimes-4, tiny, generations, handed-over, batches, stress, scratch,
    /// large, growing, buffers, sparse, steady, filling
    #[arg(long, value_delimiter = ',', value_name = "PATTERN")]
    pub(crate) only: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Report {
    /// The JSON that runs left; a table comes from the first that has it
    #[arg(long, value_name = "FILE", default_value = "target/bench/results.json")]
    pub(crate) from: Vec<PathBuf>,
    /// Write docs/BENCHMARKS.md too, here
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
}
