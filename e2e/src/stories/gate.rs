// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Refused before killed: the gate (docs/explanation/gate.md). `grower` asks and says what it was answered.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bursar_model::{AccountStatus, EventKind, GateMode, Request};

use super::growers::{Committed, Growers, grower, is_answered};
use super::tmalloc::transact;
use super::{ALICE, BOB};
use crate::huge_page_pool::HugePagePool;
use crate::length::whole;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "gate_says_what_it_can_do",
        place: Place::Host,
        tell: says_its_mode,
    },
    Story {
        name: "gate_refuses_every_way_to_grow_by_what_is_resident",
        place: Place::Guest,
        tell: refuses_resident,
    },
    Story {
        name: "gate_under_the_unit_that_is_shipped_is_tried_and_strict",
        place: Place::Guest,
        tell: under_unit,
    },
    Story {
        name: "gate_refuses_every_way_to_grow_by_what_is_committed",
        place: Place::Guest,
        tell: refuses_committed,
    },
    Story {
        name: "gate_refuses_huge_pages",
        place: Place::Guest,
        tell: refuses_huge_pages,
    },
    Story {
        name: "gate_agrees_with_proc_after_ten_thousand_random_lives",
        place: Place::Guest,
        tell: random_lives,
    },
    Story {
        name: "gate_bounds_malloc_in_every_thread_arena",
        place: Place::Guest,
        tell: bounds_arenas,
    },
    Story {
        name: "gate_gives_secret_memory_to_nobody_with_a_limit",
        place: Place::Guest,
        tell: secret_memory,
    },
    Story {
        name: "gate_lets_small_programs_and_deep_stacks_go_up_to_the_limit",
        place: Place::Guest,
        tell: small_programs,
    },
    Story {
        name: "gate_refuses_nobody_without_a_limit",
        place: Place::Guest,
        tell: unlimited,
    },
    Story {
        name: "gate_takes_everything_back",
        place: Place::Guest,
        tell: takes_back,
    },
    Story {
        name: "gate_grants_reservations_that_die_with_their_process",
        place: Place::Guest,
        tell: reservations,
    },
    Story {
        name: "gate_and_bursard_promise_nothing_twice",
        place: Place::Guest,
        tell: promises,
    },
    Story {
        name: "gate_refuses_nobody_for_what_another_asks_in_vain",
        place: Place::Guest,
        tell: asked_in_vain,
    },
    Story {
        name: "gate_is_never_passed_by_four_hammers",
        place: Place::Guest,
        tell: hammers,
    },
    Story {
        name: "gate_keeps_a_user_from_filling_anothers_file",
        place: Place::Guest,
        tell: keeps_from_filling_anothers,
    },
    Story {
        name: "gate_refuses_files_in_tmpfs_and_no_page_fault",
        place: Place::Guest,
        tell: refuses_files,
    },
    Story {
        name: "gate_lets_a_login_in_at_the_barrier",
        place: Place::Guest,
        tell: lets_a_login_in,
    },
    Story {
        name: "gate_measures_a_user_of_default_as_listed_from_his_first_process_on",
        place: Place::Guest,
        tell: measures_as_listed,
    },
    Story {
        name: "gate_holds_four_writers_of_files",
        place: Place::Guest,
        tell: writers,
    },
    Story {
        name: "gate_lets_java_and_go_start_and_tells_them_no",
        place: Place::Named,
        tell: runtimes,
    },
    Story {
        name: "gate_costs_little_beside_the_mapping",
        place: Place::Named,
        tell: costs,
    },
];

const MIB: u64 = 1 << 20;
/// It is off on the stage, where others' stories are told of what happens without it.
const ON: &str = "[gate]\nmode = \"auto\"\n";
/// Continues the table of [`ON`].
const COMMITTED: &str = "measure = \"committed\"\n";

/// Runs a grower and returns what it said.
pub(super) fn answers(binaries: &Binaries, uid: u32, steps: &str) -> Result<Vec<String>> {
    said_by(grower(binaries, uid, steps).spawn().context("run grower")?)
}

/// What one says until its end.
fn said_by(grower: Child) -> Result<Vec<String>> {
    let output = grower.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.success(),
        "grower ended with {}:\n{said}",
        output.status
    );
    Ok(said.lines().map(str::to_owned).collect())
}

