// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Users whose processes keep the lock of their memory: whoever wants to look at it, or to take it, waits for as
//! long as they like.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bursar_model::{Event, EventKind};
use bursar_protocol::{Operation, PARTS_OF_A_PAGE, Physpages, Terms};
use serde_json::Value;

use super::check::check;
use super::physpages::counted;
use crate::hog::Hog;
use crate::length::whole;
use crate::proc::{calls_asleep, descriptors, pids_of};
use crate::runner::{Place, Story};
use crate::signal::send;
use crate::wait::{until, within};
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "a_victim_that_keeps_its_lock_holds_up_no_other_reap",
        place: Place::Host,
        tell: reaps,
    },
    Story {
        name: "a_process_that_keeps_its_lock_holds_up_no_other_pss_scan",
        place: Place::Host,
        tell: pss_scans,
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
    Story {
        name: "bursar_kill_gives_up_on_a_victim_in_the_middle_of_an_execve",
        place: Place::Host,
        tell: of_exec,
    },
    Story {
        name: "bursard_starts_and_ends_beside_processes_that_answer_nobody",
        place: Place::Host,
        tell: comes_and_goes,
    },
    Story {
        name: "who_connects_and_answers_nobody_holds_up_no_request",
        place: Place::Host,
        tell: connects,
    },
    Story {
        name: "who_reserves_and_answers_nobody_holds_up_no_request",
        place: Place::Host,
        tell: reserves,
    },
    Story {
        name: "a_limit_for_everybody_is_set_beside_processes_that_answer_nobody",
        place: Place::Host,
        tell: for_everybody,
    },
    Story {
        name: "a_graceful_account_asks_beside_one_whose_process_answers_nobody",
        place: Place::Host,
        tell: asks,
    },
    Story {
        name: "oom_score_adj_is_raised_for_others_beside_processes_that_answer_nobody",
        place: Place::Host,
        tell: oom_scores,
    },
    Story {
        name: "counts_and_checks_end_beside_processes_that_answer_nobody",
        place: Place::Host,
        tell: counts,
    },
    Story {
        name: "files_over_a_limit_are_named_beside_processes_that_answer_nobody",
        place: Place::Host,
        tell: names_files,
    },
    Story {
        name: "who_cannot_be_signalled_does_not_let_others_of_his_grow",
        place: Place::Host,
        tell: hangs_at_exit,
    },
    Story {
        name: "scans_kill_others_beside_processes_that_answer_nobody",
        place: Place::Host,
        tell: scans,
    },
];

/// Who asks is answered within this.
const PROMPT: Duration = Duration::from_secs(2);
/// And who is to end has ended.
const SOON: Duration = Duration::from_secs(5);
/// Whoever sleeps for something that comes has slept again by then.
const SETTLED: Duration = Duration::from_millis(100);
const HOSTILE: u32 = 60001;
const NEIGHBOUR: u32 = 60002;

/// A file whose reader waits until this is dropped, and those who read it: dropped after it, for until then they
/// cannot end.
struct Stage {
    _server: StuckFuse,
    path: String,
    hogs: Vec<Hog>,
}

struct StuckFuse {
    server: Hog,
    path: PathBuf,
}

impl StuckFuse {
    fn new(binaries: &Binaries, world: &World) -> Result<Self> {
        let path = world.directory().join("stuck_fuse");
        File::create(&path).context("make a place to mount at")?;
        fs::set_permissions(world.directory(), fs::Permissions::from_mode(0o755))?;
        let mut command = Command::new(binaries.path("stuck_fuse"));
        command.arg(&path).arg(HOSTILE.to_string());
        let mut server = Hog::spawn(&mut command)?;
        server.hear("mounted")?;
        Ok(Self { server, path })
    }
}

impl Drop for StuckFuse {
    fn drop(&mut self) {
        let _ = self.server.finish();
        let mut command = Command::new("umount");
        let _ = command.arg("--lazy").arg(&self.path).status();
    }
}

