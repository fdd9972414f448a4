// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bare guests: Debian's own kernels booted in QEMU to run one command each.

mod commands;
mod guest;
mod output;
mod report;
mod run_command;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

pub use crate::archive::Fetch;
pub use crate::kernel::{Cache, Kernel, fetch};
pub use crate::qemu::{Accelerator, Machine};
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
    /// Run a command in a guest
    Run(run_command::RunArgs),
    /// A busybox shell in a guest, on this terminal; `exit` ends it, Ctrl-A x kills it
    Shell {
        /// bookworm, trixie, newest, or one of the others
        #[arg(long, value_enum)]
        suite: Suite,
        #[command(flatten)]
        options: guest::Options,
    },
}

impl Vm {
    /// Does it.
    pub fn run(self) -> Result<ExitCode> {
        let cache = Cache::open()?;
        match self.command {
            Command::Fetch { suite, how } => commands::fetch_all(&cache, suite.as_slice(), &how),
            Command::Run(args) => run_command::run(&cache, &args),
            Command::Shell { suite, options } => commands::shell(&cache, suite, options),
        }
    }
}
