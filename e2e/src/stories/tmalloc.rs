// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reserving before allocating (S1 section 5): nobody dies, and everybody is told in time.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bursar_model::{Bytes, Row};
use bursar_protocol::{Client, Operation, Reply, Reserve, ReserveBound};

use crate::hog::Hog;
use crate::length::whole;
use crate::runner::{Place, Story};
use crate::signal::send;
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "a_reservation_is_refused_while_another_is_promised_the_room_and_granted_after",
        place: Place::Anywhere,
        tell: figure_six,
    },
    Story {
        name: "sixteen_programs_that_tmalloc_as_fast_as_they_can_fill_their_account_and_nobody_dies",
        place: Place::Host,
        tell: sixteen,
    },
    Story {
        name: "malloc_answers_null_at_the_barrier_for_blocks_of_every_size",
        place: Place::Anywhere,
        tell: every_size,
    },
    Story {
        name: "a_reservation_dies_with_its_process_and_not_with_its_child",
        place: Place::Anywhere,
        tell: dies_with_process,
    },
    Story {
        name: "senseless_transactions_get_an_errno_each_and_leave_nothing_behind",
        place: Place::Anywhere,
        tell: senseless,
    },
    Story {
        name: "a_user_who_floods_the_socket_with_reservations_keeps_nobody_else_out",
        place: Place::Anywhere,
        tell: flood,
    },
    Story {
        name: "real_programs_work_with_tmalloc_with_and_without_a_daemon",
        place: Place::Host,
        tell: real_programs,
    },
    Story {
        name: "tmalloc_costs_at_most_a_twentieth_of_malloc",
        place: Place::Named,
        tell: speed,
    },
    Story {
        name: "reserve_and_commit_take_at_most_thirty_microseconds",
        place: Place::Named,
        tell: round_trip,
    },
];

const CAROL: &str = "60451";
const DAVE: &str = "60452";

/// A running `alloc_client` and what it says.
pub(super) struct AllocClient(Hog);

impl AllocClient {
    fn start(command: &mut Command) -> Result<Self> {
        let mut client = Self(Hog::spawn(command)?);
        ensure!(client.hear()? == "ready", "it did not begin");
        Ok(client)
    }

    fn hear(&mut self) -> Result<String> {
        let line = self.0.next_line()?;
        if line.is_empty() {
            let signal = self.0.end()?;
            let code = self.0.exit_code();
            bail!("it ended instead of answering: signal {signal:?}, code {code:?}");
        }
        Ok(line.trim_end().to_owned())
    }

    /// Says what to do, and hears 0 or an errno.
    pub(super) fn ask(&mut self, what: &str) -> Result<i32> {
        self.0.say(what)?;
        self.hear()?.parse().context("its answer")
    }
}

