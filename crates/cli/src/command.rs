// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commands, one file each.

mod check;
mod doctor;
mod events;
mod generate;
mod kill;
mod limit;
mod quota;
mod status;
mod why;

use clap::Subcommand;

use crate::caller::Caller;
use crate::failure::Failure;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(subcommand)]
    Limit(limit::Limit),
    Status(status::Status),
    Quota(quota::Quota),
    Events(events::Events),
    Why(why::Why),
    Check(check::Check),
    Doctor(doctor::Doctor),
    Kill(kill::Kill),
    #[command(hide = true)]
    Generate(generate::Generate),
}

impl Command {
    /// Does it.
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        match self {
            Self::Limit(command) => command.run(caller),
            Self::Status(command) => command.run(caller),
            Self::Quota(command) => command.run(caller),
            Self::Events(command) => command.run(caller),
            Self::Why(command) => command.run(caller),
            Self::Check(command) => command.run(caller),
            Self::Doctor(command) => command.run(caller),
            Self::Kill(command) => command.run(caller),
            Self::Generate(command) => command.run(),
        }
    }
}
