// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A tuner alone, without bursard: the engine with one model, acting, until SIGTERM. Also the recorder
//! of traces.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bursar_config::{WatermarkMode, WatermarkModel, Watermarks};
use bursar_host::clock::monotonic;
use bursar_policy::watermarks::{Reason, sentence};
use bursar_watermarks::{Act, Engine, Paths, Pause, trace};
use clap::Args;

/// A tuner.
#[derive(Debug, Args)]
pub(crate) struct Tune {
    /// none, trend, loop or bursar
    #[arg(long)]
    model: String,
    /// Where the samples go, ten a second
    #[arg(long)]
    record: Option<PathBuf>,
}

fn settings(model: &str) -> Result<Watermarks> {
    let (mode, model) = match model {
        "none" => (WatermarkMode::Observe, WatermarkModel::Bursar),
        "bursar" => (WatermarkMode::Act, WatermarkModel::Bursar),
        "trend" => (WatermarkMode::Act, WatermarkModel::Trend),
        "loop" => (WatermarkMode::Act, WatermarkModel::Loop),
        other => bail!("there is no model {other:?}: none, trend, loop or bursar"),
    };
    Ok(Watermarks {
        mode,
        model,
        ..Watermarks::default()
    })
}

pub(crate) fn run(tune: &Tune) -> Result<()> {
    let ends = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(libc::SIGTERM, ends.clone()).context("watch for SIGTERM")?;
    let paths = Paths::host(std::path::Path::new("/root"));
    let mut engine = Engine::start(settings(&tune.model)?, paths, monotonic())?;
    let mut record = match &tune.record {
        Some(path) => Some(BufWriter::new(
            File::create(path).with_context(|| format!("make {path:?}"))?,
        )),
        None => None,
    };
    while !ends.load(Ordering::Relaxed) {
        let mut pause = match engine.tick(monotonic()) {
            Pause::For(pause) => pause,
            Pause::UntilKnock => Duration::from_secs(1),
        };
        if let Some(record) = &mut record {
            trace::write(record, engine.sample())?;
            pause = Duration::from_millis(100);
        }
        std::thread::sleep(pause);
    }
    if let Some(record) = &mut record {
        record.flush().context("write the trace")?;
    }
    println!("{}", serde_json::to_string(&told(&engine))?);
    engine.finish();
    Ok(())
}

/// What it did, and what the kernel half measured.
fn told(engine: &Engine) -> serde_json::Value {
    let done = engine
        .decision_log()
        .records()
        .filter(|it| it.act == Act::Done || it.verdict.reason == Reason::Overload)
        .map(|it| {
            let seconds = it.at.get() as f64 / 1e9;
            format!(
                "{seconds:.1} s: {}",
                sentence(&it.verdict, it.scale_before, 4096)
            )
        });
    let done: Vec<String> = done.collect();
    let effort = engine.effort();
    let (total, users) = match engine.stalls(monotonic()) {
        Ok(found) => found,
        Err(why) => return serde_json::json!({"done": done, "ticks": effort.ticks, "stalls": why}),
    };
    let users = users.iter().map(|(uid, row)| {
        serde_json::json!({"uid": uid, "reclaims": row.reclaims, "reclaim_ns": row.reclaim_ns,
            "compactions": row.compactions, "compaction_ns": row.compaction_ns, "wakeups": row.wakeups})
    });
    serde_json::json!({
        "done": done,
        "ticks": effort.ticks,
        "writes": effort.writes,
        "prefreed_bytes": engine.prefreed_bytes(),
        "reclaims": total.all.reclaims,
        "reclaim_ns": total.all.reclaim_ns,
        "compactions": total.all.compactions,
        "compaction_ns": total.all.compaction_ns,
        "reactions": total.reactions,
        "slow_reaction_ns": total.slow_reaction_ns,
        "users": users.collect::<Vec<_>>(),
    })
}
