// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the gate's decision costs the calls that it decides about.
//!
//! Where its hooks can be used, guests are all there is here; so its code is run at the beginning of the
//! same system calls (`bpf/gate_cost.bpf.c`). That is dearer than calling the program of a hook: the call
//! leaves the short way into the kernel and out of it, and munmap, which the gate does not hook, does so too.
//! So the whole is an upper bound; for the decision alone what a program costs that does nothing there is
//! taken off.

use std::mem::MaybeUninit;

use anyhow::{Context, Result};
use bursar_model::Measure;
use serde::{Deserialize, Serialize};

use super::system::once;
use crate::figures::{Estimate, Spread, median_estimate};
use crate::load::{Decision, Loaded, Stage, User, far_bounds, options};
use crate::lock::Lock;
use crate::progress::Progress;

/// What is done, and what bursar-bench-works calls it.
const CALLS: [(&str, &str); 3] = [
    ("mmap + munmap of 1 MiB, not touched", "mmap"),
    ("brk up and down by 128 KiB", "brk"),
    ("reserve + commit of a page by prctl", "prctl"),
];

/// The whole table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Gate {
    pub(crate) rounds: usize,
    pub(crate) rows: Vec<Row>,
}

/// One kind of call by one kind of user. Nanoseconds of user and system time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) calls: String,
    pub(crate) user: String,
    /// Nothing attached.
    pub(crate) plain: Spread,
    /// A program that does nothing.
    pub(crate) nothing: Spread,
    /// The decision, less that.
    pub(crate) decision: Estimate,
    /// The decision and the calling of its program, less nothing attached.
    pub(crate) whole: Estimate,
}

#[derive(Default)]
struct Samples {
    plain: Vec<f64>,
    nothing: Vec<f64>,
    decision: Vec<f64>,
}

/// Whom it decides about.
const USERS: [(&str, User); 3] = [
    ("resident", User::Far),
    ("committed", User::Other),
    ("no limit", User::Unlimited),
];

pub(crate) fn measure(stage: &Stage, rounds: usize, is_quick: bool, lock: &Lock) -> Result<Gate> {
    let seconds = if is_quick { 0.1 } else { 0.2 };
    let kernel_half = half_with_barriers(stage)?;
    let mut storage = MaybeUninit::uninit();
    let code = Decision::load(&mut storage, &kernel_half)?;
    let directory = std::env::temp_dir();
    let mut progress = Progress::new("gate", rounds * CALLS.len() * USERS.len());
    let mut all: Vec<Samples> = Vec::new();
    all.resize_with(CALLS.len() * USERS.len(), Samples::default);
    for round in 0..rounds {
        for (index, samples) in all.iter_mut().enumerate() {
            lock.keep()?;
            let (_, kind) = CALLS[index / USERS.len()];
            let (name, user) = USERS[index % USERS.len()];
            let run = || -> Result<f64> {
                Ok(1e9 / once(stage, kind, seconds, stage.uid(user), &directory)?)
            };
            let nothing = || -> Result<f64> {
                let _attached = code.attach_nothing()?;
                run()
            };
            let decision = || -> Result<f64> {
                let _attached = code.attach()?;
                run()
            };
            samples.plain.push(run()?);
            if round % 2 == 0 {
                samples.nothing.push(nothing()?);
                samples.decision.push(decision()?);
            } else {
                samples.decision.push(decision()?);
                samples.nothing.push(nothing()?);
            }
            progress.step(name);
        }
    }
    let rows = all.iter().enumerate().map(|(index, samples)| {
        row(
            CALLS[index / USERS.len()].0,
            USERS[index % USERS.len()].0,
            samples,
        )
    });
    Ok(Gate {
        rounds,
        rows: rows.collect::<Option<_>>().context("no rounds")?,
    })
}

fn row(calls: &str, user: &str, samples: &Samples) -> Option<Row> {
    let more_than = |base: &[f64]| {
        let pairs = samples.decision.iter().zip(base);
        let differences: Vec<f64> = pairs.map(|(decision, base)| decision - base).collect();
        median_estimate(&differences)
    };
    Some(Row {
        calls: calls.to_owned(),
        user: user.to_owned(),
        plain: Spread::of(&samples.plain)?,
        nothing: Spread::of(&samples.nothing)?,
        decision: more_than(&samples.nothing)?,
        whole: more_than(&samples.plain)?,
    })
}

/// Far below their barriers: nobody is to be read anew.
fn half_with_barriers(stage: &Stage) -> Result<Loaded> {
    let mut kernel_half = Loaded::load(options(32_768, 4096)?)?;
    for (user, measure) in [
        (User::Far, Measure::Resident),
        (User::Other, Measure::Committed),
    ] {
        kernel_half.open_account(stage.uid(user), far_bounds(measure))?;
    }
    kernel_half.take_charge()?;
    Ok(kernel_half)
}