/// Runtimes that reserve gigabytes and touch little. `make runtimes` brings a JDK and a Go program.
fn runtimes(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "gate-runtimes", "")?;
    let who = ALICE.to_string();
    world.daemon.limit(&who, "400M")?;
    let java = "/opt/runtimes/jdk/bin/java -XX:+UseSerialGC -Xmx2g -cp /opt/runtimes Hoard";
    let no = "says no to it by an error of its own, not by a death";
    for (command, last_words, statuses) in [
        (java, "refused", [0, 1]),
        ("/opt/runtimes/hoard", "out of memory", [2, 2]),
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let output = Command::new(words[0])
            .args(&words[1..])
            .uid(ALICE)
            .gid(ALICE)
            .env_clear()
            .current_dir("/")
            .output()
            .with_context(|| format!("run {}: is it there? (make runtimes)", words[0]))?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let tail: String = said.chars().take(600).collect();
        ensure!(said.contains("started"), "{command}: {tail}");
        let told = said.contains(last_words) || said.contains("insufficient memory");
        ensure!(told && !said.contains("no end"), "{no}: {command}: {tail}");
        let status = output.status.code();
        let is_own = status.is_some_and(|it| statuses.contains(&it));
        ensure!(is_own, "{command} ended with {}: {tail}", output.status);
    }
    let row = world.daemon.memory(&who)?;
    ensure!(row.failcnt > 0, "nothing was refused: {row:?}");
    let kills = world.daemon.events_of(EventKind::Kill)?;
    ensure!(kills.is_empty(), "killed: {kills:#?}");
    Ok(())
}

pub(super) fn expect(said: &[String], expected: &[&str]) -> Result<()> {
    let expected: Vec<&str> = expected.iter().copied().filter(is_answered).collect();
    ensure!(
        said == expected,
        "expected\n  {}\nand heard\n  {}",
        expected.join("\n  "),
        said.join("\n  ")
    );
    Ok(())
}

pub(super) fn start(binaries: &Binaries, name: &str, config: &str) -> Result<World> {
    let mut world = World::new(binaries, name, &format!("{ON}{config}"))?;
    world.daemon.start()?;
    let gate = world.daemon.status()?.kernel_half.gate;
    // A kernel started with `lsm=` and without bpf in it never calls LSM programs.
    let asked = fs::read_to_string("/proc/cmdline")?;
    let is_left_out = asked
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("lsm="))
        .any(|modules| !modules.split(',').any(|it| it == "bpf"));
    let expected = if is_left_out {
        GateMode::BestEffort
    } else {
        GateMode::Strict
    };
    ensure!(gate.mode == expected, "the gate: {gate:?}");
    Ok(world)
}

fn alice(world: &World) -> Result<AccountStatus> {
    world
        .daemon
        .account(&ALICE.to_string())?
        .context("alice's account")
}

/// Nothing is left of it, and nobody was killed.
pub(super) fn expect_empty(world: &World) -> Result<()> {
    world.daemon.until_empty(ALICE)?;
    let kills = alice(world)?.kills;
    ensure!(kills == 0, "{kills} kills");
    Ok(())
}

fn says_its_mode(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "gate-mode", ON)?;
    world.daemon.start()?;
    let gate = world.daemon.status()?.kernel_half.gate;
    let word = match gate.mode {
        GateMode::Strict => "gate: strict",
        GateMode::BestEffort => "gate: best effort",
        GateMode::None => "gate: none",
    };
    ensure!(
        (gate.mode == GateMode::Strict) == gate.reason.is_none(),
        "a gate that is not strict says why: {gate:?}"
    );
    for subject in ["status", "doctor"] {
        let output = world.bursar(&[subject]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            text.contains(word),
            "bursar {subject} does not say {word:?}:\n{text}"
        );
    }
    // With or without it the ledger counts.
    world.daemon.limit(&ALICE.to_string(), "64M")?;
    let hog = world.hog(&format!("uid={ALICE} hold=8M say=ready pause"))?;
    until("8 MiB to be held", || {
        let held = world.daemon.memory(&ALICE.to_string())?.held;
        Ok((held.get() >= 8 * MIB).then_some(()))
    })?;
    drop(hog);
    // A second bursard finds the gate that is there.
    let _ = world.daemon.end(libc::SIGTERM)?;
    world.daemon.start()?;
    let again = world.daemon.status()?.kernel_half.gate;
    ensure!(again == gate, "{again:?} after {gate:?}");
    world.daemon.end(libc::SIGTERM)?;
    world.daemon.release()
}

/// Limit 64 MiB, barrier 60.8 MiB, 40 MiB there already: 30 more are refused however asked for.
fn refuses(binaries: &Binaries, world: &World, first: &str, fork: &str) -> Result<()> {
    world.daemon.limit(&ALICE.to_string(), "64M")?;
    let steps = format!(
        "{first}|map=30M|leave|noreserve=30M|shared=30M|none=200M|writable|drop|map=10M|grow=30M|brk=30M|\
         malloc=30M|thread|fork|compat=30M|run=ls / >/dev/null|map=1M|malloc=64K"
    );
    let said = answers(binaries, ALICE, &steps)?;
    expect(
        &said,
        &[
            "map=40M: ok",
            "map=30M: ENOMEM",
            "leave: ENOMEM",
            "noreserve=30M: ENOMEM",
            "shared=30M: ENOMEM",
            "none=200M: ok",
            "writable: ENOMEM",
            "map=10M: ok",
            "grow=30M: ENOMEM",
            "brk=30M: ENOMEM",
            "malloc=30M: ENOMEM",
            "thread: EAGAIN",
            &format!("fork: {fork}"),
            "compat=30M: ENOMEM",
            "run=ls / >/dev/null: 0",
            "map=1M: ok",
            "malloc=64K: ok",
        ],
    )?;
    let failcnt = world.daemon.memory(&ALICE.to_string())?.failcnt;
    // malloc asks more than once.
    ensure!((10..40).contains(&failcnt), "failcnt {failcnt}");
    let event = until("a refusal to be told", || {
        let mut events = world.daemon.events()?.into_iter();
        Ok(events.find(|it| it.event == EventKind::Refused))
    })?;
    ensure!(
        event.pid.is_some()
            && event.request_bytes.map(|it| it.get()) == Some(30 * MIB)
            && event.comm.as_deref() == Some("grower"),
        "{event:?}"
    );
    expect_empty(world)
}

