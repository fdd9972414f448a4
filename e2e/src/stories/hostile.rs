// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Users who try to forge, to hide, to flood.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use bursar_host::clock;
use bursar_model::{Event, EventKind};

use super::payers::map_users;
use crate::hog::Hog;
use crate::proc::{cpu_time, status_of};
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "a_hostile_name_forges_nothing",
        place: Place::Anywhere,
        tell: names,
    },
    Story {
        name: "an_ordinary_user_sees_and_changes_nothing_of_others",
        place: Place::Anywhere,
        tell: other_users,
    },
    Story {
        name: "a_flood_on_the_socket_keeps_nobody_out",
        place: Place::Anywhere,
        tell: socket_flood,
    },
    Story {
        name: "a_flood_of_requests_keeps_bursard_from_no_work",
        place: Place::Anywhere,
        tell: request_flood,
    },
    Story {
        name: "descriptors_passed_to_bursard_do_not_stop_it",
        place: Place::Anywhere,
        tell: passed_descriptors,
    },
    Story {
        name: "subordinate_users_are_no_users_more_to_bursard",
        place: Place::Anywhere,
        tell: subordinates,
    },
    Story {
        name: "processes_that_have_ended_are_no_users_more_to_bursard",
        place: Place::Anywhere,
        tell: orphans,
    },
    Story {
        name: "files_of_subordinate_users_fill_no_table",
        place: Place::Anywhere,
        tell: subordinate_files,
    },
    Story {
        name: "who_is_first_at_bursards_places_keeps_it_from_nothing",
        place: Place::Anywhere,
        tell: squatter,
    },
    Story {
        name: "a_user_who_breaches_all_the_time_harms_only_himself",
        place: Place::Anywhere,
        tell: breach_loop,
    },
];

fn names(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "names", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let forged = "x\\nkilled:sshd";
    for name in [forged, "\\x1b[2Jhi", "a\"b\\\\c", "\u{202e}txt", "(x) R 1"] {
        let mut hog = Command::hog(&world, name)?;
        hog.expect_killed()?;
        world.daemon.await_event(EventKind::Reaped, hog.pid())?;
    }
    let log = world.daemon.log()?;
    ensure!(
        !log.lines().any(|line| line.starts_with("killed:")),
        "a line was forged:\n{log}"
    );
    ensure!(
        log.chars().all(|c| c == '\n' || !c.is_control()),
        "controls in the log"
    );
    for arguments in [
        ["events", "--json"].as_slice(),
        &["events"],
        &["why"],
        &["status"],
    ] {
        let output = world.bursar(arguments).output().context("run bursar")?;
        ensure!(output.status.success(), "{arguments:?}: {output:?}");
        let text = String::from_utf8(output.stdout).context("its output is UTF-8")?;
        ensure!(
            text.chars().all(|c| c == '\n' || !c.is_control()),
            "{arguments:?}: {text:?}"
        );
        ensure!(!text.contains('\u{202e}'), "{arguments:?}: {text:?}");
    }
    let json = world.bursar(&["events", "--json"]).output()?.stdout;
    for line in json
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        serde_json::from_slice::<bursar_model::Event>(line).context("an event a line")?;
    }
    Ok(())
}

/// Starts hogs whose names have blanks, which scripts cannot.
struct Command;

impl Command {
    fn hog(world: &World, name: &str) -> Result<crate::Hog> {
        let mut command = world.hog_command();
        command
            .arg("uid=60001")
            .arg(format!("name={name}"))
            .arg("hold=200M")
            .arg("pause");
        crate::Hog::spawn(&mut command)
    }
}

