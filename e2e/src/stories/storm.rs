// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two thousand processes of two hundred users, all forking and faulting.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::daemon::is_empty;
use crate::hog::Hog;
use crate::length::whole;
use crate::runner::{Place, Story};
use crate::wait::{until, within};
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[Story {
    name: "two_thousand_processes_fork_and_fault_and_the_ledger_ends_at_nothing",
    place: Place::Host,
    tell: storm,
}];

const USERS: u32 = 200;
const PROCESSES_EACH: u32 = 10;
/// Longer than a story may take; whoever ends the story by force is not left with them for ever.
const TOO_LONG_MS: u32 = 200_000;
const A_SLOW_START: Duration = Duration::from_secs(90);

fn processes(world: &World) -> Result<u32> {
    let accounts = world.daemon.status()?.accounts;
    Ok(accounts.iter().map(|it| it.processes).sum())
}

fn storm(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "storm", "")?;
    world.daemon.start()?;
    for user in 0..USERS {
        world.daemon.limit(&(60000 + user).to_string(), "64M")?;
    }
    let started = Instant::now();
    let mut jobs = Vec::new();
    for user in 0..USERS {
        // Nine fork children that fault, one faults itself, until they are ended.
        let forkers = PROCESSES_EACH - 1;
        let uid = 60000 + user;
        jobs.push(world.hog(&format!(
            "uid={uid} wait fork={forkers} forks={TOO_LONG_MS}"
        ))?);
        jobs.push(world.hog(&format!("uid={uid} wait churn={TOO_LONG_MS}"))?);
    }
    // Not before all are there: who comes beside those that work comes late.
    jobs.iter_mut().try_for_each(Hog::go_on)?;
    let all = USERS * PROCESSES_EACH;
    let mut most = 0;
    within(A_SLOW_START, "all of them at once", || {
        std::thread::sleep(Duration::from_millis(200));
        most = most.max(processes(&world)?);
        Ok((most >= all).then_some(()))
    })?;
    let there = started.elapsed();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(whole(60).or(8)) {
        std::thread::sleep(Duration::from_secs(1));
        most = most.max(processes(&world)?);
    }
    let ended = Instant::now();
    // All of them before anybody is waited for: who ends gets no processor beside those that go on.
    jobs.iter().for_each(Hog::kill);
    for job in &mut jobs {
        job.finish()?;
    }
    until("held being nothing everywhere", || {
        let accounts = world.daemon.status()?.accounts;
        let is_done = accounts.iter().all(is_empty);
        Ok((accounts.len() == USERS as usize && is_done).then_some(()))
    })?;
    let gone = ended.elapsed();
    let half = world.daemon.status()?.kernel_half;
    println!(
        "        all there after {there:.0?}, gone {gone:.0?} after their end; up to {most} address spaces, {} re-sums, the longest {} µs; drift repaired {} in {} \
         repairs; {} ends and {} beginnings missed; {} runs skipped; {} events lost",
        half.resums,
        half.resum_max_ns / 1000,
        half.drift_repaired_bytes,
        half.drift_repairs,
        half.stale_records,
        half.missed_processes,
        half.skipped_runs,
        half.events_lost,
    );
    ensure!(
        half.records_full == 0 && half.accounts_full == 0,
        "{half:?}"
    );
    let kills = world
        .daemon
        .status()?
        .accounts
        .iter()
        .map(|it| it.kills)
        .sum::<u64>();
    ensure!(
        kills == 0,
        "{kills} kills although everybody was within his limit"
    );
    Ok(())
}
