// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs of docs/howto/save-work.md, as they stand there.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use bursar_model::EventKind;

use super::{USER, as_user, stage};
use crate::length::whole;
use crate::proc::children_of;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const ON_NOTICE: Story = Story {
    name: "waiting_program_has_its_command_run_once_for_each_notice",
    place: Place::Anywhere,
    tell: on_notice,
};

pub(super) const CHECKPOINT: Story = Story {
    name: "waiting_python_that_saves_its_work_survives_ten_notices_and_one_that_does_not_dies",
    // Guests have a Python without ctypes.
    place: Place::Host,
    tell: python,
};

pub(super) const IN_C: Story = Story {
    name: "waiting_in_c_saves_its_work_as_documented",
    place: Place::Host,
    tell: c,
};

const DOCUMENT: &str = include_str!("../../../../docs/howto/save-work.md");
/// How often a program is to save its work: a second lies between two notices at least.
fn notices() -> u64 {
    whole(10).or(3)
}

/// The program that the document shows in this language.
fn program(language: &str) -> Result<&'static str> {
    let (_, rest) = DOCUMENT
        .split_once(&format!("```{language}\n"))
        .context("the document has no such program")?;
    let (program, _) = rest.split_once("```").context("it has no end")?;
    Ok(program)
}

/// A folder of the user's own.
fn home(world: &World) -> Result<PathBuf> {
    let home = world.directory().join("home");
    fs::create_dir_all(&home)?;
    std::os::unix::fs::chown(&home, Some(USER), Some(USER))?;
    Ok(home)
}

fn output(
    world: &World,
    binaries: &Binaries,
    program: &Path,
    arguments: &[&str],
) -> Result<Output> {
    let libraries = binaries.path("libbursar.so");
    let libraries = libraries.parent().context("a folder of ours")?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .uid(USER)
        .gid(USER)
        .current_dir(home(world)?)
        .env("LD_LIBRARY_PATH", libraries)
        .env("BURSAR_SOCKET", world.daemon.socket());
    command.output().with_context(|| format!("run {program:?}"))
}

fn survives(world: &World, done: &Output) -> Result<()> {
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let complained = String::from_utf8_lossy(&done.stderr).into_owned();
    ensure!(done.status.success(), "{} {said} {complained}", done.status);
    ensure!(
        said.trim() == format!("saved {}", notices()),
        "{said} {complained}"
    );
    let account = world.daemon.account(&USER.to_string())?;
    let account = account.context("it has an account")?;
    ensure!(account.kills == 0, "{account:?}");
    ensure!(account.notices >= notices(), "{account:?}");
    Ok(())
}

fn python(binaries: &Binaries) -> Result<()> {
    let world = stage(binaries, "waiting-python")?;
    world.daemon.limit(&USER.to_string(), "128M")?;
    let python = Path::new("/usr/bin/python3");
    let text = program("python")?;
    let count = notices().to_string();
    let done = output(&world, binaries, python, &["-c", text, &count])?;
    survives(&world, &done)?;
    let deaf = text.replace("if is_reached(notice):", "if False:");
    ensure!(deaf != text, "the document's program asks in another way");
    let done = output(&world, binaries, python, &["-c", &deaf, &count])?;
    ensure!(done.status.signal() == Some(libc::SIGKILL), "{done:?}");
    Ok(())
}

fn c(binaries: &Binaries) -> Result<()> {
    let world = stage(binaries, "waiting-c")?;
    world.daemon.limit(&USER.to_string(), "128M")?;
    let (source, built) = (
        world.directory().join("work.c"),
        world.directory().join("work"),
    );
    fs::write(&source, program("c")?)?;
    let libraries = binaries.path("libbursar.so");
    let headers = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/libbursar/include");
    let compiled = Command::new("gcc")
        .args(["-O2", "-Wall", "-Werror", "-I", headers, "-o"])
        .arg(&built)
        .arg(&source)
        .arg("-L")
        .arg(libraries.parent().context("a folder of ours")?)
        .arg("-lbursar")
        .output()?;
    ensure!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let done = output(&world, binaries, &built, &[&notices().to_string()])?;
    survives(&world, &done)
}

fn on_notice(binaries: &Binaries) -> Result<()> {
    let world = stage(binaries, "waiting-run")?;
    world.daemon.limit(&USER.to_string(), "200M")?;
    let notes = home(&world)?.join("notes");
    let note = format!(
        "echo \"$BURSAR_PID $BURSAR_LIMIT $(id -u)\" >>{}",
        notes.display()
    );
    let mut command = as_user(&world, USER, &["run", "--on-notice", &note, "--"]);
    command.arg(binaries.path("hog"));
    // Between two notices lies a second (NOTICE_PAUSE_NS), and what has been given up is seen in between.
    let rest = match super::super::is_emulated() {
        true => "sleep=1500",
        false => "sleep=700",
    };
    for _ in 0..3 {
        // Above the notice by itself (180 MiB), and below the limit with what bursar and the command take.
        command.args(["hold=184M", rest, "drop", rest]);
    }
    let mut child = command.spawn()?;
    let status = until("the program ending", || Ok(child.try_wait()?))?;
    let kills = world.daemon.events_of(EventKind::Kill)?;
    ensure!(status.success(), "{status}; {kills:?}");
    let notes = fs::read_to_string(&notes).unwrap_or_default();
    let told = world.daemon.events_of(EventKind::Notice)?.len();
    ensure!(
        told == 3 && notes.lines().count() == 3,
        "{told} notices: {notes}"
    );
    let limit = (200_u64 << 20).to_string();
    for line in notes.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        ensure!(
            words.len() == 3 && words[1] == limit && words[2] == USER.to_string(),
            "{notes}"
        );
    }
    // Its exit code and its signals are the program's own.
    let mut command = as_user(
        &world,
        USER,
        &[
            "run",
            "--on-notice",
            "true",
            "--",
            "/bin/sh",
            "-c",
            "exit 7",
        ],
    );
    ensure!(command.status()?.code() == Some(7), "another exit code");
    let mut command = as_user(
        &world,
        USER,
        &["run", "--on-notice", "true", "--", "/bin/sleep", "60"],
    );
    let mut child = command.spawn()?;
    until("the program's beginning", || {
        let there = children_of(child.id()).unwrap_or_default();
        Ok((!there.is_empty()).then_some(()))
    })?;
    crate::signal::send(child.id(), libc::SIGTERM)?;
    let status = until("the program ending", || Ok(child.try_wait()?))?;
    ensure!(status.signal() == Some(libc::SIGTERM), "{status}");
    Ok(())
}
