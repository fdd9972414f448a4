// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Network buffers (docs/explanation/beancounters.md, `othersockbuf` and `dgramrcvbuf`): what sockets of one user hold
//! that nobody reads is held at a barrier.

use anyhow::{Context, Result, ensure};
use bursar_model::{Bean, EventKind, How, Resource};

use super::beancounters::{answers, bill_of, flooder, limit, world};
use super::growers::grower;
use crate::hog::Hog;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "network_buffers_of_a_thousand_greedy_sockets_are_held",
        place: Place::Guest,
        tell: held_at_barrier,
    },
    Story {
        name: "network_buffers_at_a_barrier_leave_the_neighbours_throughput",
        place: Place::Named,
        tell: measured,
    },
    Story {
        name: "network_buffers_cost_of_those_without_a_limit",
        place: Place::Named,
        tell: cost_of_neighbour,
    },
    Story {
        name: "network_buffers_of_tcp_are_bounded_by_numtcpsock",
        place: Place::Guest,
        tell: tcp_by_number,
    },
    Story {
        name: "network_buffers_are_held_without_bursard",
        place: Place::Guest,
        tell: held_without_bursard,
    },
    Story {
        name: "network_buffers_filled_by_sendmmsg_are_held",
        place: Place::Guest,
        tell: many_at_once,
    },
    Story {
        name: "network_buffers_of_error_queues_are_held",
        place: Place::Guest,
        tell: error_queues,
    },
    Story {
        name: "network_buffers_that_were_there_before_the_limit_count",
        place: Place::Guest,
        tell: there_before,
    },
    Story {
        name: "network_buffers_at_the_barrier_keep_guarantees_and_let_a_login_in",
        place: Place::Guest,
        tell: guarantees,
    },
    Story {
        name: "network_buffers_that_are_observed_are_told_and_granted",
        place: Place::Guest,
        tell: observed,
    },
];

const ALICE: u32 = 60321;
const BOB: u32 = 60322;
const BARRIER: u64 = 8 << 20;
const BOUNDS: &str = "othersockbuf=8M dgramrcvbuf=8M";
const NO_BOUNDS: &str = "othersockbuf=unlimited dgramrcvbuf=unlimited";
/// 1,000 sockets with something in them, of three kinds. Those of UDP first: what they are sent is sent by the same user.
const GREEDY: &str = "fill_udp=500 fill_stream=250 fill_dgram=250";
/// What one message may take that two processors grant at once (docs/explanation/beancounters.md).
const SLACK: u64 = 2 * 70_656;

/// What sockets hold, bytes, as the kernel says.
#[derive(Debug, Clone, Copy)]
struct Buffers {
    sent: u64,
    received: u64,
}

fn numbers(line: &str, word: &str) -> Result<(u64, u64)> {
    let rest = line.strip_prefix(word).with_context(|| line.to_owned())?;
    let (first, second) = rest.trim().split_once(' ').context("two numbers")?;
    Ok((first.parse()?, second.parse()?))
}

/// A program of ALICE's whose sockets are as full as they get, and what they hold.
fn greedy(binaries: &Binaries) -> Result<(Hog, Buffers)> {
    let steps = format!("uid={ALICE} {GREEDY} buffers say=ready wait drop say=gone wait");
    let mut program = Hog::spawn(&mut flooder(binaries, &steps))?;
    let mut held = None;
    while held.is_none() {
        let line = program.next_line()?;
        held = line.starts_with("buffers").then_some(line);
    }
    let (sent, received) = numbers(&held.context("buffers")?, "buffers:")?;
    program.hear("ready")?;
    Ok((program, Buffers { sent, received }))
}

fn row(world: &World, resource: Resource) -> Result<Bean> {
    let mut bill = bill_of(world, &ALICE.to_string())?;
    bill.remove(&resource).context(resource.name())
}