impl Stage {
    fn set(binaries: &Binaries, world: &World) -> Result<Self> {
        let server = StuckFuse::new(binaries, world)?;
        Ok(Self {
            path: server.path.display().to_string(),
            _server: server,
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

    /// One of hers is in the middle of an execve from now on: not even its stat can be read. Its pid.
    fn park(&mut self, world: &World, before: &str) -> Result<u32> {
        let parent = self.start(world, &format!("{before} keep-lock-in-exec"))?;
        let mut last = None;
        until("an execve that wants the lock", || {
            ensure!(self.is_alive(parent)?, "it has ended");
            let pids = pids_of(HOSTILE)?;
            let now = pids.into_iter().find_map(|pid| asleep(pid, parent));
            // Whoever sleeps on his way there does not sleep for long.
            let since = match (now, last) {
                (Some(now), Some((last, since))) if now == last => since,
                _ => Instant::now(),
            };
            last = now.map(|now| (now, since));
            Ok(now.filter(|_| since.elapsed() >= SETTLED).map(|it| it.0))
        })
    }

    /// Both of them.
    fn full(binaries: &Binaries, world: &World) -> Result<Self> {
        let mut stage = Self::set(binaries, world)?;
        stage.keep(world, "hold=1M")?;
        stage.park(world, "hold=1M")?;
        Ok(stage)
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
            _server, mut hogs, ..
        } = self;
        drop(_server);
        for hog in &mut hogs {
            if killed.contains(&hog.pid()) {
                hog.expect_killed()?;
            }
        }
        Ok(())
    }
}

/// A child of this one that nothing but what it waits for wakes: its pid, and how often it has slept. (Its calls
/// cannot be read while it is in the middle of an execve.)
fn asleep(pid: u32, parent: u32) -> Option<(u32, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        status
            .lines()
            .find_map(|it| it.strip_prefix(name)?.strip_prefix(":\t"))
    };
    let is_it = field("State")?.starts_with('D') && field("PPid")?.parse() == Ok(parent);
    let slept = field("voluntary_ctxt_switches")?.parse().ok()?;
    is_it.then_some((pid, slept))
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
            "{:?} threads of {tasks}, {:?} descriptors of {fds}, {:?}",
            threads(pid),
            descriptors(pid),
            world.daemon.status().map(|it| it.reaps)
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
    // Those that nobody asks at all are told of half a minute after.
    let awaited = usize::try_from(whole(5).or(2))?;
    let timeout = Duration::from_secs(40);
    let reported = within(timeout, "the reports of her victims", || {
        let reaped = world.daemon.events_of(EventKind::Reaped)?;
        let of = |pid: u32| {
            let mut reaped = reaped.iter();
            reaped
                .find(|it| it.pid.is_some_and(|it| it.get() == pid))
                .cloned()
        };
        let found = kept.iter().take(awaited).map(|&pid| of(pid));
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

fn pss_scans(binaries: &Binaries) -> Result<()> {
    const SERVER: u32 = 60003;
    let mut world = World::new(binaries, "lockscan", "")?;
    world.daemon.start()?;
    world.daemon.limit(&HOSTILE.to_string(), "64M")?;
    world.daemon.limit(&SERVER.to_string(), "128M")?;
    // A pre-forking server: its processes' resident sets sum to far more than it may hold.
    let serve = || -> Result<Hog> {
        let mut server = world.hog(&format!("uid={SERVER} hold=80M fork=4 say=up pause"))?;
        (0..4).try_for_each(|_| server.hear_within("up", Duration::from_secs(40)))?;
        Ok(server)
    };
    // Once before: its reader stays.
    let mut first = serve()?;
    until("a correction of the first server", || {
        let account = world.daemon.account(&SERVER.to_string())?;
        Ok(account.and_then(|it| it.correction))
    })?;
    first.finish()?;
    let pid = world.daemon.pid()?;
    let before = (descriptors(pid)?, threads(pid)?);
    let mut stage = Stage::set(binaries, &world)?;
    stage.keep(&world, "hold=30M leave=1")?;
    // Over the limit by plain sums: what do her processes share?
    let mut other = world.hog(&format!("uid={HOSTILE} hold=8M pause"))?;
    until("a PSS scan of hers", || {
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
    stage.park(&world, "hold=1M")?;
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

/// The victim itself is that one, and after it comes one that shares memory with others.
fn of_exec(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "lockown", "")?;
    let mut stage = Stage::set(binaries, &world)?;
    let parked = stage.park(&world, "hold=1M")?;
    let mut other = world.there(&format!("uid={NEIGHBOUR} hold=40M say=there pause"))?;
    let mut sharing = world.there(&format!(
        "uid={NEIGHBOUR} shm=20M hold=20M fork=2 say=there pause"
    ))?;
    let began = Instant::now();
    let pids = [parked, sharing.pid(), other.pid()];
    let words = pids.map(|it| it.to_string());
    let output = world
        .bursar(&["kill", &words[0], &words[1], &words[2], "--json"])
        .output()?;
    let (took, said) = (began.elapsed(), String::from_utf8_lossy(&output.stdout));
    ensure!(took < Duration::from_secs(15), "{took:?}: {said}");
    let told: Vec<Value> = serde_json::from_str(&said)?;
    let of = |pid: u32| {
        let mut told = told.iter();
        let line = told.find(|it| it["pid"] == pid);
        line.with_context(|| format!("{pid} is missing: {said}"))
    };
    // Either nobody could say in time who it is, or it was found out; then it is dead, and its parent keeps the memory.
    let is_killed = of(pids[0])?["killed"] == true;
    let why = of(pids[0])?["reason"].as_str().unwrap_or_default();
    let reason = if is_killed { "memory stays" } else { "lock" };
    ensure!(why.contains(reason), "it does not say why: {said}");
    ensure!(of(pids[1])?["stays_bytes"] == 20 << 20, "{said}");
    ensure!(of(pids[2])?["killed"] == true, "{said}");
    other.expect_killed()?;
    sharing.expect_killed()?;
    stage.leave(if is_killed { &pids[..1] } else { &[] })
}

/// What bursar says in time.
fn answer(world: &World, arguments: &[&str]) -> Result<String> {
    let mut command = world.bursar(arguments);
    let began = Instant::now();
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let ended = within(PROMPT, "an answer", || Ok(child.try_wait()?));
    if ended.is_err() {
        child.kill()?;
    }
    let output = child.wait_with_output()?;
    let ended = ended.with_context(|| format!("bursar {arguments:?}"))?;
    ensure!(ended.success(), "bursar {arguments:?}: {ended}");
    println!(
        "        bursar {} answered after {:.0?}",
        arguments.join(" "),
        began.elapsed()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Has bursard end, at once.
fn end(world: &mut World) -> Result<()> {
    let began = Instant::now();
    let status = world.daemon.end(libc::SIGTERM)?;
    let took = began.elapsed();
    ensure!(status.success(), "{status}: {}", world.daemon.log()?);
    ensure!(took < SOON, "it took {took:?}");
    Ok(())
}

fn comes_and_goes(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "lockstart", "")?;
    let stage = Stage::full(binaries, &world)?;
    // Twice: the second one finds the kernel half, and limits.
    for limit in ["64M", "48M"] {
        let began = Instant::now();
        world.daemon.start()?;
        let took = began.elapsed();
        ensure!(took < Duration::from_secs(10), "ready after {took:?}");
        answer(&world, &["status"])?;
        for uid in [HOSTILE, NEIGHBOUR] {
            answer(&world, &["limit", "set", &uid.to_string(), limit])?;
        }
        breach(&world, NEIGHBOUR)?;
        end(&mut world)?;
    }
    let mut release = world.daemon.command()?;
    let began = Instant::now();
    let mut release = release.arg("--release").spawn()?;
    let status = within(SOON, "the end of bursard --release", || {
        Ok(release.try_wait()?)
    });
    if status.is_err() {
        release.kill()?;
        release.wait()?;
    }
    ensure!(status?.success(), "{}", world.daemon.log()?);
    println!("        released after {:.0?}", began.elapsed());
    stage.leave(&[])
}

fn connects(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "lockconnect", "")?;
    world.daemon.start()?;
    let mut stage = Stage::set(binaries, &world)?;
    // Who connects is let in when it answers nobody any more.
    world.daemon.signal(libc::SIGSTOP)?;
    let caller = format!("caller={}", world.daemon.socket().display());
    let parked = stage.park(&world, &caller);
    world.daemon.signal(libc::SIGCONT)?;
    parked?;
    answer(&world, &["status"])?;
    answer(&world, &["limit", "set", &NEIGHBOUR.to_string(), "64M"])?;
    stage.leave(&[])?;
    end(&mut world)
}

/// include/linux/sched.h
const PF_EXITING: u64 = 0x4;

/// The kernel half's signal does not reach a process whose first thread is ending; bursard's does.
fn hangs_at_exit(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "lockexit", "")?;
    world.daemon.start()?;
    world.daemon.limit(&HOSTILE.to_string(), "128M")?;
    let mut stage = Stage::set(binaries, &world)?;
    let largest = stage.start(&world, "hold=80M leader-hangs")?;
    until("a first thread that hangs at its end", || {
        let stat = fs::read_to_string(format!("/proc/{largest}/stat"))?;
        let rest = stat.rsplit_once(") ").context("a stat")?.1;
        let words: Vec<&str> = rest.split(' ').collect();
        let flags: u64 = words.get(6).context("its flags")?.parse()?;
        Ok((flags & PF_EXITING != 0 && words.first() != Some(&"Z")).then_some(()))
    })?;
    world.daemon.end(libc::SIGKILL)?;
    let mut grower = world.hog(&format!("uid={HOSTILE} hold=300M pause"))?;
    grower.expect_killed().context("with bursard dead")?;
    world.daemon.start()?;
    let mut grower = world.hog(&format!("uid={HOSTILE} hold=100M say=there pause"))?;
    world.daemon.await_event(EventKind::Kill, largest)?;
    grower.hear("there")?;
    stage.leave(&[largest])?;
    end(&mut world)
}

/// Whether he still runs the program that reserved is looked at when it reserves, and each second.
fn reserves(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "lockreserve", "")?;
    world.daemon.start()?;
    world.daemon.limit(&HOSTILE.to_string(), "2G")?;
    let mut stage = Stage::set(binaries, &world)?;
    world.daemon.signal(libc::SIGSTOP)?;
    let request = r#"{"version":1,"ask":"renew","keep":0,"pages":25600}"#;
    let caller = format!("caller={} asks={request}", world.daemon.socket().display());
    let parked = stage.park(&world, &caller);
    world.daemon.signal(libc::SIGCONT)?;
    parked?;
    until("the reservation", || {
        let reserved = world.daemon.memory(&HOSTILE.to_string())?.reserved;
        Ok((reserved.get() == 100 << 20).then_some(()))
    })?;
    for _ in 0..20 {
        answer(&world, &["status"])?;
        sleep(Duration::from_millis(200));
    }
    stage.leave(&[])?;
    end(&mut world)
}

fn for_everybody(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "lockdefault", "")?;
    world.daemon.start()?;
    let stage = Stage::full(binaries, &world)?;
    let mut modest = world.hog(&format!("uid={NEIGHBOUR} hold=1M say=there pause"))?;
    modest.hear("there")?;
    answer(&world, &["limit", "set", "default", "8G"])?;
    // Who would be over a lower one is found.
    answer(&world, &["limit", "set", "default", "7G"])?;
    let account = world.daemon.account(&NEIGHBOUR.to_string())?;
    ensure!(account.is_some(), "no account for whom it covers");
    modest.expect_alive("the neighbour")?;
    stage.leave(&[])?;
    end(&mut world)
}

fn asks(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "lockask", "")?;
    let entry = "{ memory = { limit = \"200M\", notice = \"50M\" }, kill = \"graceful\" }";
    let limits = format!("[limits]\n{HOSTILE} = {entry}\n{NEIGHBOUR} = {entry}\n");
    fs::write(world.daemon.limits_path(), limits)?;
    world.daemon.start()?;
    let mut stage = Stage::set(binaries, &world)?;
    let parked = stage.park(&world, "hold=40M")?;
    // Of two of one size it is to be the one in the execve: the other one is dying, which takes it so long that it counts
    // again.
    let parent = stage.hogs.last().context("its parent")?.pid();
    send(parent, libc::SIGKILL)?;
    until("a dying process counting again", || {
        let held = world.daemon.memory(&HOSTILE.to_string())?.held;
        Ok((held.get() >= 40 << 20).then_some(()))
    })?;
    let mut other = world.hog(&format!("uid={HOSTILE} hold=30M pause"))?;
    world.daemon.await_event(EventKind::Asked, parked)?;
    let mut polite = world.hog(&format!("uid={NEIGHBOUR} hold=60M pause"))?;
    ensure!(polite.end()? == Some(libc::SIGTERM), "not asked");
    world.daemon.await_event(EventKind::Asked, polite.pid())?;
    answer(&world, &["status"])?;
    other.finish()?;
    stage.leave(&[])?;
    end(&mut world)
}

fn oom_scores(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "lockoom", "[last_defence]\nwhen = \"always\"\n")?;
    let stage = Stage::full(binaries, &world)?;
    let mut hog = world.hog(&format!("uid={NEIGHBOUR} hold=1M say=there pause"))?;
    hog.hear("there")?;
    let score = format!("/proc/{}/oom_score_adj", hog.pid());
    fs::write(&score, "77")?;
    let is = |expected: &str| Ok((fs::read_to_string(&score)?.trim() == expected).then_some(()));
    world.daemon.start()?;
    world.daemon.limit(&HOSTILE.to_string(), "64M")?;
    world.daemon.limit(&NEIGHBOUR.to_string(), "64M")?;
    until("oom_score_adj being raised", || is("908"))?;
    let who = NEIGHBOUR.to_string().parse()?;
    world.daemon.ask(Operation::ClearLimit {
        who,
        force: false,
        terms: Terms::default(),
    })?;
    until("oom_score_adj being restored", || is("77"))?;
    hog.expect_alive("the neighbour")?;
    stage.leave(&[])?;
    end(&mut world)
}

fn counts(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "lockcount", "")?;
    world.daemon.start()?;
    world.daemon.limit(&NEIGHBOUR.to_string(), "64M")?;
    let stage = Stage::full(binaries, &world)?;
    let mut hog = world.hog(&format!("uid={NEIGHBOUR} hold=20M say=there pause"))?;
    hog.hear("there")?;
    world.daemon.ask(Operation::RunKiller)?;
    let pages = |found: &Physpages| {
        let mut accounts = found.accounts.iter();
        let its = accounts.find(|it| it.uid.is_some_and(|it| it.get() == NEIGHBOUR));
        its.map_or(0, |it| it.exact_parts / PARTS_OF_A_PAGE)
    };
    // The second one is made by whom the first has cost nobody.
    let mut took = Vec::new();
    for _ in 0..2 {
        let began = Instant::now();
        let found = counted(&world)?;
        took.push(began.elapsed());
        ensure!(pages(&found) >= 20 << 8, "{found:?}");
        let refused = found.machine.as_ref().map(|it| it.refused);
        ensure!(refused > Some(0), "everybody was looked at: {found:?}");
    }
    let began = Instant::now();
    let checked = check(&world)?;
    println!(
        "        counts took {took:.1?}, the ledger check {:.1?}",
        began.elapsed()
    );
    ensure!(checked.left == 0, "{checked:?}");
    ensure!(
        world.daemon.status()?.reaps.threads_lost > 0,
        "nobody waited"
    );
    stage.leave(&[])?;
    end(&mut world)
}

