// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits that are only observed: nobody is told, refused or killed, and events name whom enforcing would have killed.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bursar_model::{Event, EventKind, Mode, Resource};

use super::command::{done, run};
use super::growers::grower;
use super::{ALICE, BOB, allowance, is_emulated};
use crate::hog::Hog;
use crate::length::whole;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "observe_kills_nobody_and_names_the_victim_while_another_account_is_enforced",
        place: Place::Anywhere,
        tell: kills_nobody,
    },
    Story {
        name: "observe_names_whom_enforcing_kills_in_fifty_replays",
        // In a guest each program shares its text, and when a PSS scan is answered decides who has grown how far.
        place: Place::Host,
        tell: replays,
    },
    Story {
        name: "observe_names_each_once_and_next_whom_enforcing_would_kill_next",
        place: Place::Anywhere,
        tell: each_once,
    },
    Story {
        name: "observe_names_each_once_where_a_pss_scan_has_looked_at_it",
        place: Place::Anywhere,
        tell: once_after_a_scan,
    },
    Story {
        name: "observe_holds_while_bursard_is_dead",
        place: Place::Anywhere,
        tell: without_bursard,
    },
    Story {
        name: "observe_becomes_enforcing_where_that_kills_nobody_or_is_forced",
        place: Place::Anywhere,
        tell: enforced_then,
    },
    Story {
        name: "observe_is_said_by_files_and_for_all",
        place: Place::Anywhere,
        tell: by_files,
    },
    Story {
        name: "observe_without_a_kernel_half",
        place: Place::Anywhere,
        tell: by_poll,
    },
    Story {
        name: "observe_refuses_nobody_at_the_gate",
        place: Place::Guest,
        tell: gate,
    },
];

const MIB: u64 = 1 << 20;

fn observe(world: &World, who: &str, size: &str) -> Result<()> {
    done(world, &["limit", "set", who, size, "--observe"]).map(drop)
}

/// Nothing was done to an account.
fn expect_untouched(world: &World, uid: u32) -> Result<()> {
    let account = world.daemon.account(&uid.to_string())?;
    let account = account.context("the account")?;
    let failcnt = account.resources[&Resource::Memory].failcnt;
    ensure!(
        account.mode == Mode::Observe && (account.kills, account.notices, failcnt) == (0, 0, 0),
        "{account:?}"
    );
    Ok(())
}

fn kills_nobody(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "observe", "")?;
    world.daemon.start()?;
    observe(&world, "60001", "128M")?;
    world.daemon.limit("60002", "64M")?;
    let mut small = world.there("uid=60001 name=small hold=20M say=there pause")?;
    let mut large = world.there("uid=60001 name=large hold=30M say=there pause")?;
    let mut grower = world.there("uid=60001 name=grower hold=200M say=there pause")?;
    let event = world
        .daemon
        .await_event(EventKind::WouldKill, grower.pid())?;
    let number = |bytes: Option<bursar_model::Bytes>| bytes.map_or(0, |it| it.get());
    // docs/design/7-shared-pages.md "At a crossing": a guest's programs lie in a tmpfs, and bursard is asked.
    let waited = if is_emulated() { 32 * MIB } else { 0 };
    ensure!(
        number(event.limit) == 128 * MIB
            && number(event.held) > 128 * MIB
            && number(event.overcommit) <= allowance() + waited
            && event.comm.as_deref() == Some("grower")
            && event.candidates_met == Some(3),
        "{event:?}"
    );
    let notice = world.daemon.events_of(EventKind::WouldNotice)?;
    ensure!(notice.len() == 1, "{notice:?}");

    // Others are enforced meanwhile.
    let mut enforced = world.hog("uid=60002 hold=100M pause")?;
    enforced.expect_killed()?;
    world.daemon.await_event(EventKind::Kill, enforced.pid())?;

    // Some re-sums later nothing more has become of it.
    std::thread::sleep(Duration::from_millis(700));
    for hog in [&mut small, &mut large, &mut grower] {
        hog.expect_alive("one in an account that is only observed")?;
    }
    let would = world.daemon.events_of(EventKind::WouldKill)?;
    ensure!(would.len() == 1, "{would:?}");
    expect_untouched(&world, ALICE)?;
    let held = world.daemon.memory("60001")?.held.get();
    ensure!(held >= 250 * MIB, "held {held}");
    let log = world.daemon.log()?;
    ensure!(!log.contains("panic"), "{log}");
    Ok(())
}

