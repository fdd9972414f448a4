// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What limits would change, asked before they hold; and a reload that would kill.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bursar_protocol::{AccountPreview, Over, Preview};

use super::command::run;
use super::limits::ORDINARY;
use crate::hog::Hog;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "preview_says_who_would_be_over_what_and_who_would_be_killed",
        place: Place::Anywhere,
        tell: says_who,
    },
    Story {
        name: "preview_of_a_reload_that_would_kill_and_it_is_refused_until_it_is_forced",
        place: Place::Anywhere,
        tell: reload_refused,
    },
];

/// What `bursar check --live FILE` says, and its exit code.
fn live(world: &World, file: Option<&Path>) -> Result<(i32, Preview)> {
    let mut command = world.bursar(&["--json", "check", "--live"]);
    let (code, said) = run(command.args(file))?;
    let mut report: serde_json::Value = serde_json::from_str(&said).context(said)?;
    Ok((code, serde_json::from_value(report["live"].take())?))
}

fn of(preview: &Preview, uid: u32) -> Result<&AccountPreview> {
    let is_it = |it: &&AccountPreview| it.uid.is_some_and(|it| it.get() == uid);
    let found = preview.accounts.iter().find(is_it);
    found.with_context(|| format!("{uid} in {preview:?}"))
}

/// Whose entry limits him to how many MiB, before and then.
fn change(account: &AccountPreview) -> [Option<(String, u64)>; 2] {
    [&account.old, &account.new].map(|bound| {
        let bound = bound.as_ref()?;
        Some((bound.who.to_string(), bound.limit?.get() >> 20))
    })
}

/// Both of them.
fn both(who: &str, old: u64, then: &str, new: u64) -> [Option<(String, u64)>; 2] {
    [Some((who.to_owned(), old)), Some((then.to_owned(), new))]
}

fn says_who(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "preview", ORDINARY)?;
    world.daemon.start()?;
    world.daemon.limit("60001", "200M")?;
    world.daemon.limit("60002", "200M")?;
    world.daemon.limit("default", "300M")?;
    let mut small = world.there("uid=60001 hold=20M say=there pause")?;
    let mut large = world.there("uid=60001 hold=80M say=there pause")?;
    let mut near = world.there("uid=60002 hold=60M say=there pause")?;
    let mut by_default = world.there("uid=60003 hold=40M say=there pause")?;
    let file = world.directory().join("wanted.toml");
    fs::write(
        &file,
        "[limits]\n60001 = { memory = \"50M\" }\n60004 = { memory = \"64M\" }\ndefault = { memory = \"64M\" }\n\
         nobody-has-this-name = { memory = \"1G\" }\n",
    )?;
    let limits = world.daemon.limits_path();
    let before = (fs::read_to_string(&limits)?, world.daemon.events()?.len());
    let (code, preview) = live(&world, Some(&file))?;
    ensure!(code == 1 && preview.refused, "{code} {preview:?}");
    let killed = of(&preview, 60001)?;
    ensure!(
        killed.over == Some(Over::Limit) && change(killed) == both("60001", 200, "60001", 50),
        "{killed:?}"
    );
    let victim = killed.victim.as_ref().context("a victim")?;
    ensure!(victim.pid.get() == large.pid(), "{victim:?}");
    ensure!(
        preview.accounts.first() == Some(killed),
        "the worst is not first"
    );
    others_of(&preview)?;

    // It has changed nothing.
    let (_, text) = run(&mut world.bursar(&["check", "--live", file.to_str().context("path")?]))?;
    ensure!(
        text.contains(&format!("hog[{}]", large.pid())) && text.contains("1 over the limit"),
        "{text}"
    );
    for hog in [&mut small, &mut large, &mut near, &mut by_default] {
        hog.expect_alive("one who was only asked about")?;
    }
    let after = (fs::read_to_string(&limits)?, world.daemon.events()?.len());
    ensure!(before == after, "{before:?}, then {after:?}");

    dry_run(&world, large.pid())
}

/// Who is not over his limit.
fn others_of(preview: &Preview) -> Result<()> {
    // He falls to default, and is near it.
    let falls = of(preview, 60002)?;
    ensure!(
        change(falls) == both("60002", 200, "default", 64),
        "{falls:?}"
    );
    ensure!(
        matches!(falls.over, Some(Over::Notice | Over::Barrier)) && falls.victim.is_none(),
        "{falls:?}"
    );
    let lowered = of(preview, 60003)?;
    ensure!(
        lowered.over.is_none() && change(lowered) == both("default", 300, "default", 64),
        "{lowered:?}"
    );
    ensure!(lowered.held.get() >> 20 >= 40, "{lowered:?}");
    ensure!(of(preview, 60004)?.held.get() == 0, "{preview:?}");
    let says = |word: &str| preview.remarks.iter().any(|it| it.contains(word));
    ensure!(
        says("nobody-has-this-name: there is no user"),
        "{preview:?}"
    );
    Ok(())
}

