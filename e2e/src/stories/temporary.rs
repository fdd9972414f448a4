// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits that end: afterwards what was configured before holds again.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bursar_model::{Actor, Event, EventKind};
use jiff::Timestamp;

use super::command::{done, run};
use super::is_emulated;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "temporary_limits_end_by_themselves_and_what_was_before_holds_again",
        place: Place::Anywhere,
        tell: end_by_themselves,
    },
    Story {
        name: "temporary_limits_end_also_while_bursard_is_away_and_are_told_of_once",
        place: Place::Anywhere,
        tell: end_meanwhile,
    },
    Story {
        name: "temporary_limits_end_with_a_warning_also_where_bursard_restarts",
        place: Place::Anywhere,
        tell: end_with_a_warning,
    },
    Story {
        name: "temporary_limits_that_are_wrong_are_refused_and_those_past_are_flagged",
        place: Place::Anywhere,
        tell: refused,
    },
    Story {
        name: "temporary_limits_follow_a_clock_that_is_set",
        place: Place::Guest,
        tell: clock_set,
    },
];

fn limit_mib(world: &World, name: &str) -> Result<Option<u64>> {
    Ok(world.daemon.memory(name)?.limit.map(|it| it.get() >> 20))
}

fn until_limit(world: &World, name: &str, mib: u64) -> Result<()> {
    until(&format!("{name}'s limit being {mib} MiB"), || {
        Ok((limit_mib(world, name)? == Some(mib)).then_some(()))
    })
}

/// In so many seconds, as files have it.
fn soon(seconds: i64) -> Result<String> {
    let moment = Timestamp::from_second(Timestamp::now().as_second() + seconds)?;
    Ok(moment.to_string())
}

/// Changes of an entry that the clock has made.
fn by_clock(world: &World, who: &str) -> Result<Vec<Event>> {
    let said = done(world, &["--json", "limit", "log", who])?;
    let all: Vec<Event> = serde_json::from_str(&said)?;
    let is_its = |it: &Event| matches!(it.actor.as_deref(), Some(Actor::Clock { .. }));
    Ok(all.into_iter().filter(is_its).collect())
}

fn limit_of(spec: Option<&bursar_model::EntrySpec>) -> Option<String> {
    Some(spec?.memory?.limit.to_string())
}

fn write_drop_in(world: &World, text: &str) -> Result<()> {
    let path = world.daemon.limits_path().with_file_name("limits.toml.d");
    fs::create_dir_all(&path)?;
    fs::write(path.join("10-a.toml"), text).context("write a drop-in")
}

/// The end of the one limit, once.
fn told_as_the_clocks(world: &World) -> Result<()> {
    let ends = by_clock(world, "60001")?;
    let [end] = ends.as_slice() else {
        anyhow::bail!("{ends:?}")
    };
    ensure!(
        limit_of(end.old.as_deref()) == Some("256M".into())
            && limit_of(end.new.as_deref()) == Some("64M".into())
            && end.old.as_ref().is_some_and(|it| it.until.is_some()),
        "{end:?}"
    );
    Ok(())
}

