// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar run --gate` where the kernel has no gate: refused, not killed (docs/explanation/gate.md). The gate is
//! off on the stage, so that an rlimit gate is needed.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bursar_model::Row;

use super::growers::is_answered;
use crate::hog::Hog;
use crate::proc::{children_of, status_of};
use crate::runner::{Place, Story};
use crate::signal::send;
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "steered_python_hears_memory_error_and_is_not_killed",
        place: Place::Host,
        tell: python,
    },
    Story {
        name: "steering_refuses_every_way_to_map_private_memory",
        place: Place::Host,
        tell: every_way,
    },
    Story {
        name: "steering_bounds_two_growing_processes_of_one_tree_together",
        place: Place::Host,
        tell: two,
    },
    Story {
        name: "steering_finds_children_that_grow_at_once_and_orphans",
        place: Place::Host,
        tell: forked,
    },
    Story {
        name: "steering_never_raises_what_the_command_set_and_gives_everything_back",
        place: Place::Host,
        tell: own_limits,
    },
    Story {
        name: "an_rlimit_gate_ends_as_its_command_and_hands_on_signals",
        place: Place::Host,
        tell: signals,
    },
    Story {
        name: "without_an_rlimit_gate_the_command_runs_and_stderr_says_why",
        place: Place::Host,
        tell: unsteered,
    },
    Story {
        name: "steering_far_from_the_barrier_costs_less_than_a_hundredth_of_a_processor",
        place: Place::Named,
        tell: costs,
    },
];

const ERIN: u32 = 60701;
const MIB: u64 = 1 << 20;

/// A stage with this limit for erin.
fn world(binaries: &Binaries, name: &str, limit: &str) -> Result<World> {
    let mut world = World::new(binaries, name, "")?;
    world.daemon.start()?;
    world.daemon.limit(&ERIN.to_string(), limit)?;
    Ok(world)
}

/// `bursar run --gate -- COMMAND` as erin.
fn gated(world: &World, command: &[&str]) -> Command {
    let mut bursar = world.bursar(&["run", "--gate", "--"]);
    bursar
        .args(command)
        .uid(ERIN)
        .gid(ERIN)
        .current_dir("/")
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    // A shell that starts us in the background has us, and all we start, ignore these.
    // SAFETY: signal(2) is async-signal-safe and touches no memory of ours.
    unsafe {
        bursar.pre_exec(|| {
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
    bursar
}

fn run(command: &mut Command) -> Result<(Output, String, String)> {
    let output = command.output().context("run bursar")?;
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output, out, err))
}

/// Nobody was killed, and held never passed the limit.
fn unharmed(world: &World) -> Result<Row> {
    let account = world.daemon.account(&ERIN.to_string())?;
    let kills = account.context("erin's account")?.kills;
    let row = world.daemon.memory(&ERIN.to_string())?;
    ensure!(kills == 0, "{kills} killed; {row:?}");
    ensure!(row.limit.is_some_and(|it| row.maxheld <= it), "{row:?}");
    Ok(row)
}

/// Soft and hard RLIMIT_DATA as /proc shows them.
fn data_limits(pid: u32) -> Result<(String, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line = text.lines().find(|it| it.starts_with("Max data size"));
    let mut words = line.context("no data size")?.split_whitespace().skip(3);
    let mut next = || Ok::<_, anyhow::Error>(words.next().context("no value")?.to_owned());
    Ok((next()?, next()?))
}

fn state(pid: u32) -> Result<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let rest = text.rsplit_once(") ").context("no name")?.1;
    rest.chars().next().context("no state")
}

fn child_of(pid: u32) -> Result<u32> {
    until("a child", || Ok(children_of(pid)?.first().copied()))
}

/// Takes `block` bytes at a time until it is refused `refusals` times; prints MiB held.
const FILL: &str = r#"
import sys, time
block, seconds = int(sys.argv[1]), float(sys.argv[2])
held, refused, end = [], 0, time.monotonic() + seconds
while time.monotonic() < end:
    try:
        held.append(bytearray(block))
    except MemoryError:
        refused += 1
        time.sleep(0.01)
# One write: others say theirs at the same time.
sys.stdout.write(f"{len(held) * block >> 20} {refused}\n")
"#;

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace()
        .filter_map(|it| it.parse().ok())
        .collect()
}

