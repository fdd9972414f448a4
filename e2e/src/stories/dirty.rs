// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty page cache by who dirtied it, until it is clean (S5 section 3.2.1).

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bursar_model::{How, Resource};
use bursar_protocol::{DirtyKnown, DirtyReport, DirtyRow, Operation, Reply};

use super::beancounters::bill_of;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        // Needs a device of its own, and nobody else who writes.
        name: "dirty_pages_are_their_dirtiers_until_they_are_clean_also_when_he_is_dead",
        place: Place::Guest,
        tell: until_clean,
    },
    Story {
        name: "what_was_dirtied_is_said_and_what_is_dirty_where_it_can_be_known",
        place: Place::Host,
        tell: cumulative,
    },
];

const ALICE: u32 = 60420;
const BOB: u32 = 60421;
const MIB: u64 = 1 << 20;
/// modprobe null_blk: whatever is written to it is forgotten, after it has been page cache.
const DEVICE: &str = "/dev/nullb0";

fn report(world: &World) -> Result<DirtyReport> {
    match world.daemon.ask(Operation::Dirty)? {
        Reply::Dirty(report) => Ok(*report),
        other => bail!("{other:?}"),
    }
}

fn row(report: &DirtyReport, uid: u32) -> Option<&DirtyRow> {
    report
        .accounts
        .iter()
        .find(|row| row.uid.is_some_and(|it| it.get() == uid))
}

fn dirty(report: &DirtyReport, uid: u32) -> u64 {
    row(report, uid)
        .and_then(|row| row.dirty_bytes)
        .map_or(0, |bytes| bytes.get())
}

fn until_clean(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "dirty", "")?;
    world.daemon.start()?;
    world.daemon.limit(&ALICE.to_string(), "100M")?;
    let device = Path::new(DEVICE);
    ensure!(
        device.exists(),
        "no {DEVICE}: the guest was started without --module null_blk"
    );
    fs::set_permissions(device, fs::Permissions::from_mode(0o666))?;
    // Whoever closes a device last has it written: that must not be her.
    let held = File::options().read(true).write(true).open(device);
    let held = held.context("hold the device")?;
    let billed = || {
        let row = bill_of(&world, &ALICE.to_string())?.remove(&Resource::Dirtypages);
        row.context("no such row on her bill")
    };
    let unknown = billed()?;
    ensure!(
        unknown.held.is_none() && unknown.how.to_string().contains("bursar dirty"),
        "{unknown:?}"
    );
    ensure!(
        report(&world)?.known == DirtyKnown::Exact,
        "clean pages are not seen"
    );
    rustix::fs::sync();
    let before = report(&world)?.machine_dirty_bytes.get();
    world.hog(&format!("uid={ALICE} file={DEVICE}:8M"))?.end()?;
    // She is dead, and it is still hers; what he writes over it too, until it is clean.
    world.hog(&format!("uid={BOB} file={DEVICE}:12M"))?.end()?;
    let found = report(&world)?;
    let (hers, his) = (dirty(&found, ALICE), dirty(&found, BOB));
    let machine = found.machine_dirty_bytes.get();
    println!(
        "        hers {} pages, his {}, /proc/meminfo Dirty {} (before: {})",
        hers / 4096,
        his / 4096,
        machine / 4096,
        before / 4096
    );
    ensure!((hers, his) == (8 * MIB, 4 * MIB), "{found:?}");
    // The kernel's own figure is per CPU: a batch of each may be kept back.
    let slack = 64 * 4096;
    ensure!(machine.abs_diff(before + hers + his) <= slack, "{found:?}");
    let on_her_bill = |pages: u64| {
        until("her bill saying what is dirty", || {
            let row = billed()?;
            Ok((row.held == Some(pages) && row.how == How::Exact).then_some(()))
        })
    };
    on_her_bill(8 * MIB / 4096)?;
    held.sync_all().context("have it written")?;
    until("everything being clean", || {
        let found = report(&world)?;
        Ok((dirty(&found, ALICE) == 0 && dirty(&found, BOB) == 0).then_some(()))
    })?;
    on_her_bill(0)?;
    let found = report(&world)?;
    let hers = row(&found, ALICE).context("no row of hers")?;
    ensure!(
        hers.dirtied_bytes.get() >= 8 * MIB && hers.written_bytes.get() >= 8 * MIB,
        "{found:?}"
    );
    Ok(())
}

fn cumulative(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "dirtied", "")?;
    world.daemon.start()?;
    world.daemon.limit(&ALICE.to_string(), "100M")?;
    fs::set_permissions(world.directory(), fs::Permissions::from_mode(0o777))?;
    let first = report(&world)?;
    let path = world.directory().join("written");
    world
        .hog(&format!("uid={ALICE} file={}:8M", path.display()))?
        .end()?;
    let found = report(&world)?;
    let hers = row(&found, ALICE).context("no row of hers")?;
    let is_known = hers.dirty_bytes.is_some();
    ensure!(is_known == (first.known == DirtyKnown::Exact), "{found:?}");
    ensure!(hers.dirtied_bytes.get() >= 8 * MIB, "{found:?}");
    Ok(())
}
