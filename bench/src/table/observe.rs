// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What observing costs beside enforcing: the same processes of the same users, in turns.

use std::time::Duration;

use anyhow::Result;
use bursar_kernel::PageBounds;
use bursar_model::{Mode, Pages};
use serde::{Deserialize, Serialize};

use super::scale::watch_ticks;
use crate::allocator::Job;
use crate::figures::Spread;
use crate::idle;
use crate::load::{FAR_BYTES, Loaded, Stage, User, options, pages};
use crate::lock::Lock;
use crate::progress::Progress;

const PROCESSES: u32 = 1000;
const ACCOUNTS: u32 = 200;

/// The whole table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Observe {
    pub(crate) processes: u32,
    pub(crate) accounts: u32,
    pub(crate) rows: Vec<Row>,
}

/// All accounts held in one way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    /// What an event of one of these users takes, nanoseconds: the kernel's own statistics.
    pub(crate) event: Option<Spread>,
    /// What the timer does each 200 ms, nanoseconds.
    pub(crate) resum: Option<Spread>,
}

struct Case {
    what: &'static str,
    mode: Mode,
    limit: Pages,
    events: Vec<f64>,
    resums: Vec<f64>,
}

pub(crate) fn measure(stage: &Stage, rounds: usize, lock: &Lock) -> Result<Observe> {
    let far = pages(FAR_BYTES * 4);
    let case = |what, mode, limit| Case {
        what,
        mode,
        limit,
        events: Vec::new(),
        resums: Vec::new(),
    };
    let mut cases = [
        case("enforced, far below their limits", Mode::Enforce, far),
        case("observed, far below their limits", Mode::Observe, far),
        case(
            "observed, all above their limits",
            Mode::Observe,
            Pages::new(1),
        ),
    ];
    let _idle = idle::start(stage, ACCOUNTS, PROCESSES)?;
    let mut progress = Progress::new("observe", rounds);
    for round in 0..rounds {
        lock.keep()?;
        for place in 0..cases.len() {
            let turn = (round + place) % cases.len();
            look(stage, &mut cases[turn])?;
        }
        progress.step(&format!("round {}", round + 1));
    }
    let rows = cases.iter().map(|it| Row {
        what: it.what.to_owned(),
        event: Spread::of(&it.events),
        resum: Spread::of(&it.resums),
    });
    Ok(Observe {
        processes: PROCESSES,
        accounts: ACCOUNTS,
        rows: rows.collect(),
    })
}

fn look(stage: &Stage, case: &mut Case) -> Result<()> {
    let bounds = PageBounds {
        limit: Some(case.limit),
        mode: case.mode,
        ..PageBounds::default()
    };
    let mut kernel_half = Loaded::load(options(32_768, 4096)?)?;
    kernel_half.open_account(stage.uid(User::Far), bounds)?;
    for index in 0..ACCOUNTS {
        kernel_half.open_account(stage.further_uid(index), bounds)?;
    }
    kernel_half.take_charge()?;
    let job = Job {
        processes: None,
        bytes: 64 << 20,
        iterations: 8,
        budget: Duration::from_millis(800),
    };
    let spent = kernel_half.event_ns(|| job.run(stage, stage.uid(User::Far), None).map(drop))?;
    case.events.push(spent);
    watch_ticks(&kernel_half, &mut case.resums)
}
