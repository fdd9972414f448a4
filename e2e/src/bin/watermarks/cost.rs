// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What looking ten times a second costs: the engine observing this machine, which it does not touch.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bursar_config::{WatermarkMode, Watermarks};
use bursar_host::clock::monotonic;
use bursar_watermarks::{Engine, Places};
use clap::Args;
use rustix::time::{ClockId, clock_gettime};

/// The measurement.
#[derive(Debug, Args)]
pub(crate) struct Cost {
    /// How long
    #[arg(long, default_value_t = 30)]
    seconds: u64,
}

/// As fast as it ever looks.
const EVERY: Duration = Duration::from_millis(100);
/// Of a core, the most that the issue allows.
const MOST: f64 = 0.001;

/// The processor time of this thread.
fn spent() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

pub(crate) fn run(cost: &Cost) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("bursar-watermarks-{}", std::process::id()));
    std::fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
    let settings = Watermarks {
        mode: WatermarkMode::Observe,
        ..Watermarks::default()
    };
    let mut engine = Engine::start(settings, Places::host(&folder), monotonic())?;
    // The first looks open files and make room.
    for _ in 0..20 {
        engine.tick(monotonic());
    }
    let began = Instant::now();
    let mut ticks = 0u32;
    // In turn: what sleeping and waking cost by themselves is the machine's.
    let (mut waking, mut looking) = (Duration::ZERO, Duration::ZERO);
    while began.elapsed() < Duration::from_secs(cost.seconds) {
        let before = spent();
        std::thread::sleep(EVERY);
        waking += spent() - before;
        std::thread::sleep(EVERY);
        let woke = spent();
        engine.tick(monotonic());
        looking += spent() - woke;
        ticks += 1;
    }
    let each = |sum: Duration| sum.as_secs_f64() / f64::from(ticks.max(1));
    let share = (each(waking) + each(looking)) / EVERY.as_secs_f64();
    engine.finish();
    std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    println!(
        "{ticks} looks: {:.1} us each, {:.1} us to sleep and wake up; ten times a second {:.3} % of a \
         core (at most {:.1} %)",
        each(looking) * 1e6,
        each(waking) * 1e6,
        share * 100.0,
        MOST * 100.0
    );
    ensure!(share <= MOST, "looking costs too much");
    Ok(())
}