fn other_users(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "others", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    world.daemon.limit("60002", "64M")?;
    let mut secret = world.hog("uid=60001 name=secret hold=200M pause")?;
    secret.expect_killed()?;
    world.daemon.await_event(EventKind::Reaped, secret.pid())?;
    let as_bob = |arguments: &[&str]| -> Result<(i32, String)> {
        let mut command = world.bursar(arguments);
        command.uid(60002).gid(60002);
        let output = command.output().context("run bursar as bob")?;
        let text = [output.stdout, output.stderr].concat();
        Ok((
            output.status.code().context("its exit code")?,
            String::from_utf8(text)?,
        ))
    };
    for arguments in [
        ["limit", "set", "60002", "1G"].as_slice(),
        &["limit", "clear", "60002"],
        &["status", "60001"],
        &["limit", "show", "60001"],
    ] {
        let (code, text) = as_bob(arguments)?;
        ensure!(code == 3, "{arguments:?} ended with {code}: {text}");
    }
    for arguments in [
        ["status", "--json"].as_slice(),
        &["events", "--json"],
        &["why", "--json"],
        &["quota"],
    ] {
        let (code, text) = as_bob(arguments)?;
        ensure!(
            code == 0 || arguments[0] == "why",
            "{arguments:?} ended with {code}: {text}"
        );
        ensure!(
            !text.contains("secret") && !text.contains("60001"),
            "{arguments:?} tells: {text}"
        );
    }
    // Nor what came back of others' programs.
    let (_, text) = as_bob(&["status", "--json"])?;
    let status: serde_json::Value = serde_json::from_str(&text)?;
    let told = status.pointer("/reaps/reaped").context("reaps")?;
    ensure!(*told == 0, "{text}");
    ensure!(world.daemon.status()?.reaps.reaped > 0, "root is told");
    Ok(())
}

/// Connects as often as it can; how many of 64 connections are answered, which those are that are refused.
const CONNECT: &str = "
import select, socket, sys, time
kept = [socket.socket(socket.AF_UNIX) for _ in range(64)]
for one in kept:
    one.connect(sys.argv[1])
answered, end = set(), time.monotonic() + 30
while len(answered) < 48 and time.monotonic() < end:
    answered.update(select.select(kept, [], [], 0.1)[0])
time.sleep(0.5)
answered.update(select.select(kept, [], [], 0)[0])
print(sum(1 for one in answered if one.recv(1)))
";

/// Reserves over each of 600 connections; how many of them are refused.
const RESERVE: &str = "
import socket, sys
kept, refused = [], 0
for _ in range(600):
    one = socket.socket(socket.AF_UNIX)
    one.connect(sys.argv[1])
    try:
        one.sendall(b'{\"version\":1,\"ask\":\"renew\",\"keep\":1,\"pages\":1}\\n')
    except BrokenPipeError:
        pass
    refused += b'too many' in one.recv(4096)
    kept.append(one)
print(refused)
";

fn socket_flood(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "flood", "")?;
    world.daemon.start()?;
    let socket = world.daemon.socket();
    let descriptors = || crate::proc::descriptors(world.daemon.pid()?);
    let at_rest = descriptors()?;
    // As root every one of these is let in, so that each is really read.
    let mut silent: Vec<UnixStream> = Vec::new();
    for _ in 0..200 {
        silent.push(UnixStream::connect(&socket)?);
    }
    for (index, stream) in silent.iter_mut().enumerate() {
        let garbage: &[u8] = match index % 4 {
            0 => b"{\"version\":1,",
            1 => b"\xff\xfe\n",
            2 => b"{\"version\":99,\"ask\":\"quota\"}\n",
            _ => b"[[[[[[[[[[[[[[[[[[[[[[[[\n",
        };
        stream.write_all(garbage)?;
    }
    let mut endless = UnixStream::connect(&socket)?;
    // The daemon hangs up in the middle: that is the point.
    let _ = endless.write_all(&vec![b'x'; 17 << 20]);
    let mut answer = String::new();
    let _ = endless.read_to_string(&mut answer);
    ensure!(world.daemon.status().is_ok(), "it does not answer any more");
    world.daemon.limit("60001", "64M")?;
    world.hog("uid=60001 hold=200M pause")?.expect_killed()?;
    let before = status_of(world.daemon.pid()?, "VmRSS")?;
    drop(silent);
    until("the connections being closed", || {
        Ok((descriptors()? < at_rest + 10).then_some(()))
    })?;
    ensure!(before < 64 << 10, "{before} KiB resident");

    // One user has his share of connections and no more, also where his process has something reserved.
    if !Path::new("/usr/bin/python3").exists() {
        return Ok(());
    }
    world.daemon.limit("60002", "64M")?;
    for (script, expected) in [(CONNECT, 64 - 16), (RESERVE, 600 - 512 - 16)] {
        let refused = refused_by(script, &socket)?;
        ensure!(
            refused == expected,
            "{refused} connections were refused instead of {expected}"
        );
    }
    Ok(())
}