fn held(world: &World) -> Result<(u64, u64)> {
    let of = |resource| row(world, resource)?.held.context("a number");
    Ok((of(Resource::Othersockbuf)?, of(Resource::Dgramrcvbuf)?))
}

/// Which of both is not full, or beyond its barrier.
fn expect_full(buffers: Buffers) -> Result<()> {
    for bytes in [buffers.sent, buffers.received] {
        let is_held = (BARRIER * 3 / 4..=BARRIER + SLACK).contains(&bytes);
        ensure!(is_held, "{buffers:?} at a barrier of {BARRIER}");
    }
    Ok(())
}

/// Messages of a user without a limit, beside nobody's and somebody else's. By counted instructions
/// (`xtask vm run --accel tcg-counted --smp 1`) it is exact: docs/design/measured-beancounters.md.
fn cost_of_neighbour(binaries: &Binaries) -> Result<()> {
    const ROUNDS: usize = 3;
    const STEPS: &str = "bench=300:stream,packet,socketpair,pipe";
    let world = world(binaries, "buffers-cost")?;
    let bobs = || -> Result<Vec<(String, f64)>> {
        // What attaching and detaching leave to be done later is nobody's cost.
        std::thread::sleep(std::time::Duration::from_secs(2));
        let said = answers(binaries, &format!("uid={BOB} {STEPS}"))?;
        let words: Vec<&str> = said.first().context("figures")?.split(' ').collect();
        let pairs = words.chunks_exact(2);
        pairs
            .map(|pair| Ok((pair[0].to_owned(), pair[1].parse()?)))
            .collect()
    };
    let mut best = std::collections::BTreeMap::<String, (f64, f64)>::new();
    for _ in 0..ROUNDS {
        for (test, often) in bobs()? {
            let kept = &mut best.entry(test).or_default().0;
            *kept = kept.max(often);
        }
        limit(&world, &ALICE.to_string(), BOUNDS)?;
        for (test, often) in bobs()? {
            let kept = &mut best.entry(test).or_default().1;
            *kept = kept.max(often);
        }
        limit(&world, &ALICE.to_string(), NO_BOUNDS)?;
    }
    for (test, (plain, beside)) in &best {
        println!(
            "        {test:<10} {plain:>10.1} a second, {beside:>10.1} beside a limit: {:.1} %, {:.0} ns more each",
            beside * 100.0 / plain,
            1e9 / beside - 1e9 / plain
        );
    }
    let pipe = best.get("pipe").context("a pipe")?;
    ensure!(
        pipe.1 > pipe.0 * 0.97,
        "a pipe is no socket, and got slower: {pipe:?}"
    );
    Ok(())
}

/// No hook holds them: what bounds an account's is how many sockets it may have, and for the machine net.ipv4.tcp_mem.
fn tcp_by_number(binaries: &Binaries) -> Result<()> {
    const SOCKETS: u64 = 21;
    let sysctl = |name: &str, which: usize| -> Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"))?;
        let number = text.split_whitespace().nth(which);
        Ok(number.context("a number")?.parse()?)
    };
    let (most, each) = (
        sysctl("tcp_mem", 2)? << 12,
        sysctl("tcp_wmem", 2)? + sysctl("tcp_rmem", 2)?,
    );
    let world = world(binaries, "buffers-tcp")?;
    let greedy = |uid: u32| -> Result<(String, u64)> {
        let steps = format!("uid={uid} fill_tcp=100 buffers");
        let said = answers(binaries, &steps)?;
        let (filled, held) = (
            said.first().context("a step")?,
            said.last().context("buffers")?,
        );
        let (sent, received) = numbers(held, "buffers:")?;
        Ok((filled.clone(), sent + received))
    };
    limit(&world, &ALICE.to_string(), &format!("numtcpsock={SOCKETS}"))?;
    let (bobs, without) = greedy(BOB)?;
    let (alices, with) = greedy(ALICE)?;
    println!("        {bobs}, {without} bytes, without a bound; at most {most} on this machine");
    println!("        {alices}, {with} bytes, with {SOCKETS} sockets of at most {each} bytes each");
    ensure!(bobs == "fill_tcp=100: 100", "{bobs}");
    ensure!(alices.contains("ENOBUFS"), "{alices}");
    ensure!(with <= SOCKETS / 2 * each, "{with} bytes");
    // Without a bound it is the machine that is full.
    ensure!(with < without / 2, "{with} of {without} bytes");
    Ok(())
}

