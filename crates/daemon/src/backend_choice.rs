// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which backend enforces limits on this machine, and how it came about.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bursar_config::{BackendChoice, Config, Count, GateChoice};
use bursar_host::{ExemptCgroups, Mounted, Mounts, Proc, machine, mount_bpffs, mount_tracefs};
use bursar_kernel::{KernelHalf, Membership, Options, Settings, Started};
use bursar_model::{GateMode, GateStatus};

use crate::backend::{Backend, BpfBackend, PollBackend, TraceBackend};
use crate::fact::Fact;
use crate::lock::{Held, Lock};
use crate::payers::Coverage;
use crate::reaper::VictimReaper;
use crate::shortage::Shortage;

const BPFFS: &str = "/sys/fs/bpf";
pub(crate) const TRACEFS: &str = "/sys/kernel/tracing";
/// S1 section 3.3.
const POLL_MS: u64 = 200;
/// Attempts to load a kernel half before the one in force is taken away without a successor, and the pause between two.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);
const POLLING: &str = "scanning /proc every 200 ms";

/// Only a kernel half knows who has entered an account: without it users would be killed for what their batch jobs hold.
const MEMBERS_STAY: &str = "the kernel half that is in force cannot be replaced, and stays: processes may have entered \
     shared accounts (=NAME), and no other backend knows which; see: bursar doctor. To go on without it write trigger = \
     \"trace\" into bursar.toml: their users pay for them then";

/// A backend, and how it came about.
pub(crate) struct Chosen {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) how: String,
    /// What was wanted and could not be had.
    pub(crate) remarks: Vec<String>,
    /// That nobody else uses the same kernel half.
    pub(crate) lock: Option<Lock>,
    /// To be sent away when the backend has the limits.
    pub(crate) superseded: Option<Superseded>,
}

/// A kernel half that was left in force, where another backend takes over.
///
/// It enforces the limits of that time. Nobody can change them or hears its events, so it would kill users whose limits
/// have been raised since. So it is removed, even where its successor could not be loaded: a limit that is enforced late
/// does less harm than a wrong one. Its last events are recorded. It stays only where it knows what its successor could
/// not: who has entered which account.
pub(crate) struct Superseded {
    pins: PathBuf,
    _lock: Lock,
}

impl Superseded {
    fn find(pins: &Path) -> Result<Option<Self>> {
        if !KernelHalf::is_pinned(pins)? {
            return Ok(None);
        }
        Ok(Some(Self {
            _lock: Lock::on_pins(pins)?,
            pins: pins.to_owned(),
        }))
    }

    /// Sends it away; the events that nobody had read.
    pub(crate) fn dismiss(self) -> Result<Vec<Fact>> {
        let context = || format!("remove the kernel half pinned in {:?}", self.pins);
        let words = KernelHalf::dismiss(&self.pins).with_context(context)?;
        Ok(Fact::from_undelivered(words, machine::page_size()).collect())
    }
}

/// Whether a kernel half that is left from before, and would be taken over, enforces limits.
pub(crate) fn limits_are_in_force(config: &Config, dry_run: bool) -> Result<bool> {
    let is_taken_over = match config.trigger {
        BackendChoice::Auto | BackendChoice::Bpf => !dry_run,
        BackendChoice::Trace | BackendChoice::Poll => false,
    };
    Ok(is_taken_over && KernelHalf::enforces_below(&config.paths.pins)?)
}

/// Starts the backend that was asked for, or the best there is. `has_shared`: there are accounts that processes enter.
pub(crate) fn start(
    config: &Config,
    coverage: &Coverage,
    has_shared: bool,
    dry_run: bool,
    reaper: &VictimReaper,
    shortage: &Shortage,
    exempt: &Arc<ExemptCgroups>,
) -> Result<Chosen> {
    if dry_run {
        let how = "dry run: scanning /proc every 200 ms, killing nobody";
        return poll(config, coverage, how, reaper, exempt);
    }
    let alone = |chosen: Result<Chosen>| -> Result<Chosen> {
        let superseded = Superseded::find(&config.paths.pins)?;
        Ok(Chosen {
            superseded,
            ..chosen?
        })
    };
    match config.trigger {
        BackendChoice::Bpf => bpf(config, coverage, reaper, shortage),
        BackendChoice::Trace => alone(trace(config, coverage, reaper, exempt)),
        BackendChoice::Poll => alone(poll(config, coverage, POLLING, reaper, exempt)),
        BackendChoice::Auto => {
            let no_bpf = match bpf_or_again(config, coverage, reaper, shortage) {
                Ok(chosen) => return Ok(chosen),
                Err(error) if error.is::<Held>() => return Err(error),
                Err(error) if has_shared && Membership::may_be_any_below(&config.paths.pins)? => {
                    return Err(error.context(MEMBERS_STAY));
                }
                Err(error) => format!(
                    "no kernel half: {error:#}; limits hold only while bursard runs, and later than \
                     they should (see: bursar doctor)"
                ),
            };
            tracing::error!("{no_bpf}");
            let mut chosen = alone(trace(config, coverage, reaper, exempt).or_else(|error| {
                tracing::error!("no trace pipe either: {error:#}");
                poll(config, coverage, POLLING, reaper, exempt)
            }))?;
            if chosen.superseded.is_some() {
                tracing::error!(
                    "the kernel half that was left in force goes: nobody could tell it other limits"
                );
            }
            chosen.remarks.push(no_bpf);
            Ok(chosen)
        }
    }
}

