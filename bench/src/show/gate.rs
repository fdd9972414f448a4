// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the gate's decision costs.

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
    for row in &table.rows {
        grid.row(vec![
            row.calls.clone(),
            row.user.clone(),
            format!("{:.0}", row.plain.median),
            format!("{:.0}", row.nothing.median),
            row.decision.to_text(0),
            row.whole.to_text(0),
        ]);
    }
    vec![grid]
}
