// SPDX-License-Identifier: Apache-2.0 OR MIT
//! tmalloc beside glibc's malloc, jemalloc and mimalloc, in the patterns that allocators are compared by.
//!
//! bursard runs all the time. Each is held against glibc's malloc in the same round, of the same user: what
//! the kernel half costs a user with a limit is in another table (`speed`).

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use bursar_e2e::World;
use serde::{Deserialize, Serialize};

use crate::figures::{Estimate, median, median_estimate};
use crate::load::{FAR_BYTES, Stage, User};
use crate::lock::Lock;
use crate::progress::Progress;

/// What bursar-bench-malloc calls them, and what they are.
const PATTERNS: [(&str, &str); 14] = [
    ("lifetimes", "16 B–1 KiB, random lifetimes (alloc-test)"),
    ("lifetimes-4", "the same, 4 threads"),
    ("tiny", "16–64 B that live for 12 others (cfrac)"),
    (
        "generations",
        "4 lines of threads, each hands on its blocks (larson)",
    ),
    (
        "handed-over",
        "one thread allocates, another frees, twice (xmalloc)",
    ),
    (
        "batches",
        "batches of a size, freed forwards and backwards, 2 threads (sh6bench, sh8bench)",
    ),
    (
        "stress",
        "16 B–32 KiB, a tenth survives, 2 threads (mstress)",
    ),
    (
        "scratch",
        "a small block each, worked in, 4 threads (cache-scratch)",
    ),
    ("large", "8 blocks of 5–25 MiB, replaced (malloc-large)"),
    ("growing", "16 tables that grow by realloc to 2 MiB"),
    (
        "buffers",
        "300 × 40 MiB, hardly used, freed after 1 ms each",
    ),
    (
        "sparse",
        "1 GiB, a page in 256 used, small blocks beside it",
    ),
    ("steady", "64 blocks of 1–60 KiB, replaced"),
    ("filling", "a heap that grows to 200 MiB and is freed"),
];

/// A malloc, as LD_PRELOAD has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Malloc {
    Glibc,
    /// A library that jumps to glibc's.
    Jump,
    Jemalloc,
    Mimalloc,
    Tmalloc {
        is_there: bool,
    },
}

/// The contender that nothing put before glibc's malloc can be cheaper than.
pub(crate) const FLOOR: &str = "a bare jump";

/// Whom a contender runs as, and what it allocates by. Each comes after the glibc that it is held against.
const CONTENDERS: [(&str, User, Malloc); 9] = [
    ("glibc", User::Unlimited, Malloc::Glibc),
    ("glibc, again", User::Unlimited, Malloc::Glibc),
    (FLOOR, User::Unlimited, Malloc::Jump),
    (
        "tmalloc, no bursard",
        User::Unlimited,
        Malloc::Tmalloc { is_there: false },
    ),
    (
        "tmalloc, no limit",
        User::Unlimited,
        Malloc::Tmalloc { is_there: true },
    ),
    ("jemalloc", User::Unlimited, Malloc::Jemalloc),
    ("mimalloc", User::Unlimited, Malloc::Mimalloc),
    ("glibc, with a limit", User::Far, Malloc::Glibc),
    (
        "tmalloc, with a limit",
        User::Far,
        Malloc::Tmalloc { is_there: true },
    ),
];

/// The whole table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Mallocs {
    pub(crate) rounds: usize,
    pub(crate) patterns: Vec<Pattern>,
}

/// One pattern.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Pattern {
    pub(crate) about: String,
    /// User and system time with glibc's malloc, milliseconds.
    pub(crate) glibc_ms: f64,
    pub(crate) rows: Vec<Row>,
}

/// One contender in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) contender: String,
    /// User and system time, and that of the clock, glibc's being 1: medians of the rounds' ratios.
    pub(crate) cpu: Estimate,
    pub(crate) clock: Estimate,
    /// Resident at most and at the end, KiB: medians.
    pub(crate) peak_kib: f64,
    pub(crate) end_kib: f64,
    /// The same of the glibc it is held against.
    pub(crate) glibc_peak_kib: f64,
    pub(crate) glibc_end_kib: f64,
}

/// One run: CPU and clock in µs, peak and end in KiB.
type Run = [f64; 4];

