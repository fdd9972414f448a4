// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bounds on rows cost (docs/design/measured-beancounters.md): calls that make what a row counts, beside the same
//! calls without any, in a control group with the kernel's own bounds, and with programs that do nothing at the hooks.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bursar_model::{How, Resource};
use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};

use super::beancounters::{ALICE, BOB, ROOMY, answers, bill, flooder, limit, world};
use super::kernel_memory::settled;
use crate::cgroup::Cgroup;
use crate::hog::Hog;
use crate::runner::{Place, Story};
use crate::world::{Binaries, World};

#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    reason = "generated"
)]
mod floor {
    include!(concat!(env!("OUT_DIR"), "/floor.skel.rs"));
}

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "beancounters_system_cost",
        place: Place::Named,
        tell: cost,
    },
    Story {
        name: "beancounters_system_cost_of_kernel_memory_alone",
        place: Place::Named,
        tell: cost_of_kernel_memory,
    },
    Story {
        name: "beancounters_memory_of_counted_objects",
        place: Place::Named,
        tell: memory,
    },
];

/// Those of S5's Tables 2 and 3; the others are ours.
const S5_TESTS: [&str; 6] = ["execl", "pipe", "process", "read", "shell", "write"];

/// For each of our tests the row that counts what it makes.
const ONE_ROW: [(&str, &str); 6] = [
    ("numfile=500", "open,newpipe"),
    ("numothersock=50", "socket,socketpair"),
    ("numtcpsock=50", "accept"),
    ("numproc=50", "process,execl,shell,thread"),
    ("numflock=50", "flock"),
    ("shmpages=64M", "map"),
];

/// Who runs the tests, and beside what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Setting {
    Plain,
    /// In a control group with `memory.max` and `pids.max`.
    Group,
    /// Beside programs that do nothing.
    Empty,
    /// Somebody else has the rows.
    Neighbour,
    /// With the one row that counts what the test makes.
    OneRow,
    Rows,
}

type Speeds = BTreeMap<(Setting, String), f64>;

/// The links of programs that do nothing.
struct Floor(#[expect(dead_code, reason = "detaches when dropped")] Vec<Link>);

impl Floor {
    fn attach() -> Result<Self> {
        Self::with("floor_file").or_else(|_| Self::with("floor_file_try"))
    }

    fn with(file: &str) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let mut open = floor::FloorSkelBuilder::default()
            .open(&mut storage)
            .context("open programs that do nothing")?;
        for mut program in open.open_object_mut().progs_mut() {
            let is_file = program.name().to_string_lossy() == file;
            program.set_autoload(program.autoload() || is_file);
        }
        let mut loaded = open.load().context("load programs that do nothing")?;
        let programs = loaded.object_mut().progs_mut();
        let links = programs
            .filter(|it| it.autoload())
            .map(|it| it.attach().context("attach a program that does nothing"));
        Ok(Self(links.collect::<Result<_>>()?))
    }
}

/// Runs the tests, or these of them, and keeps the best of each.
fn measure(binaries: &Binaries, best: &mut Speeds, setting: Setting, steps: &str) -> Result<()> {
    // What attaching and detaching leave to be done later is nobody's cost.
    std::thread::sleep(Duration::from_secs(3));
    let said = answers(binaries, steps)?;
    let words: Vec<&str> = said.first().context("figures")?.split(' ').collect();
    for pair in words.chunks_exact(2) {
        let a_second: f64 = pair[1].parse()?;
        let kept = best.entry((setting, pair[0].to_owned())).or_default();
        *kept = kept.max(a_second);
    }
    Ok(())
}

/// Clears all rows of an account.
fn lift(world: &World, who: &str) -> Result<()> {
    let names = ROOMY
        .split_whitespace()
        .filter_map(|row| row.split('=').next());
    let unlimited: String = names.map(|name| format!("{name}=unlimited ")).collect();
    limit(world, who, "numproc=5000")?; // so that there is something to take away
    limit(world, who, &format!("{unlimited} kmemsize=unlimited"))?;
    Ok(())
}

/// S5's tables 2 and 3, and calls that make what rows count.
fn cost(binaries: &Binaries) -> Result<()> {
    let charged = [Resource::Numproc, Resource::Numfile, Resource::Numothersock];
    cost_of(binaries, ROOMY, &charged, &ONE_ROW)
}

fn cost_of_kernel_memory(binaries: &Binaries) -> Result<()> {
    cost_of(binaries, "kmemsize=512M", &[], &[])
}