fn refuses_resident(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "gate-resident", "")?;
    // The child shares its parent's pages until one of them writes to them.
    refuses(binaries, &world, "map=40M|touch", "ok")?;
    // At the barrier there is no room for its page tables either. What the first fork had counted twice is
    // found out before: a guest's libc lies in a tmpfs and is shared with everybody, which makes room.
    let is_corrected = || -> Result<bool> { Ok(alice(&world)?.correction.is_some()) };
    until("nothing to be corrected", || {
        Ok((!is_corrected()?).then_some(()))
    })?;
    // And what is found while it is filled makes room once more.
    let at_the_barrier = "fill=64K|fork|fill=64K|fork|fill=64K|fork";
    let steps = format!("map=40M|touch|fork|wait|{at_the_barrier}");
    let mut asking = grower(binaries, ALICE, &steps)
        .stdin(Stdio::piped())
        .spawn()?;
    until("a correction", || Ok(is_corrected()?.then_some(())))?;
    drop(asking.stdin.take());
    let said = said_by(asking)?;
    let (before, forks) = said.split_at_checked(3).context("its first answers")?;
    expect(before, &["map=40M: ok", "fork: ok", "wait: waiting"])?;
    let is_refused = |it: &String| it == "fork: EAGAIN";
    ensure!(
        forks.len() == 6 && forks.iter().any(is_refused),
        "a fork at the barrier was granted: {said:?}, {:?}",
        alice(&world)?
    );
    expect_empty(&world)
}

/// The self-test's child becomes somebody else, and says why it could not.
fn under_unit(binaries: &Binaries) -> Result<()> {
    refuses_files(&binaries.under_unit())
}

fn refuses_committed(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "gate-committed", COMMITTED)?;
    refuses(binaries, &world, "map=40M", "EAGAIN")
}

/// Nothing is applied after his account has come into being: the kernel half made it so.
fn measures_as_listed(binaries: &Binaries) -> Result<()> {
    let config = format!("committed = [\"60101-60199\", \"{ALICE}\"]\n");
    let world = start(binaries, "gate-listed", &config)?;
    world.daemon.limit("default", "64M")?;
    let steps = "map=40M|map=30M";
    let said = answers(binaries, ALICE, steps)?;
    expect(&said, &["map=40M: ok", "map=30M: ENOMEM"])?;
    let said = answers(binaries, BOB, steps)?;
    expect(&said, &["map=40M: ok", "map=30M: ok"])?;
    ensure!(alice(&world)?.committed.is_some(), "{:?}", alice(&world)?);
    expect_empty(&world)
}

/// There are enough in the pool: what is refused, the gate refuses.
fn refuses_huge_pages(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "gate-huge", "")?;
    world.daemon.limit(&ALICE.to_string(), "64M")?;
    let pool = HugePagePool::of(20)?;
    let asked = answers(binaries, BOB, "map=40M|touch|hugetlb=30M");
    let refused = answers(binaries, ALICE, "map=40M|touch|hugetlb=30M|hugetlb=4M");
    drop(pool);
    expect(&asked?, &["map=40M: ok", "hugetlb=30M: ok"])?;
    expect(
        &refused?,
        &["map=40M: ok", "hugetlb=30M: ENOMEM", "hugetlb=4M: ok"],
    )?;
    expect_empty(&world)
}

/// Four programs with one child after the other.
fn random_lives(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "gate-lives", COMMITTED)?;
    world.daemon.limit(&ALICE.to_string(), "40M")?;
    let each = whole(2500).or(60);
    let steps = format!("map=2M|touch|sequences={each}|grow=3M|wait");
    let mut parents = Growers::start(binaries, ALICE, &steps)?;
    let mut said = parents.hear_until_wait()?;
    // What the lives were answered is random; what else they say is not expected.
    said.retain(|line| {
        let is_answer = |it: &&str| line.starts_with(it);
        !["map=", "grow=", "fork: "].iter().any(is_answer)
    });
    let agreed = parents.stopped(|seen| agree(&world, &seen))?;
    parents.end()?;
    let lives: Vec<&String> = said.iter().filter(|it| it.starts_with("seq")).collect();
    let facts = world.daemon.status()?.kernel_half;
    let failcnt = world.daemon.memory(&ALICE.to_string())?.failcnt;
    println!(
        "        /proc and ledger {agreed} bytes, failcnt {failcnt}, drift repairs {}\n        {}",
        facts.drift_repairs,
        lives
            .iter()
            .map(|it| it.as_str())
            .collect::<Vec<_>>()
            .join("\n        ")
    );
    ensure!(
        lives.len() == 4 && lives.iter().all(|it| it.ends_with("killed 0")),
        "{said:#?}"
    );
    let given_up = lives
        .iter()
        .filter_map(|it| {
            it.split_once("given-up ")?
                .1
                .split(' ')
                .next()?
                .parse::<u64>()
                .ok()
        })
        .sum::<u64>();
    ensure!(given_up <= 1 + each * 4 / 1000, "{said:#?}");
    ensure!(facts.drift_repairs == 0, "drift: {facts:?}");
    ensure!(failcnt > 0, "nothing was refused");
    expect_empty(&world)
}

