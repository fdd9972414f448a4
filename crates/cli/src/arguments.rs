// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be typed. Parser, help, man pages and completions all come from here and from the
//! `Args` of each command.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, Parser};

use crate::command::Command;
use crate::failure::Failure;

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 3 not permitted, 4 daemon not reachable.";

/// Memory quotas for the users of a shared machine
///
/// An administrator gives a user a limit; the user is told when she comes near it, her programs are
/// refused more memory before anything dies, and if she still goes over, the one process of hers that
/// uses most is killed. Nobody else on the machine notices.
#[derive(Debug, Parser)]
#[command(
    name = "bursar",
    version,
    max_term_width = 100,
    after_help = EXIT_CODES,
    disable_help_subcommand = true
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that every command has.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Globals {
    /// The control socket of the daemon to ask
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "BURSAR_SOCKET",
        hide_env_values = true,
        default_value = "/run/bursar/bursar.sock"
    )]
    pub(crate) socket: PathBuf,
    /// Answer in JSON, for programs
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Arguments {
    /// What was typed, if it is a command; `--help` and `--version` are answered here.
    pub(crate) fn typed() -> Result<Self, Failure> {
        Self::try_parse().map_err(|error| match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                // Prints to stdout, in colour where that suits; a closed pipe is nobody's loss.
                let _ = error.print();
                Failure::Answered
            }
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
                Failure::usage(format!(
                    "which command?\n\n{}",
                    error.render().to_string().trim_end()
                ))
            }
            _ => {
                let text = error.render().to_string();
                Failure::usage(text.strip_prefix("error: ").unwrap_or(&text).trim_end())
            }
        })
    }
}
