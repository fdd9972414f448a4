// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The study: every workload with every arm, a fresh guest for each run, interleaved so that what else
//! the host does hits all arms alike. A run that is there already is not played again, so an
//! interrupted study goes on where it was, and one that failed is played by calling it once more.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use xtask::vm::{Accelerator, Cache, Fetch, Guest, Machine, Options, Suite, fetch};

use crate::guest::Outcome;

const NULL_BLK: &str =
    "null_blk nr_devices=4 gb=64 bs=4096 queue_mode=2 irqmode=1 submit_queues=2 no_sched=1";

/// A study.
#[derive(Debug, Args)]
pub(crate) struct Study {
    /// How often each arm is played
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Which workloads: order0, newest, huge, long, overload
    #[arg(long, value_delimiter = ',', default_value = "order0,newest,huge")]
    workloads: Vec<String>,
    /// Which arms
    #[arg(long, value_delimiter = ',', default_value = "none,trend,loop,bursar")]
    arms: Vec<String>,
    /// Where the results go
    #[arg(long, default_value = "docs/data/watermarks")]
    out: PathBuf,
    /// Keep the traces of the runs too
    #[arg(long)]
    record: bool,
}

/// A workload: on which kernel, with what.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    suite: Suite,
    memory_mib: u32,
    huge_pages: &'static str,
    seconds: u64,
    arguments: &'static [&'static str],
}

/// The workloads that the issue names.
pub(crate) const WORKLOADS: [Workload; 5] = [
    Workload {
        name: "order0",
        about: "Order-0 bursts, Debian's 6.12, 1 GiB: two streams of 30 MiB/s fill the page cache, three \
                processes start children that fill 48 MiB and end. First segment from an empty cache on, \
                second with a full one.",
        suite: Suite::Trixie,
        memory_mib: 1024,
        huge_pages: "never",
        seconds: 240,
        arguments: &["--segments", "45,40"],
    },
    Workload {
        name: "newest",
        about: "The same on Debian's newest kernel, 7.x, one segment from an empty cache on.",
        suite: Suite::Newest,
        memory_mib: 1024,
        huge_pages: "never",
        seconds: 180,
        arguments: &["--segments", "40"],
    },
    Workload {
        name: "huge",
        about: "Huge pages, 6.12, 1 GiB, memory broken up first: two processes start children that fill \
                64 MiB of huge pages, beside the two streams.",
        suite: Suite::Trixie,
        memory_mib: 1024,
        huge_pages: "madvise",
        seconds: 240,
        arguments: &[
            "--segments",
            "25",
            "--bursters",
            "2",
            "--burst-mib",
            "64",
            "--huge",
            "--break-up",
        ],
    },
    Workload {
        name: "long",
        about: "Order-0 bursts as above for ten minutes, then ten quiet ones.",
        suite: Suite::Trixie,
        memory_mib: 1024,
        huge_pages: "never",
        seconds: 1500,
        arguments: &["--segments", "600", "--quiet", "600"],
    },
    Workload {
        name: "overload",
        about: "More than kswapd can take back, 6.12, 1 GiB: four processes whose children fill 320 MiB, \
                hardly resting, so that most of it goes through compressed swap and back; two streams of \
                30 MiB/s.",
        suite: Suite::Trixie,
        memory_mib: 1024,
        huge_pages: "never",
        seconds: 300,
        arguments: &[
            "--segments",
            "60,60",
            "--bursters",
            "4",
            "--burst-mib",
            "320",
            "--gap-ms",
            "300",
            "--swap-mib",
            "1024",
        ],
    },
];

