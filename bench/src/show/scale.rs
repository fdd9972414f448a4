// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What grows with the machine.

use crate::table::scale::Scale;

use super::Grid;

pub(crate) fn scale(table: &Scale) -> Vec<Grid> {
    let mut grid = Grid::new(&[
        "processes",
        "accounts",
        "timer's re-sum: median µs",
        "max",
        "all at once: median µs",
        "max",
        "processes met",
        "search and kill: median µs",
        "max",
        "processes weighed",
        "an event takes, ns",
        "remarks",
    ]);
    for row in &table.rows {
        let (resum, whole, search) = (
            row.resum.unwrap_or_default(),
            row.whole.unwrap_or_default(),
            row.search.unwrap_or_default(),
        );
        grid.row(vec![
            row.processes.to_string(),
            row.accounts.to_string(),
            format!("{:.0}", resum.median / 1e3),
            format!("{:.0}", resum.max / 1e3),
            format!("{:.0}", whole.median / 1e3),
            format!("{:.0}", whole.max / 1e3),
            row.met.to_string(),
            format!("{:.0}", search.median / 1e3),
            format!("{:.0}", search.max / 1e3),
            row.weighed.to_string(),
            row.event_ns
                .map_or_else(String::new, |it| format!("{it:.0}")),
            row.cannot
                .as_ref()
                .map_or_else(String::new, |why| format!("cannot: {why}")),
        ]);
    }
    let mut memory = Grid::new(&["accounts with limits", "bursard resident MiB", "maps MiB"]);
    for row in &table.memory {
        let mebibytes = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
        memory.row(vec![
            row.accounts.to_string(),
            mebibytes(row.bursard_bytes),
            mebibytes(row.maps_bytes),
        ]);
    }
    vec![grid, memory]
}
