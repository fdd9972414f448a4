// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits in files that a configuration manager owns: `limits.toml.d/*.toml`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bursar_protocol::{LimitEntry, Operation, Reply};

use crate::length::whole;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "drop_ins_win_by_name_and_a_command_that_would_change_nothing_says_so",
        place: Place::Anywhere,
        tell: win_by_name,
    },
    Story {
        name: "drop_ins_that_are_wrong_or_not_roots_alone_leave_the_limits_in_force",
        place: Place::Anywhere,
        tell: last_good_stays,
    },
    Story {
        name: "drop_ins_with_two_thousand_limits_are_read_again_within_a_tenth_of_a_second",
        place: Place::Host,
        tell: many,
    },
];

fn drop_in(world: &World, name: &str) -> PathBuf {
    let limits = world.daemon.limits_path();
    limits.with_file_name("limits.toml.d").join(name)
}

fn write(world: &World, name: &str, entries: &str) -> Result<()> {
    let path = drop_in(world, name);
    fs::create_dir_all(path.parent().context("its directory")?)?;
    fs::write(&path, format!("[limits]\n{entries}\n")).with_context(|| format!("write {path:?}"))
}

fn limit_mib(world: &World, name: &str) -> Result<Option<u64>> {
    Ok(world.daemon.memory(name)?.limit.map(|it| it.get() >> 20))
}

fn shown(world: &World) -> Result<Vec<LimitEntry>> {
    let output = world.bursar(&["--json", "limit", "show"]).output()?;
    serde_json::from_slice(&output.stdout).context("limit show --json")
}

fn win_by_name(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "dropin", "")?;
    write(&world, "50-term.toml", "60001 = { memory = \"96M\" }")?;
    write(
        &world,
        "20-base.toml",
        "60001 = { memory = \"64M\" }\n60002 = { memory = \"128M\" }",
    )?;
    // There is no limits.toml, and none is needed.
    world.daemon.start()?;
    ensure!(limit_mib(&world, "60001")? == Some(96));
    ensure!(limit_mib(&world, "60002")? == Some(128));
    world.hog("uid=60001 hold=200M pause")?.expect_killed()?;

    let place = format!("{}:2", drop_in(&world, "50-term.toml").display());
    let output = world.bursar(&["limit", "set", "60001", "1G"]).output()?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(
        output.status.code() == Some(1),
        "{:?}: {said}",
        output.status
    );
    ensure!(
        said.contains(&place) && said.contains("nothing was changed"),
        "{said}"
    );
    ensure!(!world.daemon.limits_path().exists(), "it was written");
    let output = world.bursar(&["limit", "clear", "60001"]).output()?;
    ensure!(output.status.code() == Some(1), "{:?}", output.status);
    ensure!(limit_mib(&world, "60001")? == Some(96));

    // What no drop-in has stands in limits.toml.
    let status = world.bursar(&["limit", "set", "60003", "64M"]).status()?;
    ensure!(status.success(), "{status}");
    let text = fs::read_to_string(world.daemon.limits_path())?;
    ensure!(text.contains("60003") && !text.contains("60001"), "{text}");
    let entries = shown(&world)?;
    let origin = |number: &str| {
        let entry = entries.iter().find(|it| it.who.to_string() == number)?;
        let origin = entry.origin.as_ref()?;
        let file = origin.file.rsplit('/').next()?.to_owned();
        Some((file, origin.line, entry.overrides.len()))
    };
    ensure!(
        origin("60001") == Some(("50-term.toml".into(), 2, 1)),
        "{entries:?}"
    );
    ensure!(
        origin("60002") == Some(("20-base.toml".into(), 3, 0)),
        "{entries:?}"
    );
    ensure!(
        origin("60003").is_some_and(|it| it.0 == "limits.toml"),
        "{entries:?}"
    );
    let output = world.bursar(&["limit", "show", "--origin"]).output()?;
    let text = String::from_utf8(output.stdout)?;
    ensure!(
        text.contains(&place) && text.contains("60001 wins over"),
        "{text}"
    );
    let config = world.daemon.config_path();
    let checked = world
        .bursar(&["check", &config.display().to_string()])
        .output()?;
    ensure!(checked.status.success(), "{checked:?}");

    // Without the winner the entry before it holds, and without any of both nothing does.
    fs::remove_file(drop_in(&world, "50-term.toml"))?;
    world.daemon.reload()?;
    ensure!(limit_mib(&world, "60001")? == Some(64));
    fs::remove_file(drop_in(&world, "20-base.toml"))?;
    world.daemon.reload()?;
    ensure!(
        world.daemon.account("60001")?.is_none(),
        "it is limited still"
    );
    ensure!(limit_mib(&world, "60003")? == Some(64));
    Ok(())
}