fn bounds_arenas(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "gate-arenas", COMMITTED)?;
    world.daemon.limit(&ALICE.to_string(), "64M")?;
    let said = answers(binaries, ALICE, "arenas=4|map=8M")?;
    let got: u64 = said
        .first()
        .and_then(|line| line.strip_prefix("arenas=4: "))
        .context("what the arenas got")?
        .parse()?;
    // Stacks of 2 MiB a thread are committed as well.
    ensure!((35..61).contains(&got), "the arenas got {got} MiB of 60");
    expect_empty(&world)
}

/// Nobody could say who holds it once it is unmapped. Before 6.5 nobody gets any, unless the command line says so.
fn secret_memory(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "gate-secret", "")?;
    let ask = |user: u32| {
        let mut command = world.hog_command();
        command.args([&format!("uid={user}"), "secret=4M"]);
        command.output()
    };
    let others = ask(BOB)?;
    let said = String::from_utf8_lossy(&others.stderr).into_owned();
    if said.contains(&format!("os error {}", libc::ENOSYS)) {
        return Ok(());
    }
    ensure!(others.status.success(), "without a limit: {others:?}");
    let user = ALICE.to_string();
    let set = world.bursar(&["limit", "set", &user, "64M"]).output()?;
    ensure!(set.status.success(), "{set:?}");
    let hers = ask(ALICE)?;
    let said = String::from_utf8_lossy(&hers.stderr).into_owned();
    let answer = format!("os error {}", libc::ENOMEM);
    ensure!(said.contains(&answer), "with a limit: {hers:?}");
    let told = until("the refusal to be told", || {
        Ok(world.daemon.events_of(EventKind::Refused)?.pop())
    })?;
    ensure!(told.request == Some(Request::Secret), "{told:?}");
    expect_empty(&world)
}

fn small_programs(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "gate-small", COMMITTED)?;
    let user = ALICE.to_string();
    let set = world
        .bursar(&["limit", "set", &user, "64M", "--barrier", "80%"])
        .output()?;
    ensure!(set.status.success(), "{set:?}");
    // One large program goes over the barrier by its stack, which nothing refuses. The barrier is low: a
    // guest's programs lie in a tmpfs, so that their text is shared memory, and grower, sh and ls need 5 MiB.
    let mut large = grower(
        binaries,
        ALICE,
        "map=48M|map=8M|recurse=4000K|map=64K|fork|wait",
    )
    .stdin(Stdio::piped())
    .spawn()?;
    until("the large program to be over the barrier", || {
        let committed = alice(&world)?.committed.map_or(0, |it| it.get());
        Ok((committed > 52 * MIB).then_some(()))
    })?;
    let said = answers(
        binaries,
        ALICE,
        "run=ls / >/dev/null; ls / >/dev/null|fork|run=kill -0 $$|map=4M",
    )?;
    // His shell, and what it runs, still work.
    expect(
        &said,
        &[
            "run=ls / >/dev/null; ls / >/dev/null: 0",
            "fork: ok",
            "run=kill -0 $$: 0",
            "map=4M: ENOMEM",
        ],
    )
    .with_context(|| format!("{:?}: {:?}", alice(&world), world.daemon.events()))?;
    drop(large.stdin.take());
    let output = large.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<_> = said.lines().map(str::to_owned).collect();
    expect(
        &lines,
        &[
            "map=48M: ok",
            "map=8M: ENOMEM",
            "recurse=4000K: ok",
            "map=64K: ENOMEM",
            "fork: EAGAIN",
            "wait: waiting",
        ],
    )?;
    expect_empty(&world)
}

