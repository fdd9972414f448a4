// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each of S1's triggers alone, and the rehearsal.

use std::fs;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bursar_model::{BackendKind, EventKind, Trigger};
use bursar_protocol::Reply;

use crate::hog::Hog;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "the_timer_alone_kills_within_a_quarter_second",
        place: Place::Host,
        tell: timer_alone,
    },
    Story {
        name: "the_timer_alone_kills_without_bursard",
        place: Place::Anywhere,
        tell: timer_without_bursard,
    },
    Story {
        name: "each_combination_of_triggers_holds_limits",
        place: Place::Anywhere,
        tell: combinations,
    },
    Story {
        name: "no_trigger_at_all_is_refused",
        place: Place::Anywhere,
        tell: none,
    },
    Story {
        name: "the_trace_trigger_works",
        place: Place::Anywhere,
        tell: trace,
    },
    Story {
        name: "what_a_killed_trace_trigger_costs_ends_with_the_next_bursard",
        place: Place::Anywhere,
        tell: killed_trace,
    },
    Story {
        name: "the_poll_trigger_works",
        place: Place::Anywhere,
        tell: poll,
    },
    Story {
        name: "another_trigger_sends_the_kernel_half_away",
        place: Place::Anywhere,
        tell: superseded,
    },
    Story {
        name: "a_kernel_half_whose_successor_cannot_be_loaded_is_sent_away",
        place: Place::Anywhere,
        tell: no_successor,
    },
    Story {
        name: "a_dry_run_kills_nobody_and_says_whom",
        place: Place::Anywhere,
        tell: dry_run,
    },
    Story {
        name: "who_is_over_only_as_another_trigger_counts_is_told_first",
        place: Place::Anywhere,
        tell: counted_otherwise,
    },
    Story {
        name: "a_kernel_half_that_knows_who_has_entered_accounts_stays_without_a_successor",
        place: Place::Anywhere,
        tell: members_stay,
    },
    Story {
        name: "a_victim_that_a_scan_could_not_signal_counts_on",
        place: Place::Anywhere,
        tell: unsignalled,
    },
];

fn timer_alone(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "timer", "[triggers]\nevent = false\n")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        // Crosses in one step of a few milliseconds, then stays.
        let mut hog = world.there("uid=60001 hold=50M say=there wait hold=30M pause")?;
        // It crosses a little after this: what is measured is an upper bound.
        let crossed = Instant::now();
        hog.go_on()?;
        hog.expect_killed()?;
        slowest = slowest.max(crossed.elapsed());
        let kill = world.daemon.await_event(EventKind::Kill, hog.pid())?;
        ensure!(
            matches!(kill.trigger, Some(Trigger::Timer | Trigger::Notifier)),
            "killed by {:?}",
            kill.trigger
        );
        world.daemon.until_empty(60001)?;
    }
    println!("        the slowest of 10 died {slowest:?} after the crossing");
    ensure!(
        slowest <= Duration::from_millis(250),
        "{slowest:?} after the crossing"
    );
    Ok(())
}

fn timer_without_bursard(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "timer2", "[triggers]\nevent = false\n")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    if !kernel_is_at_least(6, 7)? {
        // Nothing tells the timer of a process that begins after bursard's end: of this one it knows.
        let mut hog =
            world.there("uid=60001 hold=20M say=there wait hold=60M churn=30000 pause")?;
        until("its being known", || {
            Ok((world.daemon.memory("60001")?.held.get() > 0).then_some(()))
        })?;
        world.daemon.end(libc::SIGKILL)?;
        hog.go_on()?;
        return hog.expect_killed();
    }
    world.daemon.end(libc::SIGKILL)?;
    // It keeps touching its memory: a CPU that idles gives the timer nobody to signal from.
    world
        .hog("uid=60001 hold=80M churn=30000 pause")?
        .expect_killed()
}

/// Which triggers are on, as bursar.toml has it.
#[derive(Debug, Clone, Copy)]
struct Triggers {
    event: bool,
    timer: bool,
    notifier: bool,
}

impl Triggers {
    /// All, but for the one in which none is.
    fn all() -> impl Iterator<Item = Self> {
        (1..8_u8).map(|bits| Self {
            event: bits & 1 != 0,
            timer: bits & 2 != 0,
            notifier: bits & 4 != 0,
        })
    }

