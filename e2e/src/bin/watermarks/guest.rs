// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run inside a guest: a fresh machine, one way of tuning it, the workload in segments; what
//! happened in each as JSON. Never run this on a machine that somebody uses: it starves it of memory.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bursar_e2e::swap::Swap;
use bursar_host::vm::VmStat;
use bursar_watermarks::{Detail, Observer};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::load::{self, Done, Load};
use crate::stall_time::{self, StallTime};

const SCALE: &str = "/proc/sys/vm/watermark_scale_factor";

/// One run.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// none, static:N, or a model: trend, loop, bursar
    #[arg(long)]
    arm: String,
    /// Seconds of each segment, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "60,60")]
    segments: Vec<u64>,
    /// Quiet seconds at the end, without workload
    #[arg(long, default_value_t = 0)]
    quiet: u64,
    /// Swap in compressed memory, MiB
    #[arg(long, default_value_t = 0)]
    swap_mib: u64,
    /// Break memory up first
    #[arg(long)]
    break_up: bool,
    /// Where the samples go
    #[arg(long)]
    record: Option<PathBuf>,
    /// Where the result goes
    #[arg(long)]
    out: PathBuf,
    #[command(flatten)]
    load: Load,
}

/// What came of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) arm: String,
    pub(crate) kernel: String,
    pub(crate) load: Load,
    pub(crate) segments: Vec<Segment>,
    /// After the tuner was asked to end.
    pub(crate) scale_after_exit: u32,
    /// What the tuner said at its end.
    pub(crate) tuner: Option<serde_json::Value>,
    /// User and system time of the tuner, hundredths of a second.
    pub(crate) tuner_cpu_cs: u64,
    /// What the host did beside: its load average when the run began.
    #[serde(default)]
    pub(crate) host_load: f64,
}

/// What came of a segment.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Segment {
    pub(crate) seconds: f64,
    pub(crate) alloc_stalls: u64,
    pub(crate) compact_stalls: u64,
    pub(crate) compact_fails: u64,
    pub(crate) thp_faults: u64,
    pub(crate) thp_fallbacks: u64,
    pub(crate) reclaim: StallTime,
    pub(crate) compaction: StallTime,
    pub(crate) refaults: u64,
    pub(crate) steal_kswapd: u64,
    pub(crate) kswapd_cpu_cs: u64,
    pub(crate) psi_some_us: u64,
    /// Free memory above the original high marks, mean over the segment.
    pub(crate) idle_mib: f64,
    /// The same, once it was first low: while the cache fills for the first time all is idle.
    pub(crate) idle_when_full_mib: f64,
    pub(crate) scale_mean: f64,
    pub(crate) scale_end: u32,
    pub(crate) oom_kills: u64,
    pub(crate) done: Done,
}

fn number(path: &str) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    text.trim().parse().with_context(|| format!("read {path}"))
}

/// utime and stime of a process, hundredths of a second.
fn cpu_cs(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let times = after.split(' ').skip(11).take(2);
    times.filter_map(|it| it.parse::<u64>().ok()).sum()
}

fn kswapd() -> Result<u32> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|it| it.parse().ok()) else {
            continue;
        };
        let comm = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if comm.starts_with("kswapd") {
            return Ok(pid);
        }
    }
    bail!("no kswapd")
}

fn vmstat() -> Result<VmStat> {
    let text = fs::read("/proc/vmstat").context("read /proc/vmstat")?;
    Ok(VmStat::parse(&text)?)
}

fn psi_us() -> u64 {
    let text = fs::read("/proc/pressure/memory").unwrap_or_default();
    bursar_host::vm::Pressure::parse(&text).map_or(0, |it| it.some.total_us)
}

/// Looks at free memory five times a second, the same in every arm.
struct Watcher {
    ends: Arc<AtomicBool>,
    sums: Arc<[AtomicU64; 5]>,
    thread: std::thread::JoinHandle<()>,
}

const TICKS: usize = 0;
const IDLE: usize = 1;
const SCALES: usize = 2;
const FULL_TICKS: usize = 3;
const FULL_IDLE: usize = 4;