pub(crate) fn measure(
    stage: &Stage,
    rounds: usize,
    only: &[String],
    lock: &Lock,
) -> Result<Mallocs> {
    let mut world = World::new(&stage.binaries, "bench-malloc", "")?;
    world.daemon.start()?;
    let far = stage.uid(User::Far).to_string();
    world.daemon.limit(&far, &FAR_BYTES.to_string())?;
    let chosen = |name: &str| only.is_empty() || only.iter().any(|it| it == name);
    let patterns: Vec<_> = PATTERNS.iter().filter(|(name, _)| chosen(name)).collect();
    let libraries = CONTENDERS.map(|(_, _, malloc)| library(stage, malloc));
    let mut progress = Progress::new("malloc", rounds * patterns.len());
    let mut all = vec![vec![Vec::<Run>::new(); CONTENDERS.len()]; patterns.len()];
    for round in 0..rounds {
        for ((name, _), samples) in patterns.iter().zip(&mut all) {
            lock.keep()?;
            // Each goes first as often as last.
            let mut order: Vec<usize> = (0..CONTENDERS.len()).collect();
            order.rotate_left(round % CONTENDERS.len());
            for index in order {
                if let Some(library) = &libraries[index] {
                    let (_, user, malloc) = CONTENDERS[index];
                    samples[index].push(once(stage, &world, name, user, malloc, library)?);
                }
            }
            progress.step(name);
        }
    }
    let table = patterns.iter().zip(&all).map(|((_, about), samples)| {
        let of = |index: usize, field: usize| samples[index].iter().map(move |run| run[field]);
        let mut base = 0;
        let rows = (0..CONTENDERS.len()).filter_map(|index| {
            let (name, _, malloc) = CONTENDERS[index];
            if malloc == Malloc::Glibc && name != "glibc, again" {
                base = index;
                return None;
            }
            let ratio = |field| {
                let pairs = of(index, field).zip(of(base, field));
                median_estimate(&pairs.map(|(own, glibc)| own / glibc).collect::<Vec<_>>())
            };
            let middle = |index, field| median(&of(index, field).collect::<Vec<_>>());
            Some(Row {
                contender: name.to_owned(),
                cpu: ratio(0)?,
                clock: ratio(1)?,
                peak_kib: middle(index, 2),
                end_kib: middle(index, 3),
                glibc_peak_kib: middle(base, 2),
                glibc_end_kib: middle(base, 3),
            })
        });
        let rows = rows.collect();
        Pattern {
            about: (*about).to_owned(),
            glibc_ms: median(&of(0, 0).collect::<Vec<_>>()) / 1000.0,
            rows,
        }
    });
    Ok(Mallocs {
        rounds,
        patterns: table.collect(),
    })
}

/// The library that is put before libc, an empty name for none; `None`: not on this machine.
fn library(stage: &Stage, malloc: Malloc) -> Option<PathBuf> {
    let (package, name) = match malloc {
        Malloc::Glibc => return Some(PathBuf::new()),
        Malloc::Tmalloc { .. } => return Some(stage.binaries.path("libtmalloc.so")),
        Malloc::Jump => return Some(stage.binaries.path("libbursar_bench_jump.so")),
        Malloc::Jemalloc => ("libjemalloc2", "libjemalloc.so.2"),
        Malloc::Mimalloc => ("libmimalloc2.0", "libmimalloc.so.2.0"),
    };
    let place = format!("usr/lib/{}-linux-gnu/{name}", std::env::consts::ARCH);
    let unpacked = stage.binaries.path("programs").join(package).join(&place);
    let installed = PathBuf::from("/").join(place);
    [unpacked, installed].into_iter().find(|it| it.exists())
}

fn once(
    stage: &Stage,
    world: &World,
    pattern: &str,
    user: User,
    malloc: Malloc,
    library: &std::path::Path,
) -> Result<Run> {
    let mut command = Command::new(stage.binaries.path("bursar-bench-malloc"));
    command
        .args([&stage.uid(user).to_string(), pattern])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    if malloc != Malloc::Glibc {
        command.env("LD_PRELOAD", library);
    }
    match malloc {
        Malloc::Tmalloc { is_there: true } => {
            command.env("BURSAR_SOCKET", world.daemon.socket());
        }
        _ => {
            command.env("BURSAR_SOCKET", "/nonexistent/sock");
        }
    }
    let output = command
        .output()
        .context("run bursar-bench-malloc (is it built? cargo build --release -p bursar-bench)")?;
    if !output.status.success() {
        bail!("{pattern} by {malloc:?} ended with {}", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = text
        .split_whitespace()
        .filter_map(|it| it.parse().ok())
        .collect();
    numbers
        .try_into()
        .map_err(|_| anyhow::anyhow!("{pattern} said {text:?}"))
}
