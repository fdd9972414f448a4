// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who changed a limit, from what to what, and why.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bursar_model::{Actor, Event};

use super::command::outcome;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "audit_says_who_changed_a_limit_from_what_to_what_and_why",
        place: Place::Anywhere,
        tell: commands,
    },
    Story {
        name: "audit_says_which_file_changed_a_limit_also_while_bursard_was_stopped",
        place: Place::Anywhere,
        tell: files,
    },
    Story {
        name: "audit_takes_no_reason_that_is_long_or_plays_tricks_on_a_terminal",
        place: Place::Anywhere,
        tell: hostile_reasons,
    },
];

/// Least that is shown: the audit's lines are shown all the same.
const QUIET: &str = "[log]\nlevel = \"error\"\n";

fn done(world: &World, arguments: &[&str]) -> Result<String> {
    let (code, said, complaint) = outcome(&mut world.bursar(arguments))?;
    ensure!(code == 0, "{arguments:?}: {code} {complaint}");
    Ok(said)
}

/// What `bursar limit log WHO` tells.
fn log_of(world: &World, who: &str) -> Result<Vec<Event>> {
    let said = done(world, &["--json", "limit", "log", who])?;
    serde_json::from_str(&said).context("limit log --json")
}

fn last_of(world: &World, who: &str) -> Result<Event> {
    log_of(world, who)?.pop().context("a change recorded")
}

/// Limit before and after, as written.
fn bounds(event: &Event) -> [Option<String>; 2] {
    [&event.old, &event.new].map(|spec| Some(spec.as_ref()?.memory?.limit.to_string()))
}

fn texts(old: Option<&str>, new: Option<&str>) -> [Option<String>; 2] {
    [old, new].map(|it| it.map(str::to_owned))
}

fn stated(event: &Event) -> Option<&str> {
    event.stated_reason.as_ref().map(|it| it.as_str())
}

/// As somebody who logged in as 60005, where this kernel keeps that; says which login it has.
const LOGGED_IN: &str = "{ echo 60005 >/proc/self/loginuid; cat /proc/self/loginuid; } 2>/dev/null; echo; \
                         exec \"$@\"";

/// Sets a limit like that, and finds it written down.
fn set_by_login(world: &World) -> Result<()> {
    let set = world.bursar(&["limit", "set", "60001", "64M", "--reason", "first term"]);
    let mut command = Command::new("sh");
    command
        .args(["-c", LOGGED_IN, "sh"])
        .arg(set.get_program())
        .args(set.get_args())
        .env("SUDO_USER", "ali\u{1b}ce");
    let (code, said, complaint) = outcome(&mut command)?;
    ensure!(code == 0, "{code} {complaint}");
    let login = said.split_once(|it: char| !it.is_ascii_digit());
    let login = login.and_then(|(number, _)| number.parse().ok());
    let login = login.filter(|number: &u32| *number != u32::MAX);
    println!("        the login was {login:?}");
    let first = last_of(world, "60001")?;
    ensure!(
        bounds(&first) == texts(None, Some("64M")) && stated(&first) == Some("first term"),
        "{first:?}"
    );
    let Some(Actor::Request {
        uid,
        pid,
        login_uid,
        said_by,
    }) = first.actor.as_deref()
    else {
        anyhow::bail!("{first:?}")
    };
    ensure!(uid.get() == 0 && pid.get() > 1, "{first:?}");
    ensure!(login_uid.map(|it| it.get()) == login, "{first:?}");
    ensure!(said_by.as_deref() == Some("ali\\x1bce"), "{first:?}");
    Ok(())
}

fn commands(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "audit", QUIET)?;
    world.daemon.start()?;
    set_by_login(&world)?;
    // Whoever may know reads the reason: root, and whose limit it is.
    let shown = done(&world, &["limit", "show", "60001"])?;
    ensure!(shown.contains("reason: first term"), "{shown}");
    let (_, quota, _) = outcome(world.bursar(&["quota"]).uid(60001).gid(60001))?;
    ensure!(quota.contains("for this limit: first term"), "{quota}");

    // The same again is no change; another reason is one; a change without a reason takes it away.
    let again = ["limit", "set", "60001", "64M", "--reason", "first term"];
    for arguments in [&again[..], &again[..4]] {
        let said = done(&world, arguments)?;
        ensure!(said.contains("nothing changed"), "{said}");
    }
    done(
        &world,
        &["limit", "set", "60001", "64M", "--reason", "thesis"],
    )?;
    let other = last_of(&world, "60001")?;
    ensure!(
        bounds(&other) == texts(Some("64M"), Some("64M")) && stated(&other) == Some("thesis"),
        "{other:?}"
    );
    done(&world, &["limit", "set", "60001", "numproc=200"])?;
    let text = fs::read_to_string(world.daemon.limits_path())?;
    ensure!(!text.contains("reason"), "{text}");
    let rows = last_of(&world, "60001")?;
    ensure!(
        rows.old.as_ref().is_some_and(|it| it.rows.is_empty())
            && rows.new.as_ref().is_some_and(|it| it.rows.len() == 1),
        "{rows:?}"
    );
    done(
        &world,
        &["limit", "clear", "60001", "--reason", "has left us"],
    )?;
    let gone = last_of(&world, "60001")?;
    ensure!(
        bounds(&gone) == texts(Some("64M"), None) && stated(&gone) == Some("has left us"),
        "{gone:?}"
    );
    ensure!(log_of(&world, "60001")?.len() == 4, "one line a change");
    ensure!(log_of(&world, "60002")?.is_empty(), "of somebody else");
    let log = world.daemon.log()?;
    let line = "limit_changed 60001: limit cleared; was memory 64M, numproc 200:200; by uid 0";
    ensure!(
        log.contains(line) && log.contains("reason: has left us"),
        "{log}"
    );
    Ok(())
}