/// Whoever is to remove what fills the account gets in.
fn lets_a_login_in(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "gate-login", "")?;
    let user = ALICE.to_string();
    let set = world
        .bursar(&["limit", "set", &user, "96M", "--barrier", "50%"])
        .output()?;
    ensure!(set.status.success(), "{set:?}");
    let mut large = grower(binaries, ALICE, "map=43M|touch|wait")
        .stdin(Stdio::piped())
        .spawn()?;
    until("the account to be full", || {
        let held = world.daemon.memory(&user)?.held;
        Ok((held.get() > 43 * MIB).then_some(()))
    })?;
    let path = binaries.path("grower");
    let path = path.to_str().context("its path")?;
    // What sshd's session does: root's program, forked and no exec since, becomes hers. It has 16 MiB.
    let said = answers(
        binaries,
        0,
        &format!("forked=uid={ALICE}+map=6M+map=8M+map=8M"),
    )?;
    expect(&said, &["map=6M: ok", "map=8M: ok", "map=8M: ENOMEM"])?;
    // The session that it begins, and what that runs.
    let session = format!("run=exec setsid {path} map=6M forked=map=6M");
    let said = answers(binaries, 0, &format!("forked=uid={ALICE}+{session}"))?;
    let ended = format!("{session}: 0");
    expect(&said, &["map=6M: ok", "map=6M: ok", &ended])?;
    // A large one is refused as ever: at the limit it would be killed.
    let said = answers(
        binaries,
        0,
        &format!("forked=uid={ALICE}+none=1M+noreserve=17M+map=1M"),
    )?;
    expect(
        &said,
        &["none=1M: ok", "noreserve=17M: ENOMEM", "map=1M: ok"],
    )?;
    // Everybody else: in another's session, by a session of his own, and what only su has begun.
    let plainly = answers(binaries, ALICE, "map=6M|forked=map=6M")?;
    expect(&plainly, &["map=6M: ENOMEM", "map=6M: ENOMEM"])?;
    let session = format!("run=exec setsid {path} map=6M");
    let said = answers(binaries, ALICE, &session)?;
    expect(&said, &["map=6M: ENOMEM", &format!("{session}: 0")])?;
    drop(large.stdin.take());
    said_by(large)?;
    expect_empty(&world)
}

fn unlimited(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "gate-unlimited", COMMITTED)?;
    world.daemon.limit(&ALICE.to_string(), "8M")?;
    let ways = "map=300M|noreserve=900M|shared=200M|none=900M|writable|grow=950M|brk=100M|malloc=200M|\
                thread|fork|compat=200M|run=ls / >/dev/null";
    let said = answers(binaries, BOB, ways)?;
    let refused: Vec<_> = said
        .iter()
        .filter(|line| !line.ends_with(": ok") && !line.ends_with(": 0"))
        .collect();
    let asked = ways.split('|').map(str::trim).filter(is_answered).count();
    ensure!(refused.is_empty() && said.len() == asked, "{said:?}");
    // Two ways to be without one: nobody pays, and a limit that was taken away.
    world.daemon.limit(&ALICE.to_string(), "none")?;
    let said = answers(binaries, ALICE, "map=300M|fork")?;
    expect(&said, &["map=300M: ok", "fork: ok"])
}

fn takes_back(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "gate-back", COMMITTED)?;
    world.daemon.limit(&ALICE.to_string(), "64M")?;
    // Each round needs what the one before gave back: by munmap, mremap, read-only and writable again,
    // a child's end, a new image.
    let round = "map=50M|drop|map=20M|grow=50M|grow=4K|map=50M|drop|drop|map=25M|readonly|writable|\
                 forked=map=5M+touch|forked=map=5M|drop|map=55M|drop";
    let steps = format!("{round}|{round}|map=50M|exec|{round}|map=50M|touch");
    // The image after exec has not changed its user.
    let said = answers(binaries, ALICE, &steps)?;
    let bad: Vec<_> = said.iter().filter(|line| !line.ends_with(": ok")).collect();
    ensure!(bad.is_empty() && said.len() > 30, "{said:?}");
    expect_empty(&world)
}

fn reservations(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "gate-reserve", "")?;
    world.daemon.limit(&ALICE.to_string(), "64M")?;
    let said = answers(
        binaries,
        ALICE,
        "reserve=10000|reserve=10000|commit=10001|commit=10000|reserve=0|commit=0|\
         reserve=18446744073709551615|reserve=12000|map=46M|forked=map=30M|reserve=2000",
    )?;
    expect(
        &said,
        &[
            "reserve=10000: EINPROGRESS",
            "reserve=10000: ENOMEM",
            "commit=10001: EINVAL",
            "commit=10000: EINPROGRESS",
            "reserve=0: EINVAL",
            "commit=0: EINVAL",
            "reserve=18446744073709551615: EINVAL",
            "reserve=12000: EINPROGRESS",
            // its own reservation is set off; a child has none
            "map=46M: ok",
            "map=30M: ENOMEM",
            "reserve=2000: EINPROGRESS",
        ],
    )?;
    let said = answers(binaries, BOB, "reserve=1|commit=1")?;
    expect(&said, &["reserve=1: ENXIO", "commit=1: ENXIO"])?;
    // A barrier alone is what a promise stays below: no sum of them is so large that it is nothing again.
    let user = BOB.to_string();
    let set = world
        .bursar(&["limit", "set", &user, "none", "--barrier", "64M"])
        .output()?;
    ensure!(set.status.success(), "{set:?}");
    let most = 1u64 << 40;
    let said = answers(
        binaries,
        BOB,
        &format!("reserve=10000|reserve=10000|reserve={most}|map=40M|commit=10000"),
    )?;
    expect(
        &said,
        &[
            "reserve=10000: EINPROGRESS",
            "reserve=10000: ENOMEM",
            &format!("reserve={most}: EINVAL"),
            "map=40M: ok",
            "commit=10000: EINPROGRESS",
        ],
    )?;
    expect_empty(&world)
}

