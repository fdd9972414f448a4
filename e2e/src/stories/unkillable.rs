// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that have been told to die and hold on to what they have: they wait for a device, a file system, a
//! freezer. What they hold is held.

use anyhow::{Context, Result, ensure};
use bursar_model::EventKind;

use crate::freezer::Freezer;
use crate::proc::status_of;
use crate::runner::{Place, Story};
use crate::signal::send;
use crate::wait::until;
use crate::world::{Binaries, World};

// A freezer of cgroup version 2 lets the dying go.
pub(super) const STORIES: &[Story] = &[
    Story {
        name: "who_is_dying_and_gives_nothing_back_counts_again",
        place: Place::Host,
        tell: counts_again,
    },
    Story {
        name: "who_shares_the_memory_of_one_that_is_dying_has_it_not_for_nothing",
        place: Place::Host,
        tell: kept_memory,
    },
];

const MIB: u64 = 1 << 20;

fn counts_again(binaries: &Binaries) -> Result<()> {
    // The reapers would take its memory from outside, frozen as it is.
    let mut world = World::new(binaries, "linger", "[reap]\nothers_from = \"none\"\n")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "128M")?;
    let mut dying = world.there("uid=60001 hold=100M say=there pause")?;
    // After it, so that it is thawed before it is waited for.
    let freezer = Freezer::new()?;
    freezer.freeze(dying.pid())?;
    send(dying.pid(), libc::SIGKILL)?;
    let held = |world: &World| Ok::<u64, anyhow::Error>(world.daemon.memory("60001")?.held.get());
    until("its counting as dying", || {
        Ok((held(&world)? < 10 * MIB).then_some(()))
    })?;
    until("its counting again", || {
        Ok((held(&world)? >= 100 * MIB).then_some(()))
    })?;
    let unkillable = || -> Result<u64> {
        let account = world.daemon.account("60001")?.context("the account")?;
        Ok(account.unkillable.get())
    };
    until("its being told apart", || {
        Ok((unkillable()? >= 100 * MIB).then_some(()))
    })?;
    let output = world.bursar(&["status"]).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(said.contains("give nothing back"), "{said}");
    // There is room for 28 MiB beside it.
    let mut small = world.there("uid=60001 hold=10M say=there pause")?;
    world.hog("uid=60001 hold=100M pause")?.expect_killed()?;
    small.expect_alive("one that is within the limit")?;
    drop(small);
    drop(freezer);
    dying.expect_killed()?;
    until("nothing held", || {
        let account = world.daemon.account("60001")?.context("the account")?;
        Ok((held(&world)? < MIB && account.unkillable.get() == 0).then_some(()))
    })
}

fn kept_memory(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "heir", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let mut twins =
        world.there("uid=60001 twin hold=40M say=there wait hold=300M say=done pause")?;
    let owner = twins.pid();
    let freezer = Freezer::new()?;
    freezer.freeze(owner)?;
    send(owner, libc::SIGKILL)?;
    until("its counting as dying", || {
        Ok((world.daemon.memory("60001")?.held.get() < 10 * MIB).then_some(()))
    })?;
    twins.go_on()?;
    let kill = until("the other one's kill", || {
        let kills = world.daemon.events_of(EventKind::Kill)?;
        Ok(kills.into_iter().next())
    })?;
    ensure!(
        kill.pid.is_some_and(|pid| pid.get() != owner),
        "it tells of who was dying already: {kill:?}"
    );
    // What was there when it was told to die, and the limit beyond that: 104 MiB, and files of the program.
    let most = status_of(owner, "VmHWM")? / 1024;
    println!("        {most} MiB of 340 MiB, limit 64 MiB");
    ensure!(most < 160, "{most} MiB");
    drop(freezer);
    until("nothing held", || {
        Ok((world.daemon.memory("60001")?.held.get() < MIB).then_some(()))
    })
}
