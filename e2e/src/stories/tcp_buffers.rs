// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Buffers of TCP (docs/explanation/beancounters.md, `tcpsndbuf` and `tcprcvbuf`): what connections of one user hold that
//! nobody reads is held at a barrier, and no connection is broken or stands still for it.

use anyhow::{Context, Result, ensure};
use bursar_model::{Bean, EventKind, How, Resource};

use super::beancounters::{answers, bill_of, flooder, limit, world};
use crate::hog::Hog;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "tcp_buffers_of_a_thousand_greedy_sockets_are_held",
        place: Place::Guest,
        tell: held_at_barrier,
    },
    Story {
        name: "tcp_buffers_in_a_network_namespace_of_ones_own_are_held",
        place: Place::Guest,
        tell: held_in_own_namespace,
    },
    Story {
        name: "tcp_buffers_are_held_without_bursard",
        place: Place::Guest,
        tell: held_without_bursard,
    },
    Story {
        name: "tcp_buffers_at_the_barrier_break_no_connection",
        place: Place::Guest,
        tell: whole,
    },
    Story {
        name: "tcp_buffers_that_are_observed_are_told_and_granted",
        place: Place::Guest,
        tell: observed,
    },
    Story {
        name: "tcp_buffers_at_a_barrier_leave_the_neighbours_throughput",
        place: Place::Named,
        tell: measured,
    },
];

const ALICE: u32 = 60331;
const BOB: u32 = 60332;
const BARRIER: u64 = 8 << 20;
const BOUNDS: &str = "tcpsndbuf=8M:12M tcprcvbuf=8M:12M";
const NO_BOUNDS: &str = "tcpsndbuf=unlimited tcprcvbuf=unlimited";
const CONNECTIONS: u64 = 500;
/// What each socket has whatever the account holds, and beyond it one packet (docs/explanation/beancounters.md).
const LEAST: u64 = 4608;
const SENT_PACKET: u64 = 68 << 10;
const RECEIVED_PACKET: u64 = 4 << 10;

/// What sockets hold, bytes, as the kernel says.
#[derive(Debug, Clone, Copy)]
struct Buffers {
    sent: u64,
    received: u64,
}

fn buffers_in(line: &str) -> Result<Buffers> {
    let numbers = line
        .strip_prefix("buffers:")
        .with_context(|| line.to_owned())?;
    let (sent, received) = numbers.trim().split_once(' ').context("two numbers")?;
    Ok(Buffers {
        sent: sent.parse()?,
        received: received.parse()?,
    })
}

/// A program of ALICE's with both ends of so many connections, which are as full as they get, and what they hold.
fn greedy(binaries: &Binaries, before: &str, connections: u64) -> Result<(Hog, Buffers)> {
    let steps = format!(
        "uid={ALICE} {before} fill_tcp={connections} buffers say=ready wait drop say=gone wait"
    );
    let mut program = Hog::spawn(&mut flooder(binaries, &steps))?;
    let mut held = None;
    while held.is_none() {
        let line = program.next_line()?.trim().to_owned();
        ensure!(
            !line.starts_with("fill_tcp") || line.ends_with(&format!(": {connections}")),
            "{line}"
        );
        held = line.starts_with("buffers").then_some(line);
    }
    let held = buffers_in(&held.context("buffers")?)?;
    program.hear("ready")?;
    println!("        {before} {held:?}");
    Ok((program, held))
}

fn row(world: &World, resource: Resource) -> Result<Bean> {
    let mut bill = bill_of(world, &ALICE.to_string())?;
    bill.remove(&resource).context(resource.name())
}

/// The bound is a packet of 64 KiB for each sender more; on the loopback these writers leave less.
fn expect_held(buffers: Buffers) -> Result<()> {
    let most = BARRIER + CONNECTIONS * LEAST;
    ensure!(
        buffers.sent <= most && buffers.received <= most,
        "{buffers:?}"
    );
    Ok(())
}

fn until_nothing_is_held(world: &World) -> Result<()> {
    until("nothing to be held", || {
        let sent = row(world, Resource::Tcpsndbuf)?.held;
        let received = row(world, Resource::Tcprcvbuf)?.held;
        Ok((sent == Some(0) && received == Some(0)).then_some(()))
    })
}

fn held_at_barrier(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "tcp-held")?;
    let remarks = limit(&world, &ALICE.to_string(), BOUNDS)?;
    println!("        {remarks:?}");
    let (mut program, with) = greedy(binaries, "", CONNECTIONS)?;
    expect_held(with)?;
    for (resource, queued) in [
        (Resource::Tcpsndbuf, with.sent),
        (Resource::Tcprcvbuf, with.received),
    ] {
        let row = row(&world, resource)?;
        println!("        {row:?}");
        ensure!(
            row.how == How::Exact && row.barrier == Some(BARRIER),
            "{row:?}"
        );
        ensure!(
            row.failcnt > 0 && row.held >= Some(queued),
            "{row:?} {queued}"
        );
        let events = world.daemon.events_of(EventKind::Refused)?;
        let mut told = events.iter().filter_map(|it| it.row.as_ref());
        ensure!(told.any(|it| it.resource == resource), "{events:?}");
    }
    // Others are let alone, and so is root.
    for who in [format!("uid={BOB} "), String::new()] {
        let said = answers(binaries, &format!("{who}fill_tcp=4 buffers"))?;
        let each = buffers_in(said.last().context("an answer")?)?;
        println!("        {who} {each:?}");
        ensure!(each.sent + each.received > 8 << 20, "{who}: {said:?}");
    }
    program.go_on()?;
    program.hear("gone")?;
    until_nothing_is_held(&world)?;
    program.finish()?;
    limit(&world, &ALICE.to_string(), NO_BOUNDS)?;
    let (_program, after) = greedy(binaries, "", 4)?;
    ensure!(
        after.sent + after.received > 8 << 20,
        "still held: {after:?}"
    );
    Ok(())
}

