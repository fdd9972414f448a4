// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A killed process's memory is back at once, or it is said why not: each special state of a victim.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bursar_model::EventKind;
use serde_json::Value;

use crate::cgroup::Cgroup;
use crate::freezer::Freezer;
use crate::hog::Hog;
use crate::length::whole;
use crate::proc::{children_of, pidfds};
use crate::runner::{Place, Story};
use crate::signal::send;
use crate::terminal::Terminal;
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "kill_says_what_came_back",
        place: Place::Anywhere,
        tell: plain,
    },
    Story {
        name: "kill_reaps_a_stopped_process",
        place: Place::Anywhere,
        tell: stopped,
    },
    Story {
        name: "kill_reaps_a_frozen_process_and_it_leaves",
        place: Place::Anywhere,
        tell: frozen,
    },
    Story {
        name: "kill_reaps_locked_memory",
        place: Place::Anywhere,
        tell: locked,
    },
    Story {
        name: "kill_reaps_a_traced_process",
        place: Place::Anywhere,
        tell: traced,
    },
    Story {
        name: "kill_reaps_behind_a_dead_first_thread",
        place: Place::Anywhere,
        tell: dead_leader,
    },
    Story {
        name: "kill_names_the_living_twin_that_keeps_the_memory",
        place: Place::Anywhere,
        tell: shared_memory,
    },
    Story {
        name: "kill_names_the_child_of_a_vfork",
        place: Place::Anywhere,
        tell: vfork,
    },
    Story {
        name: "kill_names_who_holds_shared_memory",
        place: Place::Anywhere,
        tell: shared,
    },
    Story {
        name: "kill_says_that_a_zombie_has_ended",
        place: Place::Anywhere,
        tell: zombie,
    },
    Story {
        name: "kill_says_what_was_dying_or_gone_already",
        place: Place::Anywhere,
        tell: dying,
    },
    Story {
        name: "kill_asks_first_when_told_to",
        place: Place::Anywhere,
        tell: graceful,
    },
    Story {
        name: "kill_of_a_users_processes_spares_all_others",
        place: Place::Anywhere,
        tell: of_user,
    },
    Story {
        name: "kill_of_a_users_processes_needs_no_descriptor_for_each",
        place: Place::Anywhere,
        tell: of_many,
    },
    Story {
        name: "two_hundred_kills_in_a_row_are_all_reaped",
        place: Place::Host,
        tell: two_hundred,
    },
    Story {
        name: "a_graceful_account_is_asked_before_it_is_killed",
        place: Place::Anywhere,
        tell: graceful_account,
    },
    Story {
        name: "a_graceful_account_kills_nobody_who_gave_its_memory_back",
        place: Place::Anywhere,
        tell: graceful_server,
    },
    Story {
        name: "a_victim_of_the_kernels_oom_killer_is_reaped",
        place: Place::Guest,
        tell: oom_victim,
    },
    Story {
        name: "kill_reports_uninterruptible_sleep_and_does_not_wait",
        place: Place::Guest,
        tell: uninterruptible,
    },
    Story {
        name: "recycled_pids_are_never_signalled",
        place: Place::Guest,
        tell: recycled,
    },
    Story {
        name: "one_cpu_is_enough_to_reap",
        place: Place::Guest,
        tell: one_cpu,
    },
    Story {
        name: "kill_beside_busy_sessions_leaves_its_own_session_its_share",
        place: Place::Anywhere,
        tell: beside_busy_sessions,
    },
];

const USER: u32 = 60501;

/// `bursar kill … --json`: the exit code and what it says of each.
fn kill(world: &World, arguments: &[&str]) -> Result<(i32, Vec<Value>)> {
    let mut all = vec!["kill", "--json"];
    all.extend(arguments);
    let output = world.bursar(&all).output().context("run bursar kill")?;
    let code = output.status.code().context("its exit code")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = serde_json::from_str(&text).with_context(|| {
        format!(
            "its answer {text:?} {}",
            String::from_utf8_lossy(&output.stderr)
        )
    })?;
    Ok((code, said))
}

