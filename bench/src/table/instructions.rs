// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel half costs as a function of how many CPUs there may be, in a guest whose clock counts
//! instructions (`make instructions`): there a nanosecond is an instruction, and everything here is read from
//! clocks. On a machine with another clock the same figures are nanoseconds.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use bursar_host::machine;
use bursar_kernel::{Options, PageBounds};
use bursar_model::{GateMode, Pages};
use serde::{Deserialize, Serialize};

use super::scale::search;
use super::system::once;
use crate::allocator::Job;
use crate::figures::median;
use crate::idle;
use crate::load::{Ballast, Empty, EventHook, Loaded, Stage, User, options, pages};
use crate::lock::Lock;
use crate::progress::Progress;

/// Processes beside the one that is measured, where there are some.
const SIBLINGS: u32 = 1000;
/// A limit as login nodes have them.
const LARGE_LIMIT_BYTES: u64 = 10 << 30;
/// What the page faults of one iteration touch.
const FAULT_BYTES: u64 = 4 << 20;
/// A sixty-fourth of it is more than what is measured takes.
const BALLAST_BYTES: u64 = 512 << 20;
/// How long one measurement runs, in the guest's seconds.
const SECONDS: f64 = 0.2;
const AUDITS: usize = 5;
const STEPS: usize = 6;

/// The whole table: one machine, a number of CPUs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Instructions {
    pub(crate) possible_cpus: u32,
    pub(crate) online_cpus: usize,
    pub(crate) rows: Vec<Row>,
}

/// One thing done once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    /// Nanoseconds of the guest's clock; why there is none.
    pub(crate) spent: Result<f64, String>,
    /// The row that it is compared with.
    pub(crate) beside: Option<String>,
}

pub(crate) fn measure(stage: &Stage, rounds: usize, lock: &Lock) -> Result<Instructions> {
    let mut progress = Progress::new("instructions", STEPS);
    let mut rows = Rows(Vec::new());
    lock.keep()?;
    let directory = std::env::temp_dir();
    let fault = |user| rounds_of(rounds, || page_fault(stage, stage.uid(user)));
    let call = |kind: &str, uid| {
        rounds_of(rounds, || {
            Ok(1e9 / once(stage, kind, SECONDS, uid, &directory)?)
        })
    };

    rows.plain("page fault", "plain", fault(User::Unlimited));
    rows.plain("fork + exit", "plain", call("spawn", stage.uid(User::Far)));
    rows.plain("mmap + munmap", "plain", call("mmap", stage.uid(User::Far)));
    for (name, hook) in EMPTY {
        let spent = Empty::attach(hook).and_then(|_empty| fault(User::Unlimited));
        rows.beside("page fault", name, spent);
    }
    progress.step("without a kernel half");

    let loaded = Loaded::for_cost(stage)?;
    let ballast = Ballast::hold(stage, BALLAST_BYTES)?;
    ballast.bring_near(&loaded, FAULT_BYTES, 1)?;
    for (name, user) in USERS {
        rows.beside("page fault", name, fault(user));
    }
    for (name, user) in USERS {
        rows.beside("fork + exit", name, call("spawn", stage.uid(user)));
    }
    // As while somebody's shared pages are counted once.
    loaded.get().pss_scans()?.watch(true)?;
    for (name, user) in USERS {
        let state = format!("{name}, copies watched");
        rows.beside("page fault", &state, fault(user));
    }
    drop((ballast, loaded));
    progress.step("page faults and forks");

    let (resum, decision) = with_siblings(stage)?;
    rows.plain("re-sum of the siblings", "near", resum);
    rows.plain("decision among the siblings", "", decision);
    progress.step("re-sum and decision");

    for (name, siblings) in [("alone", 0), ("idle siblings", SIBLINGS)] {
        let spent = behind_the_gate(stage, siblings, |uid| call("mmap", uid));
        rows.beside("mmap + munmap", name, spent);
        progress.step("the gate");
    }
    Ok(Instructions {
        possible_cpus: machine::possible_cpus(Path::new("/sys"))?,
        online_cpus: machine::online_cpus(Path::new("/sys"))?.len(),
        rows: rows.0,
    })
}