fn python(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "rlimit-python", "256M")?;
    let fill = ["/usr/bin/python3", "-c", FILL, "4194304", "1.5"];
    let (output, out, err) = run(&mut gated(&world, &fill))?;
    ensure!(output.status.success(), "{} {out} {err}", output.status);
    let (held, refused) = match numbers(&out)[..] {
        [held, refused] => (held, refused),
        _ => anyhow::bail!("{out} {err}"),
    };
    ensure!(err.is_empty(), "{err}");
    let row = unharmed(&world)?;
    println!(
        "        256 MiB: python held {held} MiB, MemoryError {refused} times, maxheld {} MiB",
        row.maxheld.get() / MIB
    );
    ensure!(refused > 0, "it was never refused");
    ensure!((200..=243).contains(&held), "it held {held} MiB");
    ensure!(row.barrier.is_some_and(|it| row.maxheld <= it), "{row:?}");
    Ok(())
}

fn every_way(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "rlimit-ways", "64M")?;
    let grower = binaries.path("grower").display().to_string();
    let steps = "map=40M touch map=30M noreserve=30M none=200M writable drop map=10M grow=50M \
                 brk=60M malloc=60M thread compat=60M shared=60M";
    let command: Vec<&str> = [grower.as_str()]
        .into_iter()
        .chain(steps.split_whitespace())
        .collect();
    let (output, _, err) = run(&mut gated(&world, &command))?;
    ensure!(output.status.success(), "{} {err}", output.status);
    let expected = [
        "map=40M: ok",
        "map=30M: ENOMEM",
        "noreserve=30M: ENOMEM",
        "none=200M: ok",
        "writable: ENOMEM",
        "map=10M: ok",
        "grow=50M: ENOMEM",
        "brk=60M: ENOMEM",
        "malloc=60M: ENOMEM",
        "thread: EAGAIN",
        "compat=60M: ENOMEM",
        // What an rlimit gate cannot refuse. (Nor fork: what the child holds at once counts in full.)
        "shared=60M: ok",
    ];
    let expected = expected.into_iter().filter(is_answered);
    ensure!(err.lines().eq(expected), "heard\n{err}");
    unharmed(&world)?;
    Ok(())
}

fn two(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "rlimit-two", "256M")?;
    let script =
        format!("for i in 1 2; do /usr/bin/python3 -c '{FILL}' 1048576 3 & done; wait; echo all");
    let (output, out, err) = run(&mut gated(&world, &["sh", "-c", &script]))?;
    ensure!(output.status.success(), "{} {out} {err}", output.status);
    let row = unharmed(&world)?;
    let heard = numbers(&out);
    ensure!(heard.len() == 4 && out.contains("all"), "{out} {err}");
    println!(
        "        256 MiB: {} and {} MiB, refused {} and {} times, maxheld {} MiB",
        heard[0],
        heard[2],
        heard[1],
        heard[3],
        row.maxheld.get() / MIB
    );
    ensure!(heard[1] > 0 && heard[3] > 0, "one was never refused: {out}");
    // What one was refused while the other grew is had at a later try: the barrier is reached.
    ensure!(heard[0] + heard[2] >= 195, "{out}");
    Ok(())
}

fn forked(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "rlimit-forked", "256M")?;
    let script = format!(
        "import os\n\
         for i in range(6):\n if not os.fork():\n  if os.fork(): os._exit(0)\n  break\n\
         else:\n import time; time.sleep(5); os._exit(0)\n{FILL}"
    );
    let command = ["/usr/bin/python3", "-c", &script, "1048576", "3"];
    let (output, out, err) = run(&mut gated(&world, &command))?;
    ensure!(output.status.success(), "{} {out} {err}", output.status);
    let heard = numbers(&out);
    ensure!(heard.len() == 12, "six orphans answer: {out} {err}");
    let row = unharmed(&world)?;
    let held: u64 = heard.iter().step_by(2).sum();
    println!(
        "        256 MiB: six orphans held {held} MiB, maxheld {} MiB",
        row.maxheld.get() / MIB
    );
    ensure!(heard.iter().skip(1).step_by(2).all(|&it| it > 0), "{out}");
    ensure!(held >= 150, "{out}");
    Ok(())
}

