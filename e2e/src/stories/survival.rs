// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits hold whatever becomes of bursard.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bursar_model::EventKind;
use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::allowance;
use crate::length::whole;
use crate::proc::{children_of, descriptors, status_of};
use crate::runner::{Place, Story};
use crate::threads::{end_thread, threads};
use crate::unit;
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "a_breach_is_killed_while_bursard_is_dead",
        place: Place::Anywhere,
        tell: holds_without_bursard,
    },
    Story {
        name: "bursard_ends_when_one_of_its_threads_ends",
        place: Place::Host,
        tell: without_a_thread,
    },
    Story {
        name: "modes_of_what_bursard_makes_do_not_depend_on_the_umask",
        place: Place::Anywhere,
        tell: modes,
    },
    Story {
        name: "who_gets_a_dead_bursards_number_has_a_limit",
        place: Place::Anywhere,
        tell: its_number,
    },
    Story {
        name: "limits_maxheld_and_failcnt_continue_after_a_restart",
        place: Place::Anywhere,
        tell: continues,
    },
    Story {
        name: "another_version_takes_over_and_nothing_is_forgotten",
        place: Place::Anywhere,
        tell: replaced,
    },
    Story {
        name: "events_of_another_version_are_counted",
        place: Place::Anywhere,
        tell: of_another_version,
    },
    Story {
        name: "restarts_under_load_leak_nothing",
        place: Place::Host,
        tell: restarts,
    },
    Story {
        name: "release_leaves_no_trace",
        place: Place::Anywhere,
        tell: no_trace,
    },
    Story {
        name: "what_a_killed_bursard_has_raised_is_put_back_by_the_next",
        place: Place::Anywhere,
        tell: left_raised,
    },
    Story {
        name: "release_puts_back_what_a_killed_bursard_had_turned",
        place: Place::Anywhere,
        tell: puts_back,
    },
    Story {
        name: "a_kernel_half_that_was_never_finished_is_replaced",
        place: Place::Anywhere,
        tell: unfinished,
    },
];

fn holds_without_bursard(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "orphan", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let mut neighbour = world.there("uid=60001 name=neighbour hold=2M say=there pause")?;
    world.daemon.end(libc::SIGKILL)?;

    for _ in 0..3 {
        let mut hog = world.hog("uid=60001 name=hog hold=300M pause")?;
        hog.expect_killed()?;
    }
    neighbour.expect_alive("the neighbour")?;

    // What happened meanwhile is told by the next one.
    world.daemon.start()?;
    let kills = until("the kills of the time without bursard", || {
        let kills = world.daemon.events_of(EventKind::Kill)?;
        Ok((kills.len() >= 3).then_some(kills))
    })?;
    for kill in kills {
        let over = kill.overcommit.context("overcommit")?.get();
        ensure!(over <= allowance(), "{over} bytes over the limit");
    }
    Ok(())
}

fn modes(binaries: &Binaries) -> Result<()> {
    for mask in [0o000, 0o022, 0o077] {
        let mut world = World::new(binaries, "modes", "")?;
        let mut command = world.daemon.command()?;
        let set = move || {
            // SAFETY: takes a number.
            unsafe { libc::umask(mask) };
            Ok(())
        };
        // SAFETY: nothing in it allocates or locks.
        unsafe { command.pre_exec(set) };
        world.daemon.start_as(&mut command)?;
        world.daemon.limit("60001", "64M")?;
        let limits = world.daemon.limits_path();
        let (run, state) = (
            world.directory().join("run"),
            world.directory().join("state"),
        );
        // A thread of bursard's writes it.
        let names = state.join("names.toml");
        until("names are kept", || Ok(names.exists().then_some(())))?;
        for (path, published) in [
            (run.clone(), 0o755),
            (run.join("bursar.sock"), 0o666),
            (run.join("bursard.lock"), 0o600),
            (state.clone(), 0o750),
            (state.join("events.jsonl"), 0o640),
            (names, 0o640),
            (limits, 0o644),
            (world.pins().to_owned(), 0o700),
        ] {
            let found = fs::metadata(&path).with_context(|| format!("{path:?}"))?;
            let found = found.permissions().mode() & 0o7777;
            ensure!(
                found == published,
                "umask {mask:03o}: {path:?} has {found:o}"
            );
        }
        for entry in fs::read_dir(world.pins())?.chain(fs::read_dir(&state)?) {
            let path = entry?.path();
            let found = fs::metadata(&path)?.permissions().mode();
            ensure!(
                found & 0o022 == 0,
                "umask {mask:03o}: {path:?} has {found:o}"
            );
        }
    }
    Ok(())
}