/// A world with one limit, whose barrier is the limit.
fn world(binaries: &Binaries, name: &str, limits: &[(&str, &str)]) -> Result<World> {
    let mut world = World::new(binaries, name, "")?;
    world.daemon.start()?;
    for (who, size) in limits {
        let set = ["limit", "set", who, size, "--barrier", "100%"];
        let done = world.bursar(&set).output().context("run bursar")?;
        ensure!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
    Ok(world)
}

/// A program to be measured, ready to run.
type Program = fn(&World, &Binaries, &[&str]) -> Command;

/// client, with plain malloc.
fn plain(world: &World, binaries: &Binaries, arguments: &[&str]) -> Command {
    let mut command = Command::new(binaries.path("alloc_client"));
    command
        .args(arguments)
        .env("BURSAR_SOCKET", world.daemon.socket());
    command
}

/// client, whose malloc is tmalloc.
fn with_tmalloc(world: &World, binaries: &Binaries, arguments: &[&str]) -> Command {
    let mut command = plain(world, binaries, arguments);
    command.env("LD_PRELOAD", binaries.path("libtmalloc.so"));
    command
}

pub(super) fn transact(world: &World, binaries: &Binaries, uid: &str) -> Result<AllocClient> {
    let library = binaries.path("libbursar.so").display().to_string();
    AllocClient::start(&mut plain(world, binaries, &["transact", uid, &library]))
}

fn unharmed(world: &World, who: &str) -> Result<Row> {
    let account = world.daemon.account(who)?.context("the account")?;
    ensure!(account.kills == 0, "{} were killed", account.kills);
    let row = world.daemon.memory(who)?;
    let limit = row.limit.context("its limit")?;
    ensure!(row.maxheld <= limit, "held {} of {limit}", row.maxheld);
    Ok(row)
}

/// Waits until nothing is reserved.
fn nothing_reserved(world: &World, who: &str) -> Result<()> {
    until("all reservations to be gone", || {
        Ok((world.daemon.memory(who)?.reserved == Bytes::ZERO).then_some(()))
    })
}

/// S1 figure 6 in units of 64 pages, since real programs hold some pages for themselves.
fn figure_six(binaries: &Binaries) -> Result<()> {
    let mut world = world(binaries, "six", &[(CAROL, "110M")])?;
    let (two_hundred, one_hundred) = (200 * 64, 100 * 64);
    let mut first = transact(&world, binaries, CAROL)?;
    let mut second = transact(&world, binaries, CAROL)?;
    let mut third = transact(&world, binaries, CAROL)?;
    ensure!(third.ask(&format!("hold {two_hundred}"))? == 0);
    ensure!(first.ask(&format!("reserve {one_hundred}"))? == 0);
    let refused = second.ask(&format!("reserve {two_hundred}"))?;
    ensure!(refused == libc::ENOMEM, "answered {refused}");
    ensure!(world.daemon.memory(CAROL)?.failcnt == 1, "not counted");
    ensure!(first.ask(&format!("hold {one_hundred}"))? == 0);
    ensure!(first.ask(&format!("commit {one_hundred}"))? == 0);
    let still = second.ask(&format!("reserve {two_hundred}"))?;
    ensure!(still == libc::ENOMEM, "held does not speak for it: {still}");
    ensure!(first.ask("drop")? == 0);
    ensure!(second.ask(&format!("reserve {two_hundred}"))? == 0);
    ensure!(second.ask(&format!("hold {two_hundred}"))? == 0);
    ensure!(second.ask(&format!("commit {two_hundred}"))? == 0);
    unharmed(&world, CAROL)?;
    nothing_reserved(&world, CAROL)?;
    // Counted where those of the kernel half are: a counter never goes back.
    let before = world.daemon.memory(CAROL)?.failcnt;
    ensure!(before >= 2, "{before} refusals");
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        world.daemon.end(signal)?;
        world.daemon.start()?;
        let after = world.daemon.memory(CAROL)?.failcnt;
        ensure!(after == before, "{before} refusals became {after}");
    }
    Ok(())
}

fn sixteen(binaries: &Binaries) -> Result<()> {
    let seconds = whole(60).or(5);
    let world = world(binaries, "sixteen", &[(CAROL, "256M")])?;
    let ms = (seconds * 1000).to_string();
    let mut clients = Vec::new();
    for seed in 1..=16 {
        let hammer = ["hammer", CAROL, &seed.to_string(), &ms];
        let mut client = AllocClient::start(&mut with_tmalloc(&world, binaries, &hammer))?;
        // All there before the first begins: what a program is made of is not reserved by anybody, and
        // one that starts in an account filled to its limit is what the barrier keeps room for.
        ensure!(client.hear()? == "there");
        clients.push(client);
    }
    for client in &mut clients {
        client.0.go_on()?;
    }
    let (mut granted, mut nulls) = (0u64, 0u64);
    for client in &mut clients {
        let heard = client.hear()?;
        let (some, none) = heard.split_once(' ').context("two numbers")?;
        granted += some.parse::<u64>()?;
        nulls += none.parse::<u64>()?;
    }
    // A program reports its last refusals when it ends, which is after it has said how many there were.
    until("every NULL to be counted in failcnt", || {
        Ok((world.daemon.memory(CAROL)?.failcnt >= nulls).then_some(()))
    })?;
    let row = unharmed(&world, CAROL)?;
    let limit = row.limit.context("its limit")?;
    println!(
        "        {granted} blocks granted, {nulls} NULL in {seconds} s; held at most {} of {limit} ({} ‰)",
        row.maxheld,
        row.maxheld.get() * 1000 / limit.get()
    );
    ensure!(nulls > 0, "they never met the barrier");
    ensure!(
        row.failcnt == nulls,
        "{nulls} NULLs, failcnt {}",
        row.failcnt
    );
    ensure!(
        row.maxheld.get() * 100 > limit.get() * 95,
        "only {} of {limit} could be used",
        row.maxheld
    );
    drop(clients);
    nothing_reserved(&world, CAROL)
}

fn every_size(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "sizes", &[(CAROL, "64M")])?;
    for size in ["24", "1000", "3000", "20000", "300000", "5000000"] {
        let mut fill = with_tmalloc(&world, binaries, &["fill", CAROL, size]);
        let mut client = AllocClient::start(&mut fill)?;
        let bytes: u64 = client.hear()?.parse()?;
        let held = world.daemon.memory(CAROL)?.held.get();
        ensure!(
            held * 100 > (64 << 20) * 90,
            "blocks of {size}: NULL at {bytes} bytes, {held} held"
        );
        unharmed(&world, CAROL)?;
    }
    nothing_reserved(&world, CAROL)
}