/// The same memory reserved of bursard, over its socket, and of the kernel half, by prctl.
fn promises(binaries: &Binaries) -> Result<()> {
    const ROOM: i32 = 0;
    let mut world = start(binaries, "gate-promises", "")?;
    let user = ALICE.to_string();
    world.daemon.limit(&user, "64M")?;
    let refused = ["reserve=9000: ENOMEM"];
    let granted = ["reserve=9000: EINPROGRESS"];

    let mut asking = transact(&world, binaries, &user)?;
    ensure!(asking.ask("reserve 9000")? == ROOM, "no room at first");
    expect(&answers(binaries, ALICE, "reserve=9000")?, &refused)?;
    ensure!(asking.ask("commit 9000")? == ROOM, "not given back");
    expect(&answers(binaries, ALICE, "reserve=9000")?, &granted)?;

    let mut keeping = grower(binaries, ALICE, "reserve=9000|wait")
        .stdin(Stdio::piped())
        .spawn()?;
    until("the kernel half's reservation", || {
        Ok((alice(&world)?.reserved.get() > 0).then_some(()))
    })?;
    let answer = asking.ask("reserve 9000")?;
    ensure!(answer == libc::ENOMEM, "{answer} beside the kernel half's");
    drop(keeping.stdin.take());
    said_by(keeping)?;
    ensure!(asking.ask("reserve 9000")? == ROOM, "what has ended stays");

    // An account that is new has its users' reservations, and those of a bursard that is dead are void.
    let cleared = world.bursar(&["limit", "clear", &user]).output()?;
    ensure!(cleared.status.success(), "{cleared:?}");
    world.daemon.limit(&user, "64M")?;
    expect(&answers(binaries, ALICE, "reserve=9000")?, &refused)?;
    world.daemon.end(libc::SIGKILL)?;
    expect(&answers(binaries, ALICE, "reserve=9000")?, &granted)?;
    world.daemon.start()?;
    expect(&answers(binaries, ALICE, "reserve=9000")?, &granted)?;
    drop(asking);
    expect_empty(&world)
}

/// The ledger comes to say what /proc does, to the page: by the re-sum. How much that is.
fn agree(world: &World, seen: &Committed) -> Result<u64> {
    let sum = seen.private + seen.shared;
    until("ledger = sum over /proc", || {
        let committed = alice(world)?.committed.map_or(0, |it| it.get());
        Ok((committed == sum).then_some(sum))
    })
    .with_context(|| format!("/proc {seen:?}, {:?}", alice(world)))
}

/// Alice's limit of 34 MiB; her barrier, in bytes.
fn limited_to_34(world: &World) -> Result<u64> {
    let user = ALICE.to_string();
    world.daemon.limit(&user, "34M")?;
    let barrier = world.daemon.memory(&user)?.barrier;
    Ok(barrier.context("a barrier")?.get())
}

/// One process of a user asks for terabytes, all the time; what others of his ask for is there.
fn asked_in_vain(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "gate-vain", COMMITTED)?;
    world.daemon.limit(&ALICE.to_string(), "64M")?;
    let seconds = whole(5).or(3);
    for vain in ["vain-map", "vain-reserve"] {
        let (longer, shorter) = (
            format!("{vain}={}", seconds + 1),
            format!("modest={seconds}"),
        );
        let asking = [&longer, &longer, &shorter, &shorter];
        let asking = asking.map(|steps| grower(binaries, ALICE, steps).spawn());
        for child in asking {
            let said = said_by(child.context("run grower")?)?;
            let is_well = matches!(&said[..], [line] if line.ends_with(": 0"));
            ensure!(is_well, "beside {vain}: {said:?}");
        }
    }
    let failcnt = world.daemon.memory(&ALICE.to_string())?.failcnt;
    ensure!(failcnt > 1000, "asked in vain {failcnt} times only");
    expect_empty(&world)
}

fn hammers(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "gate-hammers", COMMITTED)?;
    let barrier = limited_to_34(&world)?;
    let seconds = whole(60).or(6);
    let hammers = Growers::start(binaries, ALICE, &format!("hammer={seconds}"))?;
    let mut most = 0;
    let looking = Duration::from_secs(seconds.saturating_sub(3));
    let looks = hammers.stopped_for(looking, |seen| {
        most = most.max(agree(&world, &seen)?);
        // What a child then touches of its program's text nobody is asked about.
        ensure!(
            seen.private <= barrier && seen.private + seen.shared <= barrier + MIB,
            "{seen:?} passed the barrier of {barrier}"
        );
        Ok(())
    })?;
    let said = hammers.end()?;
    let account = alice(&world)?;
    let facts = world.daemon.status()?.kernel_half;
    println!(
        "        most {most} of {barrier} bytes in {looks} looks, drift repairs {}, skipped runs of the \
         ledger {}\n        {}",
        facts.drift_repairs,
        facts.skipped_runs,
        said.join("\n        ")
    );
    ensure!(account.kills == 0, "{} kills", account.kills);
    ensure!(
        most > barrier / 2,
        "the hammers never came near the barrier"
    );
    expect_empty(&world)
}

