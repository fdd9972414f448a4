// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's own memory for one user's objects (docs/explanation/beancounters.md, `kmemsize`): known, and held.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bursar_model::{Bean, EventKind, Resource, namespace_bytes};

use super::beancounters::{answers, bill_of, flooder, limit, world};
use super::growers::grower;
use super::machine::kernel_log;
use crate::cgroup::Cgroup;
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
        name: "kernel_memory_is_held_at_its_barrier",
        place: Place::Guest,
        tell: held_at_barrier,
    },
    Story {
        name: "kernel_memory_is_held_whatever_uid_the_kernel_counts_it_for",
        place: Place::Guest,
        tell: other_uids,
    },
    Story {
        name: "kernel_memory_refuses_a_network_namespace_before_others_begin_theirs",
        place: Place::Guest,
        tell: refused_at_once,
    },
    Story {
        name: "kernel_memory_is_held_without_bursard",
        place: Place::Guest,
        tell: held_without_bursard,
    },
    Story {
        name: "kernel_memory_for_mounts_is_held",
        place: Place::Guest,
        tell: mounts,
    },
    Story {
        name: "kernel_memory_in_a_namespace_is_held_by_the_control_groups_figure",
        place: Place::Guest,
        tell: filled_namespace,
    },
    Story {
        name: "kernel_memory_asked_for_by_generic_netlink_is_held",
        place: Place::Guest,
        tell: generic_netlink,
    },
    Story {
        name: "kernel_memory_is_held_whoever_carries_a_setsockopt_out",
        place: Place::Guest,
        tell: options_by_ring,
    },
    Story {
        name: "kernel_memory_for_names_refuses_nobody_anything",
        place: Place::Guest,
        tell: remembered_names,
    },
    Story {
        name: "kernel_memory_at_its_barrier_lets_a_login_in",
        place: Place::Guest,
        tell: let_a_login_in,
    },
    Story {
        name: "kernel_memory_of_each_kind_of_namespace",
        place: Place::Named,
        tell: measure,
    },
];

const ALICE: u32 = 60311;
const BOB: u32 = 60312;
/// An emulated machine takes its time.
const LONG: Duration = Duration::from_secs(500);

