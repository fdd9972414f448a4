// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel half has told is recorded once, also when bursard is killed with events in its hands.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bursar_model::EventKind;
use bursar_protocol::{Operation, Reply};

use super::notify::random;
use crate::hog::Hog;
use crate::length::whole;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "events_in_the_hands_of_a_bursard_that_is_killed_are_recorded_once",
        place: Place::Anywhere,
        tell: storm,
    },
    Story {
        name: "events_that_wait_to_be_written_when_bursard_is_killed_are_counted",
        place: Place::Host,
        tell: waiting,
    },
];

const UIDS: std::ops::Range<u32> = 60740..60744;
const EACH: usize = 3;

/// What happened, as the kernel half has counted it; what is recorded of it; what did not fit; what is gone with a bursard.
struct Found {
    happened: u64,
    /// Of these so many were kills.
    kills: u64,
    recorded: u64,
    lost: u64,
    unrecorded: u64,
}

/// Bursts of notices and kills, in each of which bursard is killed at some moment.
fn storm(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "hands", "")?;
    world.daemon.start()?;
    for uid in UIDS {
        world.daemon.limit(&uid.to_string(), "16M")?;
    }
    let mut seed = 39;
    let mut ended = 0;
    for _ in 0..whole(100).or(6) {
        let scripts = UIDS.flat_map(|uid| [uid; EACH]);
        let hogs =
            scripts.map(|uid| world.hog(&format!("uid={uid} say=there wait hold=40M pause")));
        let mut hogs: Vec<Hog> = hogs.collect::<Result<_>>()?;
        hogs.iter_mut().try_for_each(|it| it.hear("there"))?;
        hogs.iter_mut().try_for_each(Hog::go_on)?;
        thread::sleep(Duration::from_millis(random(&mut seed, 80)));
        world.daemon.end(libc::SIGKILL)?;
        hogs.iter_mut().try_for_each(Hog::expect_killed)?;
        ended += hogs.len() as u64;
        world.daemon.start()?;
    }
    let all = until("every event to be recorded", || {
        let found = look(&world)?;
        let is_all = found.recorded + found.lost + found.unrecorded >= found.happened;
        Ok(is_all.then_some(()))
    });
    let found = look(&world)?;
    println!(
        "        {} kills and notices: {} recorded, {} did not fit the ring, up to {} are gone",
        found.happened, found.recorded, found.lost, found.unrecorded
    );
    println!(
        "        {} kills counted, of {ended} processes that were killed",
        found.kills
    );
    all?;
    ensure!(found.kills == ended, "a kill is counted twice, or never");
    // Whether bursard killed a process before it was killed itself nobody can say: such a kill is counted. Where the
    // kernel half kills by itself nothing is lost.
    let by_itself = world.daemon.status()?.kernel_half.signals_others;
    ensure!(found.recorded <= found.happened, "told twice");
    ensure!(!by_itself || found.recorded == found.happened, "lost");
    let lost = world.daemon.events_of(EventKind::Lost)?;
    ensure!(
        lost.is_empty() == (found.unrecorded + found.lost == 0),
        "{lost:?}"
    );
    // Who ends in good order leaves nothing behind.
    for uid in UIDS {
        let mut hog = world.hog(&format!("uid={uid} hold=40M pause"))?;
        hog.expect_killed()?;
    }
    world.daemon.end(libc::SIGTERM)?;
    world.daemon.start()?;
    let (before, after) = (found, look(&world)?);
    ensure!(
        after.unrecorded == before.unrecorded
            && after.recorded - before.recorded == after.happened - before.happened,
        "{} of {} recorded, {} in hand after a stop",
        after.recorded - before.recorded,
        after.happened - before.happened,
        after.unrecorded - before.unrecorded
    );
    Ok(())
}

/// Of one account's kills bursard writes 300 as they come, and the others later.
fn waiting(binaries: &Binaries) -> Result<()> {
    const KILLS: u64 = 312;
    let mut world = World::new(binaries, "unwritten", "")?;
    world.daemon.start()?;
    world.daemon.limit(&UIDS.start.to_string(), "8M")?;
    for _ in 0..KILLS {
        let mut hog = world.hog(&format!("uid={} hold=12M pause", UIDS.start))?;
        hog.expect_killed()?;
    }
    until("all kills to be known", || {
        let kills = world.daemon.events_of(EventKind::Kill)?.len() as u64;
        Ok((kills == KILLS).then_some(()))
    })?;
    world.daemon.end(libc::SIGKILL)?;
    world.daemon.start()?;
    until("a word of what is gone", || {
        Ok((!world.daemon.events_of(EventKind::Lost)?.is_empty()).then_some(()))
    })?;
    let kills = world.daemon.events_of(EventKind::Kill)?;
    let written: u64 = kills.iter().map(|it| it.more.unwrap_or(0) + 1).sum();
    let gone = world.daemon.status()?.kernel_half.events_unrecorded;
    println!("        {KILLS} kills: {written} written, {gone} events counted as gone");
    ensure!(written < KILLS && written + gone >= KILLS, "not counted");
    // Once.
    world.daemon.end(libc::SIGKILL)?;
    world.daemon.start()?;
    let again = world.daemon.status()?.kernel_half.events_unrecorded;
    ensure!(again == gone, "{again} the next time");
    Ok(())
}

/// None of them may be recorded twice.
fn look(world: &World) -> Result<Found> {
    let status = world.daemon.status()?;
    let (mut happened, mut killed) = (0, 0);
    for uid in UIDS {
        let account = world.daemon.account(&uid.to_string())?;
        let account = account.context("an account")?;
        killed += account.kills;
        happened += account.kills + account.notices;
    }
    let ask = Operation::Events {
        since: Some("2020-01-01".to_owned()),
        follow: false,
    };
    let Reply::Events(events) = world.daemon.ask(ask)? else {
        bail!("another answer");
    };
    let of = |kind| events.iter().filter(move |it| it.event == kind);
    for kind in [EventKind::Kill, EventKind::Reaped] {
        let pids: BTreeSet<_> = of(kind).map(|it| it.pid).collect();
        let told = of(kind).count();
        ensure!(
            pids.len() == told,
            "{told} {kind:?} of {} processes",
            pids.len()
        );
    }
    let kills = of(EventKind::Kill).count();
    let moments: BTreeSet<_> = of(EventKind::Notice)
        .map(|it| (&it.account, &it.time))
        .collect();
    let notices = of(EventKind::Notice).count();
    ensure!(
        moments.len() == notices,
        "{notices} notices at {} moments",
        moments.len()
    );
    Ok(Found {
        happened,
        kills: killed,
        recorded: (kills + notices) as u64,
        lost: status.kernel_half.events_lost,
        unrecorded: status.kernel_half.events_unrecorded,
    })
}