/// Limit 64 MiB, barrier 60.8 MiB: what makes a file grow past it is told ENOSPC, nothing else is.
fn refuses_files(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "gate-files", "")?;
    let gate = world.daemon.status()?.kernel_half.gate;
    ensure!(gate.files.is_none(), "files are not refused: {gate:?}");
    world.daemon.limit(&ALICE.to_string(), "69M")?;
    let said = answers(
        binaries,
        ALICE,
        "file=45M|append=30M|brim|over=40M|allocate=8M|hole=8M|send=20M|fault=1M|over=40M|delete|file=50M|\
         append=30M|delete|file=1M|allocate=50M|allocate=20M|delete|file=50M",
    )?;
    expect(
        &said,
        &[
            "file=45M: ok",
            // As far as there is room, as on a device that is full.
            "append=30M: ENOSPC",
            "brim: ok",
            "over=40M: ok",
            "allocate=8M: ENOSPC",
            "hole=8M: ENOSPC",
            "send=20M: ENOSPC",
            // Past the barrier: refusing this would be SIGBUS.
            "fault=1M: ok",
            "over=40M: ok",
            // What was deleted is there at once.
            "file=50M: ok",
            "append=30M: ENOSPC",
            "file=1M: ok",
            "allocate=50M: ok",
            "allocate=20M: ENOSPC",
            "file=50M: ok",
        ],
    )?;
    let memory = world.daemon.memory(&ALICE.to_string())?;
    ensure!((12..40).contains(&memory.failcnt), "{memory:?}");
    let event = until("a refusal to be told", || {
        let mut events = world.daemon.events()?.into_iter();
        Ok(events.find(|it| it.event == EventKind::Refused))
    })?;
    ensure!(
        event.request == Some(Request::File) && event.comm.as_deref() == Some("grower"),
        "{event:?}"
    );
    expect_empty(&world)?;
    // What processes hold leaves less for files. For memory what is deleted is there with the next count,
    // and one that began while the last file was there may end after nothing was seen to be held.
    let said = until("the deleted files to be counted as gone", || {
        let said = answers(binaries, ALICE, "map=30M|touch|file=1M|most=1M|map=8M")?;
        let is_granted = said.first().is_some_and(|line| line == "map=30M: ok");
        Ok(is_granted.then_some(said))
    })?;
    let most: u64 = said
        .iter()
        .find_map(|line| line.strip_prefix("most=1M: "))
        .context("how much was written")?
        .parse()?;
    ensure!(
        (16..31).contains(&most),
        "{most} MiB: {said:?}, {:?}",
        world.daemon.events_of(EventKind::Refused)?
    );
    // Nobody without a limit is refused, whosever file it is.
    let said = answers(
        binaries,
        BOB,
        "file=200M|append=10M|allocate=30M|send=50M|delete|delete",
    )?;
    ensure!(said.iter().all(|line| line.ends_with(": ok")), "{said:?}");
    let path = format!("/dev/shm/bursar-e2e-{}", std::process::id());
    fs::write(&path, "")?;
    std::os::unix::fs::chown(&path, Some(ALICE), None)?;
    let written = fs::write(&path, vec![0; 80 << 20]);
    fs::remove_file(&path)?;
    written.context("root writes to her file")?;
    expect_empty(&world)
}

/// Her file that everybody may write counts for her; who fills it is refused, and she goes on.
fn keeps_from_filling_anothers(binaries: &Binaries) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let world = start(binaries, "gate-others-file", "")?;
    for uid in [ALICE, BOB] {
        world.daemon.limit(&uid.to_string(), "100M")?;
    }
    let mut hers = world.there(&format!("uid={ALICE} hold=40M say=there pause"))?;
    let path = format!("/dev/shm/bursar-e2e-{}", std::process::id());
    fs::write(&path, "")?;
    std::os::unix::fs::chown(&path, Some(ALICE), None)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    let filled = Command::new("dd")
        .args(["if=/dev/zero", &format!("of={path}"), "bs=1M", "count=300"])
        .args(["conv=notrunc"])
        .uid(BOB)
        .gid(BOB)
        .current_dir("/")
        .output();
    let length = fs::metadata(&path)?.len() >> 20;
    let held = world.daemon.memory(&ALICE.to_string())?.held;
    fs::remove_file(&path)?;
    ensure!(!filled?.status.success(), "{length} MiB were written");
    hers.expect_alive("she who owns the file")?;
    ensure!(length < 60, "{length} MiB were written, {held} held");
    ensure!(world.daemon.events_of(EventKind::Kill)?.is_empty());
    hers.finish()
}

