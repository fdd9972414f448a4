// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Peers: what each can do.

use crate::table::peers::Peers;

use super::Grid;

/// For Markdown and the page: one wide table.
pub(crate) fn peers(table: &Peers) -> Vec<Grid> {
    let mut grid = Grid::new(&[
        "package",
        "watches",
        "kills",
        "about one user at a limit",
        "run here",
    ])
    .with_text_columns(5);
    for peer in &table.rows {
        grid.row(vec![
            format!("{} (read: {})", peer.package, peer.read),
            peer.watches.clone(),
            peer.kills.clone(),
            peer.one_user.clone(),
            format!("cannot: {}", peer.cannot),
        ]);
    }
    vec![grid]
}

/// For a terminal, where five sentences do not fit beside each other.
pub(crate) fn peers_in_lines(table: &Peers) -> String {
    let mut text = String::new();
    for peer in &table.rows {
        text += &format!(
            "  {} (read: {})\n    watches   {}\n    kills     {}\n    one user  {}\n    run here  cannot: {}\n",
            peer.package, peer.read, peer.watches, peer.kills, peer.one_user, peer.cannot
        );
    }
    text
}