pub(crate) fn run(study: &Study) -> Result<()> {
    fs::create_dir_all(&study.out).with_context(|| format!("make {:?}", study.out))?;
    let cache = Cache::open()?;
    for round in 1..=study.rounds {
        for name in &study.workloads {
            let Some(workload) = WORKLOADS.iter().find(|it| it.name == name) else {
                bail!("there is no workload {name:?}");
            };
            // Another arm begins each round: what the host does at its beginning hits all in turn.
            let shift = round as usize % study.arms.len().max(1);
            let arms = study.arms.iter().cycle().skip(shift);
            for arm in arms.take(study.arms.len()) {
                let to = study.out.join(format!("{name}-{arm}-{round}.json"));
                if to.exists() {
                    continue;
                }
                match play(&cache, workload, arm, study, &to) {
                    Ok(outcome) => eprintln!("{name} {arm} {round}: {}", outcome.brief()),
                    Err(error) => eprintln!("{name} {arm} {round}: failed: {error:#}"),
                }
            }
        }
    }
    Ok(())
}

fn host_load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next().and_then(|it| it.parse().ok());
    first.unwrap_or(0.0)
}

fn play(cache: &Cache, load: &Workload, arm: &str, study: &Study, to: &Path) -> Result<Outcome> {
    let kernel = fetch(cache, load.suite, &Fetch::default())?;
    let before = host_load();
    let raw = to.with_extension("raw");
    let mut command = vec![
        "watermarks",
        "guest",
        "--arm",
        arm,
        "--out",
        "/root/result.json",
    ];
    command.extend(load.arguments);
    let mut out = vec![("/root/result.json".into(), raw.clone())];
    if study.record {
        command.extend(["--record", "/root/trace.jsonl"]);
        out.push(("/root/trace.jsonl".into(), to.with_extension("jsonl")));
    }
    let guest = Guest {
        options: Options {
            machine: Machine {
                mem: load.memory_mib,
                accel: Some(Accelerator::TcgParallel),
                append: vec![format!("transparent_hugepage={}", load.huge_pages)],
                ..Machine::default()
            },
            module: vec![NULL_BLK.to_owned(), "zram".to_owned()],
            file: vec![(std::env::current_exe()?, "/usr/local/bin/watermarks".into())],
            tracefs: true,
            ..Options::default()
        },
        out,
        timeout: Duration::from_secs(load.seconds),
        ..Guest::new(&kernel, &command)
    };
    let (report, output) = guest.output()?;
    if report.status() != 0 {
        bail!(
            "status {}: {}",
            report.status(),
            String::from_utf8_lossy(&output.err).trim_end()
        );
    }
    let text = fs::read(&raw).with_context(|| format!("read {raw:?}"))?;
    let mut outcome: Outcome = serde_json::from_slice(&text).context("read the result")?;
    fs::remove_file(&raw).with_context(|| format!("remove {raw:?}"))?;
    ensure!(
        outcome.has_run(),
        "the guest stood still: its load read less than a tenth of what it is to read"
    );
    outcome.host_load = before;
    let text = serde_json::to_string(&outcome).context("write the result")?;
    fs::write(to, text + "\n").with_context(|| format!("write {to:?}"))?;
    Ok(outcome)
}

impl Outcome {
    /// An emulated guest now and then gets no processor time for most of a run (its clock cannot be
    /// calibrated, the host has other work). Says nothing of the arm: none reads so little.
    fn has_run(&self) -> bool {
        let load = &self.load;
        // The last one may be a quiet one.
        self.segments.first().is_some_and(|it| {
            let asked = it.seconds * f64::from(load.readers * load.reader_mib);
            it.done.read_mib as f64 >= asked / 10.0
        })
    }

    fn brief(&self) -> String {
        let segments = self.segments.iter().map(|it| {
            format!(
                "{} + {} stalls, {:.2} s, idle {:.0} MiB, scale {:.0}",
                it.alloc_stalls,
                it.compact_stalls,
                (it.reclaim.total_us + it.compaction.total_us) as f64 / 1e6,
                it.idle_when_full_mib,
                it.scale_mean
            )
        });
        segments.collect::<Vec<_>>().join(" | ")
    }
}