/// The same of a command.
fn dry_run(world: &World, victim: u32) -> Result<()> {
    let set = ["limit", "set", "60001", "50M", "--dry-run"];
    let (code, said) = run(&mut world.bursar(&set))?;
    ensure!(
        code == 0 && said.contains("limit 200 MiB (60001) -> limit 50 MiB (60001)"),
        "{code} {said}"
    );
    ensure!(said.contains(&format!("hog[{}]", victim)), "{said}");
    let limit = world.daemon.memory("60001")?.limit;
    ensure!(limit.map(|it| it.get() >> 20) == Some(200), "{limit:?}");
    // What changes nothing says so.
    let (code, said) = run(&mut world.bursar(&["limit", "set", "60001", "200M", "--dry-run"]))?;
    ensure!(
        code == 0 && said.contains("nobody's limit on memory changes"),
        "{said}"
    );
    Ok(())
}

/// Whoever has bursard restarted (an upgrade) may know nothing of the limits that a reload has refused.
fn a_restart_is_a_reload(world: &mut World, hog: &mut Hog) -> Result<()> {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        world.daemon.end(signal)?;
        world.daemon.start()?;
        let limit = world.daemon.memory("60001")?.limit;
        ensure!(limit.map(|it| it.get() >> 20) == Some(100), "{limit:?}");
        let remarks = world.daemon.status()?.remarks;
        let is_said = remarks.iter().any(|it| it.contains("not in force"));
        ensure!(is_said, "{remarks:?}");
        hog.expect_alive("one whom a start would have killed")?;
    }
    Ok(())
}

fn reload_refused(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "refuse", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "100M")?;
    let mut hog = world.there("uid=60001 hold=80M say=there pause")?;
    let limits = world.daemon.limits_path();
    let low = "[limits]\n60001 = { memory = \"50M\" }\n60002 = { memory = \"1G\" }\n";
    fs::write(&limits, low)?;
    let (code, preview) = live(&world, Some(&limits))?;
    ensure!(
        code == 1 && of(&preview, 60001)?.over == Some(Over::Limit),
        "{preview:?}"
    );
    world.daemon.signal(libc::SIGHUP)?;
    let why = until("status saying why", || {
        let remarks = world.daemon.status()?.remarks;
        Ok(remarks.into_iter().find(|it| it.contains("not in force")))
    })?;
    ensure!(
        why.contains("60001 holds 8")
            && why.contains("would kill at once")
            && why.contains("check --live"),
        "{why}"
    );
    // All or nothing.
    ensure!(
        world.daemon.account("60002")?.is_none(),
        "a part of it holds"
    );
    let limit = world.daemon.memory("60001")?.limit;
    ensure!(limit.map(|it| it.get() >> 20) == Some(100), "{limit:?}");
    hog.expect_alive("one whom a reload would have killed")?;
    a_restart_is_a_reload(&mut world, &mut hog)?;
    // What would kill nobody is put in force, and nothing is left to be said.
    fs::write(&limits, low.replace("50M", "90M"))?;
    world.daemon.signal(libc::SIGHUP)?;
    until("the limits being in force", || {
        Ok(world.daemon.account("60002")?.map(drop))
    })?;
    let remarks = world.daemon.status()?.remarks;
    ensure!(
        !remarks.iter().any(|it| it.contains("not in force")),
        "{remarks:?}"
    );

    // A file that says so is put in force, and what another one says is not.
    fs::write(&limits, format!("force = true\n{low}"))?;
    let (code, preview) = live(&world, Some(&limits))?;
    ensure!(
        code == 0 && !preview.refused && of(&preview, 60001)?.over == Some(Over::Limit),
        "{preview:?}"
    );
    let drop_ins = world.directory().join("limits.toml.d");
    fs::create_dir(&drop_ins)?;
    nobody_observed_stands_in_the_way(&world, &limits, &drop_ins)?;
    let drop_in = drop_ins.join("10-low.toml");
    fs::write(&drop_in, "[limits]\n60001 = { memory = \"40M\" }\n")?;
    world.daemon.signal(libc::SIGHUP)?;
    until("status saying that it is refused", || {
        let remarks = world.daemon.status()?.remarks;
        Ok(remarks
            .iter()
            .any(|it| it.contains("not in force"))
            .then_some(()))
    })?;
    hog.expect_alive("one whom a file without force would have killed")?;
    fs::remove_dir_all(&drop_ins)?;
    world.daemon.signal(libc::SIGHUP)?;
    hog.expect_killed()?;
    let mut hog = world.there("uid=60001 hold=40M say=there pause")?;
    let low = low.replace("50M", "20M");

    world.daemon.end(libc::SIGTERM)?;
    world.configure("reload = \"force\"\n")?;
    world.daemon.start()?;
    fs::write(&limits, &low)?;
    world.daemon.signal(libc::SIGHUP)?;
    hog.expect_killed()
}

/// Beside limits that hold at once somebody is over one that is only observed: that kills nobody.
fn nobody_observed_stands_in_the_way(world: &World, limits: &Path, drop_ins: &Path) -> Result<()> {
    let mut observed = world.there("uid=60003 hold=20M say=there pause")?;
    fs::write(
        drop_ins.join("05-observed.toml"),
        "[limits]\n60003 = { memory = \"10M\", mode = \"observe\" }\n",
    )?;
    let (code, preview) = live(world, Some(limits))?;
    ensure!(
        code == 0 && !preview.refused && of(&preview, 60003)?.over == Some(Over::Limit),
        "{preview:?}"
    );
    observed.finish()
}
