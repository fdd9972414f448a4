// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a program must not notice of tmalloc: each of these was worse with it than without.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bursar_model::Bytes;

use super::{NOBODY, Workshop};
use crate::runner::{Place, Story};
use crate::stories::{ALICE, median};
use crate::wait::until;
use crate::world::Binaries;

pub(crate) const STORIES: &[Story] = &[
    Story {
        name: "a_sparse_block_stays_sparse_under_tmalloc",
        place: Place::Host,
        tell: sparse,
    },
    Story {
        name: "a_program_that_confines_itself_by_seccomp_allocates_under_tmalloc",
        place: Place::Host,
        tell: confined,
    },
    Story {
        name: "a_child_that_shares_memory_and_confines_itself_leaves_its_parent_its_limit",
        place: Place::Host,
        tell: confined_child,
    },
    Story {
        name: "a_child_that_shares_memory_and_is_killed_leaves_nothing_locked_and_its_parent_its_limit",
        place: Place::Host,
        tell: killed_child,
    },
    Story {
        name: "blocks_kept_and_not_touched_cost_no_more_under_tmalloc_and_leave_no_reservation",
        place: Place::Host,
        tell: keeps,
    },
    Story {
        name: "what_was_freed_in_the_heap_is_had_by_others_while_its_program_is_idle",
        place: Place::Host,
        tell: keeps_in_heap,
    },
    Story {
        name: "threads_with_descriptor_tables_of_their_own_keep_none_of_tmallocs",
        place: Place::Host,
        tell: tables,
    },
    Story {
        name: "a_bursard_that_is_stopped_holds_up_no_malloc",
        place: Place::Host,
        tell: stopped,
    },
    Story {
        name: "tmalloc_leaves_no_descriptor_in_a_programs_table",
        place: Place::Host,
        tell: descriptors,
    },
    Story {
        name: "what_a_process_has_reserved_ends_with_its_execve",
        place: Place::Host,
        tell: execs,
    },
];

/// The malloc beneath a program.
#[derive(Debug, Clone, Copy)]
enum Malloc<'a> {
    Plain,
    /// tmalloc, asking at this socket.
    Asking(&'a str),
}

struct Stage<'a> {
    workshop: Workshop<'a>,
    program: PathBuf,
    socket: String,
}

impl<'a> Stage<'a> {
    fn new(binaries: &'a Binaries, name: &str) -> Result<Self> {
        let mut workshop = Workshop::new(binaries, name)?;
        let program = workshop.build("undisturbed", include_str!("undisturbed.c"), &[])?;
        workshop.world.daemon.start()?;
        let socket = workshop.world.daemon.socket().display().to_string();
        Ok(Self {
            workshop,
            program,
            socket,
        })
    }

    /// As alice.
    fn command(&self, malloc: Malloc<'_>, arguments: &[&str]) -> Result<Command> {
        let mut command = match malloc {
            Malloc::Plain => Command::new::<&Path>(&self.program),
            Malloc::Asking(socket) => self.workshop.command(&self.program, socket)?,
        };
        command.args(arguments).uid(ALICE).gid(ALICE);
        Ok(command)
    }

    fn run(&self, malloc: Malloc<'_>, arguments: &[&str]) -> Result<Output> {
        let done = self.command(malloc, arguments)?.output()?;
        ensure!(
            done.status.success(),
            "{malloc:?} {arguments:?}: {} {}",
            done.status,
            String::from_utf8_lossy(&done.stderr)
        );
        Ok(done)
    }

    /// Under tmalloc, with its first line; it ends when its input does.
    fn start_and_hear(&self, what: &str) -> Result<(Child, String)> {
        let mut running = self
            .command(Malloc::Asking(&self.socket), &[what])?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = String::new();
        BufReader::new(running.stdout.take().context("its output")?).read_line(&mut said)?;
        Ok((running, said))
    }
}

