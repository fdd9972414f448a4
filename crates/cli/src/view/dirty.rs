// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty page cache by account.

use bursar_protocol::{DirtyKnown, DirtyReport};

use crate::style::Style;
use crate::view::table::{Align, Cell, Table};
use crate::view::words::narrow_size;

/// The accounts, who has most first, and how it is known.
pub(crate) fn dirty(report: &DirtyReport, style: &Style) -> String {
    let mut table = Table::new(&[
        ("ACCOUNT", Align::Left),
        ("DIRTY", Align::Right),
        ("DIRTIED", Align::Right),
        ("WRITTEN", Align::Right),
        ("CANCELLED", Align::Right),
    ]);
    let mut rows: Vec<_> = report.accounts.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.dirty_bytes, row.dirtied_bytes)));
    for row in rows {
        let known = |bytes| match report.known {
            DirtyKnown::Exact => narrow_size(bytes),
            DirtyKnown::Cumulative => "-".to_owned(),
        };
        table.push(vec![
            Cell::new(style.shown(&row.account)),
            Cell::new(row.dirty_bytes.map_or_else(|| "-".to_owned(), narrow_size)),
            Cell::new(narrow_size(row.dirtied_bytes)),
            Cell::new(known(row.written_bytes)),
            Cell::new(known(row.cancelled_bytes)),
        ]);
    }
    let mut text = table.lines(2, style);
    text.push_str(&format!(
        "\n{} are dirty on this machine; counted since somebody first asked\n",
        report.machine_dirty_bytes
    ));
    if report.known == DirtyKnown::Cumulative {
        text.push_str(
            "this kernel lets nobody see when pages become clean: what is dirty now is not known\n",
        );
    }
    let lost = report.folios_lost.saturating_add(report.payers_lost);
    if lost > 0 {
        text.push_str(&format!("{lost} pages did not fit and are nobody's\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use bursar_model::{Bytes, Uid};
    use bursar_protocol::DirtyRow;
    use insta::assert_snapshot;

    use super::*;
    use crate::sample::style;

    fn report(known: DirtyKnown) -> DirtyReport {
        let row = |account: &str, uid: Option<u32>, dirty: u64, dirtied: u64| DirtyRow {
            account: account.to_owned(),
            uid: uid.map(Uid::new),
            dirty_bytes: (known == DirtyKnown::Exact).then(|| Bytes::from_mib(dirty)),
            dirtied_bytes: Bytes::from_mib(dirtied),
            written_bytes: Bytes::from_mib(dirtied - dirty),
            cancelled_bytes: Bytes::ZERO,
        };
        DirtyReport {
            known,
            accounts: vec![
                row("kernel", None, 0, 1),
                row("alice", Some(1001), 8, 40),
                row("=render", None, 120, 900),
            ],
            machine_dirty_bytes: Bytes::from_mib(130),
            folios_lost: 0,
            payers_lost: 0,
            forgotten: 0,
        }
    }

    #[test]
    fn who_has_most_to_be_written_is_first() {
        assert_snapshot!(dirty(&report(DirtyKnown::Exact), &style(100)));
    }

    #[test]
    fn what_cannot_be_known_is_not_made_up() {
        assert_snapshot!(dirty(&report(DirtyKnown::Cumulative), &style(100)));
    }
}
