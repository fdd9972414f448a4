// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commands, one file each.

mod beancounters;
mod check;
mod dirty;
mod doctor;
mod events;
pub(crate) mod faults;
mod generate;
mod history;
mod kill;
mod limit;
mod metrics;
pub(crate) mod physpages;
mod prefer;
mod quota;
mod report;
mod run;
mod status;
mod top;
mod wait;
mod watermarks;
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
    Top(top::Top),
    Beancounters(beancounters::Beancounters),
    Quota(quota::Quota),
    Physpages(physpages::Physpages),
    Dirty(dirty::Dirty),
    Events(events::Events),
    History(history::History),
    Report(report::ReportOf),
    Metrics(metrics::Metrics),
    Why(why::Why),
    Wait(wait::Wait),
    Check(check::Check),
    Doctor(doctor::Doctor),
    #[command(subcommand)]
    Watermarks(watermarks::Watermarks),
    Kill(kill::Kill),
    Prefer(prefer::Prefer),
    Run(run::Run),
    #[command(subcommand)]
    Faults(faults::Faults),
    #[command(hide = true)]
    Generate(generate::Generate),
}

impl Command {
    /// Does it.
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        match self {
            Self::Limit(command) => command.run(caller),
            Self::Status(command) => command.run(caller),
            Self::Top(command) => command.run(caller),
            Self::Beancounters(command) => command.run(caller),
            Self::Quota(command) => command.run(caller),
            Self::Physpages(command) => command.run(caller),
            Self::Dirty(command) => command.run(caller),
            Self::Events(command) => command.run(caller),
            Self::History(command) => command.run(caller),
            Self::Report(command) => command.run(caller),
            Self::Metrics(command) => command.run(caller),
            Self::Why(command) => command.run(caller),
            Self::Wait(command) => command.run(caller),
            Self::Check(command) => command.run(caller),
            Self::Doctor(command) => command.run(caller),
            Self::Watermarks(command) => command.run(caller),
            Self::Kill(command) => command.run(caller),
            Self::Prefer(command) => command.run(caller),
            Self::Run(command) => command.run(caller),
            Self::Faults(command) => command.run(caller),
            Self::Generate(command) => command.run(),
        }
    }
}
