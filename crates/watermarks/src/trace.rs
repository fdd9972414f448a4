// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Samples as lines of JSON, so that a forecast can be judged again later by what then happened: one
//! array of numbers a line, `[at_ns, scale, counters[13], holdings[4], zones[[node, free, min, low,
//! high, managed, blocks…]]]`.

use std::io::{self, BufRead, Write};

use bursar_model::Nanos;
use bursar_policy::watermarks::{Counters, Holdings, Sample, Zone};
use serde::{Deserialize, Serialize};

/// A line with more zones than this is no sample.
const MAX_ZONES: usize = 6 * 1024;

#[derive(Serialize, Deserialize)]
struct Line(u64, u32, [i64; 13], [u64; 4], Vec<Vec<u64>>);

/// Writes one sample.
///
/// # Errors
/// When it cannot be written.
pub fn write(out: &mut impl Write, sample: &Sample) -> io::Result<()> {
    let counters = &sample.counters;
    let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let zones = sample.zones.iter().map(|zone| {
        let mut numbers = vec![
            u64::from(zone.node),
            zone.free,
            zone.min,
            zone.low,
            zone.high,
            zone.managed,
        ];
        let last = zone.blocks.iter().rposition(|&count| count > 0);
        numbers.extend(zone.blocks.iter().take(last.map_or(0, |last| last + 1)));
        numbers
    });
    let line = Line(
        sample.at.get(),
        sample.scale,
        [
            whole(counters.steal_kswapd),
            whole(counters.steal_direct),
            whole(counters.steal_other),
            whole(counters.scan_kswapd),
            whole(counters.alloc_stalls),
            whole(counters.compact_stalls),
            whole(counters.thp_fallbacks),
            whole(counters.thp_faults),
            whole(counters.refaults),
            counters.stall_ns.map_or(-1, whole),
            whole(counters.kswapd_runs),
            sample.reaction_ns.map_or(-1, whole),
            sample.prefree_rate.map_or(-1, whole),
        ],
        [
            sample.holdings.file,
            sample.holdings.anon,
            sample.holdings.slab_reclaimable,
            sample.holdings.swap_free,
        ],
        zones.collect(),
    );
    serde_json::to_writer(&mut *out, &line)?;
    out.write_all(b"\n")
}

/// Reads all samples of a trace.
///
/// # Errors
/// When it cannot be read, or a line is no sample: the error names the line.
pub fn read(input: impl BufRead) -> io::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for (index, line) in input.lines().enumerate() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let wrong = |why: String| {
            let number = index.saturating_add(1);
            io::Error::new(io::ErrorKind::InvalidData, format!("line {number}: {why}"))
        };
        let line: Line = serde_json::from_str(&line).map_err(|error| wrong(error.to_string()))?;
        samples.push(sample(&line).ok_or_else(|| wrong("no sample".to_owned()))?);
    }
    Ok(samples)
}

fn sample(line: &Line) -> Option<Sample> {
    let Line(at, scale, counters, holdings, zones) = line;
    if zones.len() > MAX_ZONES {
        return None;
    }
    let count = |index: usize| counters.get(index).and_then(|&it| u64::try_from(it).ok());
    let [file, anon, slab_reclaimable, swap_free] = *holdings;
    let zones: Option<Vec<Zone>> = zones
        .iter()
        .map(|numbers| {
            let mut numbers = numbers.iter().copied();
            let mut zone = Zone {
                node: u16::try_from(numbers.next()?).ok()?,
                free: numbers.next()?,
                min: numbers.next()?,
                low: numbers.next()?,
                high: numbers.next()?,
                managed: numbers.next()?,
                ..Zone::default()
            };
            for (room, count) in zone.blocks.iter_mut().zip(numbers) {
                *room = count;
            }
            Some(zone)
        })
        .collect();
    Some(Sample {
        at: Nanos::new(*at),
        scale: *scale,
        counters: Counters {
            steal_kswapd: count(0)?,
            steal_direct: count(1)?,
            steal_other: count(2)?,
            scan_kswapd: count(3)?,
            alloc_stalls: count(4)?,
            compact_stalls: count(5)?,
            thp_fallbacks: count(6)?,
            thp_faults: count(7)?,
            refaults: count(8)?,
            stall_ns: count(9),
            kswapd_runs: count(10)?,
        },
        reaction_ns: count(11),
        prefree_rate: count(12),
        holdings: Holdings {
            file,
            anon,
            slab_reclaimable,
            swap_free,
        },
        zones: zones?,
    })
}