/// What is short for a moment (memory, most of all) is no reason to send one away that is in force.
fn bpf_or_again(
    config: &Config,
    coverage: &Coverage,
    reaper: &VictimReaper,
    shortage: &Shortage,
) -> Result<Chosen> {
    for _ in 1..TRIES {
        match bpf(config, coverage, reaper, shortage) {
            Err(error) if !error.is::<Held>() && KernelHalf::is_pinned(&config.paths.pins)? => {
                tracing::warn!("the kernel half is not loaded, and that is tried again: {error:#}");
                thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
    bpf(config, coverage, reaper, shortage)
}

fn counts_files(config: &Config) -> bool {
    config.count == Count::Rss
}

fn poll(
    config: &Config,
    coverage: &Coverage,
    how: &str,
    reaper: &VictimReaper,
    exempt: &Arc<ExemptCgroups>,
) -> Result<Chosen> {
    let (files, query) = (counts_files(config), reaper.timed_query()?);
    let backend = PollBackend::start(coverage.clone(), files, POLL_MS, query, Arc::clone(exempt))?;
    Ok(Chosen {
        backend: Box::new(backend),
        how: how.to_owned(),
        remarks: Vec::new(),
        lock: None,
        superseded: None,
    })
}

fn trace(
    config: &Config,
    coverage: &Coverage,
    reaper: &VictimReaper,
    exempt: &Arc<ExemptCgroups>,
) -> Result<Chosen> {
    let tracefs = Path::new(TRACEFS);
    if mount_tracefs(tracefs)? == Mounted::Now {
        tracing::info!(path = TRACEFS, "mounted tracefs");
    }
    let (files, query) = (counts_files(config), reaper.timed_query()?);
    let backend = TraceBackend::start(coverage.clone(), files, tracefs, query, Arc::clone(exempt))?;
    let how = "reading the trace pipe of kmem:rss_stat".to_owned();
    Ok(Chosen {
        backend: Box::new(backend),
        how,
        remarks: Vec::new(),
        lock: None,
        superseded: None,
    })
}

fn bpf(
    config: &Config,
    coverage: &Coverage,
    reaper: &VictimReaper,
    shortage: &Shortage,
) -> Result<Chosen> {
    provide_bpffs(&config.paths.pins)?;
    let lock = Lock::on_pins(&config.paths.pins)?;
    let page_size = machine::page_size();
    let events_bytes = config.ledger.events_bytes_for(page_size).get();
    let options = Options {
        max_processes: config.ledger.max_processes,
        max_accounts: config.ledger.max_accounts,
        max_objects: config.ledger.max_objects,
        events_bytes: u32::try_from(events_bytes).context("size the ring buffer")?,
        possible_cpus: machine::possible_cpus(Path::new("/sys"))?,
        page_size,
        count_file: counts_files(config),
        event_trigger: config.triggers.event,
        timer_trigger: config.triggers.timer,
        notifier_trigger: config.triggers.notifier,
        gate: config.gate.mode == GateChoice::Auto,
    };
    let settings = Settings {
        uid_min: coverage.uid_min,
        // From the first moment: what the kernel half has of them from before stands.
        exempts_cgroups: !config.exempt.cgroups.is_empty(),
        exempt: coverage.exempt.clone(),
        committed: config
            .gate
            .committed
            .iter()
            .map(|range| (range.first(), range.last()))
            .collect(),
        raised_adj: shortage.raised_adj(),
        deaths_from: config.reap.others_from.map(|it| page_size.pages_within(it)),
        short_below: shortage.told_below().map(|it| page_size.pages_within(it)),
    };
    let (backend, started) = BpfBackend::start(
        &config.paths.pins,
        options,
        settings,
        config.gate.measure,
        reaper.handle(),
    )?;
    let how = match started {
        Started::Loaded => "kernel half loaded",
        Started::Adopted => "kernel half was running and is taken over",
        Started::Replacing => "kernel half of another version is being replaced",
    };
    let backend = Box::new(backend);
    let remarks = gate_remarks(config, &backend.status().gate);
    Ok(Chosen {
        backend,
        how: how.to_owned(),
        remarks,
        lock: Some(lock),
        superseded: None,
    })
}

/// What of the gate was wanted and is missing.
fn gate_remarks(config: &Config, gate: &GateStatus) -> Vec<String> {
    let why = gate.reason.as_deref().unwrap_or("for no known reason");
    let remark = match gate.mode {
        GateMode::Strict => None,
        GateMode::BestEffort => Some(format!(
            "the gate is best effort: a request may slip through where another was preempted ({why})"
        )),
        GateMode::None if config.gate.mode == GateChoice::Off => None,
        GateMode::None => Some(format!(
            "no gate: nothing is refused at the barrier, the notice is followed by the limit ({why})"
        )),
    };
    let files = gate.files.as_ref().map(|why| {
        format!("files in tmpfs may grow past the barrier: they are counted, not refused ({why})")
    });
    let remarks: Vec<String> = remark.into_iter().chain(files).collect();
    for remark in &remarks {
        tracing::warn!("{remark}");
    }
    remarks
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