const USERS: [(&str, User); 3] = [
    ("no limit", User::Unlimited),
    ("far", User::Far),
    ("near", User::Near),
];

/// What no program at the event can be cheaper than.
const EMPTY: [(&str, EventHook); 2] = [
    ("empty program at the tracepoint", EventHook::Tracepoint),
    ("empty program at the function", EventHook::FunctionEntry),
];

struct Rows(Vec<Row>);

impl Rows {
    fn plain(&mut self, what: &str, state: &str, spent: Result<f64>) {
        self.push(what, state, spent, None);
    }

    /// Compared with the same thing on the plain kernel.
    fn beside(&mut self, what: &str, state: &str, spent: Result<f64>) {
        self.push(what, state, spent, Some(format!("{what}, plain")));
    }

    fn push(&mut self, what: &str, state: &str, spent: Result<f64>, beside: Option<String>) {
        let what = if state.is_empty() {
            what.to_owned()
        } else {
            format!("{what}, {state}")
        };
        let spent = spent.map_err(|error| format!("{error:#}"));
        self.0.push(Row {
            what,
            spent,
            beside,
        });
    }
}

/// Each row has its own median: a guest's clock repeats to a few tenths of a percent.
fn rounds_of(rounds: usize, mut once: impl FnMut() -> Result<f64>) -> Result<f64> {
    let spent: Vec<f64> = (0..rounds).map(|_| once()).collect::<Result<_>>()?;
    Ok(median(&spent))
}

fn page_fault(stage: &Stage, uid: u32) -> Result<f64> {
    let job = Job {
        processes: None,
        bytes: FAULT_BYTES,
        iterations: 16,
        budget: std::time::Duration::from_secs(5),
    };
    Ok(job.run(stage, uid, None)?.fault_ns)
}

/// A page below their limit: a re-sum of all of them, and a breach by one more.
fn with_siblings(stage: &Stage) -> Result<(Result<f64>, Result<f64>)> {
    let _idle = idle::start(stage, 1, SIBLINGS)?;
    let mut kernel_half = Loaded::load(options(32_768, 4096)?)?;
    let slot = kernel_half.open_account(stage.further_uid(0), PageBounds::default())?;
    kernel_half.take_charge()?;
    kernel_half.get().resum_now()?;
    let accounts = kernel_half.get().accounts();
    let held = accounts.account(slot).context("the siblings")?.held;
    let bounds = PageBounds {
        limit: Some(Pages::new(held.get() + 1)),
        ..PageBounds::default()
    };
    accounts.set_bounds(slot, bounds)?;
    let mut resums = Vec::new();
    for _ in 0..AUDITS {
        kernel_half.get().resum_now()?;
        resums.push(kernel_half.get().facts()?.resum.get() as f64);
    }
    let decision = search(stage, &kernel_half, slot).map(|(spent, _)| spent);
    Ok((Ok(median(&resums)), decision))
}

/// A user with a large limit of which little is used, beside so many of his processes that sleep.
fn behind_the_gate(
    stage: &Stage,
    siblings: u32,
    measure: impl FnOnce(u32) -> Result<f64>,
) -> Result<f64> {
    let _idle = idle::start(stage, 1, siblings)?;
    let with_gate = Options {
        gate: true,
        ..options(32_768, 4096)?
    };
    let mut kernel_half = Loaded::load(with_gate)?;
    let part = |hundredths: u64| Some(pages(LARGE_LIMIT_BYTES / 100 * hundredths));
    let bounds = PageBounds {
        notice: part(90),
        barrier: part(95),
        limit: part(100),
        ..PageBounds::default()
    };
    let uid = stage.further_uid(0);
    kernel_half.open_account(uid, bounds)?;
    kernel_half.take_charge()?;
    let gate = kernel_half.get().gate();
    ensure!(
        gate.mode != GateMode::None,
        "this kernel has no gate: {}",
        gate.reason.as_deref().unwrap_or("it was not asked for")
    );
    measure(uid).context("map memory")
}