fn kill_one(world: &World, pid: u32) -> Result<(i32, Value)> {
    let (code, said) = kill(world, &[&pid.to_string()])?;
    let one = said.into_iter().next().context("one outcome")?;
    println!("        {one}");
    Ok((code, one))
}

/// It is said to be dead, at least so many MiB are back, and this was found.
fn expect_back(said: &Value, mib: u64, found: &str) -> Result<()> {
    ensure!(said["killed"] == true, "{said}");
    let freed = said["freed_bytes"].as_u64().context("freed_bytes")?;
    // Before 6.2 each thread keeps up to 64 pages of a counter to itself (SPLIT_RSS_COUNTING).
    ensure!(freed + (256 << 10) >= mib << 20, "{freed} bytes: {said}");
    let has = said["found"]
        .as_array()
        .is_some_and(|it| it.iter().any(|it| it == found));
    ensure!(found.is_empty() || has, "{found} was not found: {said}");
    Ok(())
}

fn plain(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "rplain", "")?;
    let mut hog = world.there(&format!("uid={USER} hold=64M say=there pause"))?;
    let (code, said) = kill_one(&world, hog.pid())?;
    ensure!(code == 0, "{said}");
    expect_back(&said, 64, "")?;
    ensure!(
        said["bytes_per_second"].as_u64().is_some_and(|it| it > 0),
        "{said}"
    );
    hog.expect_killed()
}

fn stopped(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "rstop", "")?;
    let mut hog = world.there(&format!("uid={USER} hold=64M say=there pause"))?;
    let pid = hog.pid();
    send(pid, libc::SIGSTOP)?;
    until("its being stopped", || {
        Ok(fs::read_to_string(format!("/proc/{pid}/stat"))?
            .contains(") T ")
            .then_some(()))
    })?;
    let (code, said) = kill_one(&world, hog.pid())?;
    ensure!(code == 0, "{said}");
    expect_back(&said, 64, "stopped")?;
    hog.expect_killed()
}

fn frozen(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "rfrozen", "")?;
    let freezer = Freezer::new()?;
    let mut hog = world.there(&format!("uid={USER} hold=64M say=there pause"))?;
    freezer.freeze(hog.pid())?;
    let (code, said) = kill_one(&world, hog.pid())?;
    ensure!(code == 0, "{said}");
    expect_back(&said, 64, "frozen")?;
    // Nobody thaws its group: it is moved out.
    hog.expect_killed()
}

fn locked(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "rlock", "")?;
    let mut hog = world.there(&format!("lock=64M uid={USER} say=there pause"))?;
    let (code, said) = kill_one(&world, hog.pid())?;
    ensure!(code == 0, "{said}");
    expect_back(&said, 64, "mlocked")?;
    hog.expect_killed()
}

/// A child of ours that we trace until this is dropped: it stops at its exit.
struct Seized(libc::pid_t);

impl Seized {
    fn new(pid: u32) -> Result<Self> {
        let pid = i32::try_from(pid)?;
        let exits = libc::PTRACE_O_TRACEEXIT as usize;
        // SAFETY: our own child; no memory is passed.
        let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0usize, exits) };
        ensure!(seized == 0, "seize: {}", std::io::Error::last_os_error());
        Ok(Self(pid))
    }
}

impl Drop for Seized {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0usize, 0usize) };
    }
}

/// One that would stop at its exit with all its memory.
fn traced(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "rtrace", "")?;
    let mut hog = world.there(&format!("uid={USER} hold=64M say=there pause"))?;
    let seized = Seized::new(hog.pid())?;
    let (code, said) = kill_one(&world, hog.pid())?;
    drop(seized);
    ensure!(code == 0, "{said}");
    expect_back(&said, 64, "traced")?;
    hog.expect_killed()
}

