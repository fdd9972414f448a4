// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Users whose processes keep the lock of their memory: whoever wants to look at it, or to take it, waits for as
//! long as they like.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bursar_model::{Event, EventKind};

use crate::hog::Hog;
use crate::proc::{calls_asleep, descriptors, pids_of};
use crate::runner::{Place, Story};
use crate::wait::{until, within};
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "a_victim_that_keeps_its_lock_holds_up_no_other_reap",
        place: Place::Host,
        tell: reaps,
    },
    Story {
        name: "a_process_that_keeps_its_lock_holds_up_no_other_survey",
        place: Place::Host,
        tell: surveys,
    },
    Story {
        name: "bursar_kill_gives_up_on_a_victim_that_keeps_its_lock",
        place: Place::Host,
        tell: by_hand,
    },
    Story {
        name: "bursar_kill_is_held_up_by_nobody_who_keeps_his_lock_in_an_execve",
        place: Place::Host,
        tell: beside_exec,
    },
];

const HOSTILE: u32 = 60001;
const NEIGHBOUR: u32 = 60002;

/// A file whose reader waits until this is dropped, and those who read it: dropped after it, for until then they
/// cannot end.
struct Stage {
    _mute: Mute,
    path: String,
    hogs: Vec<Hog>,
}

struct Mute {
    server: Hog,
    path: PathBuf,
}

impl Mute {
    fn new(binaries: &Binaries, world: &World) -> Result<Self> {
        let path = world.directory().join("mute");
        File::create(&path).context("make a place to mount at")?;
        fs::set_permissions(world.directory(), fs::Permissions::from_mode(0o755))?;
        let mut command = Command::new(binaries.path("mute"));
        command.arg(&path).arg(HOSTILE.to_string());
        let mut server = Hog::spawn(&mut command)?;
        server.hear("mounted")?;
        Ok(Self { server, path })
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        let _ = self.server.finish();
        let mut command = Command::new("umount");
        let _ = command.arg("--lazy").arg(&self.path).status();
    }
}

impl Stage {
    fn set(binaries: &Binaries, world: &World) -> Result<Self> {
        let mute = Mute::new(binaries, world)?;
        Ok(Self {
            path: mute.path.display().to_string(),
            _mute: mute,
            hogs: Vec::new(),
        })
    }

    /// Starts a process of hers that does `before` and keeps its lock, and waits until that is kept and wanted: from
    /// now on nobody gets it. Its pid.
    fn keep(&mut self, world: &World, before: &str) -> Result<u32> {
        let pid = self.start(world, &format!("{before} keep-lock"))?;
        until("a lock being kept", || {
            ensure!(self.is_alive(pid)?, "it has ended");
            let wanted = |call: &i64| [libc::SYS_mbind, libc::SYS_pkey_alloc].contains(call);
            Ok(calls_asleep(pid)?.iter().any(wanted).then_some(()))
        })?;
        Ok(pid)
    }

    /// Starts one whose last step takes our file.
    fn start(&mut self, world: &World, steps: &str) -> Result<u32> {
        let hog = world.hog(&format!("uid={HOSTILE} {steps}={} pause", self.path))?;
        let pid = hog.pid();
        self.hogs.push(hog);
        Ok(pid)
    }

    fn is_alive(&mut self, pid: u32) -> Result<bool> {
        let mut hogs = self.hogs.iter_mut();
        let hog = hogs.find(|it| it.pid() == pid).context("one of hers")?;
        hog.is_alive()
    }

    /// Everybody may go on; those that were killed have to end by that.
    fn leave(self, killed: &[u32]) -> Result<()> {
        let Self {
            _mute, mut hogs, ..
        } = self;
        drop(_mute);
        for hog in &mut hogs {
            if killed.contains(&hog.pid()) {
                hog.expect_killed()?;
            }
        }
        Ok(())
    }
}

fn threads(pid: u32) -> Result<usize> {
    let list = fs::read_dir(format!("/proc/{pid}/task")).context("list threads")?;
    Ok(list.count())
}

/// A normal kill, and how long it took until its reap was told.
fn breach(world: &World, uid: u32) -> Result<Duration> {
    let mut hog = world.hog(&format!("uid={uid} hold=100M pause"))?;
    let began = Instant::now();
    hog.expect_killed()?;
    let event = world.daemon.await_event(EventKind::Reaped, hog.pid())?;
    ensure!(event.method.is_some(), "not reaped: {event:?}");
    Ok(began.elapsed())
}

fn all_back(world: &World, (fds, tasks): (usize, usize)) -> Result<()> {
    let pid = world.daemon.pid()?;
    until("threads and descriptors being given back", || {
        let reaps = world.daemon.status()?.reaps;
        let is_back = reaps.threads_away == 0 && threads(pid)? <= tasks && descriptors(pid)? <= fds;
        Ok(is_back.then_some(()))
    })
    .with_context(|| {
        format!(
            "{:?} threads, {:?} descriptors",
            threads(pid),
            descriptors(pid)
        )
    })
}