fn names_files(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "lockfiles", "")?;
    world.daemon.start()?;
    world.daemon.limit(&NEIGHBOUR.to_string(), "64M")?;
    let stage = Stage::full(binaries, &world)?;
    let file = format!("/dev/shm/bursar-e2e-{}", std::process::id());
    let mut hog = world.hog(&format!("uid={NEIGHBOUR} file={file}:80M say=full pause"))?;
    hog.hear("full")?;
    let told = until("being told which", || {
        let told = world.daemon.events_of(EventKind::NoVictim)?;
        Ok(told.into_iter().find(|it: &Event| it.files_bytes.is_some()))
    });
    let _ = fs::remove_file(&file);
    let told = told?;
    let largest = told.files.first().context("the largest file")?;
    ensure!(largest.place == file, "{told:?}");
    answer(&world, &["status"])?;
    hog.finish()?;
    stage.leave(&[])?;
    end(&mut world)
}

fn scans(binaries: &Binaries) -> Result<()> {
    for trigger in ["poll", "trace"] {
        let mut world = World::new(binaries, "lockscan", "")?;
        world.daemon.with_arguments(&["--trigger", trigger]);
        world.daemon.start()?;
        world.daemon.limit(&HOSTILE.to_string(), "64M")?;
        world.daemon.limit(&NEIGHBOUR.to_string(), "64M")?;
        let stage = Stage::full(binaries, &world)?;
        breach(&world, NEIGHBOUR)?;
        answer(&world, &["status"])?;
        stage.leave(&[])?;
        end(&mut world)?;
    }
    Ok(())
}