/// Sizes in MiB of programs that are begun one after the other, of which the last makes them too many: by so much, and
/// with sizes so different, that what a program holds besides does not decide.
fn workload(replay: u64) -> Vec<u64> {
    const LIMIT: u64 = 48;
    const MARGIN: u64 = 3;
    let mut seed = replay.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |most: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % most
    };
    let mut sizes: Vec<u64> = Vec::new();
    for tries in 1.. {
        if tries % 100 == 0 {
            sizes.clear();
        }
        let sum: u64 = sizes.iter().map(|it| it + 1).sum();
        let size = 3 + next(24);
        let is_last = sum + size > LIMIT;
        // Who crosses the limit holds what was left then.
        let held = if is_last {
            LIMIT.saturating_sub(sum)
        } else {
            size
        };
        let is_like = |it: &u64| it.abs_diff(held) < MARGIN;
        if (sum + size).abs_diff(LIMIT) <= MARGIN || sizes.iter().any(is_like) {
            continue;
        }
        sizes.push(size);
        if is_last {
            break;
        }
    }
    sizes
}

/// Begins them; the name of whom an event of this kind names, who is there all the same where nobody is killed.
fn replay(world: &World, uid: u32, sizes: &[u64], kind: EventKind) -> Result<String> {
    let mut hogs: Vec<Hog> = Vec::new();
    let (last, first) = sizes.split_last().context("a workload")?;
    for (at, size) in first.iter().enumerate() {
        let script = format!("uid={uid} name=w{at} hold={size}M say=there pause");
        hogs.push(world.there(&script)?);
    }
    let script = format!("uid={uid} name=w{} hold={last}M pause", first.len());
    hogs.push(world.hog(&script)?);
    let pids: Vec<u32> = hogs.iter().map(Hog::pid).collect();
    let event: Event = until(&format!("a {kind:?} event of one of {pids:?}"), || {
        let events = world.daemon.events_of(kind)?;
        let is_its = |it: &Event| it.pid.is_some_and(|pid| pids.contains(&pid.get()));
        Ok(events.into_iter().find(is_its))
    })?;
    if kind == EventKind::WouldKill {
        for hog in &mut hogs {
            hog.expect_alive("one that was only observed")?;
        }
    }
    drop(hogs);
    world.daemon.until_empty(uid)?;
    event.comm.context("the victim's name")
}

fn replays(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "observe-replays", "")?;
    world.daemon.start()?;
    observe(&world, "60001", "48M")?;
    world.daemon.limit("60002", "48M")?;
    let mut sleepers = 0;
    let replays = whole(50).or(25);
    for number in 1..=replays {
        let sizes = workload(number);
        let observed = replay(&world, ALICE, &sizes, EventKind::WouldKill)?;
        let enforced = replay(&world, BOB, &sizes, EventKind::Kill)?;
        ensure!(
            observed == enforced,
            "of {sizes:?} MiB {observed} was named and {enforced} killed"
        );
        sleepers += u64::from(enforced != format!("w{}", sizes.len() - 1));
    }
    // The workloads try both: who crosses, and who was there before.
    let few = replays / 10;
    ensure!(
        (few..=replays - few).contains(&sleepers),
        "{sleepers} of {replays} slept"
    );
    expect_untouched(&world, ALICE)
}

