// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deaths that bursar has not caused: S2 wants them fast in all cases, without a hint.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bursar_host::sched::{self, Changed, Class};
use bursar_host::{Pidfd, Proc};
use bursar_model::{Bytes, EventKind, Pid, Resource};

use crate::hog::Hog;
use crate::length::whole;
use crate::runner::{Place, Story};
use crate::signal::send;
use crate::threads::threads;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "a_starved_process_that_its_user_kills_is_gone_at_once",
        place: Place::Host,
        tell: killed_by_its_user,
    },
    Story {
        name: "a_starved_process_that_its_user_kills_is_helped",
        place: Place::Anywhere,
        tell: helped,
    },
    Story {
        name: "a_starved_process_that_ends_by_itself_is_helped",
        place: Place::Anywhere,
        tell: ends_by_itself,
    },
    Story {
        name: "a_thousand_small_deaths_are_not_heard_of",
        place: Place::Anywhere,
        tell: small_deaths,
    },
];

const USER: u32 = 60506;
const SIZE_MIB: u64 = 512;
const KILLS: usize = 5;

fn world(binaries: &Binaries, name: &str) -> Result<World> {
    let mut world = World::new(binaries, name, "")?;
    world.daemon.start()?;
    world.daemon.limit(&USER.to_string(), "2G")?;
    Ok(world)
}

fn large(world: &World) -> Result<Hog> {
    world.there(&format!("uid={USER} hold={SIZE_MIB}M say=there wait"))
}

/// Two busy loops for each CPU, in the session of everybody else.
fn busy(world: &World) -> Result<Vec<Hog>> {
    let cpus = std::thread::available_parallelism()?.get();
    (0..2 * cpus)
        .map(|_| world.there("uid=60507 say=there spin"))
        .collect()
}

fn starve(hog: &Hog) -> Result<()> {
    let changed = sched::set_class(Pid::new(hog.pid()), Class::Idle);
    ensure!(changed == Changed::Done, "SCHED_IDLE: {changed:?}");
    Ok(())
}

/// How long it takes until its memory is back, as the ledger counts it.
fn until_back(world: &World, began: Instant) -> Result<Duration> {
    let limit = Duration::from_secs(60);
    loop {
        let account = world.daemon.account(&USER.to_string())?;
        let account = account.context("the account")?;
        let memory = account.resources.get(&Resource::Memory);
        let held = memory.context("its memory row")?.held;
        if held.saturating_add(account.dying) < Bytes::from_mib(SIZE_MIB / 64) {
            return Ok(began.elapsed());
        }
        ensure!(began.elapsed() < limit, "{account:?} after {limit:?}");
        // Whoever answers takes a CPU from who frees.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How long it takes until it has ended.
fn until_ended(pidfd: &Pidfd, began: Instant) -> Result<Duration> {
    let limit = Duration::from_secs(60);
    ensure!(
        pidfd.wait_readable(Some(limit))?,
        "it is there after {limit:?}"
    );
    Ok(began.elapsed())
}

/// Until its memory is back, and until it has ended.
fn time_kill(world: &World, hog: &mut Hog) -> Result<(Duration, Duration)> {
    let pidfd = Pidfd::open(Pid::new(hog.pid()))?.context("a hold on it")?;
    let began = Instant::now();
    send(hog.pid(), libc::SIGKILL)?;
    let back = until_back(world, began)?;
    let ended = until_ended(&pidfd, began)?;
    hog.expect_killed()?;
    Ok((back, ended))
}

fn medians(times: &[(Duration, Duration)]) -> Result<(Duration, Duration)> {
    let median = |which: fn(&(Duration, Duration)) -> Duration| {
        let mut all: Vec<_> = times.iter().map(which).collect();
        all.sort();
        all.get(all.len() / 2).copied().context("a median")
    };
    Ok((median(|it| it.0)?, median(|it| it.1)?))
}

fn killed_by_its_user(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "deaths")?;
    let mut free = Vec::new();
    for _ in 0..KILLS {
        free.push(time_kill(&world, &mut large(&world)?)?);
    }
    let mut starved = Vec::new();
    for _ in 0..KILLS {
        starved.push(time_starved(&world)?);
    }
    let (free, starved) = (medians(&free)?, medians(&starved)?);
    println!(
        "        {SIZE_MIB} MiB back and it gone, medians of {KILLS}: on a free core {free:?}, starved {starved:?}"
    );
    ensure!(
        starved.0 <= 2 * free.0,
        "{starved:?} for a starved one, {free:?} on a free core"
    );
    Ok(())
}

/// In a guest huge pages go in no time, and everything else takes its own: without help it is there after 25 s. Beside
/// another guest a processor that is emulated is away for long.
fn helped(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "helped")?;
    let (back, ended) = time_starved(&world)?;
    println!("        {SIZE_MIB} MiB: back after {back:?}, it gone after {ended:?}");
    ensure!(back < Duration::from_secs(2), "{back:?}");
    Ok(())
}

