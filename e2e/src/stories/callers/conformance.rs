// SPDX-License-Identifier: Apache-2.0 OR MIT
//! That tmalloc answers as glibc's malloc does, and goes on whatever becomes of bursard.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bursar_model::Bytes;

use super::{NOBODY, Workshop};
use crate::daemon::Daemon;
use crate::length::whole;
use crate::runner::{Place, Story};
use crate::stories::{ALICE, median};
use crate::wait::until;
use crate::world::Binaries;

pub(crate) const STORIES: &[Story] = &[
    Story {
        name: "malloc_answers_a_table_of_calls_as_glibcs_does_under_tmalloc",
        place: Place::Host,
        tell: conforms,
    },
    Story {
        name: "a_program_with_a_malloc_of_its_own_meets_no_block_of_tmallocs",
        place: Place::Host,
        tell: own_malloc,
    },
    Story {
        name: "a_million_mallocs_take_no_longer_whatever_becomes_of_bursard",
        place: Place::Host,
        tell: million,
    },
    Story {
        name: "threads_and_children_that_come_and_go_leave_nothing_reserved_by_tmalloc",
        place: Place::Host,
        tell: churns,
    },
    Story {
        name: "two_processes_that_are_both_pid_1_reserve_each_for_itself_by_tmalloc",
        place: Place::Host,
        tell: namesakes,
    },
];

struct Stage<'a> {
    workshop: Workshop<'a>,
    program: PathBuf,
    socket: String,
}

impl<'a> Stage<'a> {
    fn new(binaries: &'a Binaries, name: &str, source: &str, limit: &str) -> Result<Self> {
        let mut workshop = Workshop::new(binaries, name)?;
        let program = workshop.build(name, source, &[])?;
        workshop.world.daemon.start()?;
        workshop.world.daemon.limit(&ALICE.to_string(), limit)?;
        let socket = workshop.world.daemon.socket().display().to_string();
        Ok(Self {
            workshop,
            program,
            socket,
        })
    }

    fn daemon(&self) -> &Daemon {
        &self.workshop.world.daemon
    }

    /// What the program says: with plain malloc, or with tmalloc that asks at a socket.
    fn said(
        &self,
        socket: Option<&str>,
        user: u32,
        arguments: &[&str],
        tunables: &str,
    ) -> Result<String> {
        let mut command = match socket {
            None => Command::new::<&Path>(&self.program),
            Some(socket) => self.workshop.command(&self.program, socket)?,
        };
        command.args(arguments).uid(user).gid(user);
        if !tunables.is_empty() {
            command.env("GLIBC_TUNABLES", tunables);
        }
        let done = command.stdin(Stdio::null()).output().context("run it")?;
        ensure!(
            done.status.success(),
            "{arguments:?} at {socket:?} {tunables}: {} {}",
            done.status,
            String::from_utf8_lossy(&done.stderr)
        );
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }
}

fn conforms(binaries: &Binaries) -> Result<()> {
    const UNLIMITED: u32 = ALICE + 1;
    let stage = Stage::new(binaries, "conforms", include_str!("conforms.c"), "2G")?;
    let tunables: &[&str] = &[
        "glibc.malloc.tcache_count=0",
        "glibc.malloc.hugetlb=1",
        "glibc.malloc.mmap_max=0",
        "glibc.malloc.arena_max=1",
        "glibc.malloc.perturb=77",
    ];
    let count = usize::try_from(whole(5).or(0))?;
    let (mut lines, mut runs) = (0, 0);
    for tunables in std::iter::once(&"").chain(tunables.iter().take(count)) {
        let plain = stage.said(None, ALICE, &[], tunables)?;
        for (socket, user) in [
            (NOBODY, ALICE),
            (stage.socket.as_str(), UNLIMITED),
            (stage.socket.as_str(), ALICE),
        ] {
            let own = stage.said(Some(socket), user, &[], tunables)?;
            let others = plain.lines().zip(own.lines());
            let differing: Vec<_> = others.filter(|(plain, own)| plain != own).take(5).collect();
            ensure!(
                differing.is_empty() && plain.lines().count() == own.lines().count(),
                "{tunables} at {socket}, user {user}: {differing:?}"
            );
            runs += 1;
        }
        lines = plain.lines().count();
    }
    ensure!(lines > 2000, "{lines} answers");
    println!("        {lines} answers as glibc's, {runs} times");
    Ok(())
}

fn own_malloc(binaries: &Binaries) -> Result<()> {
    let mut workshop = Workshop::new(binaries, "owns")?;
    let allocator = workshop.build(
        "allocator.o",
        include_str!("allocator.c"),
        &["-c", "-fno-builtin"].map(Path::new),
    )?;
    let program = workshop.build(
        "owns",
        include_str!("owns.c"),
        &[Path::new("-fno-builtin"), &allocator],
    )?;
    let alone = Command::new(&program).status()?;
    ensure!(alone.success(), "with plain malloc: {alone}");
    workshop.run(&program, "", NOBODY)?;
    workshop.world.daemon.start()?;
    workshop.world.daemon.limit(&ALICE.to_string(), "1G")?;
    let socket = workshop.world.daemon.socket().display().to_string();
    let mut limited = workshop.command(&program, &socket)?;
    let limited = limited.uid(ALICE).gid(ALICE).status()?;
    ensure!(limited.success(), "with a limit: {limited}");
    Ok(())
}