fn until_nothing_is_held(world: &World) -> Result<()> {
    until("nothing to be held", || {
        let (sent, received) = held(world)?;
        Ok((sent == 0 && received == 0).then_some(()))
    })
}

/// What a single connection of BOB's carries: KiB a second, datagrams a second.
fn throughput(binaries: &Binaries) -> Result<(u64, u64)> {
    let said = answers(binaries, &format!("uid={BOB} throughput=3000"))?;
    numbers(said.first().context("an answer")?, "throughput:")
}

/// Prints what a bound costs a user who has none. The times are the machine's: for one that does nothing else.
fn measured(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "buffers-measured")?;
    let alone = throughput(binaries)?;
    let (program, without) = greedy(binaries)?;
    let beside_unlimited = throughput(binaries)?;
    drop(program);
    limit(&world, &ALICE.to_string(), BOUNDS)?;
    let attached = throughput(binaries)?;
    let (program, with) = greedy(binaries)?;
    let beside = throughput(binaries)?;
    drop(program);
    limit(&world, &ALICE.to_string(), NO_BOUNDS)?;
    let alone_again = throughput(binaries)?;
    println!(
        "        | 1,000 greedy sockets of alice's | hold for sending | have received | bob's stream, KiB/s | bob's datagrams/s |"
    );
    println!("        |---|---|---|---|---|");
    for (what, buffers, (stream, datagrams)) in [
        ("not there", None, alone),
        ("without a bound", Some(without), beside_unlimited),
        ("not there, with a bound", None, attached),
        ("at 8 MiB each", Some(with), beside),
        ("not there, without a bound again", None, alone_again),
    ] {
        let bytes = |of: fn(Buffers) -> u64| buffers.map_or(0, of);
        println!(
            "        | {what} | {} | {} | {stream} | {datagrams} |",
            bytes(|it| it.sent),
            bytes(|it| it.received)
        );
    }
    Ok(())
}

fn held_at_barrier(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "buffers-held")?;
    let (program, without) = greedy(binaries)?;
    drop(program);
    limit(&world, &ALICE.to_string(), BOUNDS)?;
    let (mut program, with) = greedy(binaries)?;
    ensure!(
        without.sent > 3 * BARRIER && without.received > 3 * BARRIER,
        "not greedy: {without:?}"
    );
    expect_full(with)?;
    let (sent, received) = held(&world)?;
    ensure!(
        sent == with.sent && received == with.received,
        "{sent} {received} {with:?}"
    );
    for resource in [Resource::Othersockbuf, Resource::Dgramrcvbuf] {
        let row = row(&world, resource)?;
        ensure!(
            row.failcnt > 0 && row.how == How::Exact && row.barrier == Some(BARRIER),
            "{row:?}"
        );
        ensure!(
            row.maxheld >= row.held && row.maxheld <= Some(BARRIER + SLACK),
            "{row:?}"
        );
        let events = world.daemon.events_of(EventKind::Refused)?;
        let told = events.iter().filter_map(|it| it.row.as_ref());
        ensure!(
            told.clone()
                .any(|it| it.resource == resource && it.barrier == BARRIER),
            "{events:?}"
        );
    }
    // Others are let alone, and so is root.
    for who in [format!("uid={BOB} "), String::new()] {
        let said = answers(
            binaries,
            &format!("{who}fill_stream=60 fill_udp=60 buffers"),
        )?;
        let (sent, received) = numbers(said.last().context("an answer")?, "buffers:")?;
        ensure!(sent > BARRIER && received > BARRIER, "{who}: {said:?}");
    }
    program.go_on()?;
    program.hear("gone")?;
    until_nothing_is_held(&world)?;
    program.finish()?;
    limit(&world, &ALICE.to_string(), NO_BOUNDS)?;
    let (_program, after) = greedy(binaries)?;
    ensure!(after.sent > 3 * BARRIER, "still refused: {after:?}");
    Ok(())
}