fn dies_with_process(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "dies", &[(CAROL, "64M")])?;
    let mut parent = transact(&world, binaries, CAROL)?;
    ensure!(parent.ask("reserve 8000")? == 0);
    ensure!(world.daemon.memory(CAROL)?.reserved == Bytes::new(8000 * 4096));
    // The child has none of it, and a copy of every descriptor.
    ensure!(parent.ask("fork 8000")? == libc::EINVAL);
    send(parent.0.pid(), libc::SIGKILL)?;
    nothing_reserved(&world, CAROL)?;
    let mut next = transact(&world, binaries, CAROL)?;
    ensure!(next.ask("reserve 12000")? == 0);
    unharmed(&world, CAROL)?;
    Ok(())
}

fn senseless(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "senseless", &[(CAROL, "64M")])?;
    let mut client = transact(&world, binaries, CAROL)?;
    let table = [
        ("commit 1", libc::EINVAL),
        ("reserve 0", libc::EINVAL),
        ("reserve -1", libc::EINVAL),
        ("reserve -9223372036854775808", libc::EINVAL),
        ("reserve 9223372036854775807", libc::ENOMEM),
        ("reserve 4503599627370496", libc::ENOMEM),
        ("reserve 100", 0),
        ("commit -5", libc::EINVAL),
        ("commit 101", libc::EINVAL),
        ("commit 100", 0),
        ("commit 100", libc::EINVAL),
        ("commit 9223372036854775807", libc::EINVAL),
    ];
    for (what, expected) in table {
        let answer = client.ask(what)?;
        ensure!(answer == expected, "{what}: {answer} instead of {expected}");
    }
    // Overflow that only two sums together make.
    let mut client = Client::connect(&world.daemon.socket())?;
    for (pages, at_least, commit) in [(u64::MAX, Some(u64::MAX), 0), (1, Some(2), 0), (1, None, 7)]
    {
        let reply = client.ask(Operation::Reserve(Reserve {
            pages,
            at_least,
            commit,
            bound: ReserveBound::Limit,
            tentative: false,
        }))?;
        ensure!(matches!(reply, Reply::Refused(_)), "{pages}: {reply:?}");
    }
    ensure!(
        world.daemon.memory(CAROL)?.reserved == Bytes::ZERO,
        "something stayed"
    );
    unharmed(&world, CAROL)?;
    Ok(())
}

fn flood(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "flood", &[(CAROL, "64M"), (DAVE, "64M")])?;
    // What is started for the first who reserves stays.
    let mut first = transact(&world, binaries, DAVE)?;
    ensure!(first.ask("reserve 1")? == 0, "the first");
    drop(first);
    nothing_reserved(&world, DAVE)?;
    let targets = || crate::proc::descriptor_targets(world.daemon.pid()?);
    let before = targets()?;
    let mut clients = Vec::new();
    // That reserve all they can, in one-page steps, and never stop. An emulated processor has enough of a quarter.
    let programs = if super::is_emulated() { 10 } else { 40 };
    for seed in 1..=programs {
        let mut client = transact(&world, binaries, CAROL)?;
        ensure!(client.ask("reserve 1")? == 0, "connection {seed}");
        client.0.say("time 1000000")?;
        clients.push(client);
    }
    let mut other = transact(&world, binaries, DAVE)?;
    let spent = other.ask("time 200")?;
    println!(
        "        reserve and commit beside {programs} flooding programs: {} µs",
        spent / 1000
    );
    ensure!(spent < 100_000_000, "{spent} ns");
    ensure!(other.ask("reserve 100")? == 0);
    drop(clients);
    drop(other);
    nothing_reserved(&world, CAROL)?;
    nothing_reserved(&world, DAVE)?;
    until("descriptors as before", || {
        Ok((targets()?.len() <= before.len() + 1).then_some(()))
    })
    .with_context(|| format!("before: {before:?}, now: {:?}", targets()))
}

