// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar watermarks status|explain|history|restore`.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bursar_config::Config;
use bursar_host::clock::{monotonic, self_cpu_time};
use bursar_protocol::{Client, ClientError, Operation, Reply, RestoreReport, WatermarksReport};
use bursar_watermarks::{Engine, Paths, Pause, recover, report, restored};
use clap::{Args, Subcommand};

use crate::caller::{Caller, Role, heard};
use crate::failure::Failure;
use crate::view;

/// Show and manage how room is made before anybody has to wait for memory
#[derive(Debug, Subcommand)]
pub(crate) enum Watermarks {
    Status(Status),
    Explain(Explain),
    History(History),
    Restore(Restore),
}

/// Show free memory, its marks, who stalled, and which users caused it
///
/// A stall is an allocation that had to make room by itself. TIME is how long a user's programs spent
/// in stalls since bursard started, CAUSE his share of the demand that woke the kernel's own reclaim.
#[derive(Debug, Args)]
pub(crate) struct Status {}

/// Say in words what was seen, what is expected, and what was done
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Ask no daemon: look for some seconds, and say what bursard would do. Writes nothing
    #[arg(long)]
    dry_run: bool,
    /// How long --dry-run looks, seconds
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600), requires = "dry_run")]
    seconds: u64,
    /// The configuration that --dry-run follows
    #[arg(long, value_name = "FILE", requires = "dry_run")]
    config: Option<PathBuf>,
}

/// Show all decisions that are remembered, oldest first, with what came of them
#[derive(Debug, Args)]
pub(crate) struct History {}

/// Put every value back to what it was before bursar changed it
///
/// bursard then only observes until it is started again. Without a running bursard, what a crashed
/// one left behind is put back.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The configuration that says where bursard keeps its state, when none is running
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Watermarks {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        match self {
            Self::Status(Status {}) => {
                let report = asked(caller)?;
                caller.answer(&report, |report| {
                    view::watermarks::status(report, &caller.style)
                })
            }
            Self::Explain(explain) => {
                let report = if explain.dry_run {
                    looked_at(explain.config.as_deref(), explain.seconds)?
                } else {
                    asked(caller)?
                };
                caller.answer(&report, |report| {
                    view::watermarks::explanation(report, &caller.clock, &caller.style)
                })
            }
            Self::History(History {}) => {
                let report = asked(caller)?;
                caller.answer(&report.decisions, |_| {
                    view::watermarks::history(&report, &caller.clock, &caller.style)
                })
            }
            Self::Restore(restore) => {
                let report = restored_by_anybody(caller, restore.config.as_deref())?;
                caller.answer(&report, |report| {
                    view::watermarks::restored(report, &caller.style)
                })?;
                match report.failed {
                    0 => Ok(()),
                    _ => Err(Failure::failed(
                        "not every value could be put back; see above",
                    )),
                }
            }
        }
    }
}

fn asked(caller: &Caller) -> Result<WatermarksReport, Failure> {
    match caller.ask(Operation::Watermarks)? {
        Reply::Watermarks(report) => Ok(*report),
        _ => Err(Failure::off_topic()),
    }
}

fn paths(config: Option<&Path>) -> Result<(Config, Paths), Failure> {
    let loaded = Config::load(config)
        .map_err(|error| Failure::usage(format!("{error}; see: bursar check")))?;
    let paths = Paths::host(&loaded.config.paths.state);
    Ok((loaded.config, paths))
}

/// Looks by itself, with an engine that only rehearses what is configured.
fn looked_at(config: Option<&Path>, seconds: u64) -> Result<WatermarksReport, Failure> {
    let (config, paths) = paths(config)?;
    let proc = paths.proc.clone();
    let mut engine = Engine::rehearse(config.watermarks, paths, monotonic())
        .map_err(|error| Failure::failed(error.to_string()))?;
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        // It is here to look, so it looks closely whatever the engine thinks.
        let (Pause::For(_) | Pause::UntilKnock) = engine.tick(monotonic());
        if Instant::now() >= end {
            return Ok(report(&engine, &proc, monotonic(), self_cpu_time()));
        }
        sleep(Duration::from_millis(100));
    }
}

/// The daemon does it; where none runs, we do.
fn restored_by_anybody(caller: &Caller, config: Option<&Path>) -> Result<RestoreReport, Failure> {
    match Client::connect(&caller.socket) {
        Ok(mut daemon) => match heard(daemon.ask(Operation::RestoreWatermarks)?)? {
            Reply::WatermarksRestored(report) => Ok(report),
            _ => Err(Failure::off_topic()),
        },
        Err(unreachable @ ClientError::Unreachable { .. }) => {
            if caller.role != Role::Root {
                return Err(unreachable.into());
            }
            let (_, paths) = paths(config)?;
            let results = recover(&paths).map_err(|error| Failure::failed(error.to_string()))?;
            Ok(restored(&results))
        }
        Err(error) => Err(error.into()),
    }
}
