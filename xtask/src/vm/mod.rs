// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bare guests: Debian's own kernels booted in QEMU to run one command each.

mod commands;
mod guest;
mod output;
mod report;
mod run_command;
mod self_test;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

pub use crate::archive::Fetch;
pub use crate::kernel::{Ability, Cache, Kernel, Manifest, fetch};
pub use crate::qemu::Accelerator;
pub use crate::suite::{Suite, Suites};
pub use guest::{Guest, Options};
pub use output::{Output, Stream};
pub use report::{Ending, Report};
pub(crate) use run_command::side_by_side;

/// `cargo xtask vm …`
#[derive(Args)]
pub struct Vm {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Download kernels that are not cached yet
    Fetch {
        /// bookworm, trixie, newest, one of the others, several with commas, or all for these three
        #[arg(long, default_value = "all")]
        suite: Suites,
        #[command(flatten)]
        how: Fetch,
    },
    /// Show the cached kernels
    List {
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Run a command in a guest
    Run(run_command::RunArgs),
    /// Copy a kernel's raw BTF into the cache, for bpftool
    Btf {
        /// bookworm, trixie, newest, one of the others, several with commas, or all for these three
        #[arg(long, default_value = "all")]
        suite: Suites,
    },
    /// A busybox shell in a guest, on this terminal; `exit` ends it, Ctrl-A x kills it
    Shell {
        /// bookworm, trixie, newest, or one of the others
        #[arg(long, value_enum)]
        suite: Suite,
        #[command(flatten)]
        options: guest::Options,
    },
    /// Try the harness itself on cached kernels
    SelfTest {
        /// bookworm, trixie, newest, one of the others, several with commas, or all; what is cached otherwise
        #[arg(long)]
        suite: Option<Suites>,
    },
}

impl Vm {
    /// Does it.
    pub fn run(self) -> Result<ExitCode> {
        let cache = Cache::open()?;
        match self.command {
            Command::Fetch { suite, how } => commands::fetch_all(&cache, suite.as_slice(), &how),
            Command::List { json } => commands::list(&cache, json),
            Command::Run(args) => run_command::run(&cache, &args),
            Command::Btf { suite } => commands::btf(&cache, suite.as_slice()),
            Command::Shell { suite, options } => commands::shell(&cache, suite, options),
            Command::SelfTest { suite } => self_test::self_test(&cache, suite.as_ref()),
        }
    }
}