impl Watcher {
    fn start(high: u64, is_full: bool) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let sums: Arc<[AtomicU64; 5]> = Arc::default();
        let (stop, board) = (ends.clone(), sums.clone());
        let thread = std::thread::spawn(move || {
            let mut is_full = is_full;
            while !stop.load(Ordering::Relaxed) {
                if let (Ok(now), Ok(scale)) = (vmstat(), number(SCALE)) {
                    let idle = now.free.saturating_sub(high);
                    is_full |= now.free < high.saturating_mul(4).max(40_000);
                    board[TICKS].fetch_add(1, Ordering::Relaxed);
                    board[IDLE].fetch_add(idle, Ordering::Relaxed);
                    board[SCALES].fetch_add(scale, Ordering::Relaxed);
                    if is_full {
                        board[FULL_TICKS].fetch_add(1, Ordering::Relaxed);
                        board[FULL_IDLE].fetch_add(idle, Ordering::Relaxed);
                    }
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Self { ends, sums, thread }
    }

    fn finish(self, segment: &mut Segment) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        let sum = |index: usize| self.sums[index].load(Ordering::Relaxed) as f64;
        let mean = |of: usize, ticks: usize| sum(of) / sum(ticks).max(1.0);
        segment.idle_mib = mean(IDLE, TICKS) / 256.0;
        segment.scale_mean = mean(SCALES, TICKS);
        segment.idle_when_full_mib = mean(FULL_IDLE, FULL_TICKS) / 256.0;
    }
}

/// Runs something and says what the machine did meanwhile.
fn measured(high: u64, is_full: bool, work: impl FnOnce() -> Result<Done>) -> Result<Segment> {
    let kswapd = kswapd()?;
    let (reclaim, compaction) = stall_time::read()?;
    let (before, cpu, psi, begun) = (vmstat()?, cpu_cs(kswapd), psi_us(), Instant::now());
    let watcher = Watcher::start(high, is_full);
    let done = work()?;
    let after = vmstat()?;
    let (reclaim_after, compaction_after) = stall_time::read()?;
    let mut segment = Segment {
        seconds: begun.elapsed().as_secs_f64(),
        alloc_stalls: after.alloc_stalls - before.alloc_stalls,
        compact_stalls: after.compact_stalls - before.compact_stalls,
        compact_fails: after.compact_fails - before.compact_fails,
        thp_faults: after.thp_faults - before.thp_faults,
        thp_fallbacks: after.thp_fallbacks - before.thp_fallbacks,
        reclaim: reclaim_after.since(reclaim),
        compaction: compaction_after.since(compaction),
        refaults: after.refaults - before.refaults,
        steal_kswapd: after.steal_kswapd - before.steal_kswapd,
        kswapd_cpu_cs: cpu_cs(kswapd) - cpu,
        psi_some_us: psi_us() - psi,
        oom_kills: after.oom_kills - before.oom_kills,
        scale_end: number(SCALE)? as u32,
        done,
        ..Segment::default()
    };
    watcher.finish(&mut segment);
    Ok(segment)
}

/// Runs the load as a process of its own, so that this one stays as it is.
fn load_in_process(load: &Load, seconds: u64, seed: u64) -> Result<Done> {
    let load = Load {
        seconds,
        seed,
        ..load.clone()
    };
    let mut arguments: Vec<String> = ["load", "--seconds"].map(str::to_owned).to_vec();
    arguments.push(load.seconds.to_string());
    for (name, value) in [
        ("readers", load.readers),
        ("reader-mib", load.reader_mib),
        ("bursters", load.bursters),
        ("burst-mib", load.burst_mib),
        ("gap-ms", load.gap_ms),
    ] {
        arguments.extend([format!("--{name}"), value.to_string()]);
    }
    arguments.extend(["--seed".to_owned(), load.seed.to_string()]);
    arguments.extend(load.huge.then(|| "--huge".to_owned()));
    let output = Command::new(std::env::current_exe()?)
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .context("start the load")?;
    serde_json::from_slice(&output.stdout).context("read what the load came to")
}

fn start_tuner(run: &Run) -> Result<Option<Child>> {
    let mut arguments = vec!["tune".to_owned()];
    match run.arm.as_str() {
        arm if arm.starts_with("static:") => {
            let value = arm.trim_start_matches("static:");
            fs::write(SCALE, value).with_context(|| format!("write {value} to {SCALE}"))?;
            return Ok(None);
        }
        "none" if run.record.is_none() => return Ok(None),
        arm => arguments.extend(["--model".to_owned(), arm.to_owned()]),
    }
    if let Some(record) = &run.record {
        arguments.extend(["--record".to_owned(), record.display().to_string()]);
    }
    let child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .context("start the tuner")?;
    Ok(Some(child))
}

/// The run.
pub(crate) fn run(run: &Run) -> Result<()> {
    if std::env::var_os("BURSAR_VM").is_none() {
        bail!("this starves the machine of memory: run it in a guest (cargo xtask vm run)");
    }
    stall_time::begin()?;
    // Held open: a block device's page cache is dropped when it is closed for the last time.
    let _devices: Vec<File> = (0..4)
        .map(|number| File::open(format!("/dev/nullb{number}")).context("open a null_blk device"))
        .collect::<Result<_>>()?;
    let _swap = (run.swap_mib > 0)
        .then(|| Swap::on(run.swap_mib << 20))
        .transpose()?;
    let paths = bursar_watermarks::Paths::host(std::path::Path::new("/root"));
    let mut observer = Observer::open(&paths, Detail::Orders)?;
    let high = observer
        .look(bursar_host::clock::monotonic(), Default::default())?
        .sum(|zone| zone.high);
    let tuner = start_tuner(run)?;
    if run.break_up {
        let readers = Load {
            bursters: 0,
            reader_mib: 80,
            huge: false,
            ..run.load.clone()
        };
        load_in_process(&readers, 10, 1)?;
        load::break_up(std::path::Path::new("/root/broken"))?;
        load_in_process(&readers, 5, 2)?;
    }
    let mut segments = Vec::new();
    for (index, &seconds) in run.segments.iter().enumerate() {
        let seed = run.load.seed + index as u64;
        let is_full = index > 0 || run.break_up;
        segments.push(measured(high, is_full, || {
            load_in_process(&run.load, seconds, seed)
        })?);
    }
    if run.quiet > 0 {
        segments.push(measured(high, true, || {
            std::thread::sleep(Duration::from_secs(run.quiet));
            Ok(Done::default())
        })?);
    }
    let mut tuner_cpu_cs = 0;
    let mut report = None;
    if let Some(tuner) = tuner {
        tuner_cpu_cs = cpu_cs(tuner.id());
        let pid = rustix::process::Pid::from_child(&tuner);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let output = tuner.wait_with_output().context("wait for the tuner")?;
        report = serde_json::from_slice(&output.stdout).ok();
    }
    let outcome = Outcome {
        arm: run.arm.clone(),
        kernel: bursar_host::machine::kernel_release(),
        load: run.load.clone(),
        segments,
        scale_after_exit: number(SCALE)? as u32,
        tuner: report,
        tuner_cpu_cs,
        host_load: 0.0,
    };
    let text = serde_json::to_string_pretty(&outcome)?;
    println!("{text}");
    fs::write(&run.out, text).with_context(|| format!("write {:?}", run.out))
}
