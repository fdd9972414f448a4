// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The row privvmpages: what an account has asked for, touched or not, has a bound of its own (S5 3.1).

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use bursar_model::{EventKind, How, Resource};

use super::ALICE;
use super::beancounters::row;
use super::gate::{answers, expect, expect_empty, start};
use super::growers::grower;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "privvmpages_refuse_what_is_asked_for_where_memory_has_no_limit",
        place: Place::Guest,
        tell: alone,
    },
    Story {
        name: "privvmpages_and_memory_each_refuse_by_their_own_bound",
        place: Place::Guest,
        tell: beside_memory,
    },
    Story {
        name: "privvmpages_and_committed_hold_what_exec_maps_by_itself",
        place: Place::Guest,
        tell: images,
    },
];

/// 64 MiB in pages of 4 KiB.
const BARRIER: u64 = 16_384;

fn set(world: &World, arguments: &[&str]) -> Result<String> {
    let who = ALICE.to_string();
    let words = [&["limit", "set", &who], arguments].concat();
    let output = world
        .bursar(&words)
        .output()
        .context("run bursar limit set")?;
    ensure!(output.status.success(), "{output:?}");
    let said = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&said).into_owned())
}

fn alone(binaries: &Binaries) -> Result<()> {
    let mut world = start(binaries, "privvmpages", "")?;
    let said = set(&world, &["privvmpages=64M"])?;
    ensure!(!said.contains("nothing is refused"), "{said}");
    let steps = "map=40M|map=30M|shared=30M|noreserve=30M|none=200M|writable|drop|drop|brk=30M|fork|touch|map=10M|drop|\
                 drop|map=50M|run=ls / >/dev/null";
    let expected = [
        "map=40M: ok",
        "map=30M: ENOMEM",
        // Shared memory counts as far as it is touched.
        "shared=30M: ok",
        "noreserve=30M: ENOMEM",
        "none=200M: ok",
        "writable: ENOMEM",
        "brk=30M: ENOMEM",
        // A child could come to hold as much again.
        "fork: EAGAIN",
        "map=10M: ok",
        // What was unmapped can be asked for again.
        "map=50M: ok",
        "run=ls / >/dev/null: 0",
    ];
    expect(&answers(binaries, ALICE, steps)?, &expected)?;
    let seen = row(&world, ALICE, Resource::Privvmpages)?;
    ensure!(
        seen.how == How::Exact && seen.barrier == Some(BARRIER),
        "{seen:?}"
    );
    ensure!(
        seen.maxheld
            .is_some_and(|most| (BARRIER / 2..=BARRIER).contains(&most)),
        "{seen:?}"
    );
    ensure!((5..12).contains(&seen.failcnt), "{seen:?}");
    let memory = world.daemon.memory(&ALICE.to_string())?;
    ensure!(memory.failcnt == 0, "{memory:?}");
    let told = until("a refusal to be told", || {
        let mut events = world.daemon.events()?.into_iter();
        Ok(events.find(|it| it.event == EventKind::Refused))
    })?;
    let refused = told.row.as_ref().context("its row")?;
    ensure!(
        refused.resource == Resource::Privvmpages
            && refused.barrier == BARRIER
            && refused.asked == 30 * 256
            && told.comm.as_deref() == Some("grower"),
        "{told:#?}"
    );
    // Without bursard, too.
    world.daemon.end(libc::SIGKILL)?;
    expect(&answers(binaries, ALICE, steps)?, &expected)?;
    world.daemon.start()?;
    expect_empty(&world)?;
    // Observed: told of, and granted.
    set(&world, &["privvmpages=64M", "--observe"])?;
    let granted = answers(binaries, ALICE, "map=40M|map=30M|fork")?;
    expect(&granted, &["map=40M: ok", "map=30M: ok", "fork: ok"])?;
    until("what would be refused to be told", || {
        let mut events = world.daemon.events()?.into_iter();
        Ok(events.find(|it| it.event == EventKind::WouldRefuse))
    })?;
    expect_empty(&world)?;
    set(&world, &["privvmpages=unlimited"])?;
    let free = answers(binaries, ALICE, "map=40M|map=300M|fork")?;
    expect(&free, &["map=40M: ok", "map=300M: ok", "fork: ok"])
}

