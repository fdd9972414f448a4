// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What grows with the machine: the re-sum and the search for a victim, which look at processes; the
//! event, which should not; and memory.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bursar_e2e::World;
use bursar_kernel::{KernelEventKind, PageBounds, Slot};
use bursar_model::Pages;
use serde::{Deserialize, Serialize};

use crate::allocator::Job;
use crate::figures::{Spread, median};
use crate::idle;
use crate::load::{FAR_BYTES, Loaded, Stage, User, options, pages};
use crate::lock::Lock;
use crate::progress::Progress;

const PROCESSES: [u32; 3] = [100, 1000, 10_000];
const ACCOUNTS: [u32; 3] = [1, 100, 1000];
/// Re-sums looked at in one round.
const RESUMS: usize = 15;
const SEARCHES: usize = 3;

const TICKS: u32 = 12;

/// The whole table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Scale {
    pub(crate) rows: Vec<Row>,
    pub(crate) memory: Vec<Memory>,
}

/// With so many processes of so many accounts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) processes: u32,
    pub(crate) accounts: u32,
    pub(crate) cannot: Option<String>,
    /// What the timer does each 200 ms, by turns: re-sums and walks. Nanoseconds.
    pub(crate) resum: Option<Spread>,
    /// All of it at once, as when bursard starts or a limit is set. Nanoseconds.
    pub(crate) whole: Option<Spread>,
    /// Processes that the last walk met, those of the machine included.
    pub(crate) met: u64,
    /// From the crossing event to the signal, nanoseconds: the search for a victim and the kill.
    pub(crate) search: Option<Spread>,
    /// Processes weighed in that search.
    pub(crate) weighed: u32,
    /// What the event trigger takes for an event of a user with a limit, nanoseconds, median of the
    /// rounds: the kernel's own statistics.
    pub(crate) event_ns: Option<f64>,
}

/// What memory is taken for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) accounts: u32,
    /// bursard's resident set, bytes.
    pub(crate) bursard_bytes: u64,
    /// The kernel half's maps, bytes.
    pub(crate) maps_bytes: u64,
}

pub(crate) fn measure(stage: &Stage, rounds: usize, lock: &Lock) -> Result<Scale> {
    let mut progress = Progress::new("scale", PROCESSES.len() * ACCOUNTS.len() + ACCOUNTS.len());
    let mut rows = Vec::new();
    for processes in PROCESSES {
        for accounts in ACCOUNTS {
            lock.keep()?;
            let mut row = Row {
                processes,
                accounts,
                cannot: None,
                resum: None,
                whole: None,
                met: 0,
                search: None,
                weighed: 0,
                event_ns: None,
            };
            if let Err(error) = fill(stage, rounds, &mut row) {
                row.cannot = Some(format!("{error:#}"));
            }
            rows.push(row);
            progress.step(&format!("{processes} processes, {accounts} accounts"));
        }
    }
    let mut memory = Vec::new();
    for accounts in ACCOUNTS {
        memory.push(memory_of(stage, accounts)?);
        progress.step(&format!("memory, {accounts} accounts"));
    }
    Ok(Scale { rows, memory })
}

fn bounds(limit: Pages) -> PageBounds {
    PageBounds {
        limit: Some(limit),
        ..PageBounds::default()
    }
}

fn fill(stage: &Stage, rounds: usize, row: &mut Row) -> Result<()> {
    let _idle = idle::start(stage, row.accounts, row.processes)?;
    let (mut resums, mut wholes) = (Vec::new(), Vec::new());
    let (mut searches, mut events) = (Vec::new(), Vec::new());
    let job = Job {
        processes: None,
        bytes: 64 << 20,
        iterations: 8,
        budget: Duration::from_millis(800),
    };
    for _ in 0..rounds {
        let mut kernel_half = Loaded::load(options(32_768, 4096)?)?;
        kernel_half.open_account(stage.uid(User::Far), bounds(pages(FAR_BYTES)))?;
        let mut slots = Vec::new();
        for index in 0..row.accounts {
            slots.push(
                kernel_half.open_account(stage.further_uid(index), bounds(pages(FAR_BYTES * 4)))?,
            );
        }
        kernel_half.take_charge()?;
        events.push(kernel_half.event_ns(|| {
            job.run(stage, stage.uid(User::Far), None)?;
            Ok(())
        })?);
        for _ in 0..RESUMS {
            kernel_half.get().resum_now()?;
            wholes.push(kernel_half.get().facts()?.resum.get() as f64);
        }
        watch_ticks(&kernel_half, &mut resums)?;
        row.met = kernel_half.get().facts()?.resum_processes;
        for _ in 0..SEARCHES {
            let slot = *slots.first().context("no account")?;
            let (spent, weighed) = search(stage, &kernel_half, slot)?;
            searches.push(spent);
            row.weighed = weighed;
        }
        drop(kernel_half);
    }
    row.resum = Spread::of(&resums);
    row.whole = Spread::of(&wholes);
    row.search = Spread::of(&searches);
    row.event_ns = Some(median(&events));
    Ok(())
}

/// The timer's next ticks, each counted once: as many as have two walks among them.
pub(super) fn watch_ticks(kernel_half: &Loaded, resums: &mut Vec<f64>) -> Result<()> {
    let end = Instant::now() + Duration::from_millis(200 * u64::from(TICKS + 2));
    let mut last = kernel_half.get().facts()?.resums;
    let mut seen = 0;
    while seen < TICKS && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
        let facts = kernel_half.get().facts()?;
        if facts.resums != last {
            last = facts.resums;
            seen += 1;
            resums.push(facts.resum.get() as f64);
        }
    }
    Ok(())
}

/// One breach by one process of the first account. Returns what the kernel half says it took, and how
/// many processes it weighed.
pub(super) fn search(stage: &Stage, kernel_half: &Loaded, slot: Slot) -> Result<(f64, u32)> {
    let accounts = kernel_half.get().accounts();
    let ring = kernel_half.get().event_ring()?;
    let held = accounts.account(slot).context("the account")?.held;
    let room = pages(8 << 20).get();
    accounts.set_bounds(slot, bounds(Pages::new(held.get() + room)))?;
    let uid = stage.further_uid(0);
    let mut command = std::process::Command::new(stage.binaries.path("hog"));
    command.args([&format!("uid={uid}"), "hold=64M", "pause"]);
    let mut hog = bursar_e2e::Hog::spawn(&mut command)?;
    hog.expect_killed()?;
    accounts.set_bounds(slot, bounds(pages(FAR_BYTES * 4)))?;
    let events = ring.drain()?;
    let kill = events
        .iter()
        .find(|it| it.kind == KernelEventKind::Kill && it.pid.get() == hog.pid());
    match kill {
        Some(kill) => Ok((kill.latency.get() as f64, kill.candidates_met)),
        None => bail!("the kernel half did not tell of the kill"),
    }
}

fn memory_of(stage: &Stage, accounts: u32) -> Result<Memory> {
    let mut world = World::new(&stage.binaries, "bench-memory", "")?;
    world.daemon.start()?;
    for index in 0..accounts {
        world
            .daemon
            .limit(&stage.further_uid(index).to_string(), "8G")?;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", world.daemon.pid()?))?;
    let resident = status
        .lines()
        .find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .split_whitespace()
                .next()?
                .parse::<u64>()
                .ok()
        })
        .context("VmRSS")?;
    Ok(Memory {
        accounts,
        bursard_bytes: resident * 1024,
        maps_bytes: crate::load::maps_bytes(world.pins())?,
    })
}
