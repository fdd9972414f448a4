// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Over-commit: S1's Figure 9 as numbers.

use crate::table::overcommit::Overcommit;

use super::Grid;

fn mebibytes(bytes: f64) -> String {
    format!("{:.2}", bytes / f64::from(1 << 20))
}

/// One grid a case.
pub(crate) fn overcommit(table: &Overcommit) -> Vec<Grid> {
    let mut grid = Grid::new(&[
        "contender",
        "processes × limit",
        "kills",
        "over: mean MiB",
        "max",
        "deviation",
        "victims' peak RSS MiB",
        "crossing to end: mean ms",
        "max",
        "remarks",
    ])
    .with_text_columns(2);
    for contender in &table.contenders {
        if let Some(why) = &contender.cannot {
            let mut row = vec![contender.key.clone(), format!("cannot: {why}")];
            row.resize(10, String::new());
            grid.row(row);
        }
        for case in &contender.cases {
            let mut remarks = Vec::new();
            if case.capped > 0 {
                remarks.push(format!("{} at the cap", case.capped));
            }
            if case.survivors > 0 {
                remarks.push(format!("{} lived", case.survivors));
            }
            let over = case.over.unwrap_or_default();
            let death = case.to_death_ns.unwrap_or_default();
            grid.row(vec![
                contender.key.clone(),
                format!("{} × {} MiB", case.processes, case.limit_bytes >> 20),
                over.count.to_string(),
                mebibytes(over.mean),
                mebibytes(over.max),
                mebibytes(over.deviation),
                mebibytes(case.peak_rss.unwrap_or_default().mean),
                format!("{:.2}", death.mean / 1e6),
                format!("{:.2}", death.max / 1e6),
                remarks.join(", "),
            ]);
        }
    }
    vec![grid]
}