/// One whose exit a debugger holds: its memory is back, itself not gone.
fn dying(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "rdying", "")?;
    let mut hog = world.there(&format!("uid={USER} hold=64M say=there pause"))?;
    let seized = Seized::new(hog.pid())?;
    let first = kill_one(&world, hog.pid());
    let again = kill_one(&world, hog.pid());
    drop(seized);
    expect_back(&first?.1, 64, "traced")?;
    let (code, said) = again?;
    ensure!(code == 0, "{said}");
    expect_back(&said, 0, "dying_already")?;
    let freed = said["freed_bytes"].as_u64().context("freed_bytes")?;
    ensure!(freed < 1 << 20, "what was back came back again: {said}");
    hog.expect_killed()?;
    let (code, said) = kill_one(&world, hog.pid())?;
    ensure!(code == 1 && said["reason"] == "no such process", "{said}");
    Ok(())
}

fn dead_leader(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "rleader", "")?;
    let mut hog = world.there(&format!("uid={USER} leader-exits hold=64M say=there pause"))?;
    let (code, said) = kill_one(&world, hog.pid())?;
    ensure!(code == 0, "{said}");
    expect_back(&said, 64, "dead_leader")?;
    hog.expect_killed()
}

fn sharer_named(world: &World, hog: &Hog) -> Result<()> {
    let child = until("its child", || Ok(children_of(hog.pid())?.first().copied()))?;
    let (code, said) = kill_one(world, hog.pid())?;
    ensure!(code == 1, "{said}");
    ensure!(said["freed_bytes"].is_null(), "{said}");
    let reason = said["reason"].as_str().unwrap_or_default().to_owned();
    ensure!(
        reason.contains(&format!("process {child} shares its memory")),
        "{said}"
    );
    // Together they go.
    let (code, said) = kill(world, &[&child.to_string()])?;
    ensure!(code == 0, "{said:?}");
    Ok(())
}

fn shared_memory(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "rtwin", "")?;
    let hog = world.there(&format!("uid={USER} hold=64M twin say=there pause"))?;
    sharer_named(&world, &hog)
}

fn vfork(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "rvfork", "")?;
    let hog = world.there(&format!("uid={USER} hold=64M say=there vfork-wait"))?;
    sharer_named(&world, &hog)
}

fn shared(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "rshm", "")?;
    // The child maps what its parent mapped.
    let hog = world.there(&format!(
        "uid={USER} hold=20M shm=32M fork=1 say=there pause"
    ))?;
    let child = until("its child", || Ok(children_of(hog.pid())?.first().copied()))?;
    let (code, said) = kill_one(&world, child)?;
    ensure!(code == 0, "{said}");
    ensure!(
        said["stays_bytes"].is_null() || said["stays_bytes"] != 0,
        "{said}"
    );
    // A forked child has not touched it: so its parent is next, whose memory nobody else has then.
    let pids = format!("uid={USER} shm=32M twin say=there pause");
    let two = world.there(&pids)?;
    drop(two);
    let segment = Path::new("/dev/shm").join(format!("bursar-e2e-{}", std::process::id()));
    fs::write(&segment, vec![1_u8; 16 << 20])?;
    let map = |name: &str| {
        world.there(&format!(
            "map={} name={name} uid={USER} say=there pause",
            segment.display()
        ))
    };
    let (victim, holder) = (map("victim")?, map("holder")?);
    let outcome = kill_one(&world, victim.pid());
    let _ = fs::remove_file(&segment);
    let (code, said) = outcome?;
    ensure!(code == 0, "{said}");
    ensure!(
        said["stays_bytes"]
            .as_u64()
            .is_some_and(|it| it >= 16 << 20),
        "{said}"
    );
    let holders = said["holders"].as_array().context("holders")?;
    ensure!(holders.iter().any(|it| it == holder.pid()), "{said}");
    Ok(())
}

