// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory that a kernel half's maps take.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use anyhow::{Context, Result};
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapHandle, ProgramHandle};

fn fdinfo(fd: i32, key: &str) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value
        .and_then(|it| it.trim().parse().ok())
        .with_context(|| format!("{key} in fdinfo"))
}

/// The kernel's number of a pinned program.
pub(super) fn program_id(pin: &Path) -> Result<u32> {
    let program = ProgramHandle::from_pinned_path(pin).context("open a pin")?;
    Ok(u32::try_from(fdinfo(
        program.as_fd().as_raw_fd(),
        "prog_id",
    )?)?)
}

/// Bytes of all maps that the programs pinned somewhere below `root` use.
pub(crate) fn maps_bytes(root: &Path) -> Result<u64> {
    let mut programs = BTreeSet::new();
    for half in fs::read_dir(root).context("list the pins")? {
        for pin in fs::read_dir(half?.path()).context("list the pins")? {
            // Links and maps are pinned beside them.
            if let Ok(id) = program_id(&pin?.path()) {
                programs.insert(id);
            }
        }
    }
    let with_maps = ProgInfoQueryOptions::default().include_map_ids(true);
    let maps: BTreeSet<u32> = ProgInfoIter::with_query_opts(with_maps)
        .filter(|program| programs.contains(&program.id))
        .flat_map(|program| program.map_ids)
        .collect();
    let mut sum = 0;
    for id in maps {
        let map = MapHandle::from_map_id(id).context("open a map")?;
        sum += fdinfo(map.as_fd().as_raw_fd(), "memlock")?;
    }
    Ok(sum)
}