fn file_of(event: &Event) -> Option<&str> {
    match event.actor.as_deref()? {
        Actor::Reload { file } => Some(file),
        Actor::Request { .. } | Actor::Clock { .. } => None,
    }
}

fn files(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "auditfiles", QUIET)?;
    let limits = world.daemon.limits_path();
    let drop_in = limits.with_file_name("limits.toml.d").join("10-a.toml");
    fs::create_dir(drop_in.with_file_name(""))?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let of_60001 = |size: &str| format!("[limits]\n60001 = {{ memory = \"{size}\" }}\n");
    let why = "[limits]\n60002 = { memory = \"1G\", reason = \"exams\" }\n";

    fs::write(&limits, of_60001("96M"))?;
    fs::write(&drop_in, why)?;
    world.daemon.reload()?;
    let changed = last_of(&world, "60001")?;
    ensure!(
        bounds(&changed) == texts(Some("64M"), Some("96M"))
            && file_of(&changed) == limits.to_str()
            && stated(&changed).is_none(),
        "{changed:?}"
    );
    let came = last_of(&world, "60002")?;
    ensure!(
        bounds(&came) == texts(None, Some("1G"))
            && file_of(&came) == drop_in.to_str()
            && stated(&came) == Some("exams"),
        "{came:?}"
    );
    // What says the same is no change.
    fs::write(&limits, format!("# mine\n{}", of_60001("96M")))?;
    world.daemon.reload()?;
    ensure!(log_of(&world, "60001")?.len() == 2);

    // Nobody is there to see it; a start tells.
    world.daemon.end(libc::SIGTERM)?;
    fs::write(&limits, of_60001("128M"))?;
    fs::remove_file(&drop_in)?;
    world.daemon.start()?;
    let changed = last_of(&world, "60001")?;
    ensure!(
        bounds(&changed) == texts(Some("96M"), Some("128M"))
            && file_of(&changed) == limits.to_str(),
        "{changed:?}"
    );
    let gone = last_of(&world, "60002")?;
    ensure!(
        bounds(&gone) == texts(Some("1G"), None) && file_of(&gone) == drop_in.to_str(),
        "{gone:?}"
    );
    world.daemon.end(libc::SIGTERM)?;
    world.daemon.start()?;
    ensure!(log_of(&world, "60001")?.len() == 3, "a start is no change");
    Ok(())
}

fn hostile_reasons(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "reasons", QUIET)?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let before = fs::read_to_string(world.daemon.limits_path())?;
    let long = "x".repeat(201);
    for (reason, said) in [
        ("a\u{1b}[2Jb", "not printable"),
        ("a\nb", "not printable"),
        ("a\u{202e}b", "not printable"),
        (long.as_str(), "201 bytes"),
        ("", "empty"),
    ] {
        let set = ["limit", "set", "60001", "96M", "--reason", reason];
        let (code, _, complaint) = outcome(&mut world.bursar(&set))?;
        ensure!(
            code == 2 && complaint.contains(said) && !complaint.contains('\u{1b}'),
            "{reason:?}: {code} {complaint:?}"
        );
    }
    // Past the command line, by whoever speaks to the socket himself, and in a file.
    let raw = "{\"version\":1,\"ask\":\"set_limit\",\"who\":\"60001\",\"memory\":{\"limit\":\"96M\"},\
               \"reason\":\"a\\u001b[2J\"}\n";
    let answer = raw_answer(&world, raw)?;
    ensure!(
        answer.contains("bad_request") && answer.contains("not printable"),
        "{answer}"
    );
    for reason in ["a\\u001b[2J", &"x".repeat(3 << 20)] {
        let text = format!("[limits]\n60001 = {{ memory = \"96M\", reason = \"{reason}\" }}\n");
        fs::write(world.daemon.limits_path(), text)?;
        world.daemon.signal(libc::SIGHUP)?;
        until("bursard saying what is wrong with it", || {
            let log = world.daemon.log()?;
            let said = log.lines().rfind(|it| it.contains("60001.reason"));
            Ok(said.is_some_and(|it| it.len() < 1000).then_some(()))
        })?;
        let limit = world.daemon.memory("60001")?.limit;
        ensure!(limit.map(|it| it.get() >> 20) == Some(64), "{limit:?}");
    }
    fs::write(world.daemon.limits_path(), before)?;
    world.daemon.reload()?;
    ensure!(log_of(&world, "60001")?.len() == 1, "nothing was changed");
    Ok(())
}

fn raw_answer(world: &World, request: &str) -> Result<String> {
    use std::io::{BufRead, BufReader, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(world.daemon.socket())?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(answer)
}
