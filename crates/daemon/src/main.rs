// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bursard: holds what the kernel half cannot — names, files, terminals, history — and reaps, tells
//! and records. Limits hold without it.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::unwrap_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]

mod account_files;
mod accounts;
mod arguments;
mod backend;
mod backend_choice;
mod background;
mod beancounters;
mod briefings;
mod control;
mod daemon;
mod delay;
mod dirty;
mod entered;
mod event_loop;
mod exempt_cgroups;
mod expiry;
mod external_changes;
mod fact;
mod graceful;
mod history;
mod kept_file;
mod killer;
mod ledger_check;
mod level_watches;
mod limit_table;
mod lock;
mod log;
mod message;
mod name_cache;
mod names;
mod oom;
mod oom_score;
mod payers;
mod physpages;
mod proc_pace;
mod programs;
mod reaper;
mod recent;
mod recorder;
mod release;
mod requests;
mod reservations;
mod responder;
mod retries;
mod service;
mod shortage;
mod signals;
mod spared_programs;
mod startup;
mod subordinates;
mod trace_instance;
mod usage;
mod watermarks;

use std::process::ExitCode;

use anyhow::{Context, Result};
use bursar_config::{Config, ConfigError};
use bursar_host::thread;
use clap::Parser;
use rustix::fs::Mode;

use crate::arguments::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // What is made without a mode of its own is root's to write and everybody's to read, whoever starts us.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let supervised = thread::supervise(log::end_with).context("supervise threads");
    let code = match supervised.and_then(|()| run(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line a finding: an editor can jump there.
            let config = error.downcast_ref::<ConfigError>();
            match config {
                Some(config) if !config.findings().is_empty() => {
                    config
                        .findings()
                        .iter()
                        .for_each(|finding| log::say(&format!("bursard: {finding}")));
                }
                _ => log::say(&format!("bursard: {error:#}")),
            }
            // systemd's RestartPreventExitStatus=2: restarting does not mend a configuration.
            let is_lasting = config.is_some_and(ConfigError::is_lasting);
            ExitCode::from(if is_lasting { 2 } else { 1 })
        }
    };
    log::finish();
    code
}

fn run(arguments: Arguments) -> Result<()> {
    let mut loaded = Config::load(arguments.config.as_deref())?;
    let config = &mut loaded.config;
    if let Some(trigger) = arguments.trigger {
        config.trigger = trigger.into();
    }
    log::start(config.log.level)?;
    loaded
        .remarks
        .iter()
        .for_each(|remark| tracing::warn!("{remark}"));
    if !rustix::process::geteuid().is_root() {
        anyhow::bail!("bursard needs root: it counts, kills and reaps other users' processes");
    }
    if arguments.release {
        return release::release(config);
    }
    startup::run(loaded, &arguments)
}
