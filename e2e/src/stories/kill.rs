// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Notice, breach, one victim, neighbours alive, memory back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bursar_model::{EventKind, Trigger};

use super::{ALICE, BOB, allowance};
use crate::length::whole;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "the_largest_is_killed_after_a_notice_and_its_neighbours_live",
        place: Place::Anywhere,
        tell: largest_dies,
    },
    Story {
        name: "the_largest_dies_even_if_it_sleeps_and_another_grew",
        place: Place::Anywhere,
        tell: sleeper_dies,
    },
    Story {
        name: "two_that_cross_together_cost_one_life_each_breach",
        place: Place::Anywhere,
        tell: one_breach_one_victim,
    },
    Story {
        name: "overcommit_of_the_event_trigger_stays_below_512_kib",
        place: Place::Host,
        tell: overcommit,
    },
    Story {
        name: "overcommit_by_peak_rss_stays_below_512_kib_when_rss_is_counted",
        place: Place::Host,
        tell: overcommit_by_peak_rss,
    },
    Story {
        name: "shared_memory_that_went_with_its_process_is_not_in_what_is_told_of_the_next_kill",
        place: Place::Anywhere,
        tell: gone_with_its_process,
    },
];

fn largest_dies(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "kill", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "128M")?;
    let mut second = world.there("uid=60001 name=second hold=30M say=there pause")?;
    let mut small = world.there("uid=60001 name=small hold=2M say=there pause")?;
    let mut stranger = world.there("uid=60002 name=stranger hold=150M say=there pause")?;
    // A guest's programs lie in a tmpfs: their text is memory that may be shared, and bursard is asked, which takes an
    // emulated processor as long as it takes a grower to get from the notice to the limit. There it stops between them.
    let to_notice = if super::is_emulated() {
        "hold=84M sleep=2000"
    } else {
        ""
    };
    let mut grower = world.hog(&format!(
        "uid=60001 name=grower {to_notice} hold=400M pause"
    ))?;

    grower.expect_killed()?;
    let kill = world.daemon.await_event(EventKind::Kill, grower.pid())?;
    let over = kill.overcommit.context("overcommit")?.get();
    // docs/design/7-shared-pages.md "At a crossing".
    let waited = if super::is_emulated() {
        kill.limit.context("limit")?.get() / 4
    } else {
        0
    };
    ensure!(
        over <= allowance() + waited,
        "{over} bytes over the limit at the kill"
    );
    ensure!(
        kill.trigger == Some(Trigger::Event)
            || (super::is_emulated() && kill.trigger == Some(Trigger::Notifier)),
        "killed by {:?}",
        kill.trigger
    );
    ensure!(kill.comm.as_deref() == Some("grower"), "{:?}", kill.comm);
    let names: Vec<&str> = kill.candidates.iter().map(|it| it.comm.as_str()).collect();
    ensure!(
        names == ["grower", "second", "small"],
        "weighed {names:?}: {:#?}",
        world.daemon.events()?
    );

    let events = world.daemon.events()?;
    let place = |kind| events.iter().position(|event| event.event == kind);
    let (notice, killed) = (place(EventKind::Notice), place(EventKind::Kill));
    ensure!(
        notice.is_some() && notice < killed,
        "no notice before the kill: {events:?}"
    );
    let reaped = world.daemon.await_event(EventKind::Reaped, grower.pid())?;
    ensure!(
        reaped.freed_bytes.is_some_and(|it| it.get() > 60 << 20),
        "{reaped:?}"
    );

    second.expect_alive("the second largest")?;
    small.expect_alive("the small one")?;
    stranger.expect_alive("another user's larger one")?;
    let kills = world.daemon.events_of(EventKind::Kill)?;
    ensure!(kills.len() == 1, "{} kills for one breach", kills.len());
    let row = world.daemon.memory("60001")?;
    ensure!(
        row.maxheld.get() <= (128 << 20) + allowance() + waited,
        "held up to {}",
        row.maxheld
    );
    ensure!(row.failcnt == 1, "failcnt {}", row.failcnt);
    Ok(())
}

fn sleeper_dies(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "sleeper", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "100M")?;
    let mut sleeper = world.there("uid=60001 name=sleeper hold=70M say=there pause")?;
    // In steps: where the kernel half cannot signal a sleeper it asks bursard, which takes a moment.
    let mut grower = world.hog(&format!(
        "uid=60001 name=grower hold=31M sleep={} say=there pause",
        super::watched_ms()
    ))?;
    sleeper.expect_killed()?;
    if let Err(error) = grower.hear("there") {
        let kills = world.daemon.events_of(EventKind::Kill)?;
        return Err(error.context(format!("the one that grew died as well: {kills:#?}")));
    }
    let kill = world.daemon.await_event(EventKind::Kill, sleeper.pid())?;
    ensure!(
        kill.victim_bytes.is_some_and(|it| it.get() >= 70 << 20),
        "{kill:?}"
    );
    grower.expect_alive("the one that grew")?;
    Ok(())
}

