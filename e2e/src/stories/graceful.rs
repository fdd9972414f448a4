// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kill = "graceful"` goes by how an account stands: whatever its bounds are, and whatever was changed or restarted
//! meanwhile. What a process that is asked makes of it: reap.rs.

use std::fs;

use anyhow::{Result, ensure};
use bursar_model::EventKind;

use crate::runner::{Place, Story};
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[Story {
    name: "without_a_limit_the_largest_is_asked_and_not_a_tiny_one_that_is_in_front",
    place: Place::Anywhere,
    tell: without_limit,
}];

const USER: u32 = 60541;

const GRACEFUL: &str = ", kill = \"graceful\"";

fn write(world: &World, entries: &[(u32, &str, &str)]) -> Result<()> {
    let line = |(user, limit, manner): &(u32, &str, &str)| {
        format!("{user} = {{ memory = {{ limit = \"{limit}\", notice = \"50M\" }}{manner} }}\n")
    };
    let lines: Vec<String> = entries.iter().map(line).collect();
    let text = format!("[limits]\n{}", lines.concat());
    Ok(fs::write(world.daemon.limits_path(), text)?)
}

fn without_limit(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "gracenone", "")?;
    write(&world, &[(USER, "none", GRACEFUL)])?;
    world.daemon.start()?;
    let mut tiny = world.there(&format!("uid={USER} hold=1M say=there pause"))?;
    fs::write(format!("/proc/{}/oom_score_adj", tiny.pid()), "500")?;
    let mut large = world.hog(&format!("uid={USER} hold=60M pause"))?;
    world.daemon.await_event(EventKind::Asked, large.pid())?;
    ensure!(large.end()? == Some(libc::SIGTERM));
    tiny.expect_alive("one that frees next to nothing")
}