fn held_without_bursard(binaries: &Binaries) -> Result<()> {
    let mut world = world(binaries, "buffers-alone")?;
    limit(&world, &ALICE.to_string(), BOUNDS)?;
    let _ = world.daemon.end(libc::SIGKILL)?;
    for _ in 0..2 {
        let (program, buffers) = greedy(binaries)?;
        expect_full(buffers)?;
        drop(program);
    }
    world.daemon.start()?;
    let failcnt = row(&world, Resource::Othersockbuf)?.failcnt;
    ensure!(failcnt > 0, "nothing was refused");
    until_nothing_is_held(&world)
}

/// Of messages that name one receiver the kernel asks about the first alone where it sends.
fn many_at_once(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "buffers-many")?;
    limit(&world, &ALICE.to_string(), BOUNDS)?;
    let steps = format!("uid={ALICE} fill_mmsg=200 buffers say=ready wait drop say=gone wait");
    let mut program = Hog::spawn(&mut flooder(binaries, &steps))?;
    let filled = program.next_line()?;
    let (sent, _) = numbers(&program.next_line()?, "buffers:")?;
    program.hear("ready")?;
    println!("        {}, {sent} bytes", filled.trim_end());
    ensure!(
        (BARRIER * 3 / 4..=BARRIER + SLACK).contains(&sent),
        "{sent} bytes at a barrier of {BARRIER}"
    );
    let row = row(&world, Resource::Othersockbuf)?;
    ensure!(row.failcnt > 0 && row.held == Some(sent), "{row:?}, {sent}");
    // Others are let alone, and so is root.
    for who in [format!("uid={BOB} "), String::new()] {
        let said = answers(binaries, &format!("{who}fill_mmsg=60 buffers"))?;
        let (sent, _) = numbers(said.last().context("an answer")?, "buffers:")?;
        ensure!(sent > BARRIER, "{who}: {said:?}");
    }
    program.go_on()?;
    program.hear("gone")?;
    until_nothing_is_held(&world)?;
    program.finish()
}

/// What comes back to a sender passes no hook: who does not read it sends no more.
fn error_queues(binaries: &Binaries) -> Result<()> {
    const SOCKETS: u64 = 200;
    /// Each has sent one message by then.
    const MESSAGE: u64 = 17 << 10;
    let world = world(binaries, "buffers-errors")?;
    let steps = format!("uid={BOB} fill_errors={SOCKETS} buffers");
    let said = answers(binaries, &steps)?;
    let (_, without) = numbers(said.last().context("an answer")?, "buffers:")?;
    ensure!(without > 3 * BARRIER, "not greedy: {said:?}");
    limit(&world, &ALICE.to_string(), "dgramrcvbuf=8M")?;
    let steps =
        format!("uid={ALICE} fill_errors={SOCKETS} buffers say=ready wait drop say=gone wait");
    let mut program = Hog::spawn(&mut flooder(binaries, &steps))?;
    let filled = program.next_line()?;
    let (_, received) = numbers(&program.next_line()?, "buffers:")?;
    program.hear("ready")?;
    println!(
        "        {}, {received} bytes; {without} without a limit",
        filled.trim_end()
    );
    ensure!(
        (BARRIER * 3 / 4..=BARRIER + SOCKETS * MESSAGE).contains(&received),
        "{received} bytes at a barrier of {BARRIER}"
    );
    let full = row(&world, Resource::Dgramrcvbuf)?;
    ensure!(full.failcnt > 0 && full.held == Some(received), "{full:?}");
    program.go_on()?;
    program.hear("gone")?;
    until("nothing to be held", || {
        let held = row(&world, Resource::Dgramrcvbuf)?.held;
        Ok((held == Some(0)).then_some(()))
    })?;
    program.finish()
}