fn time_starved(world: &World) -> Result<(Duration, Duration)> {
    let mut hog = large(world)?;
    let loops = busy(world)?;
    starve(&hog)?;
    let took = time_kill(world, &mut hog)?;
    drop(loops);
    let event = world.daemon.await_event(EventKind::Reaped, hog.pid())?;
    println!(
        "        {:?} of {:?} in {:?}",
        event.method, event.freed_bytes, event.duration_ns
    );
    let reason = event.reason.clone().unwrap_or_default();
    ensure!(reason.contains("not killed by bursar"), "{event:?}");
    Ok(took)
}

fn ends_by_itself(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "ends")?;
    let mut hog = large(&world)?;
    // It is known since a re-sum has met it.
    std::thread::sleep(Duration::from_secs(1));
    let pidfd = Pidfd::open(Pid::new(hog.pid()))?.context("a hold on it")?;
    let loops = busy(&world)?;
    starve(&hog)?;
    let began = Instant::now();
    hog.go_on()?;
    let took = until_ended(&pidfd, began)?;
    drop(loops);
    println!("        {SIZE_MIB} MiB: gone {took:?} after it was told to end");
    // In guests it was told in 6 to 17 s. Without help it would take minutes, by arithmetic: SCHED_IDLE beside two
    // loops has a weight of 3 in 2051 (sched(7)).
    let most = Duration::from_secs(if super::is_emulated() { 40 } else { 5 });
    ensure!(took < most, "{took:?}");
    // Where a processor is emulated it may be found when the help has nothing left to do.
    if super::is_emulated() {
        return Ok(());
    }
    let event = world.daemon.await_event(EventKind::Reaped, hog.pid())?;
    println!(
        "        {:?} of {:?} in {:?}",
        event.method, event.freed_bytes, event.duration_ns
    );
    Ok(())
}

/// How often a thread of bursard's has waited for something.
fn waits_of(world: &World, name: &str) -> Result<u64> {
    let pid = world.daemon.pid()?;
    let all = threads(pid)?;
    let (thread, _) = all
        .iter()
        .find(|(_, it)| *it == name)
        .with_context(|| format!("a thread {name}: {all:?}"))?;
    let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status"))?;
    let line = text
        .lines()
        .find_map(|it| it.strip_prefix("voluntary_ctxt_switches:"));
    Ok(line.context("its waits")?.trim().parse()?)
}

fn work_of(world: &World) -> Result<u64> {
    let stat = Proc::host()?.stat(Pid::new(world.daemon.pid()?))?;
    let stat = stat.context("bursard")?;
    Ok(stat.user_ticks + stat.system_ticks)
}

fn small_deaths(binaries: &Binaries) -> Result<()> {
    // Each would be heard of by itself; where a processor is emulated a thousand take half a minute.
    let deaths = whole(1000).or(if super::is_emulated() { 200 } else { 1000 });
    // What is kept of usage hears of the first page that is held after a while in which none was.
    let mut world = World::new(binaries, "small", "[usage]\nkeep_bytes = 0\n")?;
    world.daemon.start()?;
    world.daemon.limit(&USER.to_string(), "2G")?;
    let (waits, ticks) = (waits_of(&world, "ring-reader")?, work_of(&world)?);
    for _ in 0..deaths {
        let hog = world.there(&format!("uid={USER} hold=4M say=there pause"))?;
        send(hog.pid(), libc::SIGKILL)?;
    }
    let (waited, worked) = (
        waits_of(&world, "ring-reader")? - waits,
        work_of(&world)? - ticks,
    );
    println!(
        "        {deaths} deaths: {waited} events, {} ms of bursard's work",
        10 * worked
    );
    ensure!(waited == 0, "bursard heard of {waited}");
    let reaped = world.daemon.events_of(EventKind::Reaped)?;
    ensure!(reaped.is_empty(), "{reaped:?}");
    // One that is large enough it hears of, and leaves alone what ends by itself.
    time_kill(&world, &mut large(&world)?)?;
    let heard = waits_of(&world, "ring-reader")? - waits;
    ensure!(heard > 0, "nothing is heard at all");
    Ok(())
}
