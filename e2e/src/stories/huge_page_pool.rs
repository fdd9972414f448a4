// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of the pool of huge pages that several processes share, as PostgreSQL's do with `huge_pages`.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use bursar_model::{Bytes, EventKind, Uid};

use super::{ALICE, BOB};
use crate::huge_page_pool::HugePagePool;
use crate::runner::{Place, Story};
use crate::wait::within;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[Story {
    name: "nobody_is_killed_for_huge_pages_that_several_share",
    place: Place::Guest,
    tell: shared,
}];

/// Six processes share 20 MiB of the pool: 120 in sum, with a limit of 64. Another user's own count in full.
fn shared(binaries: &Binaries) -> Result<()> {
    let _pool = HugePagePool::of(28)?;
    let mut world = World::new(binaries, "huge-page-pool", "")?;
    world.daemon.start()?;
    world.daemon.limit(&ALICE.to_string(), "64M")?;
    world.daemon.limit(&BOB.to_string(), "32M")?;
    let script = format!("uid={ALICE} hugetlb-by=20M:5 hold=3M say=up pause");
    let mut workers = world.hog(&script)?;
    for _ in 0..5 {
        workers.hear_within("up", Duration::from_secs(60))?;
    }
    // Several re-sums, which alone see these pages, and several scans.
    sleep(Duration::from_secs(4));
    let kills = world.daemon.events_of(EventKind::Kill)?;
    ensure!(kills.is_empty(), "killed: {kills:#?}");
    let held = world.daemon.memory(&ALICE.to_string())?.held;
    ensure!(held < Bytes::from_mib(64), "{held:?} are held");
    let _own = world.hog(&format!("uid={BOB} fork=2 hugetlb=18M say=up pause"))?;
    within(
        Duration::from_secs(20),
        "who has it alone to be killed",
        || {
            let kills = world.daemon.events_of(EventKind::Kill)?;
            Ok((!kills.is_empty()).then_some(()))
        },
    )?;
    let kills = world.daemon.events_of(EventKind::Kill)?;
    ensure!(
        kills.iter().all(|it| it.uid == Some(Uid::new(BOB))),
        "{kills:#?}"
    );
    Ok(())
}