fn zombie(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "rzombie", "")?;
    let hog = world.hog(&format!("uid={USER}"))?;
    until("its being a zombie", || {
        Ok(fs::read_to_string(format!("/proc/{}/stat", hog.pid()))?
            .contains(") Z ")
            .then_some(()))
    })?;
    let (code, said) = kill_one(&world, hog.pid())?;
    ensure!(code == 1 && said["reason"] == "has ended already", "{said}");
    Ok(())
}

fn graceful(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "rgrace", "")?;
    let mut polite = world.there(&format!("uid={USER} hold=32M say=there pause"))?;
    let (code, said) = kill(&world, &["--graceful", "5s", &polite.pid().to_string()])?;
    ensure!(code == 0 && said[0]["method"] == "sigterm", "{said:?}");
    ensure!(polite.end()? == Some(libc::SIGTERM));
    let mut deaf = world.there(&format!("uid={USER} deaf hold=32M say=there pause"))?;
    let (code, said) = kill(&world, &["--graceful", "200ms", &deaf.pid().to_string()])?;
    ensure!(code == 0 && said[0]["method"] != "sigterm", "{said:?}");
    deaf.expect_killed()
}

fn of_user(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "ruser", "")?;
    let user = USER + 5;
    let mut own = [
        world.there(&format!("uid={user} hold=8M say=there pause"))?,
        world.there(&format!("uid={user} hold=8M say=there pause"))?,
    ];
    let mut other = world.there(&format!("uid={} hold=8M say=there pause", USER + 6))?;
    let mut unsure = world.bursar(&["kill", "--user", &user.to_string()]);
    let refused = unsure.stdin(std::process::Stdio::null()).output()?;
    ensure!(
        refused.status.code() == Some(2),
        "without --yes: {:?}",
        refused.status
    );
    own[0].expect_alive("one of a user whose kill was not confirmed")?;
    let root = world.bursar(&["kill", "--user", "0", "--yes"]).output()?;
    ensure!(root.status.code() == Some(2), "root: {:?}", root.status);
    let (code, said) = kill(&world, &["--user", &user.to_string(), "--yes"])?;
    ensure!(code == 0 && said.len() == 2, "{said:?}");
    own[0].expect_killed()?;
    own[1].expect_killed()?;
    other.expect_alive("another user's")
}

/// With 64 descriptors: as root, who may take more, and as the user, who may not. 600 are more than the reapers follow.
fn of_many(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "rmany", "")?;
    world.let_users_in()?;
    let user = USER + 7;
    for (caller, count) in [(0, 600), (user, 100)] {
        let mut parent = world.hog(&format!("uid={user} fork={count} pause"))?;
        let children = until("all of them being there", || {
            let children = children_of(parent.pid())?;
            Ok((children.len() == count).then_some(children))
        })?;
        let kill = world.bursar(&["kill", "--json", "--yes", "--user", &user.to_string()]);
        let output = Command::new("sh")
            .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""])
            .arg(kill.get_program())
            .args(kill.get_args())
            .uid(caller)
            .gid(caller)
            .current_dir("/")
            .output()?;
        let text = [output.stdout.as_slice(), &output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        ensure!(output.status.success(), "{:?}: {text}", output.status);
        let said: Vec<Value> = serde_json::from_slice(&output.stdout).context("its answer")?;
        ensure!(said.iter().all(|it| it["killed"] == true), "{text}");
        let killed: BTreeSet<u64> = said.iter().filter_map(|it| it["pid"].as_u64()).collect();
        let untold = children.iter().filter(|&&it| !killed.contains(&it.into()));
        ensure!(untold.count() == 0, "{children:?} are not all in {text}");
        parent.end()?;
    }
    Ok(())
}

