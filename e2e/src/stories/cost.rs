// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What it costs while nothing happens.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bursar_protocol::Verdict;

use crate::length::whole;
use crate::proc::{context_switches, cpu_time, status_of};
use crate::runner::{Place, Story};
use crate::wait::within;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "idle_bursard_sleeps_and_is_small",
        place: Place::Host,
        tell: idle,
    },
    Story {
        name: "ten_thousand_processes_cost_bursard_little",
        place: Place::Host,
        tell: ten_thousand,
    },
];

fn idle(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "idle", "")?;
    world.daemon.start()?;
    for uid in 60000..60100 {
        world.daemon.limit(&uid.to_string(), "1G")?;
    }
    let _hog = world.there("uid=60001 hold=1M say=there churn=60000")?;
    // oom_score_adj of the hog is raised once; then there is nothing to do.
    std::thread::sleep(Duration::from_secs(2));
    let pid = world.daemon.pid()?;
    let before = context_switches(pid)?;
    std::thread::sleep(Duration::from_secs(10));
    let woken = context_switches(pid)? - before;
    let resident = status_of(pid, "VmRSS")?;
    let own = status_of(pid, "RssAnon")?;
    println!(
        "        woken {woken} times in 10 s, {resident} KiB resident with 100 accounts, {own} of them its own"
    );
    // Somebody holds something: once in 15 s it is looked at, and written down at the end of a minute (stories
    // usage_wakes: while nobody does, not even that).
    ensure!(woken <= 3, "woken {woken} times");
    // Most of it is pages of the program and of the kernel half's maps, of which the compiler and the kernel decide.
    ensure!(
        own <= 6 << 10 && resident <= 16 << 10,
        "{own} KiB of its own, {resident} KiB resident"
    );
    Ok(())
}

const CROWD: u32 = 10_000;
const USERS: u32 = 10;

/// The third figure. Nobody is near a limit; some work, most sleep.
fn ten_thousand(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "crowd", "")?;
    world.daemon.start()?;
    let mut hogs = Vec::new();
    for uid in 60560..60560 + USERS {
        world.daemon.limit(&uid.to_string(), "8G")?;
        hogs.push(world.hog(&format!("uid={uid} fork={} pause", CROWD / USERS))?);
        hogs.push(world.hog(&format!("uid={uid} work=600000"))?);
    }
    let mut slowest = Duration::ZERO;
    within(
        Duration::from_secs(60),
        "ten thousand processes being counted",
        || {
            let accounts = world.daemon.status()?.accounts;
            let sum: u32 = accounts.iter().map(|it| it.processes).sum();
            Ok((sum >= CROWD).then_some(()))
        },
    )?;
    let pid = world.daemon.pid()?;
    // What their beginning made for bursard to do: raise each one's oom_score_adj, once.
    let mut last = cpu_time(pid)?;
    within(
        Duration::from_secs(30),
        "bursard being done with the newcomers",
        || {
            std::thread::sleep(Duration::from_secs(1));
            let now = cpu_time(pid)?;
            Ok((std::mem::replace(&mut last, now) == now).then_some(()))
        },
    )?;
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(whole(30).or(5)));
    let spent = cpu_time(pid)? - last;
    let share = spent.as_secs_f64() / began.elapsed().as_secs_f64();
    for _ in 0..10 {
        let asked = Instant::now();
        let output = world.bursar(&["status", "--json"]).output()?;
        slowest = slowest.max(asked.elapsed());
        ensure!(output.status.success(), "{output:?}");
    }
    let asked = Instant::now();
    let found = super::check::check(&world)?;
    let checked = asked.elapsed();
    let resident = status_of(pid, "VmHWM")?;
    let half = world.daemon.status()?.kernel_half;
    println!(
        "        {} processes: bursard took {:.2} % of a core over {:.0?}, {resident} KiB resident at most; \
         bursar status took {slowest:.0?} at most of 10; the ledger check {checked:.0?} in {} rounds; a re-sum \
         {} us (longest {} us)",
        found.processes,
        share * 100.0,
        began.elapsed(),
        found.rounds,
        half.resum_ns / 1000,
        half.resum_max_ns / 1000
    );
    ensure!(share < 0.01, "{share}");
    ensure!(resident < 64 << 10, "{resident} KiB");
    ensure!(slowest < Duration::from_millis(100), "{slowest:?}");
    ensure!(
        found.left == 0 && checked < Duration::from_secs(8),
        "{checked:?}"
    );
    let is_fine = |verdict| matches!(verdict, Verdict::Within | Verdict::Moving);
    ensure!(
        found.accounts.iter().all(|it| is_fine(it.verdict)),
        "{:?}",
        found.accounts
    );
    Ok(())
}
