// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Promises, and whether this run kept them.

use crate::report::claims as all;
use crate::results::Results;

use super::Grid;

pub(crate) fn claims(results: &Results) -> Grid {
    let mut grid = Grid::new(&["kept", "promise", "found"]).with_text_columns(3);
    for claim in all(results) {
        let kept = if claim.is_kept { "yes" } else { "NO" };
        grid.row(vec![kept.to_owned(), claim.promise, claim.found]);
    }
    grid
}