fn two_hundred(binaries: &Binaries) -> Result<()> {
    const KILLS: usize = 200;
    let mut world = World::new(binaries, "r200", "")?;
    world.daemon.start()?;
    world.daemon.limit(&USER.to_string(), "64M")?;
    let before = pidfds(world.daemon.pid()?)?;
    let mut job = world.hog(&format!("uid={USER} repeat={KILLS} hold=70M pause"))?;
    job.end()?;
    let reaped = until("every kill being reaped", || {
        let kills = world.daemon.events_of(EventKind::Kill)?;
        let reaped = world.daemon.events_of(EventKind::Reaped)?;
        Ok((kills.len() >= KILLS && reaped.len() >= kills.len()).then_some(reaped))
    })?;
    let pids: BTreeSet<_> = reaped.iter().filter_map(|it| it.pid).collect();
    ensure!(
        pids.len() == KILLS,
        "{} of {KILLS} were reported",
        pids.len()
    );
    let reaps = world.daemon.status()?.reaps;
    println!(
        "        {} reaps: {:?}, the longest {:?}",
        reaps.reaped, reaps.methods, reaps.longest
    );
    let counted: u64 = reaps.latency.iter().map(|it| it.count).sum();
    ensure!(reaps.unreaped == 0 && counted == reaps.reaped, "{reaps:?}");
    until("no pidfd being left", || {
        Ok((pidfds(world.daemon.pid()?)? <= before).then_some(()))
    })
}

fn graceful_account(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "rgraceacc", "")?;
    let user = USER + 1;
    fs::write(
        world.daemon.limits_path(),
        format!(
            "[limits]\n{user} = {{ memory = {{ limit = \"100M\", notice = \"50M\" }}, kill = \"graceful\" }}\n"
        ),
    )?;
    world.daemon.start()?;
    let mut small = world.there(&format!("uid={user} hold=10M say=there pause"))?;
    let mut polite = world.hog(&format!("uid={user} hold=60M pause"))?;
    ensure!(
        polite.end()? == Some(libc::SIGTERM),
        "asked before it is killed"
    );
    world.daemon.await_event(EventKind::Asked, polite.pid())?;
    small.expect_alive("the small one")?;
    until("no notice", || {
        Ok((world.daemon.memory(&user.to_string())?.held.get() < 40 << 20).then_some(()))
    })?;
    // Who does not listen is killed when his time is over.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let mut deaf = world.hog(&format!("uid={user} deaf hold=60M pause"))?;
    deaf.expect_killed()?;
    world.daemon.await_event(EventKind::Asked, deaf.pid())?;
    let kill = world.daemon.await_event(EventKind::Kill, deaf.pid())?;
    ensure!(
        kill.reason
            .as_deref()
            .is_some_and(|it| it.contains("asked to end")),
        "{kill:?}"
    );
    world.daemon.await_event(EventKind::Reaped, deaf.pid())?;
    until("no notice", || {
        Ok((world.daemon.memory(&user.to_string())?.held.get() < 40 << 20).then_some(()))
    })?;
    std::thread::sleep(std::time::Duration::from_secs(1));
    // It is its user's in a namespace of his, whatever uid it has outside.
    let contained = format!("userns-for={user}:0-{user}-1,1-60850-50 uid=8 hold=60M pause");
    let mut contained = world.hog(&contained)?;
    ensure!(
        contained.end()? == Some(libc::SIGTERM),
        "asked in its container"
    );
    small.expect_alive("the small one")
}

