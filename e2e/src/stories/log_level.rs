// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much bursard logs can be changed while it runs.

use anyhow::{Result, ensure};

use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "the_level_of_the_log_changes_at_a_reload",
        place: Place::Anywhere,
        tell,
    },
    Story {
        name: "what_of_the_configuration_waits_for_a_restart_is_said",
        place: Place::Anywhere,
        tell: waits,
    },
];

fn tell(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "loglevel", "")?;
    world.daemon.start()?;
    let reload = |level: &str, said: &str| -> Result<()> {
        let seen = world.daemon.log()?.len();
        world.configure(&format!("[log]\nlevel = \"{level}\""))?;
        world.daemon.signal(libc::SIGHUP)?;
        until(said, || {
            let log = world.daemon.log()?;
            Ok(log
                .get(seen..)
                .unwrap_or_default()
                .contains(said)
                .then_some(()))
        })
    };
    reload("debug", "log.level is debug from now on")?;
    // A scan of shared pages is told of at that level only.
    world.daemon.limit("60001", "64M")?;
    let lines = |word: &str| -> Result<usize> { Ok(world.daemon.log()?.matches(word).count()) };
    let mut hog = world.hog("uid=60001 hold=30M fork=3 pause")?;
    until("a line of what is done", || {
        Ok((lines("DEBUG")? > 0).then_some(()))
    })?;
    hog.finish()?;
    reload("loud", "bursar.toml is not read again")?;
    // Less is said from then on, but for who changed which limit.
    reload("error", "log.level is error from now on")?;
    let told = lines("INFO")?;
    world.hog("uid=60001 hold=100M pause")?.expect_killed()?;
    world.daemon.limit("60001", "65M")?;
    until("the change of a limit", || {
        Ok((lines("limit_changed 60001: memory 65M")? > 0).then_some(()))
    })?;
    let more = lines("INFO")? - told;
    ensure!(more == 1, "{more} lines, {}", world.daemon.log()?);
    Ok(())
}

fn waits(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "waits", "")?;
    world.daemon.start()?;
    let word = "after `systemctl restart bursard` only";
    let said = || -> Result<String> {
        let remarks = world.daemon.status()?.remarks;
        Ok(remarks
            .into_iter()
            .find(|it| it.contains(word))
            .unwrap_or_default())
    };
    ensure!(said()?.is_empty(), "{}", said()?);
    world.configure("[exempt]\ncgroups = [\"/nobody-has-it\"]\n[log]\nlevel = \"info\"")?;
    world.daemon.signal(libc::SIGHUP)?;
    until("what is not in force", || {
        Ok(said()?.ends_with(": exempt.cgroups").then_some(()))
    })?;
    ensure!(
        world.daemon.log()?.contains(word),
        "the log does not say so"
    );
    // As it was.
    world.configure("")?;
    world.daemon.signal(libc::SIGHUP)?;
    until("nothing", || Ok(said()?.is_empty().then_some(())))
}
