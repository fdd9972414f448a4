// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursard --release`: removes every trace of a kernel half.

use std::sync::Arc;

use anyhow::{Context, Result};
use bursar_config::Config;
use bursar_host::Proc;
use bursar_kernel::KernelHalf;
use bursar_watchdog::TimedQuery;
use bursar_watermarks::Paths;

use crate::lock::Lock;
use crate::oom_score::OomScore;
use crate::{log, watermarks};

pub(crate) fn release(config: &Config) -> Result<()> {
    let _runtime = Lock::on_runtime(&config.paths.runtime)?;
    // Not while a bursard uses it.
    let _lock = match config.paths.pins.exists() {
        true => Some(Lock::on_pins(&config.paths.pins)?),
        false => None,
    };
    let count = KernelHalf::release(&config.paths.pins)?;
    let raised = config.last_defence.oom_score_adj;
    let proc = Proc::host().context("open /proc")?;
    let mut query = TimedQuery::new("query", Arc::default()).context("open /proc")?;
    OomScore::new(raised, &config.paths.runtime).restore_oom_scores(&proc, &mut query);
    match count {
        0 => log::say(&format!(
            "bursard: no kernel half was pinned in {}",
            config.paths.pins.display()
        )),
        _ => log::say("bursard: released; no limit is in force any more"),
    }
    watermarks::release(&Paths::host(&config.paths.state))
}