/// A server that empties its cache at SIGTERM, beside one that keeps the account over its notice.
fn graceful_server(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "rserver", "")?;
    let user = USER + 1;
    fs::write(
        world.daemon.limits_path(),
        format!(
            "[limits]\n{user} = {{ memory = {{ limit = \"200M\", notice = \"50M\" }}, kill = \"graceful\" }}\n"
        ),
    )?;
    world.daemon.start()?;
    let mut server = world.there(&format!(
        "uid={user} deaf hold=60M say=there wait drop pause"
    ))?;
    world.daemon.await_event(EventKind::Asked, server.pid())?;
    let mut other = world.there(&format!("uid={user} hold=60M say=there pause"))?;
    server.go_on()?;
    ensure!(
        other.end()? == Some(libc::SIGTERM),
        "the larger one by now was not asked"
    );
    world.daemon.await_event(EventKind::Asked, other.pid())?;
    server.expect_alive("who gave its memory back")?;
    let kills = world.daemon.events_of(EventKind::Kill)?;
    ensure!(kills.is_empty(), "{kills:?}");
    Ok(())
}

fn oom_victim(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "room", "")?;
    world.daemon.start()?;
    world.daemon.limit(&USER.to_string(), "500M")?;
    let group = Cgroup::new("memory", "oom")?;
    let limit = if group.is_v2() {
        "memory.max"
    } else {
        "memory.limit_in_bytes"
    };
    group.write(limit, "32M")?;
    let mut terminal = Terminal::of(USER)?;
    let at = terminal.path().display().to_string();
    let _login = world.there(&format!("uid={USER} session terminal={at} say=there pause"))?;
    let mut hog = world.there(&format!("uid={USER} say=there wait hold=100M pause"))?;
    group.add(hog.pid())?;
    hog.go_on()?;
    hog.expect_killed()?;
    // It is not bursar's doing, and he reads so.
    let said = format!(
        "bursar: your program hog (pid {}) was killed by the kernel's OOM killer, not by bursar",
        hog.pid()
    );
    terminal.shows(&said, Duration::from_secs(30))?;
    let reaped = world.daemon.await_event(EventKind::Reaped, hog.pid())?;
    ensure!(
        reaped
            .reason
            .as_deref()
            .is_some_and(|it| it.contains("OOM killer")),
        "{reaped:?}"
    );
    println!(
        "        {:?} {:?} {:?}",
        reaped.freed_bytes, reaped.duration_ns, reaped.method
    );
    Ok(())
}

/// A device that takes five seconds for each request.
fn uninterruptible(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "rdstate", "")?;
    let slow = "/sys/kernel/config/nullb/slow";
    if !Path::new("/sys/kernel/config/nullb").exists() {
        let _ = Command::new("mount")
            .args(["-t", "configfs", "none", "/sys/kernel/config"])
            .status();
    }
    fs::create_dir_all(slow).context("make a slow device (module null_blk)")?;
    for (name, value) in [
        ("size", "16"),
        ("irqmode", "2"),
        ("completion_nsec", "5000000000"),
        ("power", "1"),
    ] {
        fs::write(Path::new(slow).join(name), value).with_context(|| format!("set {name}"))?;
    }
    let index = fs::read_to_string(Path::new(slow).join("index"))?
        .trim()
        .to_owned();
    // Kernels have named it by its folder, or by its number.
    let device = ["/dev/slow".to_owned(), format!("/dev/nullb{index}")]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .context("the slow device has no file in /dev")?;
    let mut hog = world.there(&format!("hold=64M say=there read-device={device} pause"))?;
    until("its sleep", || {
        Ok(fs::read_to_string(format!("/proc/{}/stat", hog.pid()))?
            .contains(") D ")
            .then_some(()))
    })?;
    let began = std::time::Instant::now();
    let (_, said) = kill_one(&world, hog.pid())?;
    ensure!(began.elapsed().as_secs() < 4, "it was waited for");
    expect_back(&said, 60, "uninterruptible")?;
    hog.expect_killed()?;
    fs::remove_dir(slow).context("take the slow device away")
}