/// What a script prints that connects there as a user.
fn refused_by(script: &str, socket: &Path) -> Result<u32> {
    let mut python = process::Command::new("/usr/bin/python3");
    python
        .args(["-c", script])
        .arg(socket)
        .uid(60002)
        .gid(60002);
    let output = python.output().context("run python3")?;
    String::from_utf8(output.stdout)?
        .trim()
        .parse()
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Two users ask without end over every connection they may have.
fn request_flood(binaries: &Binaries) -> Result<()> {
    /// How long what it costs is watched.
    const WATCHED: Duration = Duration::from_secs(5);
    let mut world = World::new(binaries, "harassed", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let roots = world.daemon.socket().with_file_name("root.sock");
    let mode = std::fs::metadata(&roots)?.permissions().mode();
    ensure!(mode & 0o077 == 0, "{roots:?} has mode {mode:o}");
    let quiet = work(&world)?;
    let harassers: Vec<Hog> = [60002, 60003]
        .iter()
        .map(|uid| {
            let mut harasser = process::Command::new(binaries.path("flooder"));
            harasser.args([
                format!("uid={uid}"),
                "say=begins".to_owned(),
                format!("harass={}", world.daemon.socket().display()),
            ]);
            let mut harasser = Hog::spawn(&mut harasser)?;
            harasser.hear("begins")?;
            Ok(harasser)
        })
        .collect::<Result<_>>()?;
    until("their requests to wait", || {
        let remarks = world.daemon.status()?.remarks;
        let waits = remarks.iter().any(|it| it.contains("had to wait"));
        Ok(waits.then_some(()))
    })?;
    let pid = world.daemon.pid()?;
    let before = cpu_time(pid)?;
    let began = Instant::now();
    std::thread::sleep(WATCHED);
    let cost = (cpu_time(pid)? - before).as_secs_f64() / began.elapsed().as_secs_f64();
    let harassed = work(&world)?;
    let resident = status_of(pid, "VmRSS")?;
    drop(harassers);
    println!(
        "        bursard harassed by two users: {:.0} % of a processor, {resident} KiB; an answer for root {:?} \
         (left alone {:?}), from kill to reaped {:?} ({:?})",
        cost * 100.0,
        harassed.answer,
        quiet.answer,
        harassed.reaped,
        quiet.reaped
    );
    // A tenth each, a tenth for the door, and the loop itself, which emulation makes dear.
    let most = if super::is_emulated() { 0.75 } else { 0.4 };
    ensure!(cost < most, "{cost} of a processor");
    ensure!(resident < 64 << 10, "{resident} KiB resident");
    let most = Duration::from_millis(200);
    ensure!(harassed.answer < most, "{:?}", harassed.answer);
    ensure!(harassed.reaped < most, "{:?}", harassed.reaped);
    Ok(())
}

fn passed_descriptors(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "passed", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let pid = world.daemon.pid()?;
    let before = crate::proc::descriptors(pid)?;
    let mut passing = process::Command::new(binaries.path("flooder"));
    let socket = world.daemon.socket();
    passing.args([
        "uid=60002".to_owned(),
        format!("pass={}", socket.display()),
        "say=done".to_owned(),
        "wait".to_owned(),
    ]);
    let mut passing = Hog::spawn(&mut passing)?;
    passing.hear("done")?;
    let after = work(&world)?;
    let most = Duration::from_millis(200);
    ensure!(after.answer < most, "{:?}", after.answer);
    ensure!(after.reaped < most, "{:?}", after.reaped);
    // Once more; kernels from 6.16 on refuse it to him.
    let mut again = process::Command::new(binaries.path("flooder"));
    again.args(["uid=60002".to_owned(), format!("pass={}", socket.display())]);
    let said = again.output().context("run flooder")?.stdout;
    println!(
        "        descriptors passed, of 20: {}; an answer for root {:?}, from kill to reaped {:?}",
        String::from_utf8_lossy(&said).trim(),
        after.answer,
        after.reaped
    );
    world.daemon.status()?;
    drop(passing);
    until("nothing to be left of them", || {
        Ok((crate::proc::descriptors(pid)? <= before + 10).then_some(()))
    })
}

fn subordinates(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "subordinate", "")?;
    world.daemon.start()?;
    world.daemon.limit("60511", "100M")?;
    let socket = world.daemon.socket();
    let cling = format!("cling={}", socket.display());
    let mut inside = world.there(&format!(
        "uid=60511 userns say=there wait uid=8 {cling} say=clings wait"
    ))?;
    map_users(inside.pid(), 60511, 60550)?;
    inside.go_on()?;
    inside.hear("cling: 16 of 20")?;
    inside.hear("pays into: 60511")?;
    // They were all his.
    let mut outside = world.hog(&format!("uid=60511 {cling} say=clings wait"))?;
    outside.hear("cling: 0 of 20")?;
    // And nobody else's.
    let mut other = world.hog(&format!("uid=60557 {cling} say=clings wait"))?;
    other.hear("cling: 16 of 20")
}

/// Each of his subordinate uids connects by a process that is gone when bursard lets it in.
fn orphans(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "orphans", "")?;
    world.daemon.start()?;
    for who in ["60511", "60512"] {
        world.daemon.limit(who, "100M")?;
    }
    let socket = world.daemon.socket().display().to_string();
    let mut inside = world.there(&format!(
        "uid=60511 userns say=there wait orphans=1-3:{socket} say=clings wait"
    ))?;
    map_users(inside.pid(), 60511, 60550)?;
    world.daemon.signal(libc::SIGSTOP)?;
    inside.go_on()?;
    let_orphans_in(&world, &mut inside, 60)?;
    // Nobody who is there is turned away for them.
    let mut other = world.hog(&format!("uid=60557 cling={socket} say=clings wait"))?;
    other.hear("cling: 16 of 20")?;
    drop((inside, other));
    // Who leaves his connection to another is served, where there is room for such.
    let _ = world.daemon.end(libc::SIGTERM)?;
    world.daemon.start()?;
    world.daemon.signal(libc::SIGSTOP)?;
    let steps = format!("uid=60512 orphans=60512-1:{socket} say=clings wait");
    let mut innocent = world.hog(&steps)?;
    let_orphans_in(&world, &mut innocent, 20)?;
    innocent.hear("pays into: 60512")
}

