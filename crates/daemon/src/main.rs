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
    allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)
)]

mod arguments;
mod backend;
mod background;
mod beancounters;
mod control;
mod daemon;
mod dirty;
mod event_loop;
mod fact;
mod graceful;
mod history;
mod join;
mod killer;
mod ledger_check;
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
mod reaper;
mod recent;
mod recorder;
mod requests;
mod reservations;
mod setup;
mod signals;
mod subordinates;
mod watermarks;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use bursar_config::{Config, ConfigError, OnExit};
use bursar_host::Proc;
use bursar_kernel::KernelHalf;
use bursar_model::EventKind;
use bursar_watchdog::TimedQuery;
use bursar_watermarks::Paths;
use clap::Parser;

use crate::arguments::Arguments;
use crate::background::Background;
use crate::control::Control;
use crate::daemon::{Daemon, Helpers, Mandate};
use crate::history::History;
use crate::limit_table::LimitTable;
use crate::lock::Lock;
use crate::names::Names;
use crate::reaper::VictimReaper;
use crate::recorder::Recorder;
use crate::signals::Signals;
use crate::subordinates::SubuidFile;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let code = match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line a finding: an editor can jump there.
            match error.downcast_ref::<ConfigError>() {
                Some(config) if !config.findings().is_empty() => {
                    config
                        .findings()
                        .iter()
                        .for_each(|finding| log::say(&format!("bursard: {finding}")));
                }
                _ => log::say(&format!("bursard: {error:#}")),
            }
            // systemd's RestartPreventExitStatus=2: restarting does not mend a configuration.
            ExitCode::from(if error.is::<ConfigError>() { 2 } else { 1 })
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
        return release(config);
    }
    let _runtime = Lock::on_runtime(&config.paths.runtime)?;
    let signals = Signals::catch()?;
    let proc = Proc::host().context("open /proc")?;
    let ram = proc
        .meminfo()
        .context("read how much memory there is")?
        .total;
    std::fs::create_dir_all(&config.paths.state)
        .with_context(|| format!("make the directory {:?}", config.paths.state))?;
    let are_in_force = setup::limits_are_in_force(config, arguments.dry_run)?;
    let (coverage, remark) = setup::coverage(config);
    let limit_table = LimitTable::load(
        &config.paths.limits,
        &config.paths.state,
        ram,
        coverage.clone(),
        are_in_force,
        Names::start()?,
        SubuidFile::at(config.paths.subuid.clone()),
    )?;
    let reaper = VictimReaper::start()?;
    let chosen = setup::start_backend(config, &coverage, arguments.dry_run, &reaper)?;
    let _pins = chosen.lock;
    let mut remarks = std::mem::take(&mut loaded.remarks);
    remarks.extend(remark);
    remarks.extend(chosen.remarks);
    let oom = match setup::oom_watch() {
        Ok(oom) => Some(oom),
        Err(error) => {
            remarks.push(format!(
                "victims of the kernel's OOM killer are not helped out: {error:#}"
            ));
            None
        }
    };
    let recorder = Recorder::new(History::open(&config.paths.state, config.events.keep_bytes));
    let raised = Some(config.last_defence.oom_score_adj)
        .filter(|_| config.last_defence.enabled && !arguments.dry_run);
    let tells = config.tell.tty && !arguments.dry_run;
    let background = Background::start(tells, raised, Arc::clone(reaper.blocklist()))?;
    let mandate = Mandate {
        dry_run: arguments.dry_run,
        notifier: config.triggers.notifier,
    };
    let mut daemon = Daemon::new(
        limit_table,
        chosen.backend,
        recorder,
        coverage,
        mandate,
        Helpers {
            reaper,
            background,
            oom,
        },
        remarks,
    )?;
    let plan = daemon.limit_table.plan().clone();
    daemon
        .backend
        .apply(&plan)
        .context("put the limits in force")?;
    if let Some(superseded) = chosen.superseded {
        let told = superseded.dismiss()?;
        let reason = format!(
            "the kernel half that was left in force is sent away: {} decides from now on",
            chosen.how
        );
        daemon.hear(told);
        daemon.note(EventKind::Released, None, reason);
    }
    daemon.limits_changed();
    daemon.watermarks = watermarks::Watermarks::start(config, arguments.dry_run);
    daemon.note(
        EventKind::Attached,
        None,
        format!(
            "{}; {} limits in force",
            chosen.how,
            daemon.limit_table.limits().len()
        ),
    );
    for (who, text) in &plan.remarks {
        tracing::warn!("{}: {who}: {text}", config.paths.limits.display());
    }
    for note in &plan.notes {
        tracing::warn!("{note}");
    }
    setup::raise_descriptors();
    let socket = config.paths.runtime.join("bursar.sock");
    let mut control = Control::listen(&socket, || daemon.reaper().timed_query())?;
    log::trim_memory();
    stay_in_memory();
    log::say("bursard: ready");
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);

    event_loop::run(&mut daemon, &mut control, &signals)?;

    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
    let releases = config.on_exit == OnExit::Release;
    // Where there is no kernel half limits end with bursard whatever is configured.
    if releases && daemon.backend.status().attached {
        daemon.note(
            EventKind::Released,
            None,
            "bursard ends with on_exit = \"release\"".to_owned(),
        );
    }
    drop(control);
    daemon.leave(releases)
}

/// Whoever takes memory back when there is none must not wait for his own. What is touched stays; what
/// is not allowed is done without.
fn stay_in_memory() {
    use rustix::mm::{MlockAllFlags, mlockall};
    let what = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(error) = mlockall(what) {
        tracing::debug!(%error, "bursard's own memory is not locked");
    }
}

fn release(config: &Config) -> Result<()> {
    let _runtime = Lock::on_runtime(&config.paths.runtime)?;
    // Not under a bursard that believes in it.
    let _lock = match config.paths.pins.exists() {
        true => Some(Lock::on_pins(&config.paths.pins)?),
        false => None,
    };
    let count = KernelHalf::release(&config.paths.pins)?;
    let raised = config.last_defence.oom_score_adj;
    let proc = Proc::host().context("open /proc")?;
    let mut query = TimedQuery::new("query", Arc::default()).context("open /proc")?;
    oom_score::OomScore::new(raised).restore_oom_scores(&proc, &mut query);
    match count {
        0 => log::say(&format!(
            "bursard: no kernel half was pinned in {}",
            config.paths.pins.display()
        )),
        _ => log::say("bursard: released; no limit is in force any more"),
    }
    watermarks::release(&Paths::host(&config.paths.state))
}
