// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What accounts held over time.

mod incident;
mod reports;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use bursar_model::{Bytes, UsageSeries, UsageSummary};
use bursar_protocol::{Client, Operation, Reply};

use crate::length::whole;
use crate::proc::{awaits_a_time, context_switches, cpu_time, switches_by_thread};
use crate::runner::{Place, Story};
use crate::wait::{until, within};
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "usage_is_kept_over_a_restart_and_damaged_files_are_set_aside",
        place: Place::Anywhere,
        tell: kept,
    },
    Story {
        name: "usage_is_kept_without_a_kernel_half_too",
        place: Place::Anywhere,
        tell: polled,
    },
    Story {
        name: "history_of_usage_is_shown_to_root_and_to_users_their_own",
        place: Place::Anywhere,
        tell: history,
    },
    incident::FULL,
    reports::COUNTED,
    reports::MONTH,
    Story {
        name: "usage_wakes_nobody_while_nobody_holds_anything_and_misses_nobody",
        place: Place::Host,
        tell: asleep,
    },
    Story {
        name: "usage_by_default_wakes_nobody_while_nobody_holds_anything_and_misses_nobody",
        place: Place::Guest,
        tell: asleep_by_default,
    },
    Story {
        name: "usage_of_a_thousand_accounts_costs_less_than_a_thousandth_of_a_core",
        place: Place::Host,
        tell: thousand,
    },
];

const USER: u32 = 60_890;
const OTHER: u32 = 60_891;
const LATE: u32 = 60_892;
const QUIET: Duration = Duration::from_secs(2);

fn ask(world: &World, ask: Operation) -> Result<Reply> {
    let mut client = Client::connect(&world.daemon.socket())?;
    Ok(client.ask(ask)?)
}

fn series(world: &World, uid: u32) -> Result<UsageSeries> {
    let who = Some(uid.to_string().parse()?);
    let since = Some("1h".to_owned());
    match ask(world, Operation::Usage { who, since })? {
        Reply::Usage(series) => Ok(*series),
        other => bail!("{other:?}"),
    }
}

fn summary(world: &World) -> Result<UsageSummary> {
    match ask(
        world,
        Operation::UsageSummary {
            who: None,
            since: None,
        },
    )? {
        Reply::UsageSummary(summary) => Ok(*summary),
        other => bail!("{other:?}"),
    }
}

fn kept(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "usage", "")?;
    world.daemon.start()?;
    world.daemon.limit(&USER.to_string(), "64M")?;
    let _calm = world.there(&format!("uid={USER} hold=30M say=there pause"))?;
    let mut hog = world.hog(&format!("uid={USER} hold=50M pause"))?;
    hog.expect_killed()?;
    let killed = |world: &World| {
        let series = series(world, USER)?;
        let kills: u32 = series.samples.iter().map(|it| it.kills).sum();
        let most = series
            .samples
            .iter()
            .map(|it| it.max)
            .max()
            .unwrap_or_default();
        Ok::<_, anyhow::Error>((kills, most, series))
    };
    let (kills, most, before) = until("the kill being in the samples", || {
        Ok(Some(killed(&world)?).filter(|(kills, ..)| *kills > 0))
    })?;
    ensure!(
        kills == 1 && before.uid.map(bursar_model::Uid::get) == Some(USER),
        "{before:?}"
    );
    // The peak was over within milliseconds; a look every fifteen seconds has not seen it.
    ensure!(most >= Bytes::from_mib(60), "{most}");
    ensure!(
        before
            .samples
            .iter()
            .all(|it| it.limit == Some(Bytes::from_mib(64))),
        "{before:?}"
    );

    ensure!(world.daemon.end(libc::SIGTERM)?.success());
    world.daemon.start()?;
    let (kills, most, _) = killed(&world)?;
    ensure!(kills == 1 && most >= Bytes::from_mib(60), "{kills} {most}");

    ensure!(world.daemon.end(libc::SIGTERM)?.success());
    let usage = world.directory().join("state/usage");
    let files: Vec<_> = fs::read_dir(&usage)?
        .map(|it| it.map(|it| it.path()))
        .collect::<Result<_, _>>()?;
    ensure!(!files.is_empty(), "no files");
    for file in &files {
        fs::write(file, "no usage at all")?;
    }
    world.daemon.start()?;
    until("somebody being looked at again", || {
        let samples = series(&world, USER)?.samples;
        Ok(samples
            .iter()
            .any(|it| it.max >= Bytes::from_mib(30))
            .then_some(()))
    })?;
    let log = world.daemon.log()?;
    ensure!(log.contains("a new one is begun"), "{log}");
    let remarks = world.daemon.status()?.remarks;
    let is_said = |it: &String| it.contains("damaged files of usage");
    ensure!(remarks.iter().any(is_said), "{remarks:?}");
    ensure!(world.daemon.end(libc::SIGTERM)?.success());
    let set_aside = fs::read_dir(&usage)?
        .flatten()
        .filter(|it| it.file_name().to_string_lossy().ends_with(".damaged"));
    ensure!(set_aside.count() >= 1, "no damaged file was kept");
    Ok(())
}