fn let_orphans_in(world: &World, hog: &mut Hog, all: usize) -> Result<()> {
    hog.hear(&format!("orphans: {all}"))?;
    world.daemon.signal(libc::SIGCONT)?;
    hog.go_on()?;
    hog.hear(&format!("orphans: 16 of {all}"))
}

fn subordinate_files(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "subfiles", "[accounts]\nuid_min = 60000\n")?;
    world.daemon.start()?;
    world.daemon.limit("default", "100M")?;
    let mut inside = world
        .hog("userns-for=60511:0-60511-1,1-60850-50 memfd=20M uid=8 memfd=20M say=there pause")?;
    inside.hear("there")?;
    until("files being counted", || {
        let account = world.daemon.account("60511")?;
        Ok(account.filter(|it| it.unmapped.get() >= 10 << 20).map(drop))
    })?;
    // And once more.
    std::thread::sleep(Duration::from_millis(1_500));
    let accounts = world.daemon.status()?.accounts;
    let mut others = accounts.iter();
    let other = others.find(|it| it.uid.is_some_and(|it| it.get() >= 60_850));
    ensure!(other.is_none(), "{other:?}");
    // Who has a process has an account, and his files are in it.
    let mut outside = world.hog("uid=60857 hold=1M say=there pause")?;
    outside.hear("there")?;
    until("his file being counted", || {
        let account = world.daemon.account("60857")?;
        Ok(account.filter(|it| it.unmapped.get() >= 10 << 20).map(drop))
    })
}

