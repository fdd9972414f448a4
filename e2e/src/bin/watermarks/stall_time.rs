// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stall time without BPF: the kernel's own histograms over synthetic events, one for direct reclaim
//! and one for direct compaction. What bursar's BPF programs say is compared with these.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

const TRACEFS: &str = "/sys/kernel/tracing";

/// What one of the two came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StallTime {
    pub(crate) count: u64,
    pub(crate) total_us: u64,
}

impl StallTime {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            count: self.count.saturating_sub(before.count),
            total_us: self.total_us.saturating_sub(before.total_us),
        }
    }
}

fn write(path: &str, text: &str) -> Result<()> {
    let path = Path::new(TRACEFS).join(path);
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .append(true)
        .open(&path)
        .with_context(|| format!("open {path:?}"))?;
    io_write(&mut file, text).with_context(|| format!("write {text:?} to {path:?}"))
}

fn io_write(file: &mut fs::File, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    file.write_all(text.as_bytes())
}

/// Begins to measure. Attaches to four tracepoints: to be called before anything else runs.
pub(crate) fn begin() -> Result<()> {
    write("synthetic_events", "drl u64 lat\n")?;
    write("synthetic_events", "dcl u64 lat\n")?;
    let reclaim = "events/vmscan/mm_vmscan_direct_reclaim";
    let compact = "events/compaction/mm_compaction";
    write(
        &format!("{reclaim}_begin/trigger"),
        "hist:keys=common_pid:ts0=common_timestamp.usecs",
    )?;
    write(
        &format!("{reclaim}_end/trigger"),
        "hist:keys=common_pid:lat=common_timestamp.usecs-$ts0:onmatch(vmscan.mm_vmscan_direct_reclaim_begin).trace(drl,$lat)",
    )?;
    // kcompactd's own runs are no stalls.
    write(
        &format!("{compact}_begin/trigger"),
        "hist:keys=common_pid:ts1=common_timestamp.usecs if comm == \"watermarks\"",
    )?;
    write(
        &format!("{compact}_end/trigger"),
        "hist:keys=common_pid:lat=common_timestamp.usecs-$ts1:onmatch(compaction.mm_compaction_begin).trace(dcl,$lat) if comm == \"watermarks\"",
    )?;
    for event in ["drl", "dcl"] {
        write(
            &format!("events/synthetic/{event}/trigger"),
            "hist:keys=lat.log2:vals=hitcount,lat:sort=lat",
        )?;
    }
    Ok(())
}

/// Reclaim and compaction so far.
pub(crate) fn read() -> Result<(StallTime, StallTime)> {
    let one = |event: &str| -> Result<StallTime> {
        let path = format!("{TRACEFS}/events/synthetic/{event}/hist");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        Ok(parse(&text))
    };
    Ok((one("drl")?, one("dcl")?))
}

/// Adds up the lines `{ lat: ~ 2^12 } hitcount: 5  lat: 20000`.
fn parse(text: &str) -> StallTime {
    let mut sum = StallTime::default();
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let Some((_, rest)) = line.split_once("hitcount:") else {
            continue;
        };
        let mut words = rest.split_whitespace();
        let count = words.next().and_then(|it| it.parse::<u64>().ok());
        let total = words.nth(1).and_then(|it| it.parse::<u64>().ok());
        sum.count += count.unwrap_or(0);
        sum.total_us += total.unwrap_or(0);
    }
    sum
}