/// It is never refused, and nothing more is granted before it has gone.
fn there_before(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "buffers-before")?;
    let (program, before) = greedy(binaries)?;
    limit(&world, &ALICE.to_string(), BOUNDS)?;
    let held = held(&world)?;
    ensure!(
        held == (before.sent, before.received),
        "{held:?} {before:?}"
    );
    let said = answers(binaries, &format!("uid={ALICE} byte=3"))?;
    ensure!(said == ["byte=3: 0 ENOBUFS×3"], "{said:?}");
    drop(program);
    until_nothing_is_held(&world)?;
    let said = answers(binaries, &format!("uid={ALICE} byte=3"))?;
    ensure!(said == ["byte=3: 3"], "{said:?}");
    Ok(())
}

/// What is left below the barrier, a byte at a time. A request is booked as what it takes at most, and a recount, which
/// is not made for every refusal, gives the rest back: so until a while of them grants nothing.
fn fill_the_rest(binaries: &Binaries) -> Result<Vec<Hog>> {
    let mut programs = Vec::new();
    until("nothing to be granted", || {
        let steps = format!("uid={ALICE} byte=300 say=ready wait");
        let mut program = Hog::spawn(&mut flooder(binaries, &steps))?;
        let said = program.next_line()?;
        program.hear("ready")?;
        programs.push(program);
        Ok((said.trim_end() == "byte=300: 0 ENOBUFS×300").then_some(()))
    })?;
    Ok(programs)
}

/// Beyond the barrier each socket has its part of what there is up to the limit: what poll(2) calls writable is.
fn guarantees(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "buffers-guarantee")?;
    limit(&world, &ALICE.to_string(), "othersockbuf=8M:12M")?;
    let (program, buffers) = greedy(binaries)?;
    ensure!(
        buffers.sent >= BARRIER * 3 / 4 && buffers.sent <= (12 << 20) + SLACK,
        "{buffers:?}"
    );
    let said = answers(binaries, &format!("uid={ALICE} byte=200"))?;
    ensure!(said == ["byte=200: 200"], "{said:?}");
    drop(program);
    until_nothing_is_held(&world)?;
    limit(&world, &ALICE.to_string(), "othersockbuf=8M")?;
    let (_program, _) = greedy(binaries)?;
    let _rest = fill_the_rest(binaries)?;
    // Who comes in through root's program goes on for a while.
    let flooder = binaries.path("flooder");
    let bytes = format!(
        "test \"$({} byte=300)\" = 'byte=300: 300'",
        flooder.display()
    );
    let steps = format!("forked=uid={ALICE}+session+run={bytes}");
    let output = grower(binaries, 0, &steps).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(said.ends_with(": 0\n"), "login: {said}");
    Ok(())
}

fn observed(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "buffers-observed")?;
    let alice = ALICE.to_string();
    let mut set = vec!["limit", "set", &alice];
    set.extend(BOUNDS.split(' '));
    set.push("--observe");
    let done = world.bursar(&set).output()?;
    ensure!(done.status.success(), "{done:?}");
    let (_program, buffers) = greedy(binaries)?;
    ensure!(
        buffers.sent > 3 * BARRIER && buffers.received > 3 * BARRIER,
        "{buffers:?}"
    );
    let events = world.daemon.events_of(EventKind::WouldRefuse)?;
    ensure!(events.iter().any(|it| it.row.is_some()), "{events:?}");
    ensure!(row(&world, Resource::Othersockbuf)?.failcnt == 0, "counted");
    Ok(())
}
