// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's own memory for one user's objects (docs/explanation/beancounters.md, `kmemsize`).

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bursar_model::Resource;

use super::beancounters::{bill_of, flooder, world};
use crate::hog::Hog;
use crate::runner::{Place, Story};
use crate::wait::{until, within};
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "kernel_memory_for_600_network_namespaces_is_known",
        place: Place::Guest,
        tell: known,
    },
    Story {
        name: "kernel_memory_of_each_kind_of_namespace",
        place: Place::Named,
        tell: measure,
    },
];

const ALICE: u32 = 60311;
/// An emulated machine takes its time.
const LONG: Duration = Duration::from_secs(500);

/// What the kernel has for itself, bytes, by /proc/meminfo.
#[derive(Debug, Clone, Copy)]
struct KernelMemory {
    /// Slab, per-CPU memory, vmalloc and page tables.
    all: u64,
    per_cpu: u64,
}

fn kernel_memory() -> Result<KernelMemory> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let of = |name: &str| -> Result<u64> {
        let line = text.lines().find(|line| line.starts_with(name));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        Ok(kib.context(name.to_owned())?.parse::<u64>()? << 10)
    };
    let per_cpu = of("Percpu:")?;
    Ok(KernelMemory {
        all: of("Slab:")? + per_cpu + of("VmallocUsed:")? + of("PageTables:")?,
        per_cpu,
    })
}

/// The same once it does not change: much is freed later, and what is kept for names is not what is meant.
fn settled() -> Result<KernelMemory> {
    const MOST_LOOKS: u32 = 20;
    fs::write("/proc/sys/vm/drop_caches", "2")?;
    let mut last = kernel_memory()?;
    for _ in 0..MOST_LOOKS {
        std::thread::sleep(Duration::from_secs(1));
        let now = kernel_memory()?;
        if last.all.abs_diff(now.all) < 100 << 10 {
            return Ok(now);
        }
        last = now;
    }
    Ok(last)
}

/// The kernel's memory for ALICE's objects as `bursar beancounters` has it.
fn shown(world: &World) -> Result<u64> {
    let mut bill = bill_of(world, &ALICE.to_string())?;
    let row = bill.remove(&Resource::Kmemsize).context("kmemsize")?;
    row.held.context("a number")
}

/// The row grows as the kernel's own figures do, within a third, and comes down when they are gone.
fn known(binaries: &Binaries) -> Result<()> {
    const TIMES: u64 = 600;
    let world = world(binaries, "kmem-known")?;
    let steps =
        format!("uid={ALICE} userns say=begun wait net={TIMES} say=ready wait drop say=gone wait");
    let mut program = Hog::spawn(&mut flooder(binaries, &steps))?;
    program.hear("begun")?;
    let (kernel, row) = (settled()?.all, shown(&world)?);
    program.go_on()?;
    let said = program.next_line()?;
    ensure!(said.trim_end() == format!("net={TIMES}: {TIMES}"), "{said}");
    program.hear("ready")?;
    let kernel = settled()?.all.saturating_sub(kernel);
    // A scan is good for a second.
    let grown = until("the row to have grown", || {
        let grown = shown(&world)?.saturating_sub(row);
        Ok((grown > 1 << 20).then_some(grown))
    })?;
    println!("        the kernel has {kernel} bytes more, the row {grown}");
    ensure!(
        grown.abs_diff(kernel) <= kernel / 3,
        "the kernel has {kernel} bytes more, kmemsize {grown}"
    );
    program.go_on()?;
    program.hear("gone")?;
    within(LONG, "the row to come down", || {
        Ok((shown(&world)? < row + (1 << 20)).then_some(()))
    })?;
    program.finish()
}

/// Not a claim but a table, for docs/design/measured-beancounters.md.
fn measure(binaries: &Binaries) -> Result<()> {
    let kinds = [
        ("open", 600),
        ("net", 600),
        ("mnt", 600),
        ("ipc", 600),
        ("uts", 600),
        ("cgroup", 600),
        ("time_ns", 600),
        ("fork", 300),
        ("pid", 300),
        ("user", 300),
    ];
    let mounts = fs::read_to_string("/proc/self/mounts")?.lines().count();
    let cpus = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    println!("        {mounts} mounts, CPUs {}:", cpus.trim_end());
    for (step, times) in kinds {
        let steps = format!("uid={ALICE} userns say=begun wait {step}={times} say=ready wait");
        let mut program = Hog::spawn(&mut flooder(binaries, &steps))?;
        program.hear("begun")?;
        let before = settled()?;
        program.go_on()?;
        program.hear_within("ready", LONG)?;
        let after = settled()?;
        let each = |more: u64| more / times;
        println!(
            "        {step:<8} {times:>4} times {:>7} bytes each, per CPU {:>6}",
            each(after.all.saturating_sub(before.all)),
            each(after.per_cpu.saturating_sub(before.per_cpu))
        );
        program.finish()?;
    }
    Ok(())
}
