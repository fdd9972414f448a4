// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Units of the kernel half's logic (`crates/kernel/src/bpf/selftest`), by this kernel's own verifier and compiler.

use anyhow::{Context, Result, ensure};
use bursar_kernel::run_units;

use crate::runner::{Place, Story};
use crate::world::Binaries;

pub(super) const STORIES: &[Story] = &[Story {
    name: "each_unit_of_the_kernel_halfs_logic_holds_on_this_kernel",
    place: Place::Anywhere,
    tell: units,
}];

/// So many there are at least: an object that lost its programs would hold.
const UNITS: usize = 58;

fn units(_: &Binaries) -> Result<()> {
    let units = run_units().context("run the units of the kernel half")?;
    let failed: Vec<String> = units
        .iter()
        .filter_map(|unit| Some(format!("{}, line {}", unit.name, unit.failed_at?)))
        .collect();
    println!("        {} units run", units.len());
    ensure!(failed.is_empty(), "these do not hold: {failed:?}");
    ensure!(units.len() >= UNITS, "{} units only", units.len());
    Ok(())
}
