// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar report`, for people.

mod csv;
mod html;
mod markup;
mod svg;

use crate::clock::Clock;
use crate::report::{Account, Part, Report, Suggestion};
use crate::style::{Style, Tone};
use crate::view::paragraph::paragraph;
use crate::view::table::{Align, Cell, Table, cut};
use crate::view::words::{count, listed, narrow_count, narrow_size};

pub(crate) use csv::csv;
pub(crate) use html::html;

/// Accounts in the table.
const MOST: usize = 20;
/// Names in a sentence.
const NAMED: usize = 8;
/// The least that is shown of programs, columns.
const PROGRAMS: usize = 12;

/// A table and some sentences.
pub(crate) fn report(report: &Report, clock: &Clock, style: &Style) -> String {
    let since = clock.local_of(&report.since, "%Y-%m-%d %H:%M");
    if report.accounts.is_empty() {
        return paragraph(
            "",
            &format!("nothing is kept since {since}: nobody held anything, or bursard did not run"),
            style.width,
        );
    }
    let held = count(
        report.accounts.len() as u64,
        "account held",
        "accounts held",
    );
    let mut text = paragraph("", &format!("Since {since} {held} anything."), style.width);
    text.push('\n');
    text.push_str(&table(report, clock, style));
    text.push('\n');
    let others = report.accounts.len().saturating_sub(MOST) as u64;
    if others > 0 {
        let others = count(others, "other account", "other accounts");
        let note = format!("{others} (--csv and --json have all).");
        text.push_str(&paragraph("", &note, style.width));
    }
    for sentence in sentences(report, clock, style) {
        text.push_str(&paragraph("", &sentence, style.width));
    }
    text
}

/// As `python3 ×2, R`.
fn programs(account: &Account, style: &Style) -> String {
    let named = account.programs.iter().map(|it| {
        let comm = style.shown(&it.comm);
        match it.kills {
            1 => comm,
            kills => format!("{comm} x{kills}"),
        }
    });
    named.collect::<Vec<_>>().join(", ")
}

/// Kills before which there was a notice, of those of which an event is kept.
fn told_before(account: &Account) -> String {
    match account.kills_kept {
        0 => "-".to_owned(),
        kept => format!(
            "{}/{}",
            narrow_count(account.kills_told_before),
            narrow_count(kept)
        ),
    }
}

fn table(report: &Report, clock: &Clock, style: &Style) -> String {
    let has_would = report.accounts.iter().any(|it| it.would_kills > 0);
    let heads = [
        ("ACCOUNT", Align::Left),
        ("KILLS", Align::Right),
        ("WOULD KILL", Align::Right),
        ("REFUSED", Align::Right),
        ("NOTICES", Align::Right),
        ("WARNED", Align::Right),
        ("MOST", Align::Right),
        ("LIMIT", Align::Right),
        ("LAST KILL", Align::Left),
    ];
    // A column for what nobody has is left out.
    let heads: Vec<_> = heads
        .into_iter()
        .filter(|(head, _)| has_would || *head != "WOULD KILL")
        .collect();
    let row = |account: &Account| {
        let tone = (account.kills > 0).then_some(Tone::Bad);
        let last = account
            .last_kill_time
            .as_ref()
            .map(|it| clock.local_of(it, "%m-%d %H:%M"));
        let mut cells = vec![
            Cell::new(cut(&style.shown(&account.account), 16, style)),
            Cell::toned(narrow_count(account.kills), tone),
        ];
        cells.extend(has_would.then(|| Cell::new(narrow_count(account.would_kills))));
        cells.extend([
            Cell::new(narrow_count(account.refusals)),
            Cell::new(narrow_count(account.notices)),
            Cell::new(told_before(account)),
            Cell::new(narrow_size(account.max)),
            Cell::new(account.limit.map_or_else(|| "none".to_owned(), narrow_size)),
            Cell::new(last.unwrap_or_default()),
        ]);
        cells
    };
    let shown = || report.accounts.iter().take(MOST);
    let mut plain = Table::new(&heads);
    shown().for_each(|it| plain.push(row(it)));
    let room = style.width.map_or(usize::MAX, |width| {
        width.saturating_sub(plain.width(2).saturating_add(2))
    });
    if room < PROGRAMS {
        return plain.lines(2, style);
    }
    let heads: Vec<_> = heads
        .into_iter()
        .chain([("PROGRAMS", Align::Left)])
        .collect();
    let mut whole = Table::new(&heads);
    for account in shown() {
        let mut cells = row(account);
        cells.push(Cell::new(cut(&programs(account, style), room, style)));
        whole.push(cells);
    }
    whole.lines(2, style)
}

