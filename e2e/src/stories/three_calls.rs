// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S1 section 4.1: the three calls as a C program makes them, and the errors that each may answer.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use bursar_model::EventKind;

use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[Story {
    name: "s1s_three_calls_set_read_and_kill_and_say_why_not",
    place: Place::Anywhere,
    tell: calls,
}];

/// A program that makes these calls.
struct Caller {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Caller {
    fn start(world: &World, binaries: &Binaries, uid: &str) -> Result<Self> {
        let mut command = Command::new(binaries.path("alloc_client"));
        command
            .args(["limits", uid])
            .arg(binaries.path("libbursar.so"))
            .env("BURSAR_SOCKET", world.daemon.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().context("start alloc_client")?;
        let orders = child.stdin.take().context("its stdin")?;
        let answers = BufReader::new(child.stdout.take().context("its stdout")?);
        let mut caller = Self {
            child,
            orders,
            answers,
        };
        ensure!(caller.hear()? == "ready");
        Ok(caller)
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn expect(&mut self, order: &str, answer: &str) -> Result<()> {
        writeln!(self.orders, "{order}")?;
        let heard = self.hear()?;
        ensure!(heard == answer, "{order}: {heard}, not {answer}");
        Ok(())
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn calls(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "calls", "")?;
    world.daemon.start()?;
    let mut root = Caller::start(&world, binaries, "0")?;
    let (invalid, denied) = (-libc::EINVAL, -libc::EPERM);
    root.expect("get 0", "0")?;
    root.expect("set 60002 67108864", "0")?;
    root.expect("set 60001 33554432", "0")?;
    root.expect("get 8", "2 60001:33554432 60002:67108864")?;
    root.expect("get 2", "2 60001:33554432 60002:67108864")?;
    root.expect("get 1", &(-libc::EFAULT).to_string())?;
    root.expect("set 60001 0", &invalid.to_string())?;
    root.expect("run", "0")?;

    // Below what is held it would kill at once.
    let mut hog = world.hog("uid=60001 hold=20M say=full pause")?;
    hog.hear("full")?;
    root.expect("set 60001 8388608", &(-libc::EBUSY).to_string())?;
    root.expect("get 8", "2 60001:33554432 60002:67108864")?;

    // A user has his own, and sets none.
    let mut user = Caller::start(&world, binaries, "60002")?;
    user.expect("set 60002 134217728", &denied.to_string())?;
    user.expect("set 60001 134217728", &denied.to_string())?;
    user.expect("run", &denied.to_string())?;
    user.expect("get 8", "1 60002:67108864")?;

    // ULONG_MAX takes a limit away, also one that is not there.
    root.expect(&format!("set 60002 {}", u64::MAX), "0")?;
    root.expect(&format!("set 60002 {}", u64::MAX), "0")?;
    root.expect("get 8", "1 60001:33554432")?;
    ensure!(world.daemon.events_of(EventKind::Kill)?.is_empty());

    // What holds is what the calls have said.
    drop(hog);
    let mut hog = world.hog("uid=60001 hold=40M say=full pause")?;
    hog.expect_killed()?;
    until("the kill being told", || {
        Ok((world.daemon.events_of(EventKind::Kill)?.len() == 1).then_some(()))
    })?;

    // Without bursard there is nobody to answer.
    world.daemon.end(libc::SIGKILL)?;
    let gone = -libc::ECONNREFUSED;
    root.expect("get 8", &gone.to_string())?;
    root.expect("run", &gone.to_string())
}