/// What bursard needs for its work, in the middle of some.
struct Work {
    answer: Duration,
    reaped: Duration,
}

fn work(world: &World) -> Result<Work> {
    const TIMES: usize = 7;
    let (mut answers, mut reaps) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let began = Instant::now();
        world.daemon.status()?;
        answers.push(began.elapsed());
        let mut hog = world.hog("uid=60001 hold=100M pause")?;
        hog.expect_killed()?;
        let kill = world.daemon.await_event(EventKind::Kill, hog.pid())?;
        let reaped = world.daemon.await_event(EventKind::Reaped, hog.pid())?;
        let at = |event: &Event| clock::parse_since(&event.time, SystemTime::now());
        reaps.push(at(&reaped)?.duration_since(at(&kill)?).unwrap_or_default());
    }
    answers.sort();
    reaps.sort();
    Ok(Work {
        answer: answers[TIMES / 2],
        reaped: reaps[TIMES / 2],
    })
}

fn breach_loop(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "loop", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "32M")?;
    world.daemon.limit("60002", "64M")?;
    let mut honest = world.there("uid=60002 hold=40M say=there pause")?;
    let began = Instant::now();
    for _ in 0..30 {
        world.hog("uid=60001 hold=100M pause")?.expect_killed()?;
    }
    honest.expect_alive("the honest neighbour")?;
    let account = world.daemon.account("60001")?.context("his account")?;
    ensure!(
        account.kills == 30,
        "{} kills for 30 breaches",
        account.kills
    );
    ensure!(world.daemon.memory("60001")?.failcnt == 30);
    // Told once a second at most, however often he comes near.
    let notices = world.daemon.events_of(EventKind::Notice)?.len() as u64;
    let spent = began.elapsed();
    ensure!(
        notices <= 1 + spent.as_secs(),
        "{notices} notices in {spent:?}"
    );
    Ok(())
}

/// Where everybody may write to the BPF file system somebody may be there first, and own what root
/// pins; and a lock file that everybody may open, everybody may lock.
fn squatter(binaries: &Binaries) -> Result<()> {
    use std::os::unix::fs::{MetadataExt, chown};

    let mut world = World::new(binaries, "squat", "")?;
    let theirs = world.pins().join("half-0000000000000000");
    std::fs::create_dir_all(&theirs)?;
    for path in [world.pins(), &theirs] {
        chown(path, Some(60002), Some(60002)).with_context(|| format!("give {path:?} away"))?;
    }
    world.daemon.start()?;
    let pins = std::fs::metadata(world.pins())?;
    ensure!(pins.uid() == 0, "they are still his");
    ensure!(pins.permissions().mode() & 0o077 == 0, "he still gets in");
    ensure!(!theirs.exists(), "what he put there is still there");
    ensure!(world.daemon.log()?.contains("taken from him"), "not said");
    let lock = world.directory().join("run/bursard.lock");
    ensure!(std::fs::metadata(&lock)?.permissions().mode() & 0o077 == 0);
    world.daemon.limit("60001", "64M")?;
    world.hog("uid=60001 hold=200M pause")?.expect_killed()
}