fn end_by_themselves(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "temporary", "")?;
    // What a configuration manager owns stays as it is.
    write_drop_in(&world, "[limits]\n60001 = { memory = \"64M\" }\n")?;
    world.daemon.start()?;
    world.daemon.limit("60002", "96M")?;
    // What is looked at until then takes an emulated machine a while.
    let seconds = if is_emulated() { 8 } else { 6 };
    let length = format!("{seconds}s");
    let set = ["limit", "set", "60001", "256M", "--for"];
    let said = done(
        &world,
        &[&set[..], &[&length, "--reason", "deadline"]].concat(),
    )?;
    let began = Instant::now();
    ensure!(
        said.contains("It ends t") && said.contains("applies again"),
        "{said}"
    );
    done(
        &world,
        &["limit", "set", "60002", "numproc=300", "--for", "1h"],
    )?;
    ensure!(limit_mib(&world, "60001")? == Some(256));
    // A row that ends leaves the limit on memory alone.
    ensure!(limit_mib(&world, "60002")? == Some(96));
    let shown = done(&world, &["limit", "show"])?;
    ensure!(
        shown.contains("60001 holds until t") && shown.contains("; then memory 64M"),
        "{shown}"
    );
    let (_, quota) = run(world
        .bursar(&["quota"])
        .uid(60001)
        .gid(60001)
        .current_dir("/"))?;
    let quota = quota.split_whitespace().collect::<Vec<_>>().join(" ");
    ensure!(
        quota.contains("This limit holds until t") && quota.contains("limit: deadline."),
        "{quota}"
    );
    let mut hog = world.there("uid=60001 hold=100M say=there pause")?;
    // The one without an end is set below it.
    let said = done(&world, &["limit", "set", "60002", "128M"])?;
    ensure!(said.contains("a temporary limit holds until"), "{said}");
    ensure!(limit_mib(&world, "60002")? == Some(128));

    // He is over what holds then: he is told, and has his time.
    let told = until("who is over being told", || {
        let told = world.daemon.events_of(EventKind::LimitChanged)?;
        let is_told = |it: &Event| {
            let reason = it.reason.as_deref().unwrap_or_default();
            it.overcommit.is_some()
                && reason.contains("a temporary limit has ended; this limit holds in")
        };
        Ok(told.into_iter().find(is_told))
    })?;
    ensure!(told.held > told.limit, "{told:?}");
    hog.expect_alive("who was told just now")?;
    hog.expect_killed()?;
    let lived = began.elapsed();
    let least = Duration::from_secs(seconds + 8);
    ensure!(lived > least, "killed after {lived:?}");
    until_limit(&world, "60001", 64)?;
    told_as_the_clocks(&world)?;
    // One that is ended before its time.
    done(&world, &["limit", "clear", "60002", "--temporary"])?;
    let (code, said) = run(&mut world.bursar(&["limit", "clear", "60002", "--temporary"]))?;
    ensure!(
        code == 1 && said.contains("no temporary limit"),
        "{code} {said}"
    );
    ensure!(limit_mib(&world, "60002")? == Some(128));
    Ok(())
}

fn end_meanwhile(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "meanwhile", "")?;
    let file = world.daemon.limits_path();
    let text = |end: &str| {
        format!(
            "[limits]\n60001 = {{ memory = \"64M\" }}\n[temporary]\n\
             60001 = {{ memory = \"256M\", until = \"{end}\" }}\n\
             60002 = {{ memory = \"256M\", until = 2090-01-01T09:00:00+01:00 }}\n"
        )
    };
    fs::write(&file, text(&soon(3600)?))?;
    world.daemon.start()?;
    ensure!(limit_mib(&world, "60001")? == Some(256));
    // A restart before the end changes nothing.
    world.daemon.end(libc::SIGTERM)?;
    world.daemon.start()?;
    ensure!(limit_mib(&world, "60001")? == Some(256));
    let end = soon(if is_emulated() { 6 } else { 4 })?;
    fs::write(&file, text(&end))?;
    world.daemon.reload()?;
    world.daemon.end(libc::SIGKILL)?;
    until("the end", || {
        Ok((Timestamp::now().to_string() > end).then_some(()))
    })?;
    world.daemon.start()?;
    ensure!(limit_mib(&world, "60001")? == Some(64));
    ensure!(limit_mib(&world, "60002")? == Some(256));
    let count = |world: &World| Ok::<_, anyhow::Error>(by_clock(world, "60001")?.len());
    ensure!(count(&world)? == 1, "{:?}", by_clock(&world, "60001")?);
    // It still stands there, and says nothing any more.
    world.daemon.end(libc::SIGTERM)?;
    world.daemon.start()?;
    world.daemon.reload()?;
    ensure!(count(&world)? == 1, "it was told of again");
    ensure!(limit_mib(&world, "60001")? == Some(64));
    Ok(())
}

/// The account's warnings that its limit will be lower.
fn warnings(world: &World) -> Result<usize> {
    let told = world.daemon.events_of(EventKind::LimitChanged)?;
    let is_warning = |it: &&Event| {
        let reason = it.reason.as_deref().unwrap_or_default();
        reason.contains("a temporary limit has ended; this limit holds in 10 seconds")
    };
    Ok(told.iter().filter(is_warning).count())
}

