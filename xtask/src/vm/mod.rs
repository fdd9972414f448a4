// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bare guests: Debian's own kernels booted in QEMU to run one command each.

mod guest;
mod output;
mod report;
mod run_command;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Subcommand;

pub use crate::archive::Fetch;
pub use crate::kernel::{Cache, Kernel, fetch};
pub use crate::qemu::{Accelerator, Machine};
pub use crate::suite::{Suite, Suites};
pub use guest::{Guest, Options};
pub use output::{Output, Stream};
pub use report::{Ending, Report};
pub(crate) use run_command::side_by_side;

/// `cargo xtask vm …`
#[derive(Subcommand)]
pub enum Vm {
    /// Download kernels that are not cached yet
    Fetch {
        /// bookworm, trixie, newest, one of the others, several with commas, or all for these three
        #[arg(long, default_value = "all")]
        suite: Suites,
        /// How it is fetched.
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
        /// What the guest is.
        #[command(flatten)]
        options: Options,
    },
}

impl Vm {
    /// Does it.
    pub fn run(self) -> Result<ExitCode> {
        let cache = Cache::open()?;
        match self {
            Self::Fetch { suite, how } => {
                for &suite in suite.as_slice() {
                    println!("{}", fetch(&cache, suite, &how)?);
                }
                Ok(ExitCode::SUCCESS)
            }
            Self::Run(args) => run_command::run(&cache, &args),
            Self::Shell { suite, options } => shell(&cache, suite, options),
        }
    }
}

/// A guest to look around in.
fn shell(cache: &Cache, suite: Suite, options: Options) -> Result<ExitCode> {
    ensure!(
        std::io::stdin().is_terminal(),
        "a shell needs a terminal; to run one command use: vm run"
    );
    let kernel = fetch(cache, suite, &Fetch::default())?;
    let release = kernel.release();
    eprintln!("vm: booting {release}; exit ends the guest, Ctrl-A x kills it");
    let guest = Guest {
        options,
        ..Guest::new(&kernel, &[])
    };
    Ok(ExitCode::from(u8::from(!guest.shell()?.success())))
}
