// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's facts.

use crate::machine::Machine;

use super::Grid;

pub(crate) fn machine(machine: &Machine) -> Grid {
    let mut grid = Grid::new(&["machine", ""]).with_text_columns(2);
    for (name, value) in machine.lines() {
        grid.row(vec![name.to_owned(), value]);
    }
    grid
}
