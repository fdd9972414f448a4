// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel half costs with so many CPUs.

use crate::table::instructions::Instructions;

use super::Grid;

pub(crate) fn instructions(table: &Instructions) -> Vec<Grid> {
    let cpus = format!("{} CPUs possible", table.possible_cpus);
    let mut grid = Grid::new(&["once", &cpus, "÷ plain"]);
    let row_of = |what: &str| table.rows.iter().find(|row| row.what == what);
    for row in &table.rows {
        let (text, ratio) = match &row.spent {
            Ok(spent) => {
                let plain = row.beside.as_deref().and_then(row_of);
                let plain = plain.and_then(|it| it.spent.as_ref().ok());
                let ratio = plain.map_or_else(String::new, |plain| format!("{:.2}", spent / plain));
                (format!("{spent:.0}"), ratio)
            }
            Err(why) => (format!("cannot: {why}"), String::new()),
        };
        grid.row(vec![row.what.clone(), text, ratio]);
    }
    vec![grid]
}
