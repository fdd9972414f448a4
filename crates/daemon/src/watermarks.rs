// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts the engine_thread of the watermarks. Limits do not depend on it: what goes wrong here is said, and
//! bursard goes on.

use anyhow::{Result, bail};
use bursar_config::{Config, WatermarkMode};
use bursar_host::clock::monotonic;
use bursar_model::ReapStatus;
use bursar_protocol::{RestoreReport, WatermarksReport};
use bursar_watermarks::{Engine, EngineThread, Paths, Restored, recover, restored};

use crate::accounts::Accounts;
use crate::log;

/// The engine_thread, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Watermarks {
    engine_thread: Option<EngineThread>,
    keeps_margin: bool,
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
        engine_thread.keep(margin.unwrap_or_default());
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
