// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A user says which of the own processes goes first.

use std::os::unix::process::CommandExt;

use anyhow::{Result, ensure};
use bursar_model::EventKind;

use crate::hog::Hog;
use crate::runner::{Place, Story};
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "prefer_puts_ones_own_process_first",
        place: Place::Anywhere,
        tell: own_process,
    },
    Story {
        name: "prefer_puts_a_command_and_what_it_starts_first",
        place: Place::Anywhere,
        tell: command,
    },
];

/// Exit code, and all that was said, to this user.
fn prefer(world: &World, uid: u32, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let mut command = world.bursar(&["prefer"]);
    let output = command
        .args(arguments)
        .uid(uid)
        .gid(uid)
        .current_dir("/")
        .output()?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8(said)?))
}

fn own_process(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "prefer", "")?;
    world.let_users_in()?;
    world.daemon.start()?;
    world.daemon.limit("60001", "100M")?;
    let mut large = world.there("uid=60001 name=large attachable hold=44M say=there pause")?;
    let mut first = world.there("uid=60001 name=first attachable hold=24M say=there pause")?;
    let mut small = world.there("uid=60001 name=small attachable hold=1M say=there pause")?;
    for pid in [first.pid(), small.pid()] {
        let pid = pid.to_string();
        let (code, said) = prefer(&world, 60002, &[&pid])?;
        ensure!(
            code == Some(3) && said.contains("not permitted"),
            "{code:?} {said}"
        );
        let (code, said) = prefer(&world, 60001, &[&pid])?;
        ensure!(
            code == Some(0) && said.contains("goes first"),
            "{code:?} {said}"
        );
    }
    // Back to where it was, and first again, by root this time.
    let pid = first.pid().to_string();
    let (code, said) = prefer(&world, 60001, &["--by", "0", &pid])?;
    ensure!(
        code == Some(0) && said.contains("no more (it had 500)"),
        "{code:?} {said}"
    );
    let output = world
        .bursar(&["--json", "prefer", "--by", "700", &pid])
        .output()?;
    let said: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    ensure!(
        said[0]["oom_score_adj"] == 700 && said[0]["before"] == 0,
        "{said}"
    );

    let mut grower = world.hog(&format!(
        "uid=60001 name=grower hold=33M sleep={} say=there pause",
        super::watched_ms()
    ))?;
    first.expect_killed()?;
    grower.hear("there")?;
    for hog in [&mut large, &mut small, &mut grower] {
        hog.expect_alive("one that was not to go first, or frees next to nothing")?;
    }
    let kill = world.daemon.await_event(EventKind::Kill, first.pid())?;
    ensure!(kill.comm.as_deref() == Some("first"), "{kill:?}");
    let (code, said) = prefer(&world, 60001, &["2147483647"])?;
    ensure!(
        code == Some(1) && said.contains("no such process"),
        "{code:?} {said}"
    );
    let (code, said) = prefer(&world, 60001, &[])?;
    ensure!(code == Some(2), "{code:?} {said}");
    Ok(())
}

fn command(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "prefer-run", "")?;
    world.let_users_in()?;
    world.daemon.start()?;
    world.daemon.limit("60001", "100M")?;
    let mut large = world.there("uid=60001 name=large hold=55M say=there pause")?;
    let mut started = world.bursar(&["prefer", "--"]);
    started
        .arg(binaries.path("hog"))
        .args(["fork=1", "hold=24M", "say=there", "pause"]);
    let mut job = Hog::spawn(started.uid(60001).gid(60001).current_dir("/"))?;
    job.hear("there")?;
    let mut grower = world.hog(&format!(
        "uid=60001 name=grower hold=23M sleep={} say=there pause",
        super::watched_ms()
    ))?;
    grower.hear("there")?;
    large.expect_alive("the largest")?;
    let kills = world.daemon.events_of(EventKind::Kill)?;
    let comms: Vec<_> = kills.iter().filter_map(|it| it.comm.as_deref()).collect();
    ensure!(comms == ["hog"], "{kills:#?}");
    // The parent waits for its child, holds nothing, and ends.
    job.end()?;
    Ok(())
}