/// A way to spoil the drop-in 60-next.toml or its directory, and what is said of it.
type Spoil = (&'static str, fn(&World) -> Result<()>);

const SPOILT: &[Spoil] = &[
    ("60-next.toml:2", |world| {
        write(world, "60-next.toml", "60001 = { memo")
    }),
    ("60-next.toml:3: 60001: stands in line 2 already", |world| {
        let twice = "60001 = { memory = \"1G\" }\n60001 = { memory = \"2G\" }";
        write(world, "60-next.toml", twice)
    }),
    ("60-next.toml: belongs to the user 60001", |world| {
        write(world, "60-next.toml", "60001 = { memory = \"1G\" }")?;
        Ok(chown(drop_in(world, "60-next.toml"), Some(60001), None)?)
    }),
    (
        "60-next.toml: may be written by others than root",
        |world| {
            write(world, "60-next.toml", "60001 = { memory = \"1G\" }")?;
            let open = fs::Permissions::from_mode(0o666);
            Ok(fs::set_permissions(drop_in(world, "60-next.toml"), open)?)
        },
    ),
    (
        "60-next.toml: is a symbolic link that leads round",
        |world| Ok(symlink("60-next.toml", drop_in(world, "60-next.toml"))?),
    ),
    ("60-next.toml: is not a regular file", |world| {
        Ok(fs::create_dir(drop_in(world, "60-next.toml"))?)
    }),
    ("limits.toml.d: does not exist", |world| {
        let directory = drop_in(world, "");
        Ok(fs::rename(&directory, directory.with_file_name("away"))?)
    }),
];

/// Takes what was spoilt away, or puts it back.
fn mend(world: &World) -> Result<()> {
    let (directory, away) = (
        drop_in(world, ""),
        drop_in(world, "").with_file_name("away"),
    );
    if away.exists() {
        return Ok(fs::rename(away, directory)?);
    }
    let path = drop_in(world, "60-next.toml");
    match fs::symlink_metadata(&path)?.is_dir() {
        true => Ok(fs::remove_dir(path)?),
        false => Ok(fs::remove_file(path)?),
    }
}

fn last_good_stays(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "spoilt", "")?;
    write(&world, "20-base.toml", "60001 = { memory = \"64M\" }")?;
    world.daemon.start()?;
    for (expected, spoil) in SPOILT {
        spoil(&world)?;
        let refusals = |world: &World| -> Result<usize> {
            let log = world.daemon.log()?;
            Ok(log.matches("the limits stay as they were").count())
        };
        let before = refusals(&world)?;
        world.daemon.signal(libc::SIGHUP)?;
        until("the complaint", || {
            Ok((refusals(&world)? > before).then_some(()))
        })?;
        let said = world.daemon.status()?.remarks.join("\n");
        ensure!(said.contains(expected), "{expected} is not in: {said}");
        ensure!(limit_mib(&world, "60001")? == Some(64), "{expected}");
        let path = world.daemon.limits_path().display().to_string();
        let checked = world.bursar(&["check", &path]).output()?;
        // A directory that has gone is no mistake where nobody knows that there was one.
        let is_seen = checked.status.code() == Some(2) || expected.contains("does not exist");
        ensure!(is_seen, "{expected}: check says {checked:?}");
        mend(&world)?;
    }
    world.daemon.reload()?;
    let said = world.daemon.status()?.remarks.join("\n");
    ensure!(!said.contains("not in force"), "{said}");

    // After a reboot the same: without a kernel half that knows better.
    world.daemon.end(libc::SIGTERM)?;
    world.daemon.release()?;
    // An emulated machine takes seconds for each start: there some of them are tried.
    let some = if super::is_emulated() { 3 } else { 1 };
    for (expected, spoil) in SPOILT.iter().step_by(some) {
        spoil(&world)?;
        world.daemon.start()?;
        let said = world.daemon.status()?.remarks.join("\n");
        let holds = said.contains("the limits hold that were last in force");
        ensure!(
            holds && said.contains(expected),
            "{expected} is not in: {said}"
        );
        world.hog("uid=60001 hold=200M pause")?.expect_killed()?;
        world.daemon.end(libc::SIGTERM)?;
        world.daemon.release()?;
        mend(&world)?;
    }
    Ok(())
}

fn many(binaries: &Binaries) -> Result<()> {
    // Two for each of our users: what holds all year, and what wins over it this term.
    const FILES: usize = 50;
    const OF_EACH: usize = 40;
    let mut world = World::new(binaries, "many-dropins", "")?;
    let write_all = |world: &World, size: &str| -> Result<()> {
        for file in 0..FILES {
            let first = 60000 + file % 25 * OF_EACH;
            let lines: Vec<String> = (first..first + OF_EACH)
                .map(|uid| format!("{uid} = {{ memory = \"{size}\" }}"))
                .collect();
            write(world, &format!("{file:02}.toml"), &lines.join("\n"))?;
        }
        Ok(())
    };
    write_all(&world, "64M")?;
    world.daemon.start()?;
    let mut spent = Vec::new();
    for round in 0..11 {
        let size = ["96M", "64M"][round % 2];
        write_all(&world, size)?;
        let began = Instant::now();
        world.daemon.signal(libc::SIGHUP)?;
        loop {
            // The loop answers nobody while it reads them.
            let who = Some("60999".parse()?);
            let Reply::Limits(entries) = world.daemon.ask(Operation::Limits { who })? else {
                bail!("another answer")
            };
            let now = entries.first().map(|it| it.memory.limit.to_string());
            if now.as_deref() == Some(size) {
                break;
            }
            ensure!(began.elapsed() < Duration::from_secs(10), "{now:?}");
        }
        spent.push(began.elapsed());
    }
    let shown = shown(&world)?;
    ensure!(shown.len() == 1000 && shown.iter().all(|it| it.overrides.len() == 1));
    spent.sort_unstable();
    let fastest = spent.first().copied().unwrap_or_default();
    println!("        2,000 limits in 50 files: read again in {spent:?}");
    // The others tell of whatever else this machine does.
    let most = Duration::from_millis(whole(100).or(250));
    ensure!(fastest < most, "it took {fastest:?}");
    Ok(())
}
