// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A kill that somebody looks at afterwards.

use anyhow::{Context, Result, ensure};
use bursar_model::{EventKind, Pid};

use super::{OTHER, USER, said};
use crate::runner::{Place, Story};
use crate::world::{Binaries, World};

pub(super) const FULL: Story = Story {
    name: "why_in_full_tells_of_all_who_were_weighed_and_of_the_minutes_before",
    place: Place::Anywhere,
    tell: full,
};

fn full(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "incident", "")?;
    world.let_users_in()?;
    world.daemon.start()?;
    world.daemon.limit(&USER.to_string(), "200M")?;
    let long = "x".repeat(300);
    let small = world.there(&format!("uid={USER} hold=20M say=there pause"))?;
    let _long = world.there(&format!("uid={USER} name={long} hold=10M say=there pause"))?;
    let mut big = world.there(&format!(
        "uid={USER} name=big hold=120M say=there wait hold=35M sleep=1500 hold=40M pause"
    ))?;
    big.go_on()?;
    big.expect_killed()?;
    let event = world.daemon.await_event(EventKind::Kill, big.pid())?;
    ensure!(event.candidates.len() == 3, "{event:?}");
    let us = Pid::new(std::process::id());
    for candidate in &event.candidates {
        let command = candidate.command.as_deref().context("no command line")?;
        ensure!(
            command.chars().count() <= 120 && command.contains(&format!("uid={USER}")),
            "{candidate:?}"
        );
        ensure!(
            candidate.parent == Some(us) && candidate.began.is_some(),
            "{candidate:?}"
        );
        ensure!(candidate.parent_comm.is_some(), "{candidate:?}");
    }
    let of_small = event
        .candidates
        .iter()
        .find(|it| it.pid.get() == small.pid());
    ensure!(
        of_small.is_some_and(|it| it
            .command
            .as_ref()
            .is_some_and(|it| it.contains("hold=20M"))),
        "{event:?}"
    );
    for uid in [0, USER] {
        let whom = big.pid().to_string();
        let (code, text) = said(&world, uid, &["why", &whom, "--full"], Some("100"))?;
        let is_told = ["hold=20M", "parent ", "began ", "Held before:", ", killed"]
            .iter()
            .all(|it| text.contains(it));
        ensure!(code == 0 && is_told, "{uid}: {code} {text}");
        let (code, text) = said(&world, uid, &["why", &whom], Some("100"))?;
        ensure!(
            code == 0 && !text.contains("hold=20M") && !text.contains("Held before:"),
            "{uid}: {code} {text}"
        );
    }
    let (code, text) = said(
        &world,
        OTHER,
        &["why", &big.pid().to_string(), "--full"],
        Some("100"),
    )?;
    ensure!(code == 0 && !text.contains("hold="), "{code} {text}");
    Ok(())
}