/// tcp_rmem and tcp_wmem are a namespace's own, and who made it sets them.
fn held_in_own_namespace(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "tcp-namespace")?;
    limit(&world, &ALICE.to_string(), BOUNDS)?;
    let (_program, held) = greedy(binaries, "userns net=1 widen", CONNECTIONS)?;
    expect_held(held)
}

fn held_without_bursard(binaries: &Binaries) -> Result<()> {
    let mut world = world(binaries, "tcp-alone")?;
    limit(&world, &ALICE.to_string(), BOUNDS)?;
    let _ = world.daemon.end(libc::SIGKILL)?;
    let (program, held) = greedy(binaries, "", CONNECTIONS)?;
    expect_held(held)?;
    drop(program);
    world.daemon.start()?;
    ensure!(
        row(&world, Resource::Tcpsndbuf)?.failcnt > 0,
        "nothing was refused"
    );
    until_nothing_is_held(&world)
}

/// Beside sockets that have filled the account: what poll(2) calls writable is, and transfers come whole.
fn whole(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "tcp-whole")?;
    limit(&world, &ALICE.to_string(), BOUNDS)?;
    let (_program, _) = greedy(binaries, "", CONNECTIONS)?;
    for (steps, answer) in [
        ("tcp_byte=50", "tcp_byte=50: 50"),
        ("transfers=8", "transfers=8: 8"),
    ] {
        let said = answers(binaries, &format!("uid={ALICE} {steps}"))?;
        ensure!(said == [answer], "{said:?}");
    }
    for (uid, is_small) in [(ALICE, true), (BOB, false)] {
        let bytes = number(binaries, uid, "tcp_segment")?;
        ensure!((bytes <= 1460) == is_small, "{uid}: {bytes}");
    }
    // What its program asks for is no way around.
    let more = |uid: u32| -> Result<u64> {
        let said = answers(binaries, &format!("uid={uid} fill_tcp=20 tcp_more buffers"))?;
        let held = buffers_in(said.last().context("an answer")?)?;
        println!("        asking for more, {uid}: {held:?}");
        Ok(held.sent + held.received)
    };
    let bound = 20 * (SENT_PACKET + RECEIVED_PACKET) + 80 * LEAST;
    let (alices, bobs) = (more(ALICE)?, more(BOB)?);
    ensure!(
        alices <= bound && bobs > 2 * bound,
        "{alices} {bobs} of {bound}"
    );
    Ok(())
}

fn observed(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "tcp-observed")?;
    let alice = ALICE.to_string();
    let mut set = vec!["limit", "set", &alice];
    set.extend(["tcpsndbuf=1M", "tcprcvbuf=1M", "--observe"]);
    let done = world.bursar(&set).output()?;
    ensure!(done.status.success(), "{done:?}");
    let (_program, held) = greedy(binaries, "", 8)?;
    ensure!(held.sent + held.received > 8 << 20, "{held:?}");
    let events = world.daemon.events_of(EventKind::WouldRefuse)?;
    ensure!(events.iter().any(|it| it.row.is_some()), "{events:?}");
    ensure!(row(&world, Resource::Tcpsndbuf)?.failcnt == 0, "counted");
    Ok(())
}

/// The number that a step of somebody's ends with.
fn number(binaries: &Binaries, uid: u32, step: &str) -> Result<u64> {
    let said = answers(binaries, &format!("uid={uid} {step}"))?;
    let answer = said.first().context("an answer")?;
    let (_, number) = answer.split_once(": ").with_context(|| answer.clone())?;
    number.parse().with_context(|| answer.clone())
}

/// What one connection carries, KiB a second, and connections made a second.
fn speed(binaries: &Binaries, uid: u32) -> Result<(u64, u64)> {
    Ok((
        number(binaries, uid, "tcp_throughput=3000")?,
        number(binaries, uid, "tcp_connections=3000")?,
    ))
}

/// Prints what a bound costs. The times are the machine's: for one that does nothing else.
fn measured(binaries: &Binaries) -> Result<()> {
    let world = world(binaries, "tcp-measured")?;
    println!("        KiB/s through one connection, connections/s");
    for round in 0..3 {
        let alone = speed(binaries, BOB)?;
        limit(&world, &ALICE.to_string(), BOUNDS)?;
        let attached = speed(binaries, BOB)?;
        let alices = speed(binaries, ALICE)?;
        let (program, _) = greedy(binaries, "", CONNECTIONS)?;
        let beside = speed(binaries, BOB)?;
        let alices_full = speed(binaries, ALICE)?;
        drop(program);
        limit(&world, &ALICE.to_string(), NO_BOUNDS)?;
        println!(
            "        {round}: nobody limited {alone:?}, alice limited {attached:?}, at her barrier {beside:?}; her own \
             {alices:?}, {alices_full:?}"
        );
    }
    Ok(())
}