fn real_programs(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "real", &[(CAROL, "512M")])?;
    let source = world.directory().join("program.c");
    let sum = "#include <stdio.h>\nint main(void){int s=0;for(int i=0;i<10;i++)s+=i;printf(\"%d\\n\",s);return 0;}\n";
    std::fs::write(&source, sum).context("write a program")?;
    let gcc = format!("gcc -O2 -o /dev/null {}", source.display());
    let python = "import threading,os,subprocess,sys\n\
        d=[{'k':str(i)} for i in range(100000)]\n\
        t=[threading.Thread(target=lambda:[bytes(5000) for _ in range(1000)]) for _ in range(4)]\n\
        [x.start() for x in t];[x.join() for x in t]\n\
        p=os.fork()\n\
        if p==0: b=bytearray(10<<20);os._exit(7)\n\
        assert os.waitstatus_to_exitcode(os.waitpid(p,0)[1])==7\n\
        assert subprocess.check_output(['echo','hi'])==b'hi\\n'\n\
        try:\n  x=bytearray(1<<30);sys.exit('not refused')\nexcept MemoryError: print('refused')\n";
    let sqlite = "import sqlite3\nc=sqlite3.connect(':memory:')\nc.execute('create table t(a,b)')\n\
        c.executemany('insert into t values(?,?)',((i,'x'*50) for i in range(50000)))\n\
        print(c.execute('select count(*) from t').fetchone()[0])";
    let table: [(&[&str], &str, bool); 4] = [
        (&["python3", "-c", python], "refused\n", true),
        (&["python3", "-c", sqlite], "50000\n", false),
        (&["sh", "-c", &gcc], "", false),
        (
            &["sh", "-c", "ls / | sort | wc -l >/dev/null; echo $?"],
            "0\n",
            false,
        ),
    ];
    // The programs are CAROL's; what they need of the stage is hers to read.
    for (command, expected, needs_daemon) in table {
        for is_there in [true, false] {
            if needs_daemon && !is_there {
                continue;
            }
            let mut run = world.bursar(&["run", "--tmalloc", "--"]);
            if !is_there {
                run = Command::new(binaries.path("bursar"));
                run.args(["--socket", "/nonexistent/sock", "run", "--tmalloc", "--"]);
            }
            run.args(command).uid(CAROL.parse()?).current_dir("/tmp");
            let done = run.output().context("run bursar run")?;
            let said = String::from_utf8_lossy(&done.stdout);
            ensure!(
                done.status.success() && said == expected,
                "{:?} (daemon: {is_there}): {} {said}{}",
                command[0],
                done.status,
                String::from_utf8_lossy(&done.stderr)
            );
        }
    }
    unharmed(&world, CAROL)?;
    nothing_reserved(&world, CAROL)?;
    let mut silent = Command::new("true");
    silent
        .env("LD_PRELOAD", binaries.path("libtmalloc.so"))
        .env("BURSAR_SOCKET", "/nonexistent/sock")
        .env("TMALLOC_VERBOSE", "1");
    // true allocates for its locale.
    let told = silent
        .env("LC_ALL", "C.UTF-8")
        .output()
        .context("run true")?;
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    ensure!(
        told.matches("bursard does not run").count() <= 1,
        "said {told:?}"
    );
    Ok(())
}

fn speed(binaries: &Binaries) -> Result<()> {
    const ROUNDS: u32 = 61;
    let world = world(binaries, "speed", &[(CAROL, "1G")])?;
    let mut worst = 0;
    for (pattern, name) in [
        (1, "random lifetimes"),
        (2, "many alive"),
        (3, "grow, drop"),
    ] {
        for threads in ["1", "4"] {
            let arguments = ["speed", CAROL, &pattern.to_string(), threads, "2000000"];
            let run = |program: Program| -> Result<u64> {
                let heard =
                    AllocClient::start(&mut program(&world, binaries, &arguments))?.hear()?;
                let (cpu, _) = heard.split_once(' ').context("two numbers")?;
                Ok(cpu.parse()?)
            };
            let (mut malloc, mut tmalloc, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
            for round in 0..ROUNDS {
                // Each before the other in turn, and compared within the round: the machine is not alone.
                let (glibc, own) = if round % 2 == 0 {
                    let glibc = run(plain)?;
                    (glibc, run(with_tmalloc)?)
                } else {
                    let own = run(with_tmalloc)?;
                    (run(plain)?, own)
                };
                malloc.push(glibc);
                tmalloc.push(own);
                ratio.push(own * 1000 / glibc);
            }
            let [malloc, tmalloc, permille] = [malloc, tmalloc, ratio].map(super::median);
            println!(
                "        {name}, {threads} threads: malloc {}.{:02} ns, tmalloc {}.{:02} ns: {permille} ‰",
                malloc / 100,
                malloc % 100,
                tmalloc / 100,
                tmalloc % 100
            );
            worst = worst.max(permille);
        }
    }
    ensure!(worst <= 1050, "{worst} ‰");
    Ok(())
}

fn round_trip(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "trip", &[(CAROL, "64M")])?;
    let mut client = transact(&world, binaries, CAROL)?;
    // In turns with two bare round trips, to tell a slow machine from slow code. The bound is for ours alone.
    let (mut spent, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        bare.push(client.ask("echo 2000")?.unsigned_abs().into());
        spent.push(client.ask("time 2000")?.unsigned_abs().into());
    }
    let [spent, bare] = [spent, bare].map(|it| Duration::from_nanos(super::median(it)));
    println!("        reserve and commit: {spent:?}; two bare round trips: {bare:?}");
    ensure!(spent <= Duration::from_micros(30), "{spent:?}");
    Ok(())
}