/// The numbers that a program printed.
fn numbers(done: &Output) -> Result<Vec<u64>> {
    let text = String::from_utf8_lossy(&done.stdout);
    let numbers = text.split_whitespace().map(|word| Ok(word.parse()?));
    numbers.collect()
}

fn sparse(binaries: &Binaries) -> Result<()> {
    let stage = Stage::new(binaries, "sparse")?;
    let resident = |malloc| -> Result<u64> {
        let found = numbers(&stage.run(malloc, &["sparse"])?)?;
        found.first().copied().context("a number")
    };
    let plain = resident(Malloc::Plain)?;
    let nobody = resident(Malloc::Asking(NOBODY))?;
    let unlimited = resident(Malloc::Asking(&stage.socket))?;
    stage
        .workshop
        .world
        .daemon
        .limit(&ALICE.to_string(), "2G")?;
    let limited = resident(Malloc::Asking(&stage.socket))?;
    println!(
        "        1 GiB, a page in 256 touched: malloc {plain} KiB resident; tmalloc without bursard {nobody}, \
         without a limit {unlimited}, with one {limited}"
    );
    for found in [nobody, unlimited, limited] {
        ensure!(
            found < plain + (2 << 10),
            "{found} KiB resident, {plain} with plain malloc"
        );
    }
    Ok(())
}

fn confined(binaries: &Binaries) -> Result<()> {
    let stage = Stage::new(binaries, "confined")?;
    stage
        .workshop
        .world
        .daemon
        .limit(&ALICE.to_string(), "512M")?;
    for way in ["confined", "confined-by-syscall"] {
        for malloc in [
            Malloc::Plain,
            Malloc::Asking(NOBODY),
            Malloc::Asking(&stage.socket),
        ] {
            stage.run(malloc, &[way])?;
        }
    }
    Ok(())
}

fn confined_child(binaries: &Binaries) -> Result<()> {
    let stage = Stage::new(binaries, "vforks")?;
    let daemon = &stage.workshop.world.daemon;
    daemon.limit(&ALICE.to_string(), "256M")?;
    stage.run(Malloc::Asking(&stage.socket), &["vforks"])?;
    stage.run(Malloc::Asking(&stage.socket), &["many-vfork"])?;
    Ok(())
}

/// Its parent's other threads waited for the child's lock, and its parent's own asked for nothing any more.
fn killed_child(binaries: &Binaries) -> Result<()> {
    let stage = Stage::new(binaries, "killed-vforks")?;
    let daemon = &stage.workshop.world.daemon;
    daemon.limit(&ALICE.to_string(), "1G")?;
    stage.run(Malloc::Asking(&stage.socket), &["killed-vforks"])?;
    Ok(())
}

fn keeps(binaries: &Binaries) -> Result<()> {
    /// What may stay: unused permission that is not worth a message.
    const MOST: Bytes = Bytes::from_mib(96);
    let stage = Stage::new(binaries, "keeps")?;
    let daemon = &stage.workshop.world.daemon;
    let alice = ALICE.to_string();
    daemon.limit(&alice, "20G")?;
    let mut plain = Vec::new();
    let mut limited = Vec::new();
    let mut left = Bytes::ZERO;
    for _ in 0..3 {
        plain.push(numbers(&stage.run(Malloc::Plain, &["keeps"])?)?[0]);
        let (mut running, said) = stage.start_and_hear("keeps")?;
        left = left.max(daemon.memory(&alice)?.reserved);
        drop(running.stdin.take());
        ensure!(running.wait()?.success(), "it said {said:?}");
        limited.push(said.trim_end().parse()?);
    }
    let (plain, limited) = (median(plain), median(limited));
    println!(
        "        20,000 × 300 KB: malloc {plain} ms, tmalloc with a limit {limited} ms; {left} stay reserved"
    );
    ensure!(left <= MOST, "{left} stay reserved");
    ensure!(limited < 2 * plain + 200, "{limited} ms instead of {plain}");
    Ok(())
}

