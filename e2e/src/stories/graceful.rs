// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kill = "graceful"` goes by how an account stands: whatever its bounds are, and whatever was changed or restarted
//! meanwhile. What a process that is asked makes of it: reap.rs.

use std::fs;

use anyhow::{Result, ensure};
use bursar_model::EventKind;

use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "without_a_limit_the_largest_is_asked_and_not_a_tiny_one_that_is_in_front",
        place: Place::Anywhere,
        tell: without_limit,
    },
    Story {
        name: "a_process_asked_lives_where_its_account_is_no_longer_graceful",
        place: Place::Anywhere,
        tell: taken_back,
    },
    Story {
        name: "an_account_that_becomes_graceful_over_its_notice_has_its_largest_asked",
        place: Place::Anywhere,
        tell: added,
    },
    Story {
        name: "a_process_asked_is_killed_by_the_next_bursard",
        place: Place::Anywhere,
        tell: restarted,
    },
];

const USER: u32 = 60541;
const OTHER: u32 = 60542;

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

fn taken_back(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "graceback", "")?;
    write(
        &world,
        &[(USER, "200M", GRACEFUL), (OTHER, "200M", GRACEFUL)],
    )?;
    world.daemon.start()?;
    let mut spared = world.hog(&format!("uid={USER} deaf hold=60M pause"))?;
    world.daemon.await_event(EventKind::Asked, spared.pid())?;
    write(&world, &[(USER, "200M", ""), (OTHER, "200M", GRACEFUL)])?;
    world.daemon.reload()?;
    // Its time is over later.
    let mut deaf = world.hog(&format!("uid={OTHER} deaf hold=60M pause"))?;
    deaf.expect_killed()?;
    spared.expect_alive("one below its limit, where nobody is killed before that any more")
}

fn added(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "graceadd", "")?;
    write(&world, &[(USER, "200M", "")])?;
    world.daemon.start()?;
    let mut polite = world.there(&format!("uid={USER} hold=60M say=there pause"))?;
    until("its notice", || {
        let notices = world.daemon.events_of(EventKind::Notice)?;
        Ok((!notices.is_empty()).then_some(()))
    })?;
    write(&world, &[(USER, "200M", GRACEFUL)])?;
    world.daemon.reload()?;
    ensure!(polite.end()? == Some(libc::SIGTERM));
    world.daemon.await_event(EventKind::Asked, polite.pid())?;
    Ok(())
}

fn restarted(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "gracenext", "")?;
    write(&world, &[(USER, "200M", GRACEFUL)])?;
    world.daemon.start()?;
    let mut deaf = world.hog(&format!("uid={USER} deaf hold=60M pause"))?;
    world.daemon.await_event(EventKind::Asked, deaf.pid())?;
    world.daemon.end(libc::SIGKILL)?;
    world.daemon.start()?;
    deaf.expect_killed()?;
    let kill = world.daemon.await_event(EventKind::Kill, deaf.pid())?;
    let reason = kill.reason.as_deref().unwrap_or_default();
    ensure!(reason.contains("asked to end"), "{kill:?}");
    Ok(())
}