/// With few pids they come round all the time: whoever lives under a dead one's number must not feel it.
fn recycled(binaries: &Binaries) -> Result<()> {
    fs::write("/proc/sys/kernel/pid_max", "600").context("set pid_max")?;
    let mut world = World::new(binaries, "rpid", "")?;
    world.daemon.start()?;
    world.daemon.limit(&USER.to_string(), "16M")?;
    let innocent = USER + 2;
    let rounds = whole(60).or(30);
    // They fork all the time and are under no limit: none of them may be signalled.
    let mut bystanders = world.hog(&format!("uid={innocent} forks-checked={}", rounds * 420))?;
    let mut job = world.hog(&format!("uid={USER} repeat={rounds} hold=20M pause"))?;
    job.end()?;
    let end = bystanders.end()?;
    ensure!(end.is_none(), "a bystander was signalled: {end:?}");
    let code = bystanders.exit_code();
    ensure!(
        code == Some(0),
        "a child of a bystander was signalled: {code:?}"
    );
    let kills = world.daemon.events_of(EventKind::Kill)?;
    ensure!(
        kills.len() as u64 >= rounds
            && kills
                .iter()
                .all(|it| it.uid.is_some_and(|it| it.get() == USER)),
        "{} kills",
        kills.len()
    );
    Ok(())
}

/// Turns the second CPU off for as long as it lives.
struct OneCpu;

const SECOND_CPU: &str = "/sys/devices/system/cpu/cpu1/online";

impl Drop for OneCpu {
    fn drop(&mut self) {
        let _ = fs::write(SECOND_CPU, "1");
    }
}

fn one_cpu(binaries: &Binaries) -> Result<()> {
    fs::write(SECOND_CPU, "0").context("turn the second CPU off")?;
    let _restored = OneCpu;
    let mut world = World::new(binaries, "rone", "")?;
    world.daemon.start()?;
    world.daemon.limit(&USER.to_string(), "64M")?;
    let mut hog = world.hog(&format!("uid={USER} hold=80M pause"))?;
    hog.expect_killed()?;
    world.daemon.await_event(EventKind::Reaped, hog.pid())?;
    // Beside one who always wants the only CPU.
    let _busy = world.hog("uid=60502 churn=60000")?;
    let mut last = world.there(&format!("uid={} hold=48M say=there pause", USER + 3))?;
    let put = bursar_host::sched::set_class(
        bursar_model::Pid::new(last.pid()),
        bursar_host::sched::Class::Idle,
    );
    ensure!(put == bursar_host::sched::Changed::Done, "{put:?}");
    let (code, said) = kill_one(&world, last.pid())?;
    ensure!(code == 0, "{said}");
    expect_back(&said, 48, "starved")?;
    last.expect_killed()
}

/// Beside busy sessions: so many kills, and nobody waits longer than that.
const KILLS: usize = 8;
const TIMEOUT: Duration = Duration::from_secs(4);

/// Two loops for each CPU, each in a session of its own.
fn busy_sessions(world: &World) -> Result<Vec<Hog>> {
    let cpus = std::thread::available_parallelism()?.get();
    let uids = 60010..60010 + 2 * cpus;
    uids.map(|uid| world.there(&format!("uid={uid} session say=there spin")))
        .collect()
}

/// Where other sessions want every CPU the kernel shares by sessions (autogroups): what a reaper does to its own
/// group's account there everybody in it pays, root's shell and these stories among them.
fn beside_busy_sessions(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "rsessions", "")?;
    let loops = busy_sessions(&world)?;
    let mut longest = Duration::ZERO;
    for _ in 0..KILLS {
        let mut hog = world.there(&format!("uid={USER} hold=128M say=there pause"))?;
        let start = Instant::now();
        let (code, said) = kill_one(&world, hog.pid())?;
        ensure!(code == 0, "{said}");
        hog.expect_killed()?;
        // Who sleeps and wakes up in our group has his turns as well.
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
        }
        longest = longest.max(start.elapsed());
    }
    println!(
        "        {KILLS} kills beside {} loops, the longest {longest:?}",
        loops.len()
    );
    ensure!(
        longest < TIMEOUT,
        "a kill and what followed took {longest:?}"
    );
    Ok(())
}
