// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S5 section 4, Tables 2 and 3: what the rest of the system notices.
//!
//! Counted is how often a test goes into a second of user and system time, not of the clock: bursar
//! takes processor time and nothing else, and neighbours' work does not count.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use bursar_e2e::World;
use serde::{Deserialize, Serialize};

use crate::figures::{Estimate, Spread, median_estimate};
use crate::load::{FAR_BYTES, Stage, User};
use crate::lock::Lock;
use crate::progress::Progress;

/// S5's tests, by the names of its table.
const TESTS: [(&str, &str); 6] = [
    ("Process Creation", "spawn"),
    ("Execl Throughput", "execl"),
    ("Pipe Throughput", "pipe"),
    ("Shell Scripts", "shell"),
    ("File Read", "read"),
    ("File Write", "write"),
];

/// The whole table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct System {
    pub(crate) rounds: usize,
    /// Each test ran so long in each round.
    pub(crate) seconds: f64,
    pub(crate) rows: Vec<Row>,
}

/// One test.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) test: String,
    /// Times a second of processor time, without bursar.
    pub(crate) plain: Spread,
    /// Share of it left with bursard running, for a user without a limit.
    pub(crate) unlimited: Estimate,
    /// And for a user with one.
    pub(crate) limited: Estimate,
    /// The plain kernel after, against itself before: the noise.
    pub(crate) noise: Estimate,
}

#[derive(Default)]
struct Samples {
    before: Vec<f64>,
    unlimited: Vec<f64>,
    limited: Vec<f64>,
    after: Vec<f64>,
}

pub(crate) fn measure(stage: &Stage, rounds: usize, is_quick: bool, lock: &Lock) -> Result<System> {
    let seconds = if is_quick { 0.4 } else { 0.8 };
    let directory = std::env::temp_dir().join(format!("bursar-bench-{}", std::process::id()));
    std::fs::create_dir_all(&directory).context("make a directory")?;
    let outcome = rows(stage, rounds, seconds, &directory, lock);
    let _ = std::fs::remove_dir_all(&directory);
    Ok(System {
        rounds,
        seconds,
        rows: outcome?,
    })
}

fn rows(
    stage: &Stage,
    rounds: usize,
    seconds: f64,
    directory: &Path,
    lock: &Lock,
) -> Result<Vec<Row>> {
    // The tests run as other users.
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o777))?;
    std::fs::write(directory.join("words"), words())?;
    let mut progress = Progress::new("system", rounds * TESTS.len());
    let mut all: Vec<Samples> = TESTS.iter().map(|_| Samples::default()).collect();
    for round in 0..rounds {
        for ((name, kind), samples) in TESTS.iter().zip(&mut all) {
            lock.keep()?;
            let run = |user| once(stage, kind, seconds, stage.uid(user), directory);
            samples.before.push(run(User::Far)?);
            let mut world = World::new(&stage.binaries, "bench-system", "")?;
            world.daemon.start()?;
            world
                .daemon
                .limit(&stage.uid(User::Far).to_string(), &FAR_BYTES.to_string())?;
            if round % 2 == 0 {
                samples.unlimited.push(run(User::Unlimited)?);
                samples.limited.push(run(User::Far)?);
            } else {
                samples.limited.push(run(User::Far)?);
                samples.unlimited.push(run(User::Unlimited)?);
            }
            drop(world);
            // A removed pin detaches some milliseconds later.
            std::thread::sleep(std::time::Duration::from_millis(100));
            samples.after.push(run(User::Far)?);
            progress.step(name);
        }
    }
    Ok(TESTS
        .iter()
        .zip(&all)
        .filter_map(|((name, _), samples)| row(name, samples))
        .collect())
}

fn row(name: &str, samples: &Samples) -> Option<Row> {
    let plain: Vec<f64> = samples
        .before
        .iter()
        .zip(&samples.after)
        .map(|(a, b)| f64::midpoint(*a, *b))
        .collect();
    let share = |own: &[f64], of: &[f64]| {
        median_estimate(
            &own.iter()
                .zip(of)
                .map(|(own, of)| own / of)
                .collect::<Vec<_>>(),
        )
    };
    Some(Row {
        test: name.to_owned(),
        plain: Spread::of(&plain)?,
        unlimited: share(&samples.unlimited, &plain)?,
        limited: share(&samples.limited, &plain)?,
        noise: share(&samples.after, &samples.before)?,
    })
}

/// Times a second of processor time.
pub(super) fn once(
    stage: &Stage,
    kind: &str,
    seconds: f64,
    uid: u32,
    directory: &Path,
) -> Result<f64> {
    let output = Command::new(stage.binaries.path("bursar-bench-works"))
        .args([kind, &seconds.to_string(), &uid.to_string()])
        .arg(directory)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("run bursar-bench-works (cargo build --release -p bursar-bench)")?;
    if !output.status.success() {
        bail!("{kind} ended with {}", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = text
        .split_whitespace()
        .filter_map(|it| it.parse().ok())
        .collect();
    let &[count, microseconds] = numbers.as_slice() else {
        bail!("{kind} said {text:?}");
    };
    Ok(count / microseconds * 1e6)
}

/// Something to sort: 600 lines, always the same.
fn words() -> String {
    let parts = [
        "the", "page", "of", "memory", "a", "user", "holds", "and", "then", "another",
    ];
    let line = |index: usize| {
        let word = |at: usize| parts[(index * 7 + at * at * 3 + index / 9) % parts.len()];
        (0..8).map(word).collect::<Vec<_>>().join(" ")
    };
    (0..600).map(line).collect::<Vec<_>>().join("\n")
}
