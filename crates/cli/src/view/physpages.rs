// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which part of the mapped pages each account has.

use std::time::Duration;

use bursar_model::Bytes;
use bursar_protocol::{PARTS_OF_A_PAGE, Physpages, PhyspagesRow};

use crate::command::physpages::Rule;
use crate::style::Style;
use crate::view::table::{Align, Cell, Table};
use crate::view::words::narrow_size;

/// The accounts, the largest part first, what no account pays for, and what was not seen.
pub(crate) fn physpages(found: &Physpages, rule: Rule, style: &Style) -> String {
    let parts = |row: &PhyspagesRow| match rule {
        Rule::Exact => row.exact_parts,
        Rule::Shift => row.shift_parts,
    };
    let page = found.page_bytes.get();
    let mut table = Table::new(&[
        ("ACCOUNT", Align::Left),
        ("PROCESSES", Align::Right),
        ("PHYSPAGES", Align::Right),
        ("SIZE", Align::Right),
        ("OWN", Align::Right),
        ("RESIDENT", Align::Right),
    ]);
    let mut rows: Vec<&PhyspagesRow> = found.accounts.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(parts(row)));
    for row in rows.into_iter().chain(&found.unaccounted) {
        let size = |pages: u64| narrow_size(Bytes::new(pages.saturating_mul(page)));
        table.push(vec![
            Cell::new(style.shown(&row.account)),
            Cell::new(row.processes.to_string()),
            Cell::new(pages(parts(row))),
            Cell::new(size(parts(row).div_ceil(PARTS_OF_A_PAGE))),
            Cell::new(size(row.own_pages)),
            Cell::new(size(row.resident_pages)),
        ]);
    }
    let mut text = table.lines(2, style);
    let millis = |nanos: u64| Duration::from_nanos(nanos).as_millis();
    if let Some(machine) = &found.machine {
        text.push_str(&format!(
            "\n{} pages are mapped, {} of them more than once; counted in {} ms ({} ms of work)\n",
            machine.mapped_pages,
            machine.shared_pages,
            millis(found.took_ns),
            millis(found.work_ns),
        ));
        let facts = [
            (
                u64::from(machine.vanished),
                "processes ended while they were looked at",
            ),
            (
                u64::from(machine.refused),
                "processes could not be examined: their pages are missing",
            ),
            (
                machine.crowded_pages,
                "pages count whole for more than one account: too many are shared",
            ),
            (
                machine.unseen_pages,
                "pages were not looked at one by one and count whole",
            ),
            (machine.moved_pages, "pages changed hands meanwhile"),
        ];
        for (count, what) in facts.iter().filter(|(count, _)| *count > 0) {
            text.push_str(&format!("{count} {what}\n"));
        }
        if machine.nobodys_unknown {
            text.push_str("the zero page counts, for the kernel does not tell it apart\n");
        }
    } else {
        text.push_str(&format!(
            "\ncounted {} s ago\n",
            found.age_ns / 1_000_000_000
        ));
    }
    text
}

/// Pages with two decimals: what is shared is a fraction.
fn pages(parts: u64) -> String {
    let hundredths = u128::from(parts) * 100 / u128::from(PARTS_OF_A_PAGE);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use bursar_model::Uid;
    use bursar_protocol::PhyspagesMachine;
    use insta::assert_snapshot;

    use super::*;
    use crate::sample::style;

    fn row(account: &str, uid: Option<u32>, own: u64, thirds: u64, halves: u64) -> PhyspagesRow {
        let of_page = |parts: u64, of: u64| parts * PARTS_OF_A_PAGE / of;
        PhyspagesRow {
            account: account.to_owned(),
            uid: uid.map(Uid::new),
            processes: 3,
            resident_pages: own + 3 * thirds,
            own_pages: own,
            exact_parts: own * PARTS_OF_A_PAGE + of_page(thirds, 3),
            shift_parts: own * PARTS_OF_A_PAGE + of_page(halves, 4),
        }
    }

    fn found() -> Physpages {
        Physpages {
            age_ns: 0,
            took_ns: 123_000_000,
            work_ns: 31_000_000,
            page_bytes: Bytes::new(4096),
            accounts: vec![
                row("bob", Some(1002), 300, 100, 100),
                row("alice", Some(1001), 5000, 100, 200),
            ],
            unaccounted: Some(row("unaccounted", None, 900, 100, 100)),
            machine: Some(PhyspagesMachine {
                mapped_pages: 6300,
                shared_pages: 100,
                is_whole: true,
                processes: 9,
                vanished: 0,
                refused: 1,
                crowded_pages: 0,
                unseen_pages: 0,
                moved_pages: 0,
                nobodys_entries: 4,
                nobodys_unknown: false,
            }),
        }
    }

    #[test]
    fn a_page_of_three_accounts_is_a_third_for_each() {
        assert_snapshot!(physpages(&found(), Rule::Exact, &style(100)));
    }

    #[test]
    fn by_halves_one_of_three_has_a_half() {
        assert_snapshot!(physpages(&found(), Rule::Shift, &style(100)));
    }

    #[test]
    fn who_sees_himself_alone_is_told_how_old_it_is() {
        let mut found = found();
        found.accounts.remove(0);
        (found.machine, found.unaccounted) = (None, None);
        found.age_ns = 7_400_000_000;
        assert_snapshot!(physpages(&found, Rule::Exact, &style(100)));
    }
}
