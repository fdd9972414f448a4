// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the gate's decision costs.

use crate::figures::Estimate;
use crate::table::gate::Gate;

use super::Grid;

pub(crate) fn gate(table: &Gate) -> Vec<Grid> {
    let mut grid = Grid::new(&[
        "calls",
        "of a user with",
        "plain, ns",
        "a hook that does nothing",
        "the decision, more than that",
        "both, more than plain",
    ])
    .with_text_columns(2);
    let estimate = |it: &Estimate| format!("{:.0} [{:.0} {:.0}]", it.value, it.low, it.high);
    for row in &table.rows {
        grid.row(vec![
            row.calls.clone(),
            row.user.clone(),
            format!("{:.0}", row.plain.median),
            format!("{:.0}", row.nothing.median),
            estimate(&row.decision),
            estimate(&row.whole),
        ]);
    }
    vec![grid]
}