fn sentences(report: &Report, clock: &Clock, style: &Style) -> Vec<String> {
    let mut sentences = Vec::new();
    let would: u64 = report
        .accounts
        .iter()
        .fold(0, |sum, it| sum.saturating_add(it.would_kills));
    if would > 0 {
        let would = count(would, "process", "processes");
        sentences.push(format!(
            "Enforcing would have killed {would} of accounts that are only observed."
        ));
    }
    if !report.never_near.is_empty() {
        let mut names: Vec<String> = report
            .never_near
            .iter()
            .take(NAMED)
            .map(|it| style.shown(it))
            .collect();
        let more = report.never_near.len().saturating_sub(names.len());
        if more > 0 {
            names.push(format!("{more} others"));
        }
        sentences.push(format!(
            "Never held more than half of the limit: {}.",
            listed(&names)
        ));
    }
    sentences.extend(report.busiest.as_ref().map(|it| busiest(it, report, clock)));
    sentences.extend(report.most_kills.as_ref().map(|it| {
        let killed = count(it.kills, "process", "processes");
        format!(
            "Most kills: {killed} from {}.",
            clock.local_of(&it.time, "%Y-%m-%d %H:%M")
        )
    }));
    let same = |one: &Suggestion, other: &Suggestion| {
        (one.limit, one.users_within) == (other.limit, other.users_within)
    };
    let is_last = |it: &&Suggestion| {
        !report
            .suggestions
            .iter()
            .any(|other| other.percent > it.percent && same(it, other))
    };
    sentences.extend(report.suggestions.iter().filter(is_last).map(suggested));
    sentences
}

fn busiest(part: &Part, report: &Report, clock: &Clock) -> String {
    let what = if report.part_seconds > 3600 {
        "day"
    } else {
        "hour"
    };
    format!(
        "Busiest {what}: from {}, {} held on average.",
        clock.local_of(&part.time, "%Y-%m-%d %H:%M"),
        part.mean
    )
}

/// What is suggested, and why.
fn suggested(suggestion: &Suggestion) -> String {
    let Suggestion {
        percent,
        limit,
        users_within,
        users,
        most,
        users_at_limit,
    } = suggestion;
    let size = narrow_size(*limit);
    let all = count(*users, "user", "users");
    let mut text = format!(
        "A limit of {size} would have left {percent} % of users alone: {users_within} of {all} never held more than \
         {most}, and the notice at 90 % is above that."
    );
    if *users_at_limit > 0 {
        text.push_str(&format!(
            " {users_at_limit} of them met a limit, so they may need more."
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use unicode_width::UnicodeWidthStr;

    use super::*;
    use crate::report::tests::sample;
    use crate::sample::{clock, style};

    #[test]
    fn a_day_is_summed_up() {
        assert_snapshot!(report(&sample(), &clock(), &style(100)));
    }

    #[test]
    fn what_enforcing_would_have_killed_has_a_column_where_there_is_such() {
        let mut observed = sample();
        observed.accounts[0].would_kills = 7;
        let text = report(&observed, &clock(), &style(120));
        assert!(text.contains("KILLS  WOULD KILL  REFUSED"), "{text}");
        let said = "Enforcing would have killed 7 processes of accounts that are only observed.";
        assert!(text.contains(said), "{text}");
    }

    #[test]
    fn programs_are_cut_or_left_out_where_there_is_no_room() {
        let text = report(&sample(), &clock(), &style(80));
        assert!(text.lines().all(|it| it.width() <= 80), "{text}");
        assert!(text.contains("python3 x2,…"), "{text}");
        let text = report(&sample(), &clock(), &style(70));
        assert!(text.lines().all(|it| it.width() <= 70), "{text}");
        assert!(
            !text.contains("PROGRAMS") && text.contains("=lab"),
            "{text}"
        );
    }

    #[test]
    fn csv_has_all_accounts_and_no_formulas() {
        assert_snapshot!(csv(&sample()));
    }

    #[test]
    fn the_page_has_no_markup_that_a_user_chose() {
        let page = html(&sample(), &clock());
        assert!(
            !page.contains("<script") && page.contains("&lt;script&gt;&quot;&amp;&#39;"),
            "{page}"
        );
        for part in [
            "<!doctype html>",
            "prefers-color-scheme: dark",
            "<svg",
            "alice",
            "default-src 'none'",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(
            !page.contains("http://") && !page.contains("https://"),
            "it needs no other file"
        );
    }
}