fn each_once(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "observe-once", "")?;
    world.daemon.start()?;
    observe(&world, "60001", "64M")?;
    let told = |world: &World| -> Result<Vec<u32>> {
        let events = world.daemon.events_of(EventKind::WouldKill)?;
        Ok(events.iter().filter_map(|it| Some(it.pid?.get())).collect())
    };
    // It grows to many times the limit.
    let mut first = world.there("uid=60001 hold=300M say=there pause")?;
    until("the first to be named", || {
        Ok((told(&world)? == [first.pid()]).then_some(()))
    })?;
    // Enforcing has room for these: the first one is gone there.
    let mut second = world.there("uid=60001 hold=50M say=there pause")?;
    std::thread::sleep(Duration::from_millis(500));
    ensure!(told(&world)? == [first.pid()], "{:?}", told(&world)?);
    let mut third = world.there("uid=60001 hold=40M say=there pause")?;
    until("the next one to be named", || {
        Ok((told(&world)? == [first.pid(), second.pid()]).then_some(()))
    })?;
    // The end of the first one frees nothing that was not free.
    first.finish()?;
    std::thread::sleep(Duration::from_millis(500));
    ensure!(told(&world)?.len() == 2, "{:?}", told(&world)?);
    // A lower limit is another one.
    observe(&world, "60001", "32M")?;
    until("both to be named again", || {
        let again = told(&world)?.split_off(2);
        Ok((again == [second.pid(), third.pid()]).then_some(()))
    })?;
    for hog in [&mut second, &mut third] {
        hog.expect_alive("one that was named")?;
    }
    expect_untouched(&world, ALICE)
}

/// Processes that share most of what they have: bursard looks, and looks again.
fn once_after_a_scan(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "observe-scan", "")?;
    world.daemon.start()?;
    observe(&world, "60001", "64M")?;
    let mut family = world.there("uid=60001 hold=40M leave=3 hold=60M say=there pause")?;
    until("a PSS scan", || {
        let made = world.daemon.status()?.kernel_half.surveys.made;
        Ok((made > 0).then_some(()))
    })?;
    let told = || world.daemon.events_of(EventKind::WouldKill);
    until("the first to be named", || {
        Ok((!told()?.is_empty()).then_some(()))
    })?;
    let scans = world.daemon.status()?.kernel_half.surveys.made;
    let mut other = world.there("uid=60001 hold=30M leave=3 say=there pause")?;
    until("another PSS scan", || {
        let made = world.daemon.status()?.kernel_half.surveys.made;
        Ok((made > scans).then_some(()))
    })?;
    std::thread::sleep(Duration::from_millis(700));
    let mut pids: Vec<Option<u32>> = told()?.iter().map(|it| it.pid.map(|it| it.get())).collect();
    let count = pids.len();
    pids.sort_unstable();
    pids.dedup();
    ensure!(pids.len() == count, "{:#?}", told()?);
    for hog in [&mut family, &mut other] {
        hog.expect_alive("one in an account that is only observed")?;
    }
    expect_untouched(&world, ALICE)
}

fn without_bursard(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "observe-dead", "")?;
    world.daemon.start()?;
    observe(&world, "60001", "64M")?;
    world.daemon.limit("60002", "64M")?;
    world.daemon.end(libc::SIGKILL)?;
    let mut observed = world.there("uid=60001 hold=100M say=there pause")?;
    let mut enforced = world.hog("uid=60002 hold=100M pause")?;
    enforced.expect_killed()?;
    std::thread::sleep(Duration::from_millis(500));
    observed.expect_alive("one in an account that is only observed")?;
    world.daemon.start()?;
    world
        .daemon
        .await_event(EventKind::WouldKill, observed.pid())?;
    std::thread::sleep(Duration::from_millis(500));
    observed.expect_alive("one that a bursard has come back to")?;
    let would = world.daemon.events_of(EventKind::WouldKill)?;
    ensure!(would.len() == 1, "{would:?}");
    expect_untouched(&world, ALICE)
}