/// The kernel ends each of its threads alone, as after an oops in a system call.
fn without_a_thread(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "half-dead", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let names: BTreeSet<String> = threads(world.daemon.pid()?)?.into_values().collect();
    for expected in ["background", "log", "names", "pss-scanner", "ring-reader"] {
        ensure!(names.contains(expected), "no thread {expected}: {names:?}");
    }
    for name in names {
        let all = threads(world.daemon.pid()?)?;
        let found = all.iter().find(|(_, it)| **it == name);
        let (&thread, _) = found.with_context(|| format!("no thread {name}: {all:?}"))?;
        end_thread(thread).with_context(|| format!("end {name}"))?;
        let status = world
            .daemon
            .await_end()
            .with_context(|| format!("without {name}"))?;
        ensure!(status.code() == Some(1), "without {name}: {status}");
        let said = format!("its thread \"{name}\" has ended: the kernel has ended it");
        ensure!(world.daemon.log()?.contains(&said), "not said: {said}");
        world.hog("uid=60001 hold=200M pause")?.expect_killed()?;
        world.daemon.start()?;
    }
    let ended = world.daemon.end(libc::SIGTERM)?;
    ensure!(ended.success(), "a planned end: {ended}");
    Ok(())
}

fn continues(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "restart", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    world.hog("uid=60001 hold=200M pause")?.expect_killed()?;
    let _holder = world.there("uid=60001 hold=20M say=there pause")?;
    until("the victim's memory being back", || {
        Ok((world.daemon.memory("60001")?.held.get() < 30 << 20).then_some(()))
    })?;
    let before = world.daemon.memory("60001")?;
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        world.daemon.end(signal)?;
        world.daemon.start()?;
        let after = world.daemon.memory("60001")?;
        ensure!(
            after.limit == before.limit,
            "limit {:?} became {:?}",
            before.limit,
            after.limit
        );
        ensure!(
            after.maxheld == before.maxheld,
            "maxheld {} became {}",
            before.maxheld,
            after.maxheld
        );
        ensure!(after.failcnt == 1, "failcnt {}", after.failcnt);
        ensure!(after.held.get() >= 20 << 20, "held {}", after.held);
    }
    let kills = world.daemon.events_of(EventKind::Kill)?;
    ensure!(
        kills.len() == 1,
        "one kill is remembered {} times",
        kills.len()
    );
    Ok(())
}

/// bursard is never a victim, but pids come again.
fn its_number(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "number", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let number = world.daemon.pid()?;
    world.daemon.end(libc::SIGKILL)?;
    let mut hog = world.hog(&format!("numbered={number} uid=60001 hold=200M pause"))?;
    hog.expect_killed()
}

fn replaced(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "replace", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    world.daemon.limit("default", "200M")?;
    world.hog("uid=60001 hold=200M pause")?.expect_killed()?;
    let mut holder = world.there("uid=60001 hold=20M say=there pause")?;
    // A user whom only the default covers has a history, too.
    let _other = world.there("uid=60005 hold=30M say=there pause")?;
    let half_before = halves(&world)?;
    let before = world.daemon.memory("60001")?;

    // Other options make another kernel half, as another version does. While it takes over, the old
    // one decides: a hog that comes at just that moment is killed by the one or the other, and told of,
    // as is one that came while there was no bursard.
    world.configure("[ledger]\nmax_processes = 2048\n")?;
    world.daemon.end(libc::SIGTERM)?;
    let mut killed = Vec::new();
    let mut kill_one = || {
        let mut hog = world.hog("uid=60001 hold=200M pause")?;
        killed.push(hog.pid());
        hog.expect_killed()
    };
    kill_one()?;
    let mut command = world.daemon.command()?;
    let mut starting = command.spawn().context("start bursard")?;
    // One after the other: of many at once the holder may be the largest.
    let began = Instant::now();
    while began.elapsed().as_millis() < 1500 {
        kill_one()?;
    }
    until("the new bursard's answer", || {
        Ok(world.daemon.status().ok())
    })?;
    starting.kill()?;
    starting.wait()?;
    world.daemon.start()?;

    until("the kills of all that time", || {
        let told = world.daemon.events_of(EventKind::Kill)?;
        let is_told = |pid: &u32| {
            told.iter()
                .any(|kill| kill.pid.is_some_and(|it| it.get() == *pid))
        };
        Ok(killed.iter().all(is_told).then_some(()))
    })?;

    let half_after = halves(&world)?;
    ensure!(
        half_after.len() == 1,
        "{} kernel halves are pinned",
        half_after.len()
    );
    ensure!(half_after != half_before, "the kernel half is the old one");
    let after = world.daemon.memory("60001")?;
    ensure!(after.limit == before.limit, "limit {:?}", after.limit);
    ensure!(
        after.failcnt >= 2,
        "failcnt {} does not continue from {}",
        after.failcnt,
        before.failcnt
    );
    ensure!(
        after.maxheld >= before.maxheld,
        "maxheld {} < {}",
        after.maxheld,
        before.maxheld
    );
    // Who was there when the new half began may share its memory until a PSS scan has looked: a quarter.
    ensure!(
        after.maxheld.get() <= (80 << 20) + allowance(),
        "held up to {}",
        after.maxheld
    );
    holder.expect_alive("the one within its limit")?;
    ensure!(
        after.held.get() >= 20 << 20,
        "held {}: {:?}",
        after.held,
        world.daemon.status()?
    );
    let other = world.daemon.memory("60005")?;
    ensure!(
        other.held.get() >= 30 << 20,
        "the default user holds {}",
        other.held
    );
    Ok(())
}

