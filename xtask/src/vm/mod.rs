// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests: Debian's own kernels, fetched through the machine's apt, booted in QEMU to run one
//! command each. `cargo xtask vm --help` is the tour; docs/GUESTS.md the manual.
//!
//! - getting kernels: `suite` → `sources` → `apt` → `package` → `fetch` → `cache` (`ability`)
//! - starting one: `guest` → `image` (`initramfs`, `library`, `module`, init.sh) → `qemu`
//! - following one: `process` → `session` (`lines`, `interrupt`) → `console` → `report`
//! - commands: `run_command` (`argument`), `list_command`, `btf_command`, `shell_command`, `self_test`

mod ability;
mod apt;
mod argument;
mod btf_command;
mod cache;
mod console;
mod fetch;
mod guest;
mod image;
mod initramfs;
mod interrupt;
mod library;
mod lines;
mod list_command;
mod module;
mod package;
mod process;
mod program;
mod qemu;
mod report;
mod run_command;
mod self_test;
mod session;
mod shell_command;
mod sources;
mod suite;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

pub use ability::Ability;
pub use cache::{Cache, Kernel, Manifest};
pub use fetch::{Fetch, fetch};
pub use guest::{Guest, Output};
pub use module::ModuleIndex;
pub use qemu::Accelerator;
pub use report::{Ending, Report};
pub use session::Stream;
pub use suite::{Suite, Suites};

/// `cargo xtask vm …`
#[derive(Args)]
pub struct Vm {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Download kernels that are not cached yet
    Fetch(FetchArgs),
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
        /// bookworm, trixie, newest, several with commas, or all
        #[arg(long, default_value = "all")]
        suite: Suites,
    },
    /// A busybox shell in a guest, on this terminal; `exit` ends it, Ctrl-A x kills it
    Shell(shell_command::ShellArgs),
    /// Try the harness itself on cached kernels
    SelfTest {
        /// bookworm, trixie, newest, several with commas, or all; what is cached otherwise
        #[arg(long)]
        suite: Option<Suites>,
    },
}

#[derive(Args)]
struct FetchArgs {
    /// bookworm, trixie, newest, several with commas, or all
    #[arg(long, default_value = "all")]
    suite: Suites,
    /// Look for a newer kernel even if one is cached
    #[arg(long)]
    refresh: bool,
    /// Where apt's sources are
    #[arg(long, value_name = "DIR", default_value = "/etc/apt")]
    apt_dir: PathBuf,
    /// Go on unchecked where no trusted key can be had
    #[arg(long)]
    allow_unverified: bool,
}

impl Vm {
    /// Does it.
    pub fn run(self) -> Result<ExitCode> {
        let cache = Cache::open()?;
        match self.command {
            Command::Fetch(args) => {
                let how = Fetch {
                    refresh: args.refresh,
                    apt_dir: args.apt_dir,
                    allow_unverified: args.allow_unverified,
                };
                for &suite in args.suite.as_slice() {
                    println!("{}", list_command::line(&fetch(&cache, suite, &how)?));
                }
                Ok(ExitCode::SUCCESS)
            }
            Command::List { json } => list_command::list(&cache, json),
            Command::Run(args) => run_command::run(&cache, &args),
            Command::Btf { suite } => btf_command::btf(&cache, suite.as_slice()),
            Command::Shell(args) => shell_command::shell(&cache, &args),
            Command::SelfTest { suite } => self_test::self_test(&cache, suite.as_ref()),
        }
    }
}