fn own_limits(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "rlimit-own", "512M")?;
    let grower = binaries.path("grower").display().to_string();
    // Its own limit refuses 30 MiB, which the barrier would not; and it stays what it is.
    let script = format!(
        "ulimit -S -d 20000; {grower} map=30M; sleep 0.6; {grower} map=30M map=10M; ulimit -S -d; ulimit -H -d"
    );
    let (_, out, err) = run(&mut gated(&world, &["sh", "-c", &script]))?;
    let refused = ["map=30M: ENOMEM", "map=30M: ENOMEM", "map=10M: ok"];
    ensure!(err.lines().eq(refused), "{err}");
    ensure!(out.lines().eq(["20000", "unlimited"]), "{out}");

    // An orphan is steered, and free again when the command has ended.
    let script = "(setsid sh -c 'echo $$; exec sleep 30' </dev/null 2>/dev/null &); read line";
    let mut hog = Hog::spawn(&mut gated(&world, &["sh", "-c", script]))?;
    let line = hog.next_line()?;
    let orphan: u32 = line.trim().parse().context("its number")?;
    until("the orphan to be steered", || {
        let (soft, hard) = data_limits(orphan)?;
        ensure!(hard == "unlimited", "the hard limit was lowered to {hard}");
        let parent = status_of(orphan, "PPid")?;
        let is_ours = parent == u64::from(hog.pid());
        Ok((is_ours && soft != "unlimited").then_some(()))
    })?;
    hog.go_on()?;
    ensure!(hog.end()?.is_none(), "it was killed");
    let (soft, _) = data_limits(orphan)?;
    send(orphan, libc::SIGKILL)?;
    ensure!(soft == "unlimited", "the orphan was left with {soft}");

    // An rlimit gate that is killed leaves the last limit.
    let mut hog = Hog::spawn(&mut gated(
        &world,
        &["sh", "-c", "echo ready; exec sleep 30"],
    ))?;
    hog.hear("ready")?;
    let command = child_of(hog.pid())?;
    send(hog.pid(), libc::SIGKILL)?;
    hog.expect_killed()?;
    // It may not have become sleep(1) yet.
    until("the command to outlive its rlimit gate", || {
        Ok((state(command)? == 'S').then_some(()))
    })?;
    ensure!(data_limits(command)?.0 != "unlimited", "no limit was left");
    send(command, libc::SIGKILL)
}

fn signals(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "rlimit-signals", "512M")?;
    for (script, code, signal) in [
        ("exit 0", Some(0), None),
        ("exit 7", Some(7), None),
        ("kill -TERM $$", None, Some(libc::SIGTERM)),
        ("kill -INT $$", None, Some(libc::SIGINT)),
        ("kill -KILL $$", None, Some(libc::SIGKILL)),
        ("kill -SEGV $$", None, Some(libc::SIGSEGV)),
        ("kill -QUIT $$", Some(128 + libc::SIGQUIT), None),
    ] {
        let (output, out, err) = run(&mut gated(&world, &["sh", "-c", script]))?;
        let status = output.status;
        ensure!(
            status.code() == code && status.signal() == signal,
            "{script}: {status} {out} {err}"
        );
    }
    let (output, _, err) = run(&mut gated(&world, &["/no/such/program"]))?;
    ensure!(
        output.status.code() == Some(127) && err.contains("there is no such program"),
        "{} {err}",
        output.status
    );
    // nohup stays nohup.
    let script = "trap '' HUP; exec \"$0\" \"$@\"";
    let gate = gated(&world, &["grep", "SigIgn", "/proc/self/status"]);
    let mut nohup = Command::new("sh");
    nohup
        .args(["-c", script])
        .arg(gate.get_program())
        .args(gate.get_args())
        .uid(ERIN)
        .gid(ERIN)
        .current_dir("/");
    let (_, out, err) = run(&mut nohup)?;
    let ignored = out.split_whitespace().last().unwrap_or_default();
    ensure!(
        u64::from_str_radix(ignored, 16).is_ok_and(|mask| mask & 1 == 1),
        "SIGHUP is not ignored: {out} {err}"
    );

    for signal in ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2"] {
        let script = format!("trap 'exit 9' {signal}; echo ready; while :; do sleep 0.02; done");
        let mut hog = Hog::spawn(&mut gated(&world, &["sh", "-c", &script]))?;
        hog.hear("ready")?;
        let number = match signal {
            "HUP" => libc::SIGHUP,
            "INT" => libc::SIGINT,
            "QUIT" => libc::SIGQUIT,
            "TERM" => libc::SIGTERM,
            "USR1" => libc::SIGUSR1,
            _ => libc::SIGUSR2,
        };
        send(hog.pid(), number)?;
        ensure!(hog.end()?.is_none(), "{signal} ended the rlimit gate");
        ensure!(
            hog.exit_code() == Some(9),
            "{signal}: {:?}",
            hog.exit_code()
        );
    }

    // Ctrl-Z and fg, as a shell does them; and stdin goes through.
    let mut hog = Hog::spawn(&mut gated(
        &world,
        &["sh", "-c", "echo ready; read line; exit 4"],
    ))?;
    hog.hear("ready")?;
    let command = child_of(hog.pid())?;
    send(hog.pid(), libc::SIGTSTP)?;
    until("both to stop", || {
        Ok((state(command)? == 'T' && state(hog.pid())? == 'T').then_some(()))
    })?;
    send(hog.pid(), libc::SIGCONT)?;
    until("both to go on", || {
        Ok((state(command)? == 'S' && state(hog.pid())? == 'S').then_some(()))
    })?;
    hog.go_on()?;
    ensure!(hog.end()?.is_none(), "it was killed");
    ensure!(hog.exit_code() == Some(4), "{:?}", hog.exit_code());
    Ok(())
}

