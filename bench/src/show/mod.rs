// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same data for a terminal.

mod claims;
mod gate;
mod grid;
mod instructions;
mod machine;
mod malloc;
mod observe;
mod overcommit;
mod peers;
mod scale;
mod sections;
mod speed;
mod system;

pub(crate) use claims::claims;
pub(crate) use gate::gate;
pub(crate) use grid::Grid;
pub(crate) use instructions::instructions;
pub(crate) use machine::machine;
pub(crate) use malloc::malloc;
pub(crate) use observe::observe;
pub(crate) use overcommit::overcommit;
pub(crate) use peers::{peers, peers_in_lines};
pub(crate) use scale::scale;
pub(crate) use sections::sections;
pub(crate) use speed::speed;
pub(crate) use system::system;

/// Grids under a title, for a terminal.
pub(crate) fn titled(title: &str, grids: &[Grid]) -> String {
    let grids: Vec<String> = grids.iter().map(Grid::plain).collect();
    format!("{title}\n{}", grids.join("\n"))
}
