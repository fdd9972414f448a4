// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the configuration to a daemon at work.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use bursar_config::{Config, ConfigError, Loaded, OnExit};
use bursar_host::{
    ExemptCgroups, Mounted, Proc, make_directory, mount_tracefs, raise_descriptors, uid_min,
};
use bursar_model::{Bytes, EventKind};

use crate::accounts::Accounts;
use crate::arguments::Arguments;
use crate::backend_choice::{self, Chosen, TRACEFS};
use crate::background::Background;
use crate::control::Control;
use crate::daemon::Daemon;
use crate::exempt_cgroups::ExemptFollower;
use crate::history::{History, STATE};
use crate::limit_table::{Basis, LimitTable};
use crate::lock::Lock;
use crate::log;
use crate::names::Names;
use crate::oom::OomWatch;
use crate::oom_score::OomScore;
use crate::payers::Coverage;
use crate::reaper::VictimReaper;
use crate::recorder::Recorder;
use crate::responder::Responder;
use crate::service::{Service, events_gid};
use crate::shortage::Shortage;
use crate::signals::Signals;
use crate::spared_programs::SparedPrograms;
use crate::subordinates::SubuidFile;
use crate::usage::Usage;
use crate::watermarks::Watermarks;

/// Runs the daemon until it is asked to end.
pub(crate) fn run(loaded: Loaded, arguments: &Arguments) -> Result<()> {
    let Loaded {
        config, remarks, ..
    } = loaded;
    let config = &config;
    let _runtime = Lock::on_runtime(&config.paths.runtime)?;
    let signals = Signals::catch()?;
    let (daemon, _pins) = start(config, arguments.dry_run, remarks)?;
    have_descriptors();
    let socket = config.paths.runtime.join("bursar.sock");
    let control = Control::listen(&socket, || daemon.responder.reaper.timed_query())?;
    let events_group = config.events.group.clone();
    control.let_hear_events(events_gid(events_group.as_deref()));
    log::trim_memory();
    stay_in_memory();
    log::say("bursard: ready");
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);

    let mut service = Service {
        daemon,
        control,
        signals,
        events_group,
        config: arguments.config.clone(),
        running: config.clone(),
        trigger: arguments.trigger.map(Into::into),
    };
    service.run()?;

    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
    let Service {
        mut daemon,
        control,
        ..
    } = service;
    let releases = config.on_exit == OnExit::Release;
    // Where there is no kernel half limits end with bursard whatever is configured.
    if releases && daemon.accounts.backend.status().attached {
        let reason = "bursard ends with on_exit = \"release\"".to_owned();
        daemon.responder.note(EventKind::Released, None, reason);
    }
    drop(control);
    daemon.leave(releases)
}

/// The daemon with its limits in force, and the lock on its pins.
fn start(
    config: &Config,
    dry_run: bool,
    mut remarks: Vec<String>,
) -> Result<(Daemon, Option<Lock>)> {
    let (coverage, remark) = coverage(config);
    remarks.extend(remark);
    let proc = Proc::host().context("open /proc")?;
    let memory = proc.meminfo().context("read how much memory there is")?;
    let (table, unread) = limit_table(config, dry_run, &coverage, memory.total)?;
    let unread = unread
        .map(|error| format!("{error}; until it is right the limits hold that were last in force"));
    let reaper = VictimReaper::start()?;
    let oom_score = OomScore::new(config.last_defence.oom_score_adj, &config.paths.runtime);
    let is_left_raised = oom_score.are_raised() && !dry_run;
    let shortage = Shortage::new(config.last_defence, memory.total, !dry_run, is_left_raised);
    let exempt = Arc::new(exempt_cgroups(config)?);
    let has_shared = table.plan().accounts.keys().any(|it| it.uid().is_none());
    let chosen = backend_choice::start(
        config, &coverage, has_shared, dry_run, &reaper, &shortage, &exempt,
    )?;
    let Chosen {
        backend,
        how,
        lock,
        superseded,
        ..
    } = chosen;
    remarks.extend(chosen.remarks);
    let oom = oom_watch()
        .inspect_err(|error| remarks.push(no_oom_watch(error)))
        .ok();
    let oom_score = (!dry_run).then_some(oom_score);
    let tells = config.tell.tty && !dry_run;
    let background = Background::start(tells, oom_score, Arc::clone(reaper.blocklist()))?;
    let recorder = Recorder::new(History::open(&config.paths.state, config.events.keep_bytes));
    let accounts = Accounts::new(
        table,
        backend,
        coverage,
        reaper.timed_query()?,
        Arc::clone(&exempt),
    )?;
    if is_left_raised && !shortage.is_raised() {
        background.restore_oom_scores();
    }
    let hint = config.messages.hint.clone();
    let responder = Responder::new(recorder, reaper, background, oom, shortage, dry_run, hint)?;
    let usage = Usage::start(&config.paths.state, config.usage.keep_bytes)?;
    let mut daemon = Daemon::new(accounts, responder, usage, remarks, &config.paths.state)?;
    daemon.not_in_force.clone_from(&unread);
    daemon.reload = config.reload;
    leave_alone(&mut daemon, config, exempt);
    daemon.start(superseded, &how)?;
    if let Some(before) = daemon.accounts.table.take_before().filter(|_| !dry_run) {
        daemon.note_read(&before);
    }
    daemon.watermarks = Watermarks::start(config, dry_run);
    let reason = format!(
        "{how}; {} limits in force",
        daemon.accounts.table.limits().len()
    );
    daemon.responder.note(EventKind::Attached, None, reason);
    daemon.read_written();
    daemon.catch_up();
    let plan = daemon.accounts.table.plan();
    for (who, text) in &plan.remarks {
        tracing::warn!("{}: {who}: {text}", config.paths.limits.display());
    }
    for note in &plan.notes {
        tracing::warn!("{note}");
    }
    if let Some(unread) = unread {
        tracing::error!("limits are not in force as they are written: {unread}");
    }
    Ok((daemon, lock))
}