    fn config(self) -> String {
        let Self {
            event,
            timer,
            notifier,
        } = self;
        format!("[triggers]\nevent = {event}\ntimer = {timer}\nnotifier = {notifier}\n")
    }
}

impl std::fmt::Display for Triggers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = [
            (self.event, "event"),
            (self.timer, "timer"),
            (self.notifier, "notifier"),
        ];
        let on: Vec<_> = names.iter().filter(|it| it.0).map(|it| it.1).collect();
        f.write_str(&on.join(" + "))
    }
}

/// S1 section 3.1: three triggers, of which any two may fail.
fn combinations(binaries: &Binaries) -> Result<()> {
    for triggers in Triggers::all() {
        let mut world = World::new(binaries, "combination", &triggers.config())?;
        alive(&mut world, triggers).with_context(|| format!("{triggers}, bursard alive"))?;
        world.daemon.end(libc::SIGKILL)?;
        let dead = match triggers.event || triggers.timer {
            true => dead(&world),
            false => notifier_dead(&mut world),
        };
        dead.with_context(|| format!("{triggers}, bursard dead"))?;
    }
    Ok(())
}

fn alive(world: &mut World, triggers: Triggers) -> Result<()> {
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    // It stands still: whoever decides must not wait for it to go on.
    let mut hog = world.there("uid=60001 hold=20M say=there wait hold=200M pause")?;
    let crossed = Instant::now();
    hog.go_on()?;
    hog.expect_killed()?;
    let kill = world.daemon.await_event(EventKind::Kill, hog.pid())?;
    // Before 6.13 who was chosen while it grows gets its signal at its own next event (charge.bpf.h), whoever chose it.
    let [is_event, others] = [triggers.event, sends_to_others()?];
    let expected: &[Trigger] = match triggers {
        _ if is_event || !others => &[Trigger::Event, Trigger::Timer, Trigger::Notifier],
        Triggers { notifier: true, .. } => &[Trigger::Notifier, Trigger::Timer],
        _ => &[Trigger::Timer, Trigger::Notifier],
    };
    let by = kill.trigger.context("a trigger")?;
    println!(
        "        {triggers}: killed by {by:?} {} over its limit, {:?} after it went on",
        kill.overcommit.context("overcommit")?,
        crossed.elapsed()
    );
    ensure!(expected.contains(&by), "killed by {by:?}");
    // One that was there before its limit.
    let mut old = world.there("uid=60002 hold=100M say=there pause")?;
    ensure!(matches!(
        world.daemon.try_limit("60002", "64M", true)?,
        Reply::Changed { .. }
    ));
    old.expect_killed()?;
    // How many processes there are only the timer's re-sum knows.
    until("nothing being held", || {
        Ok((world.daemon.memory("60001")?.held.get() == 0).then_some(()))
    })
}

/// Whether a program of the kernel half can signal a process that is not the running one: since 6.13.
pub(super) fn sends_to_others() -> Result<bool> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split('.').map_while(|it| it.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    Ok(version >= (6, 13))
}

fn dead(world: &World) -> Result<()> {
    // It keeps touching its memory: a CPU that idles gives the timer nobody to signal from.
    let mut hog = world.hog("uid=60001 hold=200M churn=30000 pause")?;
    hog.expect_killed()
}

/// What it is told nobody hears: that is said, and made good by the next one.
fn notifier_dead(world: &mut World) -> Result<()> {
    let output = world
        .bursar(&["check"])
        .arg(world.daemon.config_path())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = "limits hold only while bursard runs";
    ensure!(text.contains(said), "bursar check does not say so: {text}");
    let mut hog = world.there("uid=60001 hold=200M say=there pause")?;
    std::thread::sleep(Duration::from_millis(500));
    hog.expect_alive("one over its limit, without bursard")?;
    world.daemon.start()?;
    hog.expect_killed()
}

fn none(binaries: &Binaries) -> Result<()> {
    let config = "[triggers]\nevent = false\ntimer = false\nnotifier = false\n";
    let mut world = World::new(binaries, "none", config)?;
    let why = "no limit would hold; set one of them to true";
    let output = world
        .bursar(&["check"])
        .arg(world.daemon.config_path())
        .output()?;
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    ensure!(!output.status.success() && text.contains(why), "{text}");
    let started = world.daemon.start();
    ensure!(started.is_err(), "bursard started");
    let log = world.daemon.log()?;
    ensure!(log.contains(why), "{log}");
    // What is cleared away needs one that can be read.
    world.configure("")
}