fn end_with_a_warning(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "warning", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let seconds = if is_emulated() { 8 } else { 4 };
    let end = soon(seconds)?;
    done(
        &world,
        &[
            "limit",
            "set",
            "60001",
            "256M",
            "--for",
            &format!("{seconds}s"),
        ],
    )?;
    let mut hog = world.there("uid=60001 hold=100M say=there pause")?;
    world.daemon.end(libc::SIGTERM)?;
    until("the end", || {
        Ok((Timestamp::now().to_string() > end).then_some(()))
    })?;
    // It has ended while nobody was there; then bursard is restarted before the ten seconds are over.
    for count in 1..=2 {
        world.daemon.start()?;
        let began = Instant::now();
        until("who is over being told", || {
            Ok((warnings(&world)? == count).then_some(()))
        })?;
        hog.expect_alive("who was told just now")?;
        ensure!(limit_mib(&world, "60001")? == Some(256));
        if count == 1 {
            world.daemon.end(libc::SIGTERM)?;
            continue;
        }
        hog.expect_killed()?;
        let lived = began.elapsed();
        ensure!(lived > Duration::from_secs(8), "killed after {lived:?}");
    }
    until_limit(&world, "60001", 64)?;
    told_as_the_clocks(&world)
}

fn refused(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "past", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let file = world.daemon.limits_path();
    let before = fs::read_to_string(&file)?;
    for (option, end, said) in [
        ("--until", "2020-01-01 09:00", "past"),
        ("--until", "2020-01-01T09:00:00Z", "past"),
        ("--until", "soon", "local time"),
        ("--for", "0s", "zero"),
        ("--for", "4", "how long"),
        ("--for", "99999999999999w", "how long"),
    ] {
        let (code, complaint) =
            run(&mut world.bursar(&["limit", "set", "60001", "96M", option, end]))?;
        ensure!(
            code == 2 && complaint.contains(said),
            "{end}: {code} {complaint}"
        );
    }
    // By whoever speaks to the socket himself.
    let request: bursar_protocol::Operation = serde_json::from_str(
        "{\"ask\":\"set_limit\",\"who\":\"60001\",\"memory\":{\"limit\":\"96M\"},\"until\":\"2020-01-01T09:00:00Z\"}",
    )?;
    let answer = world.daemon.ask(request)?;
    ensure!(format!("{answer:?}").contains("is past"), "{answer:?}");
    ensure!(fs::read_to_string(&file)? == before);

    let past = "60001 = { memory = \"96M\", until = \"2020-01-01T09:00:00Z\" }\n";
    fs::write(&file, format!("{before}[temporary]\n{past}"))?;
    world.daemon.reload()?;
    ensure!(
        limit_mib(&world, "60001")? == Some(64),
        "one that is past holds"
    );
    let check = |path: &Path| run(&mut world.bursar(&["check", path.to_str().unwrap_or_default()]));
    let (code, said) = check(&file)?;
    ensure!(
        code == 0 && said.contains("temporary.60001: ended at 2020-01-01T09:00:00Z"),
        "{code} {said}"
    );
    // One without an end, or with one under [limits], is no limit that holds for ever.
    for text in [
        "[temporary]\n60001 = { memory = \"96M\" }\n",
        "[limits]\n60001 = { memory = \"96M\", until = \"2090-01-01T09:00:00Z\" }\n",
        "[temporary]\n60001 = { memory = \"96M\", until = \"tomorrow\" }\n",
    ] {
        fs::write(&file, text)?;
        let (code, said) = check(&file)?;
        ensure!(code == 2, "{text}: {code} {said}");
        world.daemon.signal(libc::SIGHUP)?;
        until("bursard saying that they stay", || {
            let log = world.daemon.log()?;
            let last = log.lines().last().unwrap_or_default();
            Ok(last.contains("the limits stay as they were").then_some(()))
        })?;
        ensure!(limit_mib(&world, "60001")? == Some(64), "{text}");
        fs::write(&file, &before)?;
        world.daemon.reload()?;
    }
    Ok(())
}

/// The machine's clock, so many seconds on or back.
fn set_clock(by: i64) -> Result<()> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let then = rustix::time::Timespec {
        tv_sec: now.tv_sec + by,
        ..now
    };
    rustix::time::clock_settime(rustix::time::ClockId::Realtime, then).context("set the clock")
}

fn clock_set(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "clock", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    done(&world, &["limit", "set", "60001", "256M", "--for", "2h"])?;
    ensure!(limit_mib(&world, "60001")? == Some(256));
    set_clock(3 * 3600)?;
    let ended = until_limit(&world, "60001", 64);
    set_clock(-3 * 3600)?;
    ended?;
    until_limit(&world, "60001", 256)?;
    ensure!(by_clock(&world, "60001")?.len() == 2);
    Ok(())
}
