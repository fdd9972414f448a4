// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What observing costs, as a grid.

use super::Grid;
use crate::table::observe::Observe;

pub(crate) fn observe(table: &Observe) -> Vec<Grid> {
    let mut grid = Grid::new(&[
        "accounts",
        "an event takes: median ns",
        "max",
        "timer's re-sum: median µs",
        "max",
    ]);
    for row in &table.rows {
        let (event, resum) = (row.event.unwrap_or_default(), row.resum.unwrap_or_default());
        grid.row(vec![
            row.what.clone(),
            format!("{:.0}", event.median),
            format!("{:.0}", event.max),
            format!("{:.0}", resum.median / 1e3),
            format!("{:.0}", resum.max / 1e3),
        ]);
    }
    vec![grid]
}