fn user_space(binaries: &Binaries, trigger: &str, kind: BackendKind, by: Trigger) -> Result<()> {
    let mut world = World::new(binaries, trigger, "")?;
    world.daemon.with_arguments(&["--trigger", trigger]);
    world.daemon.start()?;
    let status = world.daemon.status()?;
    ensure!(
        status.kernel_half.trigger == Some(kind),
        "{:?}",
        status.kernel_half
    );
    ensure!(!status.kernel_half.attached, "{:?}", status.kernel_half);
    world.daemon.limit("60001", "64M")?;
    let mut small = world.there("uid=60001 exec name=small hold=10M say=there pause")?;
    let mut stranger = world.there("uid=60002 exec hold=100M say=there pause")?;
    // As a login does it: the exec tells the trace trigger who it is now.
    let mut hog =
        world.hog("uid=60001 exec name=hog hold=48M say=near wait hold=250M churn=60000")?;
    hog.hear("near")?;
    until("the notice", || {
        Ok((!world.daemon.events_of(EventKind::Notice)?.is_empty()).then_some(()))
    })?;
    hog.go_on()?;
    hog.expect_killed()?;
    let kill = world.daemon.await_event(EventKind::Kill, hog.pid())?;
    ensure!(kill.trigger == Some(by), "killed by {:?}", kill.trigger);
    println!(
        "        {} over the limit at the kill",
        kill.overcommit.context("overcommit")?
    );
    world.daemon.await_event(EventKind::Reaped, hog.pid())?;
    small.expect_alive("the small one")?;
    stranger.expect_alive("another user's")?;
    ensure!(
        world
            .daemon
            .account("60001")?
            .is_some_and(|it| it.kills == 1)
    );
    world.daemon.limit("60003", "64M")?;
    let mut headless = world.hog("uid=60003 exec leader-exits hold=100M pause")?;
    headless.expect_killed()?;
    Ok(())
}

/// Its events cost everybody as long as its trace instance is there.
fn killed_trace(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "killed-trace", "")?;
    world.daemon.with_arguments(&["--trigger", "trace"]);
    world.daemon.start()?;
    let left = format!(
        "/sys/kernel/tracing/instances/bursar-rss-{}",
        world.daemon.pid()?
    );
    world.daemon.end(libc::SIGKILL)?;
    ensure!(std::path::Path::new(&left).exists(), "{left} is not there");
    world.daemon.with_arguments(&["--trigger", "poll"]);
    world.daemon.start()?;
    ensure!(!std::path::Path::new(&left).exists(), "{left} is left");
    Ok(())
}

fn trace(binaries: &Binaries) -> Result<()> {
    user_space(binaries, "trace", BackendKind::Trace, Trigger::Notifier)?;
    without_exec(binaries)?;
    let left = std::fs::read_dir("/sys/kernel/tracing/instances")?
        .filter_map(Result::ok)
        .filter(|it| it.file_name().to_string_lossy().starts_with("bursar-"))
        .count();
    ensure!(left == 0, "{left} trace instances are left");
    Ok(())
}

/// No line of the pipe tells who it is now.
fn without_exec(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "trace-setuid", "")?;
    world.daemon.with_arguments(&["--trigger", "trace"]);
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let mut hog = world.there("uid=60001 say=there wait hold=100M pause")?;
    hog.go_on()?;
    let began = Instant::now();
    hog.expect_killed()?;
    println!(
        "        who set its uid without an exec: killed within {:?}",
        began.elapsed()
    );
    ensure!(began.elapsed() < Duration::from_secs(5), "late");
    Ok(())
}

fn poll(binaries: &Binaries) -> Result<()> {
    user_space(binaries, "poll", BackendKind::Poll, Trigger::Poll)
}

/// A kernel half with a limit of 64 MiB, left in force; one that it killed since. That one's number.
fn leave_in_force(world: &mut World) -> Result<u32> {
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    world.daemon.end(libc::SIGTERM)?;
    let mut hog = world.hog("uid=60001 hold=100M pause")?;
    hog.expect_killed()?;
    Ok(hog.pid())
}

