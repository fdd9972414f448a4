// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make demo`: what bursar does, with real programs of throw-away users, in under a minute. Shows
//! the commands and what they say; fails unless the right process died each time, the neighbours
//! lived, and held never passed the limit by more than the published bound.
//!
//! An interrupt ends the programs (they die with us) and clears the stage like any other end.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use bursar_e2e::{Binaries, Hog, World, stories::unasked, until};
use bursar_model::{Event, EventKind};

/// Alice, whose limit is shown; nobody has this number.
const ALICE: u32 = 60001;
/// Bob, who has no limit.
const BOB: u32 = 60002;
const LIMIT: &str = "256M";

const LISTS: &str = "import time
lists = []
while True:
    lists.append([len(lists)] * 10_000)
    if len(lists) % 64 == 0:
        time.sleep(0.002)
";

fn main() -> ExitCode {
    if !rustix::process::geteuid().is_root() {
        eprintln!("demo: needs root: it starts a daemon and becomes other users");
        return ExitCode::from(3);
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&interrupted)) {
            eprintln!("demo: {error}");
            return ExitCode::FAILURE;
        }
    }
    let began = Instant::now();
    match Demo::new(&interrupted).and_then(|mut demo| demo.play()) {
        Ok(()) => {
            println!(
                "\nAll as it should be, in {:.0} s; nothing is left behind.",
                began.elapsed().as_secs_f64()
            );
            ExitCode::SUCCESS
        }
        Err(error) if interrupted.load(Ordering::Relaxed) => {
            eprintln!("\ndemo: interrupted; nothing is left behind ({error:#})");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("\ndemo: FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

struct Demo<'a> {
    interrupted: &'a AtomicBool,
    /// Before the world: programs end first.
    neighbour: Hog,
    stranger: Hog,
    world: World,
}

impl<'a> Demo<'a> {
    fn new(interrupted: &'a AtomicBool) -> Result<Self> {
        let mut world = World::new(&Binaries::beside_us()?, "demo", "")?;
        title("A daemon, and a limit of 256 MiB for one user");
        world.daemon.start()?;
        // First: of what a process has at that moment nobody knows yet whether it shares it, and a
        // crossing then waits for a look at it.
        say(&world, &["limit", "set", &ALICE.to_string(), LIMIT])?;
        let demo = Self {
            interrupted,
            neighbour: python(
                ALICE,
                "x = bytearray(20 << 20); import time; time.sleep(600)",
            )?,
            stranger: python(
                BOB,
                "x = bytearray(400 << 20); import time; time.sleep(600)",
            )?,
            world,
        };
        until("the neighbours' memory", || {
            Ok((demo.world.daemon.memory("60001")?.held.get() > 20 << 20).then_some(()))
        })?;
        Ok(demo)
    }

    fn play(&mut self) -> Result<()> {
        title("Her Python builds a list that never ends");
        let mut lists = python(ALICE, LISTS)?;
        let kill = self.killed(&lists)?;
        lists.expect_killed()?;
        self.tell(EventKind::Notice)?;
        self.tell_kill(&kill)?;

        title("stress-ng takes 400 MiB: its worker dies, stress-ng itself does not");
        let mut command = Command::new("stress-ng");
        // Told that a worker may be killed, else it starts another one for ever.
        command.args(["--vm", "1", "--vm-bytes", "400M", "--vm-keep", "--oomable"]);
        command.args([
            "--vm-populate",
            "-t",
            "20",
            "--quiet",
            "--temp-path",
            "/tmp",
        ]);
        let mut stress = as_user(command, ALICE)?;
        let kill = self.next_kill(&kill)?;
        ensure!(
            kill.pid.map(|pid| pid.get()) != Some(stress.pid()),
            "stress-ng itself was killed"
        );
        ensure!(stress.end()?.is_none(), "stress-ng did not end by itself");
        self.tell_kill(&kill)?;

        title("A job of four processes: the one that grows dies, the other three go on");
        let mut three = Vec::new();
        for size in [30, 40, 50] {
            let program = format!("x = bytearray({size} << 20); import time; time.sleep(600)");
            three.push(python(ALICE, &program)?);
        }
        until("the three", || {
            Ok((self.world.daemon.memory("60001")?.held.get() > 140 << 20).then_some(()))
        })?;
        let mut fourth = python(ALICE, LISTS)?;
        let kill = self.killed(&fourth)?;
        fourth.expect_killed()?;
        self.tell_kill(&kill)?;
        for process in &mut three {
            process.expect_alive("one of the job's other three")?;
        }

        title("bursard is killed with SIGKILL; the limit holds all the same");
        self.world.daemon.end(libc::SIGKILL)?;
        println!("    bursard is dead");
        let mut lists = python(ALICE, LISTS)?;
        lists.expect_killed()?;
        println!(
            "    process {} that went over the limit is dead, too",
            lists.pid()
        );
        self.world.daemon.start()?;
        println!("    a new bursard has taken over, and knows:\n");
        let kill = self.killed(&lists)?;
        ensure!(
            kill.pid.map(|pid| pid.get()) == Some(lists.pid()),
            "{kill:?}"
        );
        say(&self.world, &["status"])?;
        say(&self.world, &["why"])?;

        title("What has to be true");
        self.check()
    }

    /// The kill of this very process.
    fn killed(&self, program: &Hog) -> Result<Event> {
        self.await_kill(|event| event.pid.is_some_and(|pid| pid.get() == program.pid()))
    }

    /// The first kill after this one.
    fn next_kill(&self, last: &Event) -> Result<Event> {
        self.await_kill(|event| event.time > last.time)
    }

    fn await_kill(&self, is_it: impl Fn(&Event) -> bool) -> Result<Event> {
        until("the kill", || {
            if self.interrupted.load(Ordering::Relaxed) {
                bail!("told to stop");
            }
            let kills = self.world.daemon.events_of(EventKind::Kill)?;
            Ok(kills.into_iter().find(&is_it))
        })
    }

    fn tell(&self, kind: EventKind) -> Result<()> {
        let events = self.world.daemon.events_of(kind)?;
        let event = events
            .last()
            .with_context(|| format!("no {kind:?} was told"))?;
        println!(
            "    notice  she {}",
            event.reason.as_deref().unwrap_or_default()
        );
        Ok(())
    }

    fn tell_kill(&self, kill: &Event) -> Result<()> {
        let pid = kill.pid.context("its pid")?;
        println!(
            "    kill    {} (process {pid}, {}), {} µs after it crossed; held {}, {} over the limit",
            kill.comm.as_deref().unwrap_or_default(),
            kill.victim_bytes.unwrap_or_default(),
            kill.latency_ns.map_or(0, |it| it.get() / 1000),
            kill.held.unwrap_or_default(),
            kill.overcommit.unwrap_or_default(),
        );
        let reaped = self
            .world
            .daemon
            .await_event(EventKind::Reaped, pid.get())?;
        println!(
            "    reap    {} back after {:.1} ms",
            reaped.freed_bytes.unwrap_or_default(),
            reaped.duration_ns.map_or(0.0, |it| it.get() as f64 / 1e6),
        );
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        self.neighbour.expect_alive("alice's small program")?;
        println!("    alice's small program lives");
        self.stranger.expect_alive("bob's program")?;
        println!("    bob's program of 400 MiB lives");
        let row = self.world.daemon.memory("60001")?;
        let limit = row.limit.context("her limit")?;
        let bound = self.world.daemon.status()?.error_bound_bytes.get() + unasked();
        let over = row.maxheld.get().saturating_sub(limit.get());
        ensure!(
            over <= bound,
            "held was up to {}, {over} bytes over the limit, more than the published {bound}",
            row.maxheld
        );
        println!(
            "    the most she ever held is {}: {} KiB over her limit (published bound: {} KiB)",
            row.maxheld,
            over >> 10,
            bound >> 10
        );
        let kills = self.world.daemon.events_of(EventKind::Kill)?.len();
        ensure!(
            kills == 4,
            "{kills} processes were killed, and 4 crossed the limit"
        );
        println!("    4 crossings, 4 kills");
        Ok(())
    }
}

fn say(world: &World, arguments: &[&str]) -> Result<()> {
    println!("$ bursar {}", arguments.join(" "));
    let status = world.bursar(arguments).status().context("run bursar")?;
    ensure!(
        status.success(),
        "bursar {} ended with {status}",
        arguments.join(" ")
    );
    Ok(())
}

fn title(text: &str) {
    println!("\n── {text}");
}

fn python(uid: u32, program: &str) -> Result<Hog> {
    let mut command = Command::new("python3");
    command.args(["-S", "-c", program]);
    as_user(command, uid)
}

/// Starts it as that user; it dies with us.
fn as_user(mut command: Command, uid: u32) -> Result<Hog> {
    let dies_with_us = || -> std::io::Result<()> {
        // SAFETY: a plain system call on numbers.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    command.uid(uid).gid(uid);
    // SAFETY: one system call between fork and exec; after the uid is changed, which would clear it.
    unsafe { command.pre_exec(dies_with_us) };
    Hog::spawn(&mut command)
}
