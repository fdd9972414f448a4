// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that an administrator has listed go after others, and nobody gains by that. Ways to hold more with them are
//! in the table of evasions.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bursar_model::{Event, EventKind};

use super::allowance;
use crate::hog::Hog;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "spared_programs_go_after_others_that_hold_a_sixteenth",
        place: Place::Anywhere,
        tell: after_others,
    },
    Story {
        name: "spared_programs_that_are_replaced_are_found_again",
        place: Place::Anywhere,
        tell: replaced,
    },
    Story {
        name: "spared_programs_cannot_be_imitated",
        place: Place::Anywhere,
        tell: imitated,
    },
    Story {
        name: "spared_shells_that_run_their_users_code_are_held_to_the_limit",
        place: Place::Host,
        tell: with_code_of_users,
    },
    Story {
        name: "spared_programs_that_cannot_be_are_said_with_what_to_do",
        place: Place::Anywhere,
        tell: said,
    },
    Story {
        name: "spared_programs_go_after_others_where_bursard_decides",
        place: Place::Anywhere,
        tell: without_kernel_half,
    },
];

const LIMIT: u64 = 128 << 20;
/// An editor holds 24 MiB, and 2 MiB of files where a guest's root lies in memory; a small one would hold 10 more.
const EDITOR_ALONE: u64 = 32 << 20;

/// A program of root's, in a directory of root's; both are gone when it is dropped.
pub(super) struct OwnProgram {
    directory: PathBuf,
    path: PathBuf,
}