fn beside_memory(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "privvmpages-both", "")?;
    set(&world, &["64M", "privvmpages=256M"])?;
    let steps = "map=50M|map=50M|map=50M|map=50M|map=57M|touch|map=15M|fork";
    expect(
        &answers(binaries, ALICE, steps)?,
        &[
            "map=50M: ok",
            "map=50M: ok",
            "map=50M: ok",
            "map=50M: ok",
            // By privvmpages: with what is held it would fit.
            "map=57M: ENOMEM",
            // By memory's barrier.
            "map=15M: ENOMEM",
            "fork: EAGAIN",
        ],
    )?;
    let seen = row(&world, ALICE, Resource::Privvmpages)?;
    let memory = world.daemon.memory(&ALICE.to_string())?;
    ensure!(
        seen.failcnt == 2 && memory.failcnt == 1,
        "{seen:?} {memory:?}"
    );
    expect_empty(&world)
}

/// A program's .bss is neither mmap nor brk. Whoever is refused it has no image to go back to.
fn images(binaries: &Binaries) -> Result<()> {
    const STEPS: &str = "image=30M|image=100M|image=1M|run=ls / >/dev/null";
    let refused = format!("image=100M: signal {}", libc::SIGKILL);
    let expected = [
        "image=30M: status 0",
        &refused,
        "image=1M: status 0",
        "run=ls / >/dev/null: 0",
    ];
    for (name, config, bound) in [
        ("images-private", "", "privvmpages=64M"),
        ("images-committed", "measure = \"committed\"\n", "64M"),
    ] {
        let world = start(binaries, name, config)?;
        set(&world, &[bound])?;
        expect(&answers(binaries, ALICE, STEPS)?, &expected)?;
        let failcnt = match config {
            "" => row(&world, ALICE, Resource::Privvmpages)?.failcnt,
            _ => world.daemon.memory(&ALICE.to_string())?.failcnt,
        };
        ensure!(failcnt == 1, "{name}: failcnt {failcnt}");
        until("the refusal to be told", || {
            let mut events = world.daemon.events()?.into_iter();
            Ok(events.find(|it| it.event == EventKind::Refused))
        })?;
        expect_empty(&world)?;
        // Who is told of it only gets it.
        set(&world, &[bound, "--observe"])?;
        let granted = answers(binaries, ALICE, "image=100M")?;
        expect(&granted, &["image=100M: status 0"])?;
        expect_empty(&world)?;
    }
    small_image(binaries)?;
    // What is resident does not grow by it.
    let world = start(binaries, "images-resident", "")?;
    set(&world, &["64M"])?;
    let granted = answers(binaries, ALICE, "image=100M")?;
    expect(&granted, &["image=100M: status 0"])?;
    expect_empty(&world)
}

/// At the barrier a small program still begins, whatever bound memory has beside it.
fn small_image(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "images-small", "")?;
    set(&world, &["256M", "privvmpages=64M"])?;
    let steps = format!("map=60M|{}wait", "map=64K|".repeat(80));
    let mut large = grower(binaries, ALICE, &steps)
        .stdin(Stdio::piped())
        .spawn()?;
    until("the large program to be refused", || {
        Ok((row(&world, ALICE, Resource::Privvmpages)?.failcnt > 20).then_some(()))
    })?;
    let shell = Command::new("sh")
        .args(["-c", "kill -0 $$"])
        .uid(ALICE)
        .status()?;
    ensure!(shell.success(), "a shell at the barrier: {shell}");
    drop(large.stdin.take());
    ensure!(large.wait()?.success(), "the large program");
    expect_empty(&world)
}