fn enforced_then(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "observe-enforce", "")?;
    world.daemon.start()?;
    observe(&world, "60001", "64M")?;
    let mut small = world.there("uid=60001 hold=20M say=there pause")?;
    let mut large = world.there("uid=60001 hold=60M say=there pause")?;
    world
        .daemon
        .await_event(EventKind::WouldKill, large.pid())?;
    said_everywhere(&world)?;

    let enforce = ["limit", "set", "60001", "64M", "--enforce"];
    let (code, said) = run(&mut world.bursar(&enforce))?;
    ensure!(
        code == 1 && said.contains("would kill at once"),
        "{code} {said}"
    );
    // A change that says nothing of it leaves it as it is.
    done(&world, &["limit", "set", "60001", "70M"])?;
    std::thread::sleep(Duration::from_millis(300));
    large.expect_alive("one whose limit is still observed")?;
    // Where nobody is over it nobody is asked.
    done(&world, &["limit", "set", "60001", "200M", "--enforce"])?;
    let account = world.daemon.account("60001")?.context("the account")?;
    ensure!(account.mode == Mode::Enforce, "{account:?}");
    observe(&world, "60001", "64M")?;
    std::thread::sleep(Duration::from_millis(300));
    large.expect_alive("one whose limit is observed again")?;
    let again = done(
        &world,
        &["--json", "limit", "set", "60001", "64M", "--observe"],
    )?;
    ensure!(
        again.contains("\"changed\":false") || again.contains("\"changed\": false"),
        "{again}"
    );

    done(&world, &[&enforce[..], &["--force"]].concat())?;
    large.expect_killed()?;
    small.expect_alive("the smaller one")?;
    world.daemon.await_event(EventKind::Kill, large.pid())?;
    Ok(())
}

/// Whoever looks at the account sees that it is only observed.
fn said_everywhere(world: &World) -> Result<()> {
    for arguments in [
        &["limit", "show"][..],
        &["limit", "show", "60001"],
        &["status"],
        &["events"],
        &["limit", "log", "60001"],
        &["--json", "limit", "show"],
        &["--json", "status"],
    ] {
        let said = done(world, arguments)?;
        let is_said = ["observe", "would_kill"].iter().any(|it| said.contains(it));
        ensure!(is_said, "{arguments:?}: {said}");
    }
    let metrics = done(world, &["metrics"])?;
    ensure!(
        metrics
            .lines()
            .any(|it| it.starts_with("bursar_account_observed{") && it.ends_with(" 1")),
        "{metrics}"
    );
    Ok(())
}

fn by_files(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "observe-files", "mode = \"observe\"\n")?;
    let limits = world.daemon.limits_path();
    fs::write(
        &limits,
        "[limits]\n60002 = { memory = \"64M\", mode = \"enforce\" }\n60003 = { memory = \"64M\" }\n",
    )?;
    world.daemon.start()?;
    let mut silent = world.there("uid=60003 hold=100M say=there pause")?;
    let mut enforced = world.hog("uid=60002 hold=100M pause")?;
    enforced.expect_killed()?;
    world
        .daemon
        .await_event(EventKind::WouldKill, silent.pid())?;
    silent.expect_alive("one whose entry says nothing of it")?;
    // A drop-in, and an end.
    let drop_ins = limits.with_extension("toml.d");
    fs::create_dir(&drop_ins)?;
    fs::write(
        drop_ins.join("10-lab.toml"),
        "[limits]\n60002 = { memory = \"64M\", mode = \"observe\" }\n[temporary]\n60003 = { memory = \"200M\", \
         mode = \"enforce\", until = \"2099-01-01T00:00:00Z\" }\n",
    )?;
    world.daemon.signal(libc::SIGHUP)?;
    let mode_of =
        |name: &str| -> Result<Option<Mode>> { Ok(world.daemon.account(name)?.map(|it| it.mode)) };
    until("the files to be read", || {
        let read = mode_of("60002")? == Some(Mode::Observe);
        Ok((read && mode_of("60003")? == Some(Mode::Enforce)).then_some(()))
    })?;
    let mut observed = world.there("uid=60002 hold=100M say=there pause")?;
    world
        .daemon
        .await_event(EventKind::WouldKill, observed.pid())?;
    observed.expect_alive("one whose limit a drop-in observes")?;
    // A word that there is not.
    let (code, said) = run(&mut world.bursar(&["limit", "show", "60002"]))?;
    let is_said = said.contains("  MODE\n") && said.contains("%  observe\n");
    ensure!(code == 0 && is_said, "{said}");
    fs::write(
        &limits,
        "[limits]\n60002 = { memory = \"64M\", mode = \"watch\" }\n",
    )?;
    let file = limits.to_str().context("its path")?;
    let (code, said) = run(&mut world.bursar(&["check", file]))?;
    ensure!(code == 2 && said.contains("\"observe\""), "{code} {said}");
    Ok(())
}