fn exempt_cgroups(config: &Config) -> Result<ExemptCgroups> {
    let found = ExemptCgroups::new(&config.exempt.cgroups);
    found.context("find where control groups are mounted, for exempt.cgroups")
}

/// Before limits hold: whoever is over by these is chosen by this.
fn leave_alone(daemon: &mut Daemon, config: &Config, exempt: Arc<ExemptCgroups>) {
    daemon.spared_programs = SparedPrograms::new(&config.exempt.programs);
    daemon.spare_programs();
    daemon.exempt = ExemptFollower::new(exempt);
    daemon.exempt_cgroups();
}

fn limit_table(
    config: &Config,
    dry_run: bool,
    coverage: &Coverage,
    ram: Bytes,
) -> Result<(LimitTable, Option<ConfigError>)> {
    let state = &config.paths.state;
    make_directory(state, STATE).with_context(|| format!("make the directory {state:?}"))?;
    Ok(LimitTable::load(
        &config.paths.limits,
        state,
        Basis {
            ram,
            mode: config.mode,
            is_dry_run: dry_run,
        },
        coverage.clone(),
        backend_choice::limits_are_in_force(config, dry_run)?,
        Names::start()?,
        SubuidFile::at(config.paths.subuid.clone()),
    )?)
}

/// Who is an ordinary user here.
fn coverage(config: &Config) -> (Coverage, Option<String>) {
    let exempt = config
        .accounts
        .exempt
        .iter()
        .map(|range| (range.first(), range.last()))
        .collect();
    match config.accounts.uid_min {
        Some(uid_min) => (Coverage { uid_min, exempt }, None),
        None => {
            let found = uid_min(Path::new("/etc/login.defs"));
            (
                Coverage {
                    uid_min: found.uid,
                    exempt,
                },
                found.remark,
            )
        }
    }
}

/// Listens for the kernel's own OOM killer, where that can be had.
fn oom_watch() -> Result<OomWatch> {
    let tracefs = Path::new(TRACEFS);
    if mount_tracefs(tracefs)? == Mounted::Now {
        tracing::info!(path = TRACEFS, "mounted tracefs");
    }
    OomWatch::start(tracefs)
}

fn no_oom_watch(error: &anyhow::Error) -> String {
    format!(
        "victims of the kernel's OOM killer are not helped out: {error:#}; bursard needs tracefs: mount -t tracefs tracefs {TRACEFS}"
    )
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

/// Two descriptors for each process that has memory reserved; the usual 1,024 would be few.
fn have_descriptors() {
    const ENOUGH: u64 = 16 << 10;
    let most = raise_descriptors(ENOUGH);
    if most < ENOUGH {
        tracing::warn!(
            most,
            "cannot raise the number of descriptors: fewer processes can reserve"
        );
    }
}