fn keeps_in_heap(binaries: &Binaries) -> Result<()> {
    /// Of 2.8 GiB.
    const MOST: Bytes = Bytes::from_mib(256);
    let stage = Stage::new(binaries, "keeps-in-heap")?;
    let daemon = &stage.workshop.world.daemon;
    let alice = ALICE.to_string();
    daemon.limit(&alice, "3500M")?;
    let (mut running, said) = stage.start_and_hear("keeps-in-heap")?;
    // 1 GiB, which there is room for at once.
    let other = stage.run(Malloc::Asking(&stage.socket), &["sparse"]);
    let left = until("what was freed to be reserved no more", || {
        let left = daemon.memory(&alice)?.reserved;
        Ok((left <= MOST).then_some(left))
    });
    drop(running.stdin.take());
    ensure!(running.wait()?.success(), "it said {said:?}");
    other.context("another program of the account")?;
    println!("        100,000 × 30 KB, freed: {} stay reserved", left?);
    Ok(())
}

/// A connection that is kept stands in one of the tables. The other thread has it replaced when it finds it dead often, and
/// the former one stays in the table of who opened it: one in each at most, however many requests there are.
fn tables(binaries: &Binaries) -> Result<()> {
    let stage = Stage::new(binaries, "tables")?;
    let daemon = &stage.workshop.world.daemon;
    daemon.limit(&ALICE.to_string(), "64M")?;
    let grown = numbers(&stage.run(Malloc::Asking(&stage.socket), &["tables"])?)?;
    ensure!(
        grown.iter().all(|&it| it <= 1),
        "tables grew by {grown:?} descriptors"
    );
    Ok(())
}

fn stopped(binaries: &Binaries) -> Result<()> {
    let stage = Stage::new(binaries, "stopped")?;
    let daemon = &stage.workshop.world.daemon;
    daemon.limit(&ALICE.to_string(), "1G")?;
    let mut command = stage.command(Malloc::Asking(&stage.socket), &["patient", "5"])?;
    let running = command.stdout(Stdio::piped()).spawn()?;
    sleep(Duration::from_secs(1));
    daemon.signal(libc::SIGSTOP)?;
    let done = running.wait_with_output();
    daemon.signal(libc::SIGCONT)?;
    let done = done?;
    ensure!(done.status.success(), "patient: {}", done.status);
    let found = numbers(&done)?;
    let (longest, sum) = (
        found.first().copied().context("the longest")?,
        found.get(1).copied().context("the sum")?,
    );
    println!(
        "        bursard stopped for 4 s: the longest malloc {longest} ms, those over 20 ms {sum} ms"
    );
    ensure!(longest < 200 && sum < 300, "{longest} ms, {sum} ms");
    Ok(())
}

fn descriptors(binaries: &Binaries) -> Result<()> {
    let stage = Stage::new(binaries, "descriptors")?;
    stage
        .workshop
        .world
        .daemon
        .limit(&ALICE.to_string(), "512M")?;
    for malloc in [
        Malloc::Plain,
        Malloc::Asking(NOBODY),
        Malloc::Asking(&stage.socket),
    ] {
        stage.run(malloc, &["descriptors"])?;
    }
    Ok(())
}

fn execs(binaries: &Binaries) -> Result<()> {
    let stage = Stage::new(binaries, "execs")?;
    let daemon = &stage.workshop.world.daemon;
    let alice = ALICE.to_string();
    daemon.limit(&alice, "512M")?;
    let mut running = stage
        .command(Malloc::Asking(&stage.socket), &["execs", "60"])?
        .spawn()?;
    let name = format!("/proc/{}/comm", running.id());
    let seen = until("the program to become sleep", || {
        Ok((std::fs::read(&name)? == b"sleep\n").then_some(()))
    })
    .and_then(|()| {
        until("what it had reserved to be given back", || {
            Ok((daemon.memory(&alice)?.reserved == Bytes::ZERO).then_some(()))
        })
    });
    running.kill()?;
    running.wait()?;
    seen
}