/// What the kernel has for itself, bytes, by /proc/meminfo.
#[derive(Debug, Clone, Copy)]
pub(super) struct KernelMemory {
    /// Slab, per-CPU memory, vmalloc and page tables.
    pub(super) all: u64,
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
pub(super) fn settled() -> Result<KernelMemory> {
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

/// ALICE's row.
fn row(world: &World) -> Result<Bean> {
    let mut bill = bill_of(world, &ALICE.to_string())?;
    bill.remove(&Resource::Kmemsize).context("kmemsize")
}

fn shown(world: &World) -> Result<u64> {
    row(world)?.held.context("a number")
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

const BARRIER: u64 = 32 << 20;

/// Network namespaces that fit below the barrier.
fn most() -> Result<u64> {
    const NET: usize = 4;
    let cpus = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = cpus.trim_end().rsplit(['-', ',']).next().unwrap_or("0");
    let each = namespace_bytes(last.parse::<u32>()? + 1)[NET];
    Ok(BARRIER / each)
}

/// What was got of `STEP: GOT ERRNO×TIMES`; one of `errnos` stands there if anything was refused.
fn got(said: &str, errnos: &[&str]) -> Result<u64> {
    let rest = said.split_once(": ").context("an answer")?.1.trim_end();
    let (got, refused) = rest.split_once(' ').unwrap_or((rest, ""));
    let is_known = refused.is_empty() || errnos.iter().any(|it| refused.starts_with(it));
    ensure!(is_known, "refused with {refused}: {said}");
    Ok(got.parse()?)
}

/// A namespace goes some time after it was let go of.
fn until_granted(binaries: &Binaries, times: u64) -> Result<()> {
    let steps = format!("uid={ALICE} userns net={times}");
    within(LONG, "namespaces to be granted again", || {
        let said = answers(binaries, &steps)?;
        Ok((said == ["userns: 1".to_owned(), format!("net={times}: {times}")]).then_some(()))
    })
}

/// However many programs ask at once, and from whatever depth of user namespaces.
fn held_at_barrier(binaries: &Binaries) -> Result<()> {
    const PROGRAMS: u64 = 8;
    let world = world(binaries, "kmem-held")?;
    let remarks = limit(&world, &ALICE.to_string(), "kmemsize=32M")?;
    ensure!(
        remarks.iter().any(|it| it.contains("best effort")),
        "{remarks:?}"
    );
    let most = most()?;
    let before = settled()?.all;
    let mut programs = Vec::new();
    for index in 0..PROGRAMS {
        let depth = ["userns ", "userns userns "][(index % 2) as usize];
        let steps = format!("uid={ALICE} {depth}say=begun wait net={most} say=ready wait");
        let mut program = Hog::spawn(&mut flooder(binaries, &steps))?;
        program.hear("begun")?;
        programs.push(program);
    }
    for program in &mut programs {
        program.go_on()?;
    }
    let mut sum = 0;
    for program in &mut programs {
        sum += got(&program.next_line()?, &["ENOMEM", "EPERM"])?;
        program.hear("ready")?;
    }
    let kernel = settled()?.all.saturating_sub(before);
    println!("        {sum} namespaces of at most {most}, {kernel} bytes of the kernel's memory");
    // Two who race at the edge are both refused, and so may eight be.
    ensure!(sum <= most && sum >= most / 2, "{sum} of {most}");
    let row = row(&world)?;
    ensure!(row.barrier == Some(BARRIER) && row.failcnt > 0, "{row:?}");
    ensure!(row.maxheld >= Some(BARRIER / 2), "{row:?}");
    let events = world.daemon.events_of(EventKind::Refused)?;
    let refused = events.iter().find_map(|it| it.row.as_ref());
    let refused = refused.context("an event")?;
    ensure!(
        refused.resource == Resource::Kmemsize && refused.barrier == BARRIER,
        "{refused:?}"
    );
    // Others are let alone, and so is root.
    let bobs = answers(binaries, &format!("uid={BOB} userns net=20"))?;
    ensure!(bobs == ["userns: 1", "net=20: 20"], "{bobs:?}");
    let roots = answers(binaries, "net=5 open=20 fork=3")?;
    ensure!(
        roots == ["net=5: 5", "open=20: 20", "fork=3: 3"],
        "{roots:?}"
    );
    drop(programs);
    until_granted(binaries, most / 2)?;
    // Without a limit nothing is refused, and nothing is left attached.
    limit(&world, &ALICE.to_string(), "kmemsize=unlimited")?;
    until_granted(binaries, most + most / 4)
}

/// The kernel counts a namespace for the effective uid of who makes it, which a set-uid program has from its owner.
fn other_uids(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "kmem-uids", "")?;
    fs::write(
        world.directory().join("subuid"),
        format!("{ALICE}:60500:100\n"),
    )?;
    world.daemon.start()?;
    limit(&world, &ALICE.to_string(), "kmemsize=32M")?;
    let ways = [
        format!("as={ALICE} effective={BOB} userns"),
        format!("as={ALICE} effective=60507 userns"),
        "uid=60507 userns".to_owned(),
    ];
    let granted = |steps: &str| -> Result<u64> {
        let said = answers(binaries, steps)?;
        got(said.first().context("an answer")?, &["EPERM"])
    };
    for way in &ways {
        ensure!(granted(way)? == 0, "{way}");
    }
    let row = row(&world)?;
    ensure!(row.failcnt >= 3, "{row:?}");
    for way in [
        format!("uid={ALICE} userns"),
        format!("as={ALICE} effective=0 userns"),
        format!("uid={BOB} userns"),
    ] {
        ensure!(granted(&way)? == 1, "{way}");
    }
    limit(&world, &ALICE.to_string(), "kmemsize=unlimited")?;
    for way in &ways {
        within(LONG, "it being granted", || {
            Ok((granted(way)? == 1).then_some(()))
        })?;
    }
    Ok(())
}

/// Many who race at the edge: whoever is refused is refused at the namespace's first socket. At a later one the kernel
/// says so of its audit, and panics where `auditctl -f 2` has it do that.
fn refused_at_once(binaries: &Binaries) -> Result<()> {
    const PROGRAMS: usize = 8;
    const ROUNDS: u32 = 5;
    let world = world(binaries, "kmem-at-once")?;
    limit(&world, &ALICE.to_string(), "kmemsize=4M")?;
    for _ in 0..ROUNDS {
        let steps = format!("uid={ALICE} userns say=begun wait net=100 say=ready wait");
        let mut programs = Vec::new();
        for _ in 0..PROGRAMS {
            let mut program = Hog::spawn(&mut flooder(binaries, &steps))?;
            program.hear("begun")?;
            programs.push(program);
        }
        for program in &mut programs {
            program.go_on()?;
        }
        for program in &mut programs {
            got(&program.next_line()?, &["ENOMEM", "EPERM"])?;
            program.hear_within("ready", LONG)?;
        }
        drop(programs);
        until_granted(binaries, 2)?;
    }
    ensure!(row(&world)?.failcnt > 0, "nothing was refused");
    let log = kernel_log()?;
    let of_audit = log
        .iter()
        .find(|line| line.contains("netlink socket in namespace"));
    ensure!(of_audit.is_none(), "{of_audit:?}");
    Ok(())
}

fn held_without_bursard(binaries: &Binaries) -> Result<()> {
    let mut world = world(binaries, "kmem-alone")?;
    limit(&world, &ALICE.to_string(), "kmemsize=32M")?;
    let most = most()?;
    let _ = world.daemon.end(libc::SIGKILL)?;
    for _ in 0..2 {
        until_granted(binaries, most / 2)?;
        let said = answers(binaries, &format!("uid={ALICE} userns net={}", 2 * most))?;
        let answer = said.get(1).context("an answer")?;
        let sum = got(answer, &["ENOMEM", "EPERM"])?;
        // Those before may not have gone yet.
        ensure!(sum <= most && sum >= most / 4, "{sum} of {most}");
    }
    world.daemon.start()?;
    ensure!(row(&world)?.failcnt >= most, "{:?}", row(&world)?);
    Ok(())
}

/// A namespace full of mounts is full, and so is each copy of it.
fn mounts(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "kmem-mounts")?;
    limit(&world, &ALICE.to_string(), "kmemsize=8M")?;
    let before = settled()?.all;
    let steps = format!("uid={ALICE} userns mnt=1 mount=4500 mnt=5 mount=30000 say=ready wait");
    let mut program = Hog::spawn(&mut flooder(binaries, &steps))?;
    let mut said = || program.next_line();
    let (userns, first, few) = (said()?, said()?, said()?);
    ensure!(
        userns == "userns: 1\n" && first == "mnt=1: 1\n" && few == "mount=4500: 4500\n",
        "{userns}{first}{few}"
    );
    let (copies, more) = (said()?, said()?);
    // Where mounts propagate each is two.
    ensure!((1..=3).contains(&got(&copies, &["EPERM"])?), "{copies}");
    ensure!(got(&more, &["ENOMEM"])? <= 4500, "{more}");
    program.hear_within("ready", LONG)?;
    let kernel = settled()?.all.saturating_sub(before);
    println!(
        "        {} {}: {kernel} bytes",
        copies.trim_end(),
        more.trim_end()
    );
    ensure!(kernel < 4 * (8 << 20) / 3, "{kernel} bytes");
    ensure!(row(&world)?.failcnt > 0, "{:?}", row(&world)?);
    program.finish()
}

/// What the memory controller counts in a group, and of it what is given back when memory is short.
fn figures(group: &Cgroup) -> Result<(u64, u64)> {
    let text = group.read("memory.stat")?;
    let of = |name: &str| -> Result<u64> {
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let found = lines.clone().find(|(key, _)| *key == name);
        Ok(found.context(name.to_owned())?.1.parse()?)
    };
    Ok((of("kernel")?, of("slab_reclaimable")?))
}

/// Routes belong to no task, file or socket. The control group knows them; between two scans the requests are added up.
fn filled_namespace(binaries: &Binaries) -> Result<()> {
    const BARRIER: u64 = 4 << 20;
    const TIMES: u64 = 40_000;
    let world = world(binaries, "kmem-routes")?;
    let group = Cgroup::slice_of(ALICE)?;
    limit(&world, &ALICE.to_string(), "kmemsize=4M")?;
    let path = group.path().display();
    let steps = format!(
        "group={path} uid={ALICE} userns net=1 say=ready wait route={TIMES} say=full wait \
         route={TIMES} address=100 unroute=100 wait"
    );
    let mut program = Hog::spawn(&mut flooder(binaries, &steps))?;
    let said = [program.next_line()?, program.next_line()?];
    ensure!(said == ["userns: 1\n", "net=1: 1\n"], "{said:?}");
    program.hear("ready")?;
    let taken = || -> Result<u64> {
        let (all, given_back) = figures(&group)?;
        Ok(all.saturating_sub(given_back))
    };
    let before = taken()?;
    program.go_on()?;
    let said = program.next_line()?;
    program.hear_within("full", LONG)?;
    let (routes, now) = (got(&said, &["ENOMEM"])?, taken()?);
    println!(
        "        {routes} routes took {} bytes, {} each; the group has {now}",
        now.saturating_sub(before),
        now.saturating_sub(before) / routes.max(1)
    );
    ensure!(routes > 1000 && routes < TIMES, "{said}");
    ensure!(now < BARRIER + BARRIER / 4, "{now} bytes");
    // A scan knows as much as the kernel.
    let held = until("the figure to be shown", || {
        let held = shown(&world)?;
        Ok((held.abs_diff(now) < now / 8).then_some(held))
    })?;
    println!("        the row has {held}");
    let failcnt = row(&world)?.failcnt;
    ensure!(failcnt > 0, "{:?}", row(&world)?);
    // From there on it is the figure that counts. Giving back is not refused.
    program.go_on()?;
    let mut last = [(); 3].map(|()| String::new());
    for line in &mut last {
        *line = program.next_line()?;
    }
    let [more, by_ioctl, back] = &last;
    println!("        {}, {}", more.trim_end(), by_ioctl.trim_end());
    ensure!(got(more, &["ENOMEM"])? < TIMES, "{more}");
    let by_ioctl = got(by_ioctl, &["EPERM"])?;
    ensure!(by_ioctl < 100, "{last:?}");
    ensure!(back == "unroute=100: 100\n", "{last:?}");
    ensure!(taken()? < BARRIER + BARRIER / 4, "{} bytes", taken()?);
    program.finish()?;
    drop(world);
    Ok(())
}

/// Peers of WireGuard, services of IPVS and the like are asked for so. In the machine's own network namespace only root has
/// them made, and programs of all kinds ask for other things.
fn generic_netlink(binaries: &Binaries) -> Result<()> {
    const TIMES: u64 = 1000;
    /// Messages of 1 KiB, each of which stands for eight times as much.
    const MOST: u64 = (4 << 20) / (8 << 10);
    let world = world(binaries, "kmem-generic")?;
    limit(&world, &ALICE.to_string(), "kmemsize=4M")?;
    let steps = format!("generic={TIMES} userns net=1 generic={TIMES}");
    let granted = format!("generic={TIMES}: {TIMES}");
    let said = answers(binaries, &format!("uid={ALICE} {steps}"))?;
    let [before, userns, net, held] = said.as_slice() else {
        anyhow::bail!("{said:?}");
    };
    ensure!(
        *before == granted && userns == "userns: 1" && net == "net=1: 1",
        "{said:?}"
    );
    ensure!((1..=MOST).contains(&got(held, &["ENOMEM"])?), "{said:?}");
    let bobs = answers(binaries, &format!("uid={BOB} {steps}"))?;
    ensure!(bobs.last() == Some(&granted), "{bobs:?}");
    Ok(())
}

/// io_uring sets options of sockets under a system call's number of its own, or anybody's.
fn options_by_ring(binaries: &Binaries) -> Result<()> {
    // Of 512 bytes each; a scan in between finds none of them, and as many more are granted.
    const TIMES: u64 = 20_000;
    let world = world(binaries, "kmem-options")?;
    limit(&world, &ALICE.to_string(), "kmemsize=4M")?;
    let steps = |uid: u32, net: &str| format!("uid={uid} {net}table={TIMES}");
    // In root's namespace it is the kernel that answers, and it makes nothing.
    for (uid, net) in [(BOB, "userns net=1 "), (ALICE, "")] {
        answers(binaries, &steps(uid, net))?;
        let failcnt = row(&world)?.failcnt;
        ensure!(failcnt == 0, "{uid} {net}: {failcnt}");
    }
    let said = answers(binaries, &steps(ALICE, "userns net=1 "))?;
    let tables = said.last().context("an answer")?;
    println!("        {tables}");
    let tables = got(tables, &["EPERM"])?;
    ensure!(tables > 100 && tables < TIMES, "{said:?}");
    ensure!(row(&world)?.failcnt > 0, "{:?}", row(&world)?);
    Ok(())
}

/// What the kernel remembers of names it gives back when memory is short: an innocent user's is no reason to refuse.
fn remembered_names(binaries: &Binaries) -> Result<()> {
    const BARRIER: u64 = 4 << 20;
    let world = world(binaries, "kmem-names")?;
    let group = Cgroup::slice_of(ALICE)?;
    limit(&world, &ALICE.to_string(), "kmemsize=4M")?;
    let path = group.path().display();
    let steps =
        format!("group={path} uid={ALICE} names=60000 say=ready wait fork=5 open=50 udp=5 wait");
    let mut program = Hog::spawn(&mut flooder(binaries, &steps))?;
    let said = program.next_line()?;
    ensure!(said == "names=60000: 60000\n", "{said}");
    program.hear_within("ready", LONG)?;
    let (all, given_back) = figures(&group)?;
    println!("        the group has {all} bytes, {given_back} of them for names and inodes");
    ensure!(
        given_back > 2 * BARRIER,
        "no memory for names: {given_back}"
    );
    // A scan that has seen all of it.
    std::thread::sleep(Duration::from_secs(12));
    let held = shown(&world)?;
    ensure!(held < BARRIER / 2, "the row has {held}");
    program.go_on()?;
    for expected in ["fork=5: 5\n", "open=50: 50\n", "udp=5: 5\n"] {
        let said = program.next_line()?;
        ensure!(said == expected, "{said}");
    }
    program.finish()
}

/// Who comes in through root's program goes on for a while; what the user has there already does not.
fn let_a_login_in(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "kmem-login")?;
    limit(&world, &ALICE.to_string(), "kmemsize=8M")?;
    let steps = format!("uid={ALICE} userns net=60 ipc=400 uts=400 say=ready wait");
    let mut full = Hog::spawn(&mut flooder(binaries, &steps))?;
    full.hear("ready")?;
    let said = |uid: u32, steps: &str| -> Result<String> {
        let output = grower(binaries, uid, steps).output()?;
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let plainly = said(ALICE, "fork")?;
    ensure!(plainly == "fork: ENOMEM\n", "plainly: {plainly}");
    let login = said(
        0,
        &format!("forked=uid={ALICE}+fork+session+run=(:); exit 3"),
    )?;
    ensure!(
        login.starts_with("fork: ok\n") && login.ends_with(": 3\n"),
        "login: {login}"
    );
    drop(full);
    until_granted(binaries, 5)
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
