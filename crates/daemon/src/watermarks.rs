// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts the engine_thread of the watermarks. Limits do not depend on it: what goes wrong here is said, and
//! bursard goes on.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Result, bail};
use bursar_config::{Config, Quantity, WatermarkMode};
use bursar_host::Timer;
use bursar_host::clock::monotonic;
use bursar_model::{ReapStatus, Who};
use bursar_protocol::{RestoreReport, WatermarksReport};
use bursar_watermarks::{Engine, EngineThread, Paths, Restored, recover, restored};

use crate::accounts::Accounts;
use crate::log;

/// How often the engine is told what accounts hold: it looks at rules every ten seconds.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// The engine_thread, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Watermarks {
    engine_thread: Option<EngineThread>,
    keeps_margin: bool,
    /// Accounts that rules for sysctls name.
    named: Vec<Who>,
    /// Runs while there are such.
    timer: Option<Timer>,
    /// Why there is none, or what it could not do.
    pub(crate) remark: Option<String>,
}

impl Watermarks {
    /// Puts back what an earlier bursard left turned, then does what the configuration says. A dry run
    /// opens nothing for writing.
    pub(crate) fn start(config: &Config, dry_run: bool) -> Self {
        let paths = Paths::host(&config.paths.state);
        let mut settings = config.watermarks.clone();
        if dry_run {
            if settings.mode == WatermarkMode::Act {
                settings.mode = WatermarkMode::Observe;
            }
        } else {
            match recover(&paths) {
                Ok(results) => tell(&results),
                Err(error) => return Self::none(format!("watermarks: {error}")),
            }
        }
        if settings.mode == WatermarkMode::Off {
            return Self::default();
        }
        let proc = paths.proc.clone();
        let keeps_margin = settings.keep_reap_margin;
        let named = named_in(&settings);
        let timer = match named.as_slice() {
            [] => None,
            _ => match regular_timer() {
                Ok(timer) => Some(timer),
                Err(error) => return Self::none(format!("watermarks: make a timer: {error}")),
            },
        };
        let started = Engine::start(settings, paths, monotonic())
            .map_err(|error| error.to_string())
            .and_then(|engine| {
                EngineThread::start(engine, proc)
                    .map_err(|error| format!("start a thread: {error}"))
            });
        match started {
            Ok(engine_thread) => Self {
                engine_thread: Some(engine_thread),
                keeps_margin,
                named,
                timer,
                remark: None,
            },
            Err(error) => Self::none(format!("watermarks: {error}")),
        }
    }

    fn none(remark: String) -> Self {
        tracing::error!("{remark}");
        Self {
            remark: Some(remark),
            ..Self::default()
        }
    }

    /// Has as much kept free as others may take during the slowest reap of the largest victim (S2).
    pub(crate) fn keep_margin(&self, accounts: &Accounts, reaps: &ReapStatus) {
        let Some(engine_thread) = self.engine_thread.as_ref().filter(|_| self.keeps_margin) else {
            return;
        };
        let readings = accounts.backend.readings();
        let victims = readings.iter().map(|it| (it.bounds.limit(), it.maxheld));
        let victim = ReapStatus::largest_victim(victims, accounts.table.ram());
        let cpus = std::thread::available_parallelism().map_or(1, |it| it.get() as u64);
        let margin = reaps.margin(victim, ReapStatus::fastest_growth(cpus));
        engine_thread
            .account_facts()
            .keep(margin.unwrap_or_default());
    }

    /// Readable when [`Self::tell_held`] is due; `None` where no rule names an account.
    pub(crate) fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.timer.as_ref().map(AsFd::as_fd)
    }

    /// Tells the engine what the accounts hold that rules name.
    pub(crate) fn tell_held(&self, accounts: &mut Accounts) {
        if let Some(timer) = &self.timer {
            let _ = timer.take_expiry();
        }
        let Some(engine_thread) = &self.engine_thread else {
            return;
        };
        let readings = accounts.backend.readings();
        let mut held = BTreeMap::new();
        for reading in &readings {
            let name = accounts.table.name_of(reading.id).0;
            let is_meant = |who: &&Who| match who {
                Who::Uid(uid) => reading.id.uid() == Some(*uid),
                who => who.to_string() == name,
            };
            let who = self.named.iter().filter(is_meant);
            held.extend(who.map(|it| (it.to_string(), reading.held)));
        }
        engine_thread.account_facts().hold(held);
    }

    /// Why there is nothing to tell.
    pub(crate) fn absence(&self) -> String {
        self.remark.clone().unwrap_or_else(|| {
            "watermarks are not watched: watermarks.mode = \"off\" in bursar.toml; set it to \"observe\" or \
             \"act\" and restart bursard"
                .to_owned()
        })
    }

    /// What is known; `None` when there is no engine_thread, or it hangs.
    pub(crate) fn report(&self) -> Option<WatermarksReport> {
        self.engine_thread.as_ref()?.report()
    }

    /// Puts everything back.
    pub(crate) fn restore(&self) -> Option<RestoreReport> {
        self.engine_thread.as_ref()?.restore()
    }

    /// Ends: everything is put back.
    pub(crate) fn finish(&mut self) {
        if let Some(engine_thread) = self.engine_thread.take() {
            tell(&engine_thread.finish());
        }
    }
}

fn named_in(settings: &bursar_config::Watermarks) -> Vec<Who> {
    let rules = settings.sysctls_while.iter();
    let named = rules.filter_map(|rule| match &rule.when.quantity {
        Quantity::Held(who) => Some(who.clone()),
        _ => None,
    });
    named.collect()
}

fn regular_timer() -> std::io::Result<Timer> {
    let timer = Timer::polled()?;
    timer.set(Duration::from_millis(500), TELL_EVERY)?;
    Ok(timer)
}

/// Puts back what a bursard that was killed left turned; a line each.
///
/// # Errors
/// When a value could not be put back.
pub(crate) fn release(paths: &Paths) -> Result<()> {
    let report = restored(&recover(paths)?);
    for line in &report.lines {
        log::say(&format!("bursard: watermarks: {line}"));
    }
    match report.failed {
        0 => Ok(()),
        failed => bail!("{failed} values of the watermarks could not be put back"),
    }
}

fn tell(results: &[Restored]) {
    for line in restored(results).lines {
        tracing::info!("watermarks: {line}");
    }
}