/// `charged` have to be exact, or what is measured is nothing.
fn cost_of(
    binaries: &Binaries,
    rows: &str,
    charged: &[Resource],
    single: &[(&str, &str)],
) -> Result<()> {
    const ROUNDS: usize = 2;
    let world = world(binaries, "beans-cost")?;
    let alice = ALICE.to_string();
    let group = Cgroup::new("memory", "cost")?;
    std::fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+pids")?;
    group.write("memory.max", "1G")?;
    group.write("pids.max", "5000")?;
    let all = format!("uid={ALICE} bench=100");
    let mut best = Speeds::new();
    for _ in 0..ROUNDS {
        lift(&world, &alice)?;
        measure(binaries, &mut best, Setting::Plain, &all)?;
        let grouped = format!("group={} {all}", group.path().display());
        measure(binaries, &mut best, Setting::Group, &grouped)?;
        let floor = Floor::attach()?;
        measure(binaries, &mut best, Setting::Empty, &all)?;
        drop(floor);
        limit(&world, &alice, rows)?;
        measure(binaries, &mut best, Setting::Rows, &all)?;
        let bill = bill(&world, ALICE)?;
        for row in charged {
            let how = bill.get(row).map(|bean| &bean.how);
            ensure!(how == Some(&How::Exact), "{row:?} is not charged: {how:?}");
        }
        let bob = format!("uid={BOB} bench=100");
        measure(binaries, &mut best, Setting::Neighbour, &bob)?;
        for (row, tests) in single {
            lift(&world, &alice)?;
            limit(&world, &alice, row)?;
            let steps = format!("{all}:{tests}");
            measure(binaries, &mut best, Setting::OneRow, &steps)?;
        }
    }
    judge(&best)
}

fn judge(best: &Speeds) -> Result<()> {
    println!(
        "        test          plain    % of it: group    empty   neighbour  one row  all rows"
    );
    let mut missed = Vec::new();
    for ((_, test), plain) in best.iter().filter(|((it, _), _)| *it == Setting::Plain) {
        let percent = |setting: Setting| {
            let found = best.get(&(setting, test.clone()));
            found.map(|a_second| a_second * 100.0 / plain)
        };
        let shown = |setting| percent(setting).map_or("–".to_owned(), |it| format!("{it:.1}"));
        println!(
            "        {test:<10} {plain:>9.1} {:>16} {:>8} {:>11} {:>8} {:>9}",
            shown(Setting::Group),
            shown(Setting::Empty),
            shown(Setting::Neighbour),
            shown(Setting::OneRow),
            shown(Setting::Rows),
        );
        let least = if S5_TESTS.contains(&test.as_str()) {
            97.0
        } else {
            0.0
        };
        if percent(Setting::Rows).is_none_or(|it| it < least) {
            missed.push(test);
        }
    }
    ensure!(
        missed.is_empty(),
        "less than 97 % of what there is without rows: {missed:?}"
    );
    Ok(())
}

/// What 80,000 objects take of the kernel's memory, bytes each.
fn memory_each(binaries: &Binaries, step: &str) -> Result<f64> {
    const PROGRAMS: u32 = 2;
    const EACH: u32 = 40_000;
    let before = settled()?.all;
    let steps = format!("uid={ALICE} {step}={EACH} say=ready wait");
    let mut programs = Vec::new();
    for _ in 0..PROGRAMS {
        let mut program = Hog::spawn(&mut flooder(binaries, &steps))?;
        let said = program.next_line()?;
        ensure!(
            said.trim_end() == format!("{step}={EACH}: {EACH}"),
            "{said}"
        );
        program.hear_within("ready", Duration::from_secs(120))?;
        programs.push(program);
    }
    let taken = settled()?.all.saturating_sub(before);
    Ok(taken as f64 / f64::from(PROGRAMS * EACH))
}

/// What it takes that an object is counted: nothing of its own, for the tables are there from the first limit on.
fn memory(binaries: &Binaries) -> Result<()> {
    const MOST_EACH: f64 = 16.0;
    let world = world(binaries, "beans-memory")?;
    // The first objects of all leave slabs behind.
    memory_each(binaries, "open")?;
    memory_each(binaries, "udp")?;
    let plain = [
        memory_each(binaries, "open")?,
        memory_each(binaries, "udp")?,
    ];
    let before = settled()?.all;
    limit(
        &world,
        &ALICE.to_string(),
        "numfile=200000 numothersock=200000",
    )?;
    let tables = settled()?.all.saturating_sub(before);
    let counted = [
        memory_each(binaries, "open")?,
        memory_each(binaries, "udp")?,
    ];
    println!(
        "        tables: {tables} bytes; an open file {plain:.0?}, counted {counted:.0?} (file, UDP socket with its file)"
    );
    for (plain, counted) in plain.into_iter().zip(counted) {
        ensure!(
            counted - plain < MOST_EACH,
            "{plain} bytes each, counted {counted}"
        );
    }
    Ok(())
}
