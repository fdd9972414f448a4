// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bounds on rows cost (docs/design/measured-beancounters.md): calls that make what a row counts, and works that
//! consist of many calls, beside the same without any, in a control group with the kernel's own bounds, and with programs
//! that do nothing at the hooks.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bursar_model::{How, Resource};
use libbpf_rs::Link;
use libbpf_rs::libbpf_sys;
use libbpf_rs::query::ProgInfoIter;
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
        name: "beancounters_programs_in_the_way_of_works",
        place: Place::Named,
        tell: in_the_way,
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
    ("numfile=500", "open,newpipe,build,find"),
    ("numothersock=50", "socket,socketpair"),
    ("numtcpsock=50", "accept"),
    ("numproc=50", "process,execl,shell,thread"),
    ("numflock=50", "flock,journal"),
    ("shmpages=64M", "map"),
];

/// What people do; they need programs that guests do not have by themselves (`make rows`).
const WORKS: [&str; 3] = ["build", "find", "journal"];

/// Who runs the tests, and beside what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Setting {
    /// Without bursard.
    Plain,
    /// In a control group with `memory.max` and `pids.max`.
    Group,
    /// Beside programs that do nothing.
    Empty,
    /// bursard runs and nobody has a limit.
    Unlimited,
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
    for (test, a_second) in figures(binaries, steps)? {
        let kept = best.entry((setting, test)).or_default();
        *kept = kept.max(a_second);
    }
    Ok(())
}

fn figures(binaries: &Binaries, steps: &str) -> Result<Vec<(String, f64)>> {
    let said = answers(binaries, steps)?;
    let words: Vec<&str> = said.first().context("figures")?.split(' ').collect();
    let pairs = words.chunks_exact(2);
    pairs
        .map(|pair| Ok((pair[0].to_owned(), pair[1].parse()?)))
        .collect()
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
    let group = Cgroup::new("memory", "cost")?;
    std::fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+pids")?;
    group.write("memory.max", "1G")?;
    group.write("pids.max", "5000")?;
    let alice = ALICE.to_string();
    let all = format!("uid={ALICE} bench=100");
    let mut best = Speeds::new();
    for _ in 0..ROUNDS {
        measure(binaries, &mut best, Setting::Plain, &all)?;
        let grouped = format!("group={} {all}", group.path().display());
        measure(binaries, &mut best, Setting::Group, &grouped)?;
        let floor = Floor::attach()?;
        measure(binaries, &mut best, Setting::Empty, &all)?;
        drop(floor);
        let world = world(binaries, "beans-cost")?;
        measure(binaries, &mut best, Setting::Unlimited, &all)?;
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
        "        test          plain    % of it: group    empty   no limit  neighbour  one row  all rows"
    );
    let mut missed = Vec::new();
    for ((_, test), plain) in best.iter().filter(|((it, _), _)| *it == Setting::Plain) {
        let percent = |setting: Setting| {
            let found = best.get(&(setting, test.clone()));
            found.map(|a_second| a_second * 100.0 / plain)
        };
        let shown = |setting| percent(setting).map_or("–".to_owned(), |it| format!("{it:.1}"));
        println!(
            "        {test:<10} {plain:>9.*} {:>16} {:>8} {:>10} {:>10} {:>8} {:>9}",
            if *plain < 10.0 { 3 } else { 1 },
            shown(Setting::Group),
            shown(Setting::Empty),
            shown(Setting::Unlimited),
            shown(Setting::Neighbour),
            shown(Setting::OneRow),
            shown(Setting::Rows),
        );
        if percent(Setting::Rows).is_none_or(|it| it < least(test)) {
            missed.push(format!("{test}: {} %", least(test)));
        }
    }
    for work in WORKS {
        if !best.contains_key(&(Setting::Plain, work.to_owned())) {
            println!(
                "        {work:<10} not measured: its programs are not here (make rows brings them)"
            );
        }
    }
    ensure!(
        missed.is_empty(),
        "less of the plain speed than there is to be: {missed:?}"
    );
    Ok(())
}

/// So many per cent of the plain speed are to be left with all rows.
fn least(test: &str) -> f64 {
    if S5_TESTS.contains(&test) {
        97.0
    } else if WORKS.contains(&test) {
        98.0
    } else {
        0.0
    }
}

/// How often each program ran, and for how many nanoseconds in all.
type Runs = BTreeMap<String, (u64, u64)>;

/// The kernel counts runs as long as what is returned lives.
fn count_runs() -> Result<OwnedFd> {
    // SAFETY: a plain number.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    ensure!(
        fd >= 0,
        "the kernel counts no runs: {}",
        std::io::Error::from_raw_os_error(-fd)
    );
    // SAFETY: a descriptor that the kernel just gave us and nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What ran while these steps were done.
fn runs_of(binaries: &Binaries, steps: &str) -> Result<Runs> {
    let now = || -> BTreeMap<u32, (String, u64, u64)> {
        let of = |it: libbpf_rs::query::ProgramInfo| {
            let name = it.name.to_string_lossy().into_owned();
            (it.id, (name, it.run_cnt, it.run_time_ns))
        };
        ProgInfoIter::default().map(of).collect()
    };
    let before = now();
    figures(binaries, steps)?;
    let mut runs = Runs::new();
    for (id, (name, count, time)) in now() {
        let (_, earlier, spent) = before.get(&id).cloned().unwrap_or_default();
        let sum = runs.entry(name).or_default();
        *sum = (sum.0 + count - earlier, sum.1 + time - spent);
    }
    Ok(runs)
}

/// Which programs run how often while a limited user and a neighbour do one of the works, and how long. Two looks at
/// the clock are in each run; the way to a program and back is not.
fn in_the_way(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "beans-way")?;
    limit(&world, &ALICE.to_string(), ROOMY)?;
    let _counted = count_runs()?;
    for work in WORKS {
        for (who, uid) in [("limited", ALICE), ("neighbour", BOB)] {
            let steps = |milliseconds| format!("uid={uid} bench={milliseconds}:{work}");
            // First without doing it once, so that what is laid out can be taken away.
            let laid_out = runs_of(binaries, &steps(0))?;
            let mut done = runs_of(binaries, &steps(1))?;
            for (name, (count, time)) in &mut done {
                let (earlier, spent) = laid_out.get(name).copied().unwrap_or_default();
                *count = count.saturating_sub(earlier);
                *time = time.saturating_sub(spent);
            }
            for (name, (count, time)) in done.iter().filter(|(_, (count, _))| *count > 0) {
                println!(
                    "        {work:<8} {who:<10} {name:<16} {count:>8} times, {:>7.1} ns each, {:>9.3} ms",
                    *time as f64 / *count as f64,
                    *time as f64 / 1e6
                );
            }
        }
    }
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