/// Where the kernel takes the processor from who is in it.
enum Preemption {
    /// Nowhere but where it asks.
    Voluntary,
    /// From who has been in it for a tick: from 7.0 on, unless the command line says otherwise.
    Lazy,
    /// Everywhere.
    Full,
}

impl Preemption {
    fn here() -> Result<Self> {
        let line = fs::read_to_string("/proc/cmdline")?;
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let major: u32 = release
            .split('.')
            .next()
            .and_then(|it| it.parse().ok())
            .with_context(|| format!("the version in {release:?}"))?;
        Ok(match line.split_once("preempt=").map(|(_, rest)| rest) {
            Some(rest) if rest.starts_with("full") => Self::Full,
            Some(rest) if rest.starts_with("lazy") => Self::Lazy,
            None if major >= 7 => Self::Lazy,
            _ => Self::Voluntary,
        })
    }
}

/// Four that make, enlarge, cut and delete files at random.
fn writers(binaries: &Binaries) -> Result<()> {
    let world = start(binaries, "gate-writers", "")?;
    let barrier = limited_to_34(&world)?;
    // 8 MiB of the limit are left free of files.
    let bound = (34 << 20) - (8 << 20);
    let seconds = whole(60).or(9);
    let writers = Growers::start(binaries, ALICE, &format!("scribble={seconds}"))?;
    let (mut most, mut most_files) = (0, 0);
    let looking = Duration::from_secs(seconds.saturating_sub(3));
    let looks = writers.stopped_for(looking, |seen| {
        let counted = until("the files to be counted", || {
            let held = world.daemon.memory(&ALICE.to_string())?.held.get();
            // Besides them there are the writers themselves.
            Ok((held >= seen.files && held < seen.files + (16 << 20)).then_some(held))
        });
        most = most.max(counted.with_context(|| format!("{seen:?}, {:?}", alice(&world)))?);
        most_files = most_files.max(seen.files);
        Ok(())
    })?;
    let said = writers.end()?;
    let account = alice(&world)?;
    println!(
        "        most held {most}, files {most_files}, barrier {barrier} bytes in {looks} looks, failcnt {}\n        {}",
        world.daemon.memory(&ALICE.to_string())?.failcnt,
        said.join("\n        ")
    );
    ensure!(account.kills == 0, "{} kills", account.kills);
    ensure!(most > bound * 3 / 4, "they never came near the bound");
    // The programs that decide are skipped where one was preempted (docs/explanation/gate.md "Files in tmpfs").
    let beyond = match Preemption::here()? {
        Preemption::Voluntary => Some(1 << 20),
        Preemption::Lazy => Some(bound / 4),
        Preemption::Full => None,
    };
    ensure!(
        beyond.is_none_or(|it| most <= bound + it),
        "{most} bytes passed the bound of {bound}"
    );
    expect_empty(&world)
}

/// getpid, mmap + munmap of 1 MiB untouched and touched, reserve + commit: nanoseconds.
type Costs = [u64; 4];

fn measure(binaries: &Binaries, uid: u32) -> Result<Costs> {
    let said = answers(binaries, uid, "time")?;
    let figures = said
        .first()
        .and_then(|line| line.strip_prefix("time: "))
        .context("what it took")?;
    let figures: Vec<u64> = figures
        .split(' ')
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    Costs::try_from(figures).map_err(|it| anyhow::anyhow!("four figures: {it:?}"))
}

/// In a guest without KVM nanoseconds mean nothing: each is told as so many getpid().
fn costs(binaries: &Binaries) -> Result<()> {
    let far = |world: &World| world.daemon.limit(&ALICE.to_string(), "700M");
    let without = {
        let mut world = World::new(binaries, "gate-cost-off", "")?;
        world.daemon.start()?;
        far(&world)?;
        measure(binaries, ALICE)?
    };
    let mut rows = vec![("no gate", without)];
    for (measure_name, config) in [("resident", ""), ("committed", COMMITTED)] {
        let world = start(binaries, "gate-cost", config)?;
        far(&world)?;
        rows.push((measure_name, measure(binaries, ALICE)?));
        if config.is_empty() {
            rows.push(("without a limit", measure(binaries, BOB)?));
        }
    }
    let [_, bare, ..] = without;
    for (name, [getpid, untouched, touched, pair]) in rows {
        let calls = |nanoseconds: u64| nanoseconds as f64 / getpid as f64;
        println!(
            "        {name:16} mmap + munmap of 1 MiB {:.1} getpid(), touched {:.1}, reserve + commit {:.1} \
             (getpid() {getpid} ns here)",
            calls(untouched),
            calls(touched),
            calls(pair)
        );
        ensure!(
            untouched <= bare + 12 * getpid,
            "{name}: {untouched} ns beside {bare} ns"
        );
    }
    Ok(())
}