/// It is gone, and what it did is told; a limit raised since is the one that holds.
fn expect_sent_away(world: &World, killed: u32, by: Trigger) -> Result<()> {
    ensure!(!world.pins().exists(), "{:?} is still there", world.pins());
    world.daemon.await_event(EventKind::Kill, killed)?;
    let released = world.daemon.events_of(EventKind::Released)?;
    ensure!(released.len() == 1, "{released:?}");
    let limit = world.daemon.memory("60001")?.limit;
    ensure!(limit.is_some_and(|it| it.get() == 64 << 20), "{limit:?}");
    world.daemon.limit("60001", "200M")?;
    // Less than half of it: the other one is the larger when they cross.
    let mut fits = world.there("uid=60001 hold=70M say=there pause")?;
    fits.expect_alive("one within the limit of now")?;
    let mut hog = world.hog("uid=60001 exec hold=300M churn=60000")?;
    hog.expect_killed()?;
    let kill = world.daemon.await_event(EventKind::Kill, hog.pid())?;
    ensure!(kill.trigger == Some(by), "killed by {:?}", kill.trigger);
    fits.expect_alive("the smaller one")
}

fn superseded(binaries: &Binaries) -> Result<()> {
    for (trigger, by) in [("poll", Trigger::Poll), ("trace", Trigger::Notifier)] {
        let mut world = World::new(binaries, "superseded", "on_exit = \"keep\"\n")?;
        let killed = leave_in_force(&mut world)?;
        // A rehearsal changes nothing.
        world.daemon.with_arguments(&["--dry-run"]);
        world.daemon.start()?;
        ensure!(world.pins().exists(), "a dry run has sent it away");
        world.daemon.end(libc::SIGTERM)?;
        world.daemon.with_arguments(&["--trigger", trigger]);
        world.daemon.start()?;
        expect_sent_away(&world, killed, by)?;
        // There is nothing that could be released now, so that nothing is said of it.
        world.configure("on_exit = \"release\"\n")?;
        world.daemon.end(libc::SIGTERM)?;
        world.daemon.start()?;
        world.daemon.end(libc::SIGTERM)?;
        world.daemon.start()?;
        let released = world.daemon.events_of(EventKind::Released)?.len();
        ensure!(released == 1, "{released} times something was released");
    }
    Ok(())
}

/// Pages that two processes share count once in the kernel half, and for each of them in /proc.
fn counted_otherwise(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "otherwise", "on_exit = \"keep\"\n")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "100M")?;
    let mut sharer = world.there("uid=60001 hold=70M leave=1 say=there pause")?;
    std::thread::sleep(Duration::from_secs(1));
    sharer.expect_alive("who shares its pages with its child")?;
    world.daemon.end(libc::SIGTERM)?;
    world.daemon.with_arguments(&["--trigger", "poll"]);
    world.daemon.start()?;
    let told = world.daemon.events_of(EventKind::LimitChanged)?;
    let is_told = |reason: &String| reason.contains("this limit holds in 10 seconds");
    ensure!(
        told.iter()
            .any(|it| it.reason.as_ref().is_some_and(is_told)),
        "{told:?}"
    );
    std::thread::sleep(Duration::from_secs(5));
    let kills = world.daemon.events_of(EventKind::Kill)?;
    ensure!(kills.is_empty(), "{kills:?}");
    until("a kill when the time is over", || {
        let kills = world.daemon.events_of(EventKind::Kill)?;
        Ok((kills.len() == 1).then_some(()))
    })
}

/// linux/capability.h
const CAP_KILL: libc::c_ulong = 5;
const CAP_SYS_ADMIN: libc::c_ulong = 21;
const CAP_PERFMON: libc::c_ulong = 38;
const CAP_BPF: libc::c_ulong = 39;