impl OwnProgram {
    /// A copy of `hog`.
    pub(super) fn new(binaries: &Binaries, name: &str) -> Result<Self> {
        // Nobody but root may write to what lies above it, as to /usr/bin.
        let directory = PathBuf::from(format!("/run/bursar-e2e-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).with_context(|| format!("make {directory:?}"))?;
        let program = Self {
            path: directory.join("editor"),
            directory,
        };
        program.replace(binaries)?;
        Ok(program)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// As a package manager does: another file takes its name.
    fn replace(&self, binaries: &Binaries) -> Result<()> {
        let fresh = self.directory.join("editor.new");
        fs::copy(binaries.path("hog"), &fresh).context("copy hog")?;
        fs::rename(&fresh, &self.path).context("replace a program")
    }

    pub(super) fn config(&self) -> String {
        format!(
            "[exempt]\nprograms = [{:?}]\n",
            self.path.display().to_string()
        )
    }

    /// Started as a user starts his editor, by a program that is not spared.
    fn hog(&self, world: &World, before: &str, script: &str) -> Result<Hog> {
        world.hog(&format!(
            "uid=60001 {before} run={} {script}",
            self.path.display()
        ))
    }

    fn there(&self, world: &World, script: &str) -> Result<Hog> {
        let mut hog = self.hog(world, "", &format!("{script} say=there pause"))?;
        hog.hear("there")?;
        Ok(hog)
    }
}

impl Drop for OwnProgram {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A user with 128 MiB.
fn world(binaries: &Binaries, name: &str, config: &str) -> Result<World> {
    let mut world = World::new(binaries, name, config)?;
    world.daemon.start()?;
    world.daemon.limit("60001", "128M")?;
    Ok(world)
}

/// Small ones that each hold a twelfth come one by one, until somebody is killed. They are fewer than fill the limit.
fn small_ones(world: &World) -> Result<(Vec<Hog>, Event)> {
    let killed = || Ok::<_, anyhow::Error>(world.daemon.events_of(EventKind::Kill)?.pop());
    let before = world.daemon.memory("60001")?.held.get();
    let mut small_ones = Vec::new();
    for count in 1..=16 {
        let mut one = world.hog("uid=60001 name=small hold=10M say=there pause")?;
        let _ = one.hear_within("there", Duration::from_secs(20));
        small_ones.push(one);
        // Where bursard decides, a scan comes to it within 200 ms.
        until("one more being counted, or a kill", || {
            let held = world.daemon.memory("60001")?.held.get();
            Ok((held >= before + count * (10 << 20) || killed()?.is_some()).then_some(()))
        })?;
        if let Some(kill) = killed()? {
            return Ok((small_ones, kill));
        }
    }
    anyhow::bail!("nobody was killed: {:?}", world.daemon.account("60001")?)
}

/// One that holds more than each of the others lives, and the kill says why.
fn expect_spared(world: &World, editor: &mut Hog) -> Result<()> {
    let (_small_ones, kill) = small_ones(world)?;
    ensure!(kill.comm.as_deref() == Some("small"), "{kill:#?}");
    editor.expect_alive("a spared program")?;
    let spared: Vec<u32> = kill
        .candidates
        .iter()
        .filter(|it| it.spared)
        .map(|it| it.pid.get())
        .collect();
    ensure!(spared == [editor.pid()], "{kill:#?}");
    Ok(())
}

fn after_others(binaries: &Binaries) -> Result<()> {
    let program = OwnProgram::new(binaries, "spared")?;
    let world = world(binaries, "spared", &program.config())?;
    let mut editor = program.there(&world, "hold=24M")?;
    expect_spared(&world, &mut editor)?;
    let why = world.bursar(&["why"]).output().context("run bursar why")?;
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    let line = |fate: &str| why.lines().any(|it| it.trim_end().ends_with(fate));
    ensure!(line("spared") && line("killed"), "{why}");
    world.daemon.until_holds_at_most("60001", EDITOR_ALONE)?;

    // From a quarter of the limit on it is one as any other.
    editor.finish()?;
    world.daemon.until_empty(60001)?;
    let before = world.daemon.events_of(EventKind::Kill)?.len();
    let mut large = program.there(&world, "hold=34M")?;
    let mut small_ones = Vec::new();
    for _ in 0..10 {
        small_ones.push(world.there("uid=60001 name=small hold=10M say=there pause")?);
        if world.daemon.events_of(EventKind::Kill)?.len() > before {
            break;
        }
    }
    large.expect_killed()
}

/// The old file runs on, the new one is executed: both are spared.
fn replaced(binaries: &Binaries) -> Result<()> {
    let program = OwnProgram::new(binaries, "replaced")?;
    let mut world = world(binaries, "replaced", &program.config())?;
    let mut old = program.there(&world, "hold=24M")?;
    program.replace(binaries)?;
    expect_spared(&world, &mut old)?;
    world.daemon.until_holds_at_most("60001", EDITOR_ALONE)?;
    old.finish()?;
    world.daemon.until_empty(60001)?;

    let mut new = program.there(&world, "hold=24M")?;
    let kills = world.daemon.events_of(EventKind::Kill)?.len();
    // Also where bursard has died since: what is spared is the kernel half's to know.
    world.daemon.end(libc::SIGKILL)?;
    let mut small_ones = Vec::new();
    for _ in 0..11 {
        small_ones.push(world.hog("uid=60001 name=small hold=10M say=there pause")?);
        std::thread::sleep(Duration::from_millis(100));
    }
    until("somebody being killed without bursard", || {
        let mut dead = false;
        for hog in &mut small_ones {
            dead |= !hog.is_alive()?;
        }
        Ok(dead.then_some(()))
    })?;
    new.expect_alive("a spared program that has replaced another one")?;
    drop(small_ones);
    world.daemon.start()?;
    let told = world.daemon.events_of(EventKind::Kill)?;
    let last = told.last().context("a kill")?;
    ensure!(
        told.len() > kills && last.comm.as_deref() == Some("small"),
        "{told:#?}"
    );
    ensure!(last.candidates.iter().any(|it| it.spared), "{last:#?}");
    Ok(())
}

/// Whoever only looks like it dies as the largest.
fn imitated(binaries: &Binaries) -> Result<()> {
    let program = OwnProgram::new(binaries, "imitated")?;
    let world = world(binaries, "imitated", &program.config())?;
    world.let_users_in()?;
    let own = program.directory.join("his");
    fs::create_dir(&own)?;
    std::os::unix::fs::chown(&own, Some(60001), Some(60001))?;
    let copy = own.join("editor");
    fs::copy(program.path(), &copy)?;
    std::os::unix::fs::chown(&copy, Some(60001), Some(60001))?;
    let listed = program.path().display();
    let scripts = [
        // The same name, the same bytes, and an argv of the listed one's.
        format!(
            "uid=60001 run={} name=editor hold=24M say=there pause",
            copy.display()
        ),
        // A link to its own program in the place of /proc/PID/exe.
        format!("uid=60001 userns-root imitate={listed} hold=24M say=there pause"),
        // And what it forks then.
        format!("uid=60001 userns-root imitate={listed} fork=1 hold=24M say=there pause"),
    ];
    for script in scripts {
        let before = world.daemon.events_of(EventKind::Kill)?.len();
        let mut imitator = world.there(&script)?;
        if script.contains("imitate=") {
            let shown = fs::read_link(format!("/proc/{}/exe", imitator.pid()))?;
            ensure!(shown == program.path(), "the imitation shows {shown:?}");
        }
        let mut small_ones = Vec::new();
        for _ in 0..16 {
            small_ones.push(world.hog("uid=60001 name=small hold=10M say=there pause")?);
            let _ = small_ones
                .last_mut()
                .context("one")?
                .hear_within("there", Duration::from_secs(20));
            if world.daemon.events_of(EventKind::Kill)?.len() > before {
                break;
            }
        }
        let kill = world
            .daemon
            .events_of(EventKind::Kill)?
            .pop()
            .context("a kill")?;
        ensure!(kill.comm.as_deref() != Some("small"), "{script}: {kill:#?}");
        ensure!(
            kill.candidates.iter().all(|it| !it.spared),
            "{script}: {kill:#?}"
        );
        drop(small_ones);
        imitator.finish()?;
        // Where it lies in memory it is his, and only the first one runs it.
        let _ = fs::remove_file(&copy);
        world.daemon.until_empty(60001)?;
    }
    Ok(())
}

/// LD_PRELOAD, and a script that keeps much in a variable: eight shells, each below a quarter.
fn with_code_of_users(binaries: &Binaries) -> Result<()> {
    const PRELOADED: &str = "
        #include <stdlib.h>
        #include <string.h>
        #include <unistd.h>
        __attribute__((constructor)) static void hold(void)
        {
            size_t size = 30 << 20;
            char *at = malloc(size);
            if (at)
                memset(at, 1, size);
            for (;;)
                pause();
        }
    ";
    let world = world(
        binaries,
        "shells",
        "[exempt]\nprograms = [\"/usr/bin/bash\"]\n",
    )?;
    world.let_users_in()?;
    let (code, library) = (
        world.directory().join("hold.c"),
        world.directory().join("hold.so"),
    );
    fs::write(&code, PRELOADED)?;
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &code])
        .output()
        .context("run cc")?;
    ensure!(built.status.success(), "{built:?}");
    let script = "x=$(head -c 30000000 /dev/zero | tr '\\0' x); while :; do read -rt 100; done";
    for preload in [Some(&library), None] {
        let before = world.daemon.events_of(EventKind::Kill)?.len();
        let mut shells = Vec::new();
        for _ in 0..8 {
            let mut shell = Command::new("/usr/bin/bash");
            shell
                .args(["-c", script])
                .uid(60001)
                .gid(60001)
                .current_dir("/");
            if let Some(library) = preload {
                shell.env("LD_PRELOAD", library);
            }
            shells.push(Hog::spawn(&mut shell)?);
        }
        until("a kill among the shells", || {
            Ok((world.daemon.events_of(EventKind::Kill)?.len() > before).then_some(()))
        })?;
        std::thread::sleep(Duration::from_secs(1));
        let row = world.daemon.memory("60001")?;
        // A quarter while bursard is asked how much of forked shells is shared.
        ensure!(
            row.maxheld.get() <= LIMIT + LIMIT / 4 + allowance(),
            "{row:?}"
        );
        ensure!(row.held.get() <= LIMIT, "{row:?}");
        drop(shells);
        world.daemon.until_empty(60001)?;
    }
    Ok(())
}

fn said(binaries: &Binaries) -> Result<()> {
    let program = OwnProgram::new(binaries, "said")?;
    let script = program.directory.join("script");
    fs::write(&script, "#!/bin/sh\n")?;
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let others = program.directory.join("others");
    fs::copy(program.path(), &others)?;
    std::os::unix::fs::chown(&others, Some(60001), None)?;
    let python = program.directory.join("python3.12");
    fs::copy(program.path(), &python)?;
    let missing = program.directory.join("missing");
    let wrong = [
        (
            &missing,
            "it does not exist; correct the path, or leave it out",
        ),
        (
            &others,
            "it belongs to the user 60001; chown it to root, or leave it out",
        ),
        (&program.directory, "it is a directory; name each program"),
        (
            &script,
            "it is a script: what runs is the interpreter in its first line; leave it out",
        ),
        (
            &python,
            "it is an interpreter (python3.12), which runs whatever its users write; leave it out",
        ),
    ];
    let mut paths: Vec<String> = wrong
        .iter()
        .map(|(path, _)| path.display().to_string())
        .collect();
    paths.push(program.path().display().to_string());
    let world = world(
        binaries,
        "said",
        &format!("[exempt]\nprograms = {paths:?}\n"),
    )?;
    let config = world.daemon.config_path();
    let check = Command::new(binaries.path("bursar"))
        .arg("check")
        .arg(&config)
        .output()?;
    let check = String::from_utf8_lossy(&check.stdout).into_owned();
    let remarks = world.daemon.status()?.remarks;
    for (path, why) in wrong {
        let line = format!("exempt.programs: {} is not spared: {why}", path.display());
        ensure!(
            check.lines().any(|it| it == format!("note: {line}")),
            "{line}\n{check}"
        );
        ensure!(remarks.contains(&line), "{line}\n{remarks:?}");
    }
    // What is put right is found without a restart.
    fs::rename(&others, &missing)?;
    std::os::unix::fs::chown(&missing, Some(0), None)?;
    world.daemon.signal(libc::SIGHUP)?;
    until("the program that is there now", || {
        let remarks = world.daemon.status()?.remarks;
        Ok((!remarks
            .iter()
            .any(|it| it.contains("missing is not spared")))
        .then_some(()))
    })
}

fn without_kernel_half(binaries: &Binaries) -> Result<()> {
    let program = OwnProgram::new(binaries, "polled")?;
    let config = format!("trigger = \"poll\"\n{}", program.config());
    let world = world(binaries, "polled", &config)?;
    let mut editor = program.there(&world, "hold=24M")?;
    expect_spared(&world, &mut editor)
}
