// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What looking ten times a second costs: the engine observing this machine, which it does not touch.
//! Once on a CPU that works in between, as in the storms in which it looks so often, and once on one that
//! halts, which is left slowly, above all in a virtual machine, and found with cold caches.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bursar_config::{WatermarkMode, Watermarks};
use bursar_host::clock::{monotonic, thread_cpu_time};
use bursar_host::sched::{self, Changed, Class};
use bursar_watermarks::{Engine, Paths};
use clap::Args;

/// The measurement.
#[derive(Debug, Args)]
pub(crate) struct Cost {
    /// How long
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// As fast as it ever looks.
const EVERY: Duration = Duration::from_millis(100);
/// Of a core, the most that the issue allows.
const MOST: f64 = 0.001;
/// Looks in one state before it is the other's turn: the machine's speed drifts.
const TURN: u32 = 50;
/// What the load writes again and again, bytes: more than a CPU's own caches hold.
const WRITTEN: usize = 8 << 20;

/// Looks in one state and the processor time they took.
#[derive(Default)]
struct Spent {
    looks: u32,
    waking: Duration,
    looking: Duration,
}

impl Spent {
    fn each(&self, sum: Duration) -> Duration {
        sum / self.looks.max(1)
    }

    /// Of a core.
    fn share(&self) -> f64 {
        self.each(self.waking + self.looking).as_secs_f64() / EVERY.as_secs_f64()
    }

    fn say(&self, state: &str) {
        println!(
            "{state}: {} looks, {:.1} us each, {:.1} us to sleep and wake up; ten times a second {:.3} % of \
             a core",
            self.looks,
            self.each(self.looking).as_secs_f64() * 1e6,
            self.each(self.waking).as_secs_f64() * 1e6,
            self.share() * 100.0,
        );
    }
}

/// The processor time of this thread.
fn spent() -> Duration {
    Duration::from_nanos(thread_cpu_time().get())
}

fn look(engine: &mut Engine, sum: &mut Spent) {
    // The first ones open files and make room.
    for _ in 0..5 {
        std::thread::sleep(EVERY);
        engine.tick(monotonic());
    }
    for _ in 0..TURN {
        let slept = spent();
        std::thread::sleep(EVERY);
        let woke = spent();
        engine.tick(monotonic());
        sum.waking += woke - slept;
        sum.looking += spent() - woke;
        sum.looks += 1;
    }
}

/// Writes memory whenever nobody else wants this CPU, until `is_over`.
fn load(is_over: &AtomicBool) -> Result<()> {
    let changed = sched::set_class(sched::own_thread(), Class::Idle);
    ensure!(changed == Changed::Done, "SCHED_IDLE: {changed:?}");
    let mut memory = vec![0_u8; WRITTEN];
    let mut value = 0_u8;
    while !is_over.load(Ordering::Relaxed) {
        value = value.wrapping_add(1);
        memory.fill(value);
        std::hint::black_box(&memory);
    }
    Ok(())
}

pub(crate) fn run(cost: &Cost) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("bursar-watermarks-{}", std::process::id()));
    std::fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
    let settings = Watermarks {
        mode: WatermarkMode::Observe,
        ..Watermarks::default()
    };
    // The load has to be where the engine is; threads inherit it.
    let confined = sched::allow_cpu(sched::own_thread(), sched::own_cpu());
    ensure!(confined == Changed::Done, "cannot stay on one CPU");
    let mut engine = Engine::start(settings, Paths::host(&folder), monotonic())?;
    let began = Instant::now();
    let (mut working, mut halting) = (Spent::default(), Spent::default());
    while began.elapsed() < Duration::from_secs(cost.seconds) {
        look(&mut engine, &mut halting);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let load = scope.spawn(|| load(&is_over));
            look(&mut engine, &mut working);
            is_over.store(true, Ordering::Relaxed);
            load.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
    }
    engine.finish();
    std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    working.say("a CPU that works in between");
    halting.say("a CPU that halts in between");
    ensure!(
        working.share() <= MOST,
        "looking costs more than {:.1} % of a core",
        MOST * 100.0
    );
    Ok(())
}
