// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that several processes share, on a machine that swaps.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bursar_model::EventKind;

use super::ALICE;
use crate::cgroup::Cgroup;
use crate::proc::shares_of;
use crate::runner::{Place, Story};
use crate::swap::Swap;
use crate::wait::within;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[Story {
    name: "nobody_is_killed_when_pages_that_several_share_are_swapped_out",
    place: Place::Guest,
    tell: swapped_out,
}];

const MIB: u64 = 1 << 20;

/// Bytes in swap, of the whole machine.
fn swapped() -> Result<u64> {
    let text = fs::read_to_string("/proc/swaps").context("read /proc/swaps")?;
    let used = text
        .lines()
        .nth(1)
        .and_then(|line| line.split_whitespace().nth(3));
    let kib: u64 = used
        .and_then(|it| it.parse().ok())
        .context("a line for the swap")?;
    Ok(kib << 10)
}

/// Five processes share 40 MiB, and four have 6 of their own; the limit is 128. The kernel swaps most of it out, and the
/// four read it back. What the fifth does not read is in memory and in swap then, so it counts twice.
fn swapped_out(binaries: &Binaries) -> Result<()> {
    let _swap = Swap::on(256 * MIB)?;
    let mut world = World::new(binaries, "swapped", "")?;
    let group = Cgroup::new("memory", "swapped")?;
    let go = world.directory().join("go");
    world.daemon.start()?;
    world.daemon.limit(&ALICE.to_string(), "128M")?;
    let mut program = world.hog(&format!(
        "cgroup={} uid={ALICE} pace=10 hold=40M fork=4 hold=6M look say=up await={} look say=back pause",
        group.path().display(),
        go.display()
    ))?;
    let is_nobody_killed = |when: &str| -> Result<()> {
        let kills = world.daemon.events_of(EventKind::Kill)?;
        ensure!(kills.is_empty(), "killed {when}: {kills:#?}");
        Ok(())
    };
    let up = (0..4).try_for_each(|_| program.hear_within("up", Duration::from_secs(60)));
    is_nobody_killed("before anything was swapped").and(up)?;
    // Nobody answers a question: what is decided meanwhile is decided by the ledger alone.
    world.daemon.signal(libc::SIGSTOP)?;
    let is_out = within(Duration::from_secs(8), "32 MiB to be swapped out", || {
        // What cannot be done at once it answers with EAGAIN.
        let _ = group.write("memory.reclaim", "8M");
        Ok((swapped()? >= 32 * MIB).then_some(()))
    });
    // A question waits for 2 s; then the sum decides.
    std::thread::sleep(Duration::from_secs(3));
    world.daemon.signal(libc::SIGCONT)?;
    is_nobody_killed("while pages were swapped out").and(is_out)?;
    let held = || Ok::<_, anyhow::Error>(world.daemon.memory(&ALICE.to_string())?.held.get());
    let out = swapped()?;
    within(Duration::from_secs(5), "held to be what /proc says", || {
        let once = shares_of(ALICE)?.once;
        Ok((held()?.abs_diff(once) <= 2 * MIB).then_some(()))
    })?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    if release.starts_with("6.1.") {
        println!(
            "        {} MiB swapped out; read back they count as copies before 6.2",
            out / MIB
        );
        return Ok(());
    }
    fs::write(&go, "").context("let them read it again")?;
    (0..4).try_for_each(|_| {
        let back = program.hear_within("back", Duration::from_secs(60));
        is_nobody_killed("while pages were read back").and(back)
    })?;
    println!(
        "        {} MiB swapped out of what five processes share, {} MiB still out, {} MiB held",
        out / MIB,
        swapped()? / MIB,
        held()? / MIB
    );
    Ok(())
}