fn reaps(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "lockreap", "")?;
    world.daemon.start()?;
    world.daemon.limit(&HOSTILE.to_string(), "64M")?;
    world.daemon.limit(&NEIGHBOUR.to_string(), "64M")?;
    let usual = breach(&world, NEIGHBOUR)?;
    let pid = world.daemon.pid()?;
    let before = (descriptors(pid)?, threads(pid)?);
    let mut stage = Stage::set(binaries, &world)?;
    let mut kept = Vec::new();
    let mut told = Vec::new();
    // As often as it takes until nobody asks for her memory any more. What does not come back counts again.
    for limit in [64, 104, 144, 184, 224] {
        world
            .daemon
            .limit(&HOSTILE.to_string(), &format!("{limit}M"))?;
        let victim = stage.keep(&world, "hold=40M")?;
        let mut other = world.hog(&format!("uid={HOSTILE} hold=35M say=there pause"))?;
        let kill = world.daemon.await_event(EventKind::Kill, victim)?;
        ensure!(stage.is_alive(victim)?, "its memory can be taken: {kill:?}");
        other.finish()?;
        // At once: the first one waits until it is plain that the reapers are lost.
        let first = breach(&world, NEIGHBOUR)?;
        let second = breach(&world, NEIGHBOUR)?;
        told.push((first, second));
        ensure!(first < usual + Duration::from_secs(5), "{told:?}");
        ensure!(second < usual + Duration::from_secs(1), "{told:?}");
        kept.push(victim);
    }
    let patience = Duration::from_secs(40);
    let reported = within(patience, "the reports of her victims", || {
        let reaped = world.daemon.events_of(EventKind::Reaped)?;
        let of = |pid: u32| {
            let mut reaped = reaped.iter();
            reaped
                .find(|it| it.pid.is_some_and(|it| it.get() == pid))
                .cloned()
        };
        let found = kept.iter().map(|&pid| of(pid));
        Ok(found.collect::<Option<Vec<Event>>>())
    })?;
    for event in &reported {
        let why = event.reason.as_deref().unwrap_or_default();
        ensure!(event.method.is_none() && why.contains("lock"), "{event:?}");
    }
    let reaps = world.daemon.status()?.reaps;
    println!(
        "        other users' reaps were told after {told:.1?}, usually {usual:.1?}; threads lost {}, away {}",
        reaps.threads_lost, reaps.threads_away
    );
    ensure!((1..=5).contains(&reaps.threads_away), "{reaps:?}");
    ensure!(reaps.left_alone > 0, "she could go on: {reaps:?}");
    stage.leave(&kept)?;
    all_back(&world, before)?;
    world.daemon.limit(&HOSTILE.to_string(), "64M")?;
    breach(&world, HOSTILE).map(|_| ())
}

fn surveys(binaries: &Binaries) -> Result<()> {
    const SERVER: u32 = 60003;
    let mut world = World::new(binaries, "locksurvey", "")?;
    world.daemon.start()?;
    world.daemon.limit(&HOSTILE.to_string(), "64M")?;
    world.daemon.limit(&SERVER.to_string(), "128M")?;
    // A pre-forking server: its processes' resident sets sum to far more than it may hold.
    let serve = || -> Result<Hog> {
        let mut server = world.hog(&format!("uid={SERVER} hold=80M fork=4 say=up pause"))?;
        (0..4).try_for_each(|_| server.hear_within("up", Duration::from_secs(40)))?;
        Ok(server)
    };
    serve()?.finish()?;
    let pid = world.daemon.pid()?;
    let before = (descriptors(pid)?, threads(pid)?);
    let mut stage = Stage::set(binaries, &world)?;
    stage.keep(&world, "hold=30M leave=1")?;
    // Over the limit by plain sums: what do her processes share?
    let mut other = world.hog(&format!("uid={HOSTILE} hold=8M pause"))?;
    until("a survey of hers", || {
        let killed = !world.daemon.events_of(EventKind::Kill)?.is_empty();
        let is_lost = world.daemon.status()?.reaps.threads_lost > 0;
        Ok((is_lost || killed).then_some(()))
    })?;
    let mut server = serve()?;
    let account = world.daemon.account(&SERVER.to_string())?;
    let account = account.context("the server's account")?;
    ensure!(account.correction.is_some(), "not corrected: {account:?}");
    ensure!(account.kills == 0, "killed: {account:?}");
    server.expect_alive("the server")?;
    let status = world.daemon.status()?;
    ensure!(status.reaps.threads_lost > 0, "nobody was lost: {status:?}");
    other.finish()?;
    server.finish()?;
    stage.leave(&[])?;
    all_back(&world, before)
}

fn by_hand(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "lockkill", "")?;
    let mut stage = Stage::set(binaries, &world)?;
    let victim = stage.keep(&world, "hold=40M")?;
    let mut other = world.there(&format!("uid={HOSTILE} hold=40M say=there pause"))?;
    let began = Instant::now();
    let pids = [victim, other.pid()].map(|it| it.to_string());
    let output = world
        .bursar(&["kill", &pids[0], &pids[1], "--json"])
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(15), "{took:?}: {said}");
    ensure!(said.contains("lock"), "it does not say why: {said}");
    other.expect_killed()?;
    ensure!(stage.is_alive(victim)?, "its memory can be taken");
    stage.leave(&[victim])
}

/// Whether somebody has the victim's memory, too, is asked of every process (kcmp), and one in the middle of an
/// execve does not answer.
fn beside_exec(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "lockexec", "")?;
    let mut stage = Stage::set(binaries, &world)?;
    let hostile = stage.start(&world, "keep-lock-in-exec")?;
    until("an execve that wants the lock", || {
        // Its stat and its calls would wait, too.
        let status = |pid: u32| fs::read_to_string(format!("/proc/{pid}/status"));
        let is_it = |pid: u32| pid != hostile && status(pid).is_ok_and(|it| it.contains("\tD "));
        Ok(pids_of(HOSTILE)?.into_iter().any(is_it).then_some(()))
    })?;
    let mut other = world.there(&format!("uid={NEIGHBOUR} hold=40M say=there pause"))?;
    let began = Instant::now();
    let pid = other.pid().to_string();
    let output = world.bursar(&["kill", &pid, "--json"]).output()?;
    let (took, said) = (began.elapsed(), String::from_utf8_lossy(&output.stdout));
    ensure!(
        output.status.success() && took < Duration::from_secs(15),
        "{took:?}: {said}"
    );
    other.expect_killed()?;
    stage.leave(&[])
}