fn polled(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "usage-poll", "")?;
    world.daemon.with_arguments(&["--trigger", "poll"]);
    world.daemon.start()?;
    world.daemon.limit(&USER.to_string(), "64M")?;
    let _calm = world.there(&format!("uid={USER} hold=30M say=there pause"))?;
    world
        .hog(&format!("uid={USER} hold=50M pause"))?
        .expect_killed()?;
    until("the kill being in the samples", || {
        let samples = series(&world, USER)?.samples;
        let kills: u32 = samples.iter().map(|it| it.kills).sum();
        let most = samples.iter().map(|it| it.max).max().unwrap_or_default();
        Ok((kills == 1 && most > Bytes::from_mib(64)).then_some(()))
    })
}

/// Exit code, and what was said on either stream.
fn said(world: &World, uid: u32, arguments: &[&str], width: Option<&str>) -> Result<(i32, String)> {
    let mut command = world.bursar(arguments);
    command
        .uid(uid)
        .gid(uid)
        .current_dir("/")
        .env("LC_ALL", "C.UTF-8");
    match width {
        Some(width) => command.env("COLUMNS", width),
        None => command.env_remove("COLUMNS"),
    };
    let output = command.output().context("run bursar")?;
    let said = [output.stdout, output.stderr].concat();
    let code = output.status.code().context("it was killed")?;
    Ok((code, String::from_utf8_lossy(&said).into_owned()))
}

fn history(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "history", "")?;
    world.let_users_in()?;
    world.daemon.start()?;
    let (user, other) = (USER.to_string(), OTHER.to_string());
    world.daemon.limit(&user, "64M")?;
    world.daemon.limit(&other, "64M")?;
    let _neighbour = world.there(&format!("uid={OTHER} hold=10M say=there pause"))?;
    world
        .hog(&format!("uid={USER} hold=80M pause"))?
        .expect_killed()?;
    until("the kill being in the samples", || {
        let kills: u32 = series(&world, USER)?
            .samples
            .iter()
            .map(|it| it.kills)
            .sum();
        Ok((kills == 1).then_some(()))
    })?;
    let (code, text) = said(&world, 0, &["history", &user, "--since", "1h"], Some("80"))?;
    println!("{text}");
    let is_narrow = text.lines().all(|it| it.chars().count() <= 80);
    ensure!(
        code == 0 && is_narrow && text.contains("1 process killed"),
        "{code} {text}"
    );
    ensure!(
        text.contains("limit 64 MiB") && text.contains(" killed  "),
        "{text}"
    );
    let (code, text) = said(&world, USER, &["history"], None)?;
    ensure!(
        code == 0 && text.starts_with("TIME") && text.contains("64M"),
        "{code} {text}"
    );
    let (code, text) = said(&world, USER, &["history", "--json"], None)?;
    let json: serde_json::Value = serde_json::from_str(&text)?;
    // The minute may have ended before the kill.
    let samples = json["samples"].as_array();
    let kills = samples.map(|it| it.iter().filter_map(|it| it["kills"].as_u64()).sum::<u64>());
    ensure!(
        code == 0 && json["uid"] == USER && kills == Some(1),
        "{code} {text}"
    );
    // Users see themselves and nobody else.
    for (uid, whom, expected) in [
        (USER, other.as_str(), 3),
        (OTHER, user.as_str(), 3),
        (USER, "root", 3),
        (OTHER, other.as_str(), 0),
    ] {
        let (code, text) = said(&world, uid, &["history", whom], None)?;
        ensure!(code == expected, "{uid} about {whom}: {code} {text}");
    }
    for (arguments, expected) in [
        (&["history"][..], 2),
        (&["history", "nobody-has-this-name"], 1),
        (&["report", "nobody-has-this-name"], 1),
        (&["history", "@staff"], 2),
    ] {
        let (code, text) = said(&world, 0, arguments, None)?;
        ensure!(code == expected, "{arguments:?}: {code} {text}");
    }
    asks_all_the_time(&world)
}

/// Nobody keeps the files to himself by asking all the time.
fn asks_all_the_time(world: &World) -> Result<()> {
    let began = Instant::now();
    let mut children = Vec::new();
    for _ in 0..4 {
        let mut command = world.bursar(&["history", "--json"]);
        command
            .uid(OTHER)
            .gid(OTHER)
            .current_dir("/")
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        children.push(command.spawn()?);
    }
    let (code, text) = said(world, USER, &["history"], None)?;
    ensure!(
        code == 0 && began.elapsed() < Duration::from_secs(5),
        "{code} {text}"
    );
    for mut child in children {
        child.wait()?;
    }
    Ok(())
}