/// What becomes of bursard while a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Well,
    Stopped,
    /// Stopped for 15 of every 20 ms.
    Slow,
    /// Listens and never answers.
    Hung,
    Absent,
}

/// What a program of a million mallocs took, ms.
fn timed(stage: &Stage<'_>, socket: Option<&str>) -> Result<u64> {
    let said = stage.said(socket, ALICE, &["million"], "")?;
    let (took, nulls) = said
        .trim_end()
        .split_once(' ')
        .context("two numbers of the program")?;
    ensure!(nulls == "0", "{nulls} NULL at {socket:?}");
    Ok(took.parse()?)
}

fn timed_while(stage: &Stage<'_>, fate: Fate, silence: &str) -> Result<u64> {
    let own = Some(stage.socket.as_str());
    match fate {
        Fate::Well => timed(stage, own),
        Fate::Absent => timed(stage, Some(NOBODY)),
        Fate::Hung => timed(stage, Some(silence)),
        Fate::Stopped => {
            stage.daemon().signal(libc::SIGSTOP)?;
            let took = timed(stage, own);
            stage.daemon().signal(libc::SIGCONT)?;
            took
        }
        Fate::Slow => {
            let is_done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let slowing = scope.spawn(|| -> Result<()> {
                    while !is_done.load(Ordering::Relaxed) {
                        stage.daemon().signal(libc::SIGSTOP)?;
                        sleep(Duration::from_millis(15));
                        stage.daemon().signal(libc::SIGCONT)?;
                        sleep(Duration::from_millis(5));
                    }
                    Ok(())
                });
                let took = timed(stage, own);
                is_done.store(true, Ordering::Relaxed);
                match slowing.join() {
                    Ok(slowed) => slowed.and(took),
                    Err(_) => bail!("the thread that slows bursard failed"),
                }
            })
        }
    }
}

fn million(binaries: &Binaries) -> Result<()> {
    // The aim is 50 ms. A machine that does something else too adds up to as much.
    let most_ms = whole(50).or(100);
    let mut stage = Stage::new(binaries, "million", include_str!("survives.c"), "1G")?;
    let silence = stage.workshop.silence()?;
    // Another user's, as bursard's is root's: alice may ask there.
    std::fs::set_permissions(
        &silence,
        std::os::unix::fs::PermissionsExt::from_mode(0o666),
    )?;
    let fates = [
        Fate::Well,
        Fate::Stopped,
        Fate::Slow,
        Fate::Hung,
        Fate::Absent,
    ];
    let rounds = whole(15).or(11);
    let mut plain = Vec::new();
    // Longer than with malloc in the same round, which is told at the same speed of the machine.
    let mut longer = vec![Vec::new(); fates.len()];
    for _ in 0..rounds {
        let without = timed(&stage, None)?;
        for (fate, all) in fates.iter().zip(&mut longer) {
            let with = timed_while(&stage, *fate, &silence)?;
            all.push(with.saturating_sub(without));
        }
        plain.push(without);
    }
    let plain = median(plain);
    let mut late = Vec::new();
    let mut told = Vec::new();
    for (fate, all) in fates.iter().zip(longer) {
        let longer = median(all);
        told.push(format!("{fate:?} {longer}"));
        if longer > most_ms {
            late.push(*fate);
        }
    }
    println!(
        "        a million mallocs: {plain} ms with malloc; longer with tmalloc, ms: {}",
        told.join(", ")
    );
    ensure!(late.is_empty(), "over {most_ms} ms longer: {late:?}");
    // Started anew while programs run: nobody is refused, and none dies.
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let running = stage
            .workshop
            .command(&stage.program, &stage.socket)?
            .arg("million")
            .uid(ALICE)
            .gid(ALICE)
            .stdout(Stdio::piped())
            .spawn()?;
        sleep(Duration::from_millis(100));
        stage.workshop.world.daemon.end(signal)?;
        stage.workshop.world.daemon.start()?;
        let done = running.wait_with_output()?;
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        ensure!(
            done.status.success() && said.trim_end().ends_with(" 0"),
            "bursard ended by signal {signal}: {} {said}",
            done.status
        );
    }
    Ok(())
}

fn churns(binaries: &Binaries) -> Result<()> {
    let stage = Stage::new(binaries, "churns", include_str!("survives.c"), "1G")?;
    for socket in [None, Some(NOBODY), Some(stage.socket.as_str())] {
        stage.said(socket, ALICE, &["churns"], "")?;
    }
    let alice = ALICE.to_string();
    let account = stage.daemon().account(&alice)?.context("the account")?;
    ensure!(account.kills == 0, "{} were killed", account.kills);
    until("all reservations to be gone", || {
        Ok((stage.daemon().memory(&alice)?.reserved == Bytes::ZERO).then_some(()))
    })
}

fn namesakes(binaries: &Binaries) -> Result<()> {
    let stage = Stage::new(binaries, "namesakes", include_str!("survives.c"), "1G")?;
    // As root, who may make such namespaces; root has no limit, and asks all the same.
    for socket in [None, Some(NOBODY), Some(stage.socket.as_str())] {
        stage.said(socket, 0, &["namesakes"], "")?;
    }
    Ok(())
}
