// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the configuration to a governor that fits this machine.

use std::path::Path;

use anyhow::{Context, Result, bail};
use bursar_config::{Config, Count, TriggerChoice};
use bursar_host::{Mounted, Mounts, Proc, machine, mount_bpffs, mount_tracefs, uid_min};
use bursar_kernel::{Options, Settings, Started};

use crate::governor::{BpfGovernor, Governor, PollGovernor, TraceGovernor};
use crate::lock::Lock;
use crate::scope::Scope;

const BPFFS: &str = "/sys/fs/bpf";
const TRACEFS: &str = "/sys/kernel/tracing";
/// S1 section 3.3.
const POLL_MS: u64 = 200;

/// A governor, and how it came about.
pub(crate) struct Chosen {
    pub(crate) governor: Box<dyn Governor>,
    pub(crate) how: String,
    /// What was wanted and could not be had.
    pub(crate) remarks: Vec<String>,
    /// That nobody else governs the same kernel half.
    pub(crate) lock: Option<Lock>,
}

/// Who is an ordinary user here.
pub(crate) fn scope(config: &Config) -> (Scope, Option<String>) {
    let exempt = config
        .accounts
        .exempt
        .iter()
        .map(|range| (range.first(), range.last()))
        .collect();
    match config.accounts.uid_min {
        Some(uid_min) => (Scope { uid_min, exempt }, None),
        None => {
            let found = uid_min(Path::new("/etc/login.defs"));
            (
                Scope {
                    uid_min: found.uid,
                    exempt,
                },
                found.remark,
            )
        }
    }
}

/// Starts the governor that was asked for, or the best there is.
pub(crate) fn govern(config: &Config, scope: &Scope, dry_run: bool) -> Result<Chosen> {
    if dry_run {
        let how = "dry run: scanning /proc every 200 ms, killing nobody".to_owned();
        return Ok(Chosen {
            governor: poll(config, scope)?,
            how,
            remarks: Vec::new(),
            lock: None,
        });
    }
    match config.trigger {
        TriggerChoice::Bpf => bpf(config, scope),
        TriggerChoice::Trace => trace(config, scope),
        TriggerChoice::Poll => {
            let how = "scanning /proc every 200 ms".to_owned();
            Ok(Chosen {
                governor: poll(config, scope)?,
                how,
                remarks: Vec::new(),
                lock: None,
            })
        }
        TriggerChoice::Auto => {
            let no_bpf = match bpf(config, scope) {
                Ok(chosen) => return Ok(chosen),
                Err(error) => format!(
                    "no kernel half: {error:#}; limits hold only while bursard runs, and later than \
                     they should (see: bursar doctor)"
                ),
            };
            tracing::error!("{no_bpf}");
            let mut chosen = match trace(config, scope) {
                Ok(chosen) => chosen,
                Err(error) => {
                    tracing::error!("no trace pipe either: {error:#}");
                    let how = "scanning /proc every 200 ms".to_owned();
                    Chosen {
                        governor: poll(config, scope)?,
                        how,
                        remarks: Vec::new(),
                        lock: None,
                    }
                }
            };
            chosen.remarks.push(no_bpf);
            Ok(chosen)
        }
    }
}

fn counts_files(config: &Config) -> bool {
    config.count == Count::Rss
}

fn poll(config: &Config, scope: &Scope) -> Result<Box<dyn Governor>> {
    Ok(Box::new(PollGovernor::start(
        scope.clone(),
        counts_files(config),
        POLL_MS,
    )?))
}

fn trace(config: &Config, scope: &Scope) -> Result<Chosen> {
    let tracefs = Path::new(TRACEFS);
    if mount_tracefs(tracefs)? == Mounted::Now {
        tracing::info!(path = TRACEFS, "mounted tracefs");
    }
    let governor = TraceGovernor::start(scope.clone(), counts_files(config), tracefs)?;
    let how = "reading the trace pipe of kmem:rss_stat".to_owned();
    Ok(Chosen {
        governor: Box::new(governor),
        how,
        remarks: Vec::new(),
        lock: None,
    })
}

fn bpf(config: &Config, scope: &Scope) -> Result<Chosen> {
    provide_bpffs(&config.paths.pins)?;
    let lock = Lock::on_pins(&config.paths.pins)?;
    let page_size = machine::page_size();
    let events_bytes = config.ledger.events_bytes_for(page_size).get();
    let options = Options {
        max_processes: config.ledger.max_processes,
        max_accounts: config.ledger.max_accounts,
        events_bytes: u32::try_from(events_bytes).context("size the ring buffer")?,
        possible_cpus: machine::possible_cpus(Path::new("/sys"))?,
        page_size,
        count_file: counts_files(config),
        event_trigger: config.triggers.event,
        timer_trigger: config.triggers.timer,
    };
    let adj = u16::try_from(config.last_defence.oom_score_adj).ok();
    let settings = Settings {
        uid_min: scope.uid_min,
        exempt: scope.exempt.clone(),
        raised_adj: adj.filter(|_| config.last_defence.enabled),
    };
    let (governor, started) = BpfGovernor::start(&config.paths.pins, options, settings)?;
    let how = match started {
        Started::Loaded => "kernel half loaded",
        Started::Adopted => "kernel half was running and is taken over",
        Started::Replacing => "kernel half of another version is being replaced",
    };
    let governor = Box::new(governor);
    Ok(Chosen {
        governor,
        how: how.to_owned(),
        remarks: Vec::new(),
        lock: Some(lock),
    })
}

/// Pins need a BPF file system; at its usual place it is mounted if need be, as systemd would.
fn provide_bpffs(pins: &Path) -> Result<()> {
    let mounts = Mounts::read(&Proc::host()?)?;
    if mounts.is_bpffs(pins) {
        return Ok(());
    }
    if !pins.starts_with(BPFFS) {
        bail!(
            "paths.pins = {pins:?} does not lie on a BPF file system; mount one there (mount -t bpf bpf \
             DIRECTORY) or use a directory below {BPFFS}"
        );
    }
    if mount_bpffs(Path::new(BPFFS))? == Mounted::Now {
        tracing::info!(path = BPFFS, "mounted the BPF file system");
    }
    Ok(())
}