fn asleep(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "asleep", "")?;
    world.daemon.start()?;
    for uid in [USER, OTHER] {
        world.daemon.limit(&uid.to_string(), "8G")?;
    }
    begins(&world, USER)
}

/// The same of who has no account before `default` makes one.
fn asleep_by_default(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(
        binaries,
        "asleep",
        &format!("[accounts]\nuid_min = {LATE}\n"),
    )?;
    world.daemon.start()?;
    world.daemon.limit("default", "8G")?;
    begins(&world, LATE)
}

/// Nothing in bursard goes by time any more, and nothing has woken it for so long. What would wake it again and again
/// leaves no such span; what else happens on the machine does.
pub(super) fn until_asleep(pid: u32, span: Duration, what: &str) -> Result<()> {
    let mut woken = BTreeMap::new();
    until(what, || {
        let before = switches_by_thread(pid)?;
        if awaits_a_time(pid)?.is_some() {
            return Ok(None);
        }
        std::thread::sleep(span);
        woken = switches_by_thread(pid)?;
        woken.retain(|name, count| before.get(name) != Some(count));
        Ok(woken.is_empty().then_some(()))
    })
    .with_context(|| format!("{:?}, woken at last: {woken:?}", awaits_a_time(pid)))
}

/// bursard sleeps, wakes up when somebody begins to hold something, and looks again and again then.
fn begins(world: &World, uid: u32) -> Result<()> {
    let pid = world.daemon.pid()?;
    until_asleep(pid, QUIET, "bursard being asleep")?;
    let hold = || world.there(&format!("uid={uid} hold=20M say=there pause"));
    let woken = |before: u64| {
        // Who asks has it look, so nobody asks.
        until("bursard waking up", || {
            let is_awake = awaits_a_time(pid)?.is_some();
            Ok((is_awake && context_switches(pid)? > before).then_some(()))
        })
    };
    let before = context_switches(pid)?;
    let hog = hold()?;
    woken(before)?;
    // The first look comes at once, the second one a quarter of a minute later.
    std::thread::sleep(Duration::from_secs(3));
    let before = context_switches(pid)?;
    std::thread::sleep(Duration::from_secs(12));
    within(Duration::from_secs(30), "bursard looking again", || {
        Ok((context_switches(pid)? > before).then_some(()))
    })?;
    // The minutes under way have more than the one look that the question is.
    let samples = series(world, uid)?.samples;
    let observed: u64 = samples.iter().map(|it| u64::from(it.observed_ms)).sum();
    let most = samples.iter().map(|it| it.max).max().unwrap_or_default();
    println!("        {most} observed for {observed} ms");
    ensure!(
        most >= Bytes::from_mib(20) && observed > 12_000,
        "{samples:?}"
    );
    drop(hog);
    until_asleep(pid, QUIET, "bursard being asleep again")?;
    let written = fs::read_dir(world.directory().join("state/usage"))?.count();
    ensure!(written > 0, "what was observed is not on disk");
    // And once more.
    let before = context_switches(pid)?;
    let hog = hold()?;
    woken(before)?;
    drop(hog);
    until_asleep(pid, QUIET, "bursard being asleep once more")
}

const ACCOUNTS: u32 = 1000;
const HOLDERS: u32 = 200;

fn thousand(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "thousand", "")?;
    let limits: String = (60_000..60_000 + ACCOUNTS)
        .map(|uid| format!("{uid} = {{ memory = \"1G\" }}\n"))
        .collect();
    fs::write(world.daemon.limits_path(), format!("[limits]\n{limits}"))?;
    world.daemon.start()?;
    let mut hogs = Vec::new();
    for uid in 60_000..60_000 + HOLDERS {
        hogs.push(world.hog(&format!("uid={uid} hold=1M pause"))?);
    }
    within(Duration::from_secs(60), "all holding something", || {
        let all = summary(&world)?.accounts;
        Ok((all.len() >= HOLDERS as usize).then_some(()))
    })?;
    std::thread::sleep(Duration::from_secs(5));
    // A minute ends while it is watched, and is written.
    until("the second half of a minute", || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        Ok((now.as_secs() % 60 >= 25).then_some(()))
    })?;
    let pid = world.daemon.pid()?;
    let (before, began) = (cpu_time(pid)?, Instant::now());
    std::thread::sleep(Duration::from_secs(whole(180).or(40)));
    let spent = cpu_time(pid)? - before;
    let share = spent.as_secs_f64() / began.elapsed().as_secs_f64();
    println!(
        "        {ACCOUNTS} accounts, {HOLDERS} of which hold something: bursard took {spent:.0?} in {:.0?}, {:.3} % of a core",
        began.elapsed(),
        share * 100.0
    );
    ensure!(share < 0.001, "{share}");
    Ok(())
}