fn unsteered(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "rlimit-none", "")?;
    let script = ["sh", "-c", "ulimit -S -d; exit 3"];
    let expect = |world: &World, why: &str| {
        let (output, out, err) = run(&mut gated(world, &script))?;
        ensure!(
            output.status.code() == Some(3) && out == "unlimited\n",
            "{} {out} {err}",
            output.status
        );
        ensure!(
            err.lines().count() == 1 && err.contains("the command runs") && err.contains(why),
            "{err}"
        );
        Ok(())
    };
    expect(&world, "is it running?")?;
    world.daemon.start()?;
    expect(&world, "you have no limit")?;
    // A daemon that goes away and comes back: the command goes on, then is steered again.
    world.daemon.limit(&ERIN.to_string(), "256M")?;
    let sleeper = ["sh", "-c", "echo ready; exec sleep 30"];
    let mut hog = Hog::spawn(gated(&world, &sleeper).stderr(Stdio::null()))?;
    hog.hear("ready")?;
    let command = child_of(hog.pid())?;
    world.daemon.end(libc::SIGTERM)?;
    std::thread::sleep(Duration::from_millis(600));
    ensure!(data_limits(command)?.0 != "unlimited", "it was set free");
    world.daemon.start()?;
    world.daemon.ask(bursar_protocol::Operation::ClearLimit {
        who: ERIN.to_string().parse()?,
        force: false,
        terms: bursar_protocol::Terms::default(),
    })?;
    until("the limit to be gone", || {
        Ok((data_limits(command)?.0 == "unlimited").then_some(()))
    })?;
    hog.expect_alive("the rlimit gate")
}

/// User and system time of a process, milliseconds (ticks of ten).
fn spent(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    let first = text.split_whitespace().next().context("no time")?;
    Ok(first.parse::<u64>()? / 1000)
}

fn costs(binaries: &Binaries) -> Result<()> {
    let seconds = 10;
    let mut far = 0.0;
    for (what, limit, script) in [
        (
            "far, three asleep",
            "4G",
            "sleep 60 & sleep 60 & echo ready; wait",
        ),
        (
            "far, one growing and shrinking",
            "4G",
            "echo ready; exec /usr/bin/python3 -c 'import time\nwhile 1: x = bytearray(50 << 20); time.sleep(.01)'",
        ),
        (
            "far, ten programs started a second",
            "4G",
            "echo ready; while :; do sleep 0.1; done",
        ),
        (
            "near, holding still",
            "64M",
            "echo ready; exec /usr/bin/python3 -c 'import time\nx = bytearray(42 << 20); time.sleep(60)'",
        ),
        (
            "at the barrier, one asking all the time",
            "64M",
            "echo ready; exec /usr/bin/python3 -c 'import time\nh = []\nwhile 1:\n try: h.append(bytearray(1 << 20))\n except MemoryError: h = h[2:]; time.sleep(.001)'",
        ),
    ] {
        let world = world(binaries, "rlimit-costs", limit)?;
        let mut hog = Hog::spawn(&mut gated(&world, &["sh", "-c", script]))?;
        hog.hear("ready")?;
        std::thread::sleep(Duration::from_secs(2));
        let daemon = world.daemon.pid()?;
        let (begun, rlimit_gate, bursard) = (Instant::now(), spent(hog.pid())?, spent(daemon)?);
        std::thread::sleep(Duration::from_secs(seconds));
        let elapsed = begun.elapsed().as_micros() as f64;
        let rlimit_gate = (spent(hog.pid())? - rlimit_gate) as f64 * 100.0 / elapsed;
        let bursard = (spent(daemon)? - bursard) as f64 * 100.0 / elapsed;
        println!(
            "        {what}: rlimit gate {rlimit_gate:.2} %, bursard {bursard:.2} % of a processor"
        );
        if what.starts_with("far") {
            far = rlimit_gate.max(far);
        }
        unharmed(&world)?;
        hog.finish()?;
    }
    ensure!(far < 1.0, "{far:.2} % far from the barrier");
    Ok(())
}
