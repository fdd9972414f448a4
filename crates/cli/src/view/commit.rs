// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar status --commit`: what was promised.

use bursar_faults::overcommit::Overcommit;

use crate::style::Style;
use crate::view::table::{Align, Cell, Table};
use crate::view::words::narrow_size;

/// The accounts, the largest promise first, and what it means.
pub(crate) fn commit(found: &Overcommit, names: &dyn Fn(u32) -> String, style: &Style) -> String {
    let machine = &found.machine;
    let mut table = Table::new(&[
        ("ACCOUNT", Align::Left),
        ("PROCESSES", Align::Right),
        ("VIRTUAL", Align::Right),
        ("COMMITTED", Align::Right),
        ("RESIDENT", Align::Right),
        ("LOCKED", Align::Right),
    ]);
    let mut accounts: Vec<_> = found.accounts.iter().collect();
    accounts.sort_by_key(|(_, promise)| std::cmp::Reverse(promise.committed_bytes));
    for (uid, promise) in accounts {
        table.push(vec![
            Cell::new(style.shown(&names(*uid))),
            Cell::new(promise.processes.to_string()),
            Cell::new(narrow_size(promise.virtual_bytes)),
            Cell::new(narrow_size(promise.committed_bytes)),
            Cell::new(narrow_size(promise.resident_bytes)),
            Cell::new(narrow_size(promise.locked_bytes)),
        ]);
    }
    let mut text = format!(
        "RAM {}, swap {}; promised {}, limit of promises {}\n\n{}\n{}\n",
        machine.ram_bytes,
        machine.swap_bytes,
        machine.committed_bytes,
        machine.commit_limit_bytes,
        table.lines(2, style),
        found.meaning
    );
    for advice in &found.advice {
        text.push_str(&format!("- {advice}\n"));
    }
    text
}
