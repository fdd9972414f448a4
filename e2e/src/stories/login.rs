// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user reads at a login: one line, or none.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bursar_model::EventKind;
use rustix::time::Timespec;

use crate::runner::{Place, Story};
use crate::terminal::Terminal;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "login_line_tells_of_much_and_of_each_kill_once",
        place: Place::Anywhere,
        tell: told_once,
    },
    Story {
        name: "login_line_costs_bursar_less_than_five_milliseconds",
        place: Place::Host,
        tell: is_fast,
    },
    Story {
        name: "login_scripts_that_are_shipped_show_it_and_keep_no_login_waiting",
        place: Place::Host,
        tell: scripts,
    },
];

const USER: u32 = 60001;
const OTHER: u32 = 60002;

/// `bursar quota --brief` of a user: what it says.
fn brief(world: &World, uid: u32) -> Result<String> {
    let mut ask = world.bursar(&["quota", "--brief"]);
    let output = ask.uid(uid).gid(uid).current_dir("/").output()?;
    ensure!(output.status.success(), "{uid}: {output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

fn kill_one(world: &World, uid: u32) -> Result<()> {
    let mut hog = world.hog(&format!("uid={uid} hold=100M pause"))?;
    hog.expect_killed()?;
    world.daemon.await_event(EventKind::Kill, hog.pid())?;
    world.daemon.until_empty(uid)
}

fn told_once(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "login", "")?;
    world.daemon.start()?;
    for uid in [USER, OTHER] {
        world.daemon.limit(&uid.to_string(), "64M")?;
    }
    ensure!(brief(&world, USER)?.is_empty() && brief(&world, 60003)?.is_empty());
    let hog = world.there(&format!("uid={USER} hold=40M say=there pause"))?;
    for _ in 0..2 {
        let said = brief(&world, USER)?;
        ensure!(
            said.starts_with("bursar: your programs hold ")
                && said.contains(" of 64 MiB (")
                && said.lines().count() == 1,
            "{said}"
        );
    }
    drop(hog);
    world.daemon.until_empty(USER)?;

    for _ in 0..2 {
        kill_one(&world, USER)?;
    }
    ensure!(brief(&world, OTHER)?.is_empty(), "others are told of it");
    let said = brief(&world, USER)?;
    ensure!(
        said.contains("2 processes were killed since your last login, the last hog with"),
        "{said}"
    );
    ensure!(brief(&world, USER)?.is_empty(), "it is told twice");
    // What has been told stays told, and what has not is told.
    kill_one(&world, USER)?;
    for _ in 0..2 {
        world.daemon.end(libc::SIGTERM)?;
        world.daemon.start()?;
    }
    let said = brief(&world, USER)?;
    ensure!(said.contains("1 process was killed since"), "{said}");
    ensure!(brief(&world, USER)?.is_empty(), "it is told twice");
    let json = world
        .bursar(&["--json", "quota", "--brief"])
        .uid(USER)
        .gid(USER)
        .current_dir("/")
        .output()?;
    let json: serde_json::Value = serde_json::from_slice(&json.stdout)?;
    ensure!(json["kills"] == 0 && json["limit"] == 64 << 20, "{json}");
    Ok(())
}

/// What children that have ended have used, milliseconds.
fn used_by_children() -> Result<f64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes the whole of one rusage there.
    let done = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    ensure!(done == 0, "getrusage");
    // SAFETY: it was zeroed before, and all numbers are right.
    let usage = unsafe { usage.assume_init() };
    let ms = |time: libc::timeval| time.tv_sec as f64 * 1000.0 + time.tv_usec as f64 / 1000.0;
    Ok(ms(usage.ru_utime) + ms(usage.ru_stime))
}

const LOGINS: u32 = 41;

fn is_fast(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "loginfast", "")?;
    world.daemon.start()?;
    world.daemon.limit(&USER.to_string(), "64M")?;
    let _hog = world.there(&format!("uid={USER} hold=40M say=there pause"))?;
    let mut spent = Vec::new();
    for _ in 0..LOGINS {
        let before = used_by_children()?;
        ensure!(!brief(&world, USER)?.is_empty());
        spent.push(used_by_children()? - before);
    }
    spent.sort_by(f64::total_cmp);
    let median = spent.get(spent.len() / 2).copied().context("a median")?;
    println!("        {median:.1} ms of processor, median of {LOGINS}");
    ensure!(median < 5.0, "{spent:?}");
    Ok(())
}

const PROFILE: &str = include_str!("../../../dist/profile.d/bursar.sh");
const PAM: &str = include_str!("../../../dist/pam/bursar-login");

fn scripts(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "loginscripts", "")?;
    world.daemon.start()?;
    world.daemon.limit(&USER.to_string(), "64M")?;
    let _hog = world.there(&format!("uid={USER} hold=40M say=there pause"))?;
    let bursar = binaries.path("bursar");
    let folder = bursar.parent().context("where bursar is")?;
    let path = format!("{}:/usr/bin:/bin", folder.display());

    let profile = world.directory().join("bursar.sh");
    fs::write(&profile, PROFILE)?;
    let source = format!("set -e; . {}; echo at the prompt", profile.display());
    let mut terminal = Terminal::of(USER)?;
    let out = File::options()
        .read(true)
        .write(true)
        .open(terminal.path())?;
    let socket = world.daemon.socket();
    let login = |options: &str, out: Stdio| {
        let mut shell = Command::new("sh");
        shell
            .args([options, &source])
            .uid(USER)
            .gid(USER)
            .current_dir("/");
        shell.env("PATH", &path).env("BURSAR_SOCKET", &socket);
        shell.stdin(Stdio::null()).stdout(out).stderr(Stdio::null());
        shell
    };
    let status = login("-ic", out.try_clone()?.into()).status()?;
    ensure!(status.success(), "{status}");
    terminal.shows("bursar: your programs hold 4", Duration::from_secs(5))?;
    terminal.shows("at the prompt", Duration::from_secs(5))?;
    // scp and the like want nothing of it.
    for options in ["-c", "-ic"] {
        let said = login(options, Stdio::piped()).output()?;
        ensure!(said.stdout == b"at the prompt\n", "{options}: {said:?}");
    }

    let script = world.directory().join("bursar-login");
    fs::write(
        &script,
        PAM.replace("/usr/bin/bursar", &bursar.display().to_string()),
    )?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let pam = |kind: &str| {
        let mut command = Command::new(&script);
        command
            .env("PAM_TYPE", kind)
            .env("PAM_USER", USER.to_string());
        command.env("BURSAR_SOCKET", world.daemon.socket());
        command
    };
    let said = pam("open_session").output()?;
    let text = String::from_utf8(said.stdout)?;
    ensure!(
        said.status.success() && text.starts_with("bursar: your programs hold 4"),
        "{text}"
    );
    let said = pam("close_session").output()?;
    ensure!(said.status.success() && said.stdout.is_empty());

    // bursard is there and does not answer: a second, and no word.
    world.daemon.signal(libc::SIGSTOP)?;
    let began = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let said = pam("open_session").output();
    let ended = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    world.daemon.signal(libc::SIGCONT)?;
    let said = said?;
    ensure!(said.status.success() && said.stdout.is_empty(), "{said:?}");
    let waited = seconds(ended) - seconds(began);
    ensure!((0.9..3.0).contains(&waited), "waited {waited} s");
    world.daemon.end(libc::SIGTERM)?;
    let status = login("-ic", out.into()).status()?;
    ensure!(status.success(), "{status}");
    Ok(())
}

fn seconds(time: Timespec) -> f64 {
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