fn start_without(world: &mut World, capabilities: &'static [libc::c_ulong]) -> Result<()> {
    let mut command = world.daemon.command()?;
    let give_up = move || -> std::io::Result<()> {
        for &capability in capabilities {
            // SAFETY: takes numbers only, and concerns this process.
            if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls.
    unsafe { command.pre_exec(give_up) };
    world.daemon.start_as(&mut command)
}

/// Its successor may load nothing, and may read what it knows.
fn members_stay(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "members", "on_exit = \"keep\"\n")?;
    fs::write(
        world.daemon.limits_path(),
        "[limits]\n60001 = { memory = \"64M\" }\n\
         \"=hall\" = { memory = \"300M\", granted = [\"60001\"] }\n",
    )?;
    world.let_users_in()?;
    world.daemon.start()?;
    let hog = world.hog_command().get_program().to_owned();
    let mut command = world.bursar(&["run", "--account", "=hall", "--"]);
    command.arg(hog).args(["hold=100M", "say=there", "pause"]);
    let mut job = Hog::spawn(command.uid(60001).gid(60001))?;
    job.hear("there")?;
    world.daemon.end(libc::SIGTERM)?;
    world.configure("on_exit = \"keep\"\n[ledger]\nmax_processes = 2048\n")?;
    let started = start_without(&mut world, &[CAP_SYS_ADMIN, CAP_PERFMON]);
    ensure!(started.is_err(), "another backend has taken over");
    let log = world.daemon.log()?;
    ensure!(log.contains("cannot be replaced, and stays"), "{log}");
    world.daemon.start()?;
    job.expect_alive("a job in an account that its user has entered")?;
    let held = world.daemon.memory("=hall")?.held;
    ensure!(held.get() >= 100 << 20, "{held}");
    Ok(())
}

/// A bursard that may not signal others' processes stands for whatever a kill can fail by.
fn unsignalled(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "unsignalled", "")?;
    world.daemon.with_arguments(&["--trigger", "poll"]);
    start_without(&mut world, &[CAP_KILL])?;
    world.daemon.limit("60001", "64M")?;
    let mut hog = world.there("uid=60001 hold=90M say=there pause")?;
    world.daemon.await_event(EventKind::KillFailed, hog.pid())?;
    until("a second try", || {
        let failed = world.daemon.events_of(EventKind::KillFailed)?;
        Ok((failed.len() > 1).then_some(()))
    })?;
    let account = world.daemon.memory("60001")?;
    ensure!(account.held.get() >= 90 << 20, "{account:?}");
    let kills = world.daemon.events_of(EventKind::Kill)?;
    ensure!(kills.is_empty(), "{kills:?}");
    hog.expect_alive("who could not be signalled")?;
    world.daemon.end(libc::SIGTERM)?;
    world.daemon.start()?;
    hog.expect_killed()
}

/// As after a boot into a kernel that refuses, or in a container: the new one cannot be loaded.
fn no_successor(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "successor", "")?;
    let killed = leave_in_force(&mut world)?;
    world.configure("[ledger]\nmax_processes = 2048\n")?;
    start_without(&mut world, &[CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF])?;
    let log = world.daemon.log()?;
    ensure!(log.contains("no kernel half"), "it was loaded");
    let said = "the kernel half that was left in force goes";
    ensure!(log.contains(said), "nothing was said of it: {log}");
    let by = match world.daemon.status()?.kernel_half.trigger {
        Some(BackendKind::Trace) => Trigger::Notifier,
        _ => Trigger::Poll,
    };
    expect_sent_away(&world, killed, by)
}

fn dry_run(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "dry", "")?;
    world.daemon.with_arguments(&["--dry-run"]);
    world.daemon.start()?;
    ensure!(world.daemon.status()?.dry_run);
    world.daemon.limit("60001", "64M")?;
    let mut hog = world.there("uid=60001 hold=90M say=there pause")?;
    let event = world.daemon.await_event(EventKind::WouldKill, hog.pid())?;
    ensure!(
        event.victim_bytes.is_some_and(|it| it.get() > 64 << 20),
        "{event:?}"
    );
    std::thread::sleep(Duration::from_millis(500));
    hog.expect_alive("the one that would be killed")?;
    let said = world.daemon.events_of(EventKind::WouldKill)?.len();
    ensure!(said == 1, "said {said} times");
    ensure!(!world.pins().exists(), "something was pinned");
    Ok(())
}

fn kernel_is_at_least(major: u32, minor: u32) -> Result<bool> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse::<u32>);
    let mut next = || {
        numbers
            .next()
            .context("a kernel's number")?
            .context("a kernel's number")
    };
    Ok((next()?, next()?) >= (major, minor))
}