fn by_poll(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "observe-poll", "trigger = \"poll\"\n")?;
    world.daemon.start()?;
    observe(&world, "60001", "64M")?;
    world.daemon.limit("60002", "64M")?;
    let mut observed = world.there("uid=60001 hold=100M say=there pause")?;
    let mut enforced = world.hog("uid=60002 hold=100M pause")?;
    enforced.expect_killed()?;
    world
        .daemon
        .await_event(EventKind::WouldKill, observed.pid())?;
    std::thread::sleep(Duration::from_millis(500));
    observed.expect_alive("one in an account that is only observed")?;
    expect_untouched(&world, ALICE)?;
    let held = world.daemon.memory("60001")?.held.get();
    ensure!(held >= 100 * MIB, "held {held}");
    done(
        &world,
        &["limit", "set", "60001", "64M", "--enforce", "--force"],
    )?;
    observed.expect_killed()
}

fn gate(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "observe-gate", "[gate]\nmode = \"auto\"\n")?;
    world.daemon.start()?;
    observe(&world, "60001", "64M")?;
    let said = |steps: &str| -> Result<String> {
        let output = grower(binaries, ALICE, steps).output()?;
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let steps = "map=40M|touch|map=30M|leave|shared=30M|drop|grow=50M|brk=30M|malloc=30M|fork|reserve=9999|\
                 commit=9999|file=30M|run=ls / >/dev/null|map=1M";
    let answers = said(steps)?;
    let is_refused =
        |it: &str| it.contains("ENOMEM") || it.contains("EAGAIN") || it.contains("ENOSPC");
    ensure!(!is_refused(&answers), "{answers}");
    // Once a second at most: on a slow machine the shell has one of its own.
    let event = until("a request of grower's that would be refused", || {
        let events = world.daemon.events_of(EventKind::WouldRefuse)?;
        let mut all = events.into_iter();
        Ok(all.find(|it| it.comm.as_deref() == Some("grower")))
    })?;
    ensure!(
        event.request.is_some() && event.barrier.is_some(),
        "{event:?}"
    );
    let refused = world.daemon.events_of(EventKind::Refused)?;
    ensure!(refused.is_empty(), "{refused:?}");
    world.daemon.until_empty(ALICE)?;
    expect_untouched(&world, ALICE)?;

    // Rows: of an entry that has nothing else, too.
    done(&world, &["limit", "clear", "60001"])?;
    done(
        &world,
        &[
            "limit",
            "set",
            "60001",
            "numproc=3",
            "numfile=20",
            "--observe",
        ],
    )?;
    let mut many = world.there("uid=60001 fork=8 say=there pause")?;
    let row = |event: Event| event.row;
    until("a process that would be refused", || {
        let events = world.daemon.events_of(EventKind::WouldRefuse)?;
        let mut rows = events.into_iter().filter_map(row);
        Ok(rows.find(|it| it.resource == Resource::Numproc).map(drop))
    })?;
    let numproc = until("nine processes being counted", || {
        let mut account = world.daemon.account("60001")?.context("the account")?;
        let numproc = account.resources.beans.remove(&Resource::Numproc);
        Ok(numproc.filter(|it| it.held >= Some(9)))
    })?;
    many.expect_alive("one that has more processes than would be")?;
    ensure!(
        numproc.mode == Mode::Observe && numproc.failcnt == 0,
        "{numproc:?}"
    );
    drop(many);

    // Who has an account by `default`, from his first process on.
    observe(&world, "default", "64M")?;
    let mut covered = world.there("uid=60002 hold=100M say=there pause")?;
    world
        .daemon
        .await_event(EventKind::WouldKill, covered.pid())?;
    covered.expect_alive("one whom default covers, which is observed")?;
    drop(covered);
    done(&world, &["limit", "clear", "default"])?;

    // Enforced it is as ever.
    done(&world, &["limit", "clear", "60001"])?;
    world.daemon.limit("60001", "64M")?;
    let answers = said("map=40M|touch|map=30M")?;
    if !answers.contains("map=30M: ENOMEM") {
        bail!("{answers}");
    }
    Ok(())
}
