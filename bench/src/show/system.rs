// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the rest of the system notices: S5's Tables 2 and 3.

use crate::figures::Estimate;
use crate::table::system::System;

use super::Grid;

fn percent(it: Estimate) -> String {
    format!(
        "{:.1} % [{:.1} {:.1}]",
        it.value * 100.0,
        it.low * 100.0,
        it.high * 100.0
    )
}

pub(crate) fn system(table: &System) -> Vec<Grid> {
    let mut grid = Grid::new(&[
        "test",
        "plain, times a CPU second",
        "bursard runs, no limit",
        "with a limit",
        "plain, again",
    ]);
    for row in &table.rows {
        grid.row(vec![
            row.test.clone(),
            format!("{:.0}", row.plain.median),
            percent(row.unlimited),
            percent(row.limited),
            percent(row.noise),
        ]);
    }
    vec![grid]
}