pub(super) fn halves(world: &World) -> Result<Vec<String>> {
    let entries = fs::read_dir(world.pins()).context("list the pins")?;
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// What the kernel has loaded of BPF: maps, programs, links.
fn loaded() -> (usize, usize, usize) {
    (
        MapInfoIter::default().count(),
        ProgInfoIter::default().count(),
        LinkInfoIter::default().count(),
    )
}

/// The same once it stands still: what is given up goes when a grace period is over.
fn settled() -> Result<(usize, usize, usize)> {
    let mut last = loaded();
    let mut since = Instant::now();
    until("BPF objects standing still", || {
        let now = loaded();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        // An emulated processor with PREEMPT_RT may need more than half a second for one.
        Ok((since.elapsed() > Duration::from_secs(2)).then_some(last))
    })
}

/// What a later version reads of an earlier one's state is its number, and that is what is changed here.
fn of_another_version(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "version", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    world.daemon.end(libc::SIGKILL)?;
    let mut hog = world.hog("uid=60001 hold=200M pause")?;
    hog.expect_killed()?;
    for half in halves(&world)? {
        let state = MapHandle::from_pinned_path(world.pins().join(half).join("state"))
            .context("open its state")?;
        let key = 0u32.to_ne_bytes();
        let mut value = state.lookup(&key, MapFlags::ANY)?.context("its state")?;
        value[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        state.update(&key, &value, MapFlags::ANY)?;
    }
    world.configure("[ledger]\nmax_processes = 2048\n")?;
    world.daemon.start()?;
    let lost = until("the events of another version", || {
        Ok(world.daemon.events_of(EventKind::Lost)?.pop())
    })?;
    let reason = lost.reason.unwrap_or_default();
    let count = reason.split(' ').next().and_then(|it| it.parse().ok());
    ensure!(
        count.is_some_and(|it: u64| it >= 1) && reason.contains("have another format"),
        "{reason}"
    );
    let told = world.daemon.events_of(EventKind::Kill)?;
    ensure!(told.is_empty(), "{told:?}");
    world.hog("uid=60001 hold=200M pause")?.expect_killed()
}

fn restarts(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "thousand", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let mut load = world.hog("uid=60001 fork=2 forks=120000")?;
    let mut holder = world.there("uid=60001 hold=30M say=there pause")?;
    world.daemon.end(libc::SIGKILL)?;
    world.daemon.start()?;
    let before = settled()?;
    let descriptors_before = descriptors(world.daemon.pid()?)?;
    for round in 0..whole(1000).or(50) {
        // Sometimes it is asked, mostly it is not.
        let signal = if round % 4 == 0 {
            libc::SIGTERM
        } else {
            libc::SIGKILL
        };
        world.daemon.end(signal)?;
        world.daemon.start()?;
    }
    until("maps, programs and links as before", || {
        Ok((loaded() == before).then_some(()))
    })
    .with_context(|| format!("{before:?} became {:?}", loaded()))?;
    ensure!(halves(&world)?.len() == 1, "{:?}", halves(&world)?);
    // What it opens for a moment it has for a moment.
    let pid = world.daemon.pid()?;
    until("descriptors as before", || {
        Ok((descriptors(pid)? == descriptors_before).then_some(()))
    })
    .with_context(|| format!("{descriptors_before} became {:?}", descriptors(pid)))?;
    let row = world.daemon.memory("60001")?;
    ensure!(
        row.limit.is_some_and(|it| it.get() == 64 << 20),
        "{:?}",
        row.limit
    );
    ensure!(row.held.get() >= 30 << 20, "held {}", row.held);
    load.finish()?;
    holder.expect_alive("the one within its limit")?;
    Ok(())
}

fn no_trace(binaries: &Binaries) -> Result<()> {
    let before = settled()?;
    let mut world = World::new(
        binaries,
        "trace",
        "on_exit = \"release\"\n[last_defence]\nwhen = \"always\"\n",
    )?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let hog = world.there("uid=60001 hold=10M say=there pause")?;
    let adj = || -> Result<String> {
        Ok(
            fs::read_to_string(format!("/proc/{}/oom_score_adj", hog.pid()))?
                .trim()
                .to_owned(),
        )
    };
    until("oom_score_adj", || Ok((adj()? == "900").then_some(())))?;
    // Who has the same value of its own, and has begun since.
    let service = world.there("uid=60003 hold=10M say=there pause")?;
    let own = format!("/proc/{}/oom_score_adj", service.pid());
    fs::write(&own, "900")?;
    ensure!(status_of(hog.pid(), "Threads")? == 1);
    world.daemon.end(libc::SIGTERM)?;
    ensure!(adj()? == "0", "oom_score_adj is {} after all", adj()?);
    let kept = fs::read_to_string(&own)?;
    ensure!(kept.trim() == "900", "a service's own is {kept} now");
    ensure!(!world.pins().exists(), "{:?} is still there", world.pins());
    // Programs and maps go when the last grace period is over.
    until("everything being unloaded", || {
        Ok((loaded() == before).then_some(()))
    })?;
    world.there("uid=60001 hold=80M say=there")?;
    Ok(())
}

/// bursard is killed as soon as one is raised, in the middle of its look at all of them, and its runtime directory is
/// seen to as systemd does.
fn left_raised(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(
        binaries,
        "leftraised",
        "[last_defence]\nwhen = \"always\"\n",
    )?;
    let hog = world.there("uid=60001 leave=50 say=there pause")?;
    let pids = children_of(hog.pid())?;
    ensure!(pids.len() == 50, "{pids:?}");
    let score = |pid: &u32| -> Result<i16> {
        let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?;
        Ok(text.trim().parse()?)
    };
    let scores = || pids.iter().map(score).collect::<Result<Vec<i16>>>();
    let before = scores()?;
    world.daemon.start()?;
    world.daemon.limit("60001", "4G")?;
    until("one being raised", || {
        Ok(scores()?.contains(&900).then_some(()))
    })?;
    world.daemon.end(libc::SIGKILL)?;
    unit::tidy_up(&world.directory().join("run"))?;
    world.configure("[last_defence]\nenabled = false\n")?;
    world.daemon.start()?;
    until("all being put back", || {
        Ok((scores()? == before).then_some(()))
    })
    .with_context(|| format!("{before:?} became {:?}", scores()))
}

/// The machine's own sysctls are not touched: what was turned stands at its original already, or is not there.
fn puts_back(binaries: &Binaries) -> Result<()> {
    const SCALE: &str = "/proc/sys/vm/watermark_scale_factor";
    let world = World::new(binaries, "putback", "")?;
    let state = world.directory().join("state");
    fs::create_dir_all(&state)?;
    let file = state.join("watermarks.originals");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let head = format!("bursar watermarks 1 {}\n", boot.trim());
    let left = |line: &str| fs::write(&file, format!("{head}{line:95}\n"));

    let scale: u32 = fs::read_to_string(SCALE)?.trim().parse()?;
    left(&format!(
        "vm.watermark_scale_factor {scale} {} .",
        scale + 1
    ))?;
    world.daemon.release()?;
    let text = fs::read_to_string(&file)?;
    ensure!(text == head, "{text:?} is left");

    // Oracle's kernels have it, which no story is told on.
    left("fs.negative-dentry-limit 1 2 .")?;
    let released = world.daemon.release();
    let text = fs::read_to_string(&file)?;
    fs::remove_file(&file)?;
    ensure!(
        released.is_err(),
        "it was not said that a value could not be put back"
    );
    ensure!(text.contains("negative-dentry-limit"), "{text:?} is left");
    Ok(())
}

fn unfinished(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "unfinished", "")?;
    world.daemon.start()?;
    world.daemon.end(libc::SIGKILL)?;
    // As if it had died while it pinned: something is missing.
    let half = fs::read_dir(world.pins())?
        .next()
        .context("the kernel half")??
        .path();
    fs::remove_file(half.join("set_limit")).context("break the pins")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    world.hog("uid=60001 hold=200M pause")?.expect_killed()?;
    ensure!(
        world.daemon.log()?.contains("cannot be taken over"),
        "nothing was said of it"
    );
    Ok(())
}
