// SPDX-License-Identifier: Apache-2.0 OR MIT
//! tmalloc beside other mallocs.

use crate::table::malloc::{Mallocs, Row};

use super::Grid;

/// Time, the clock's where it differs by more than the CPU's does, and resident memory.
pub(crate) fn malloc(table: &Mallocs) -> Vec<Grid> {
    let names: Vec<&str> = table.patterns.first().map_or_else(Vec::new, |first| {
        first.rows.iter().map(|it| it.contender.as_str()).collect()
    });
    let titled = |first: &str| {
        let mut head = vec!["pattern", first];
        head.extend(&names);
        Grid::new(&head)
    };
    let mut time = titled("glibc, ms");
    let mut resident = titled("glibc, MiB");
    for pattern in &table.patterns {
        let row = |first: String, cell: fn(&Row) -> String| {
            let mut cells = vec![pattern.about.clone(), first];
            cells.extend(pattern.rows.iter().map(cell));
            cells
        };
        time.row(row(format!("{:.0}", pattern.glibc_ms), |it| {
            let cpu = it.cpu.to_text(2);
            // What is waited for is no processor time.
            if it.clock.value > it.cpu.value + 0.05 {
                format!("{cpu}, clock {:.2}", it.clock.value)
            } else {
                cpu
            }
        }));
        let glibc = pattern.rows.first().map_or(f64::NAN, |it| it.glibc_end_kib);
        let peak = pattern
            .rows
            .first()
            .map_or(f64::NAN, |it| it.glibc_peak_kib);
        resident.row(row(mebibytes(glibc, peak), |it| {
            mebibytes(it.end_kib, it.peak_kib)
        }));
    }
    vec![time, resident]
}

/// At the end, and at most.
fn mebibytes(end_kib: f64, peak_kib: f64) -> String {
    format!("{:.0} ({:.0})", end_kib / 1024.0, peak_kib / 1024.0)
}