fn one_breach_one_victim(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "pair", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let mut pair = [
        world.hog("uid=60001 name=one hold=8M say=there wait hold=12M sleep=300 say=done pause")?,
        world.hog("uid=60001 name=two hold=8M say=there wait hold=60M say=done pause")?,
    ];
    for hog in &mut pair {
        hog.hear("there")?;
    }
    for hog in &mut pair {
        hog.go_on()?;
    }
    // Together they want 88 MiB of 64: the larger has to die, and then the other fits.
    let [one, two] = &mut pair;
    two.expect_killed()?;
    one.hear("done")?;
    one.expect_alive("the smaller one")?;
    let kills = world.daemon.events_of(EventKind::Kill)?;
    ensure!(kills.len() == 1, "{} kills: {kills:?}", kills.len());
    Ok(())
}

/// S1 section 6.3: one and four processes, limits of 64 and 128 MiB, ten runs each.
fn overcommit(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "over", "")?;
    world.daemon.start()?;
    for (uid, processes) in [(ALICE, 1), (BOB, 4)] {
        let user = uid.to_string();
        for limit in [64, 128] {
            let mut worst = 0;
            let mut kills = 0;
            for _ in 0..10 {
                let before = world.daemon.events_of(EventKind::Kill)?.len();
                world.daemon.limit(&user, &format!("{limit}M"))?;
                let script = format!("uid={uid} fork={processes} hold=1G pause");
                let mut job = world.hog(&script)?;
                job.end()?;
                let news = until("a kill for each process", || {
                    let events = world.daemon.events_of(EventKind::Kill)?;
                    Ok((events.len() >= before + processes).then(|| events[before..].to_vec()))
                })?;
                for kill in news {
                    worst = worst.max(kill.overcommit.context("overcommit")?.get());
                    kills += 1;
                }
                world.daemon.until_empty(uid)?;
            }
            println!(
                "        {processes} processes, limit {limit} MiB: {kills} kills, at most {} KiB over",
                worst >> 10
            );
            ensure!(
                worst <= 512 << 10,
                "{worst} bytes over a limit of {limit} MiB"
            );
            let maxheld = world.daemon.memory(&user)?.maxheld.get();
            ensure!(
                maxheld <= (limit << 20) + (512 << 10),
                "held up to {maxheld} bytes"
            );
        }
    }
    Ok(())
}

/// The same by the victim's own peak, which counts file pages: with S1's literal definition.
fn overcommit_by_peak_rss(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "peak", "count = \"rss\"\n")?;
    world.daemon.start()?;
    for limit in [64, 128] {
        world.daemon.limit("60002", &format!("{limit}M"))?;
        let mut worst = 0;
        for _ in 0..10 {
            let peak = peak_rss_of_victim(&world)?;
            worst = worst.max(peak.saturating_sub(limit << 20));
        }
        println!(
            "        limit {limit} MiB: the victim's peak RSS at most {} KiB over",
            worst >> 10
        );
        ensure!(
            worst <= 512 << 10,
            "{worst} bytes over a limit of {limit} MiB"
        );
    }
    Ok(())
}

/// Starts a hog that is killed; returns its ru_maxrss in bytes, from the kernel at its end.
fn peak_rss_of_victim(world: &World) -> Result<u64> {
    let script = format!("uid={BOB} hold=1G pause");
    let hog = world.hog(&script)?;
    hog.into_peak_rss()
}

/// Files are counted once a second at least; what the last count met may be gone since.
fn gone_with_its_process(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "gone", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    // That nobody maps it any more is noticed by another timer: in some of these first.
    for round in 0..whole(10).or(6) {
        let mut sharer = world.there("uid=60001 shm=20M say=there pause")?;
        std::thread::sleep(Duration::from_millis(500 + 70 * round));
        sharer.finish()?;
        std::thread::sleep(Duration::from_millis(100));
        let mut grower = world.hog("uid=60001 hold=400M pause")?;
        grower.expect_killed()?;
        let kill = world.daemon.await_event(EventKind::Kill, grower.pid())?;
        let over = kill.overcommit.context("overcommit")?.get();
        ensure!(over <= allowance(), "{over} bytes over: {kill:?}");
        let own = kill.victim_bytes.context("what it had")?.get();
        ensure!(own > 60 << 20, "killed for what was gone: {kill:?}");
    }
    let maxheld = world.daemon.memory("60001")?.maxheld.get();
    ensure!(
        maxheld <= (64 << 20) + allowance(),
        "{maxheld} held at most"
    );
    Ok(())
}
