// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report as a page of its own: no other file, no script, nothing from elsewhere.

use super::markup::escaped;
use super::{programs, sentences, svg, told_before};
use crate::clock::Clock;
use crate::report::{Account, Report};
use crate::style::{Charset, Paint, Style};
use crate::view::words::narrow_size;

/// Accounts in the table.
const MOST: usize = 100;

/// Nothing is loaded and nothing runs, whatever stands in it.
const HEAD: &str = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>bursar report</title><style>
:root { color-scheme: light dark; --text: #1b1f24; --back: #fff; --faint: #59636e; --line: #d1d9e0;
  --held: #4a86c8; --killed: #b3261e; --refused: #e0a030; --limit: #59636e; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --back: #0f1419; --faint: #9198a1; --line: #3d444d;
  --held: #5b9bd9; --killed: #ff7b72; --refused: #d29922; --limit: #9198a1; } }
@media print { :root { --text: #000; --back: #fff; } figure, tr { break-inside: avoid; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } figure { margin: 1.5rem 0; } figcaption { color: var(--faint); }
svg { width: 100%; height: auto; shape-rendering: crispEdges; } svg text { font: 12px system-ui, sans-serif; fill: var(--faint); }
.axis { stroke: var(--line); } .held { fill: var(--held); } .killed { fill: var(--killed); }
.refused { fill: var(--refused); } .limit { stroke: var(--limit); stroke-dasharray: 5 4; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: left; }
td:last-child { white-space: normal; overflow-wrap: anywhere; } .bad { color: var(--killed); font-weight: 600; }
</style></head><body>
";

/// As long as it takes, without colours of a terminal.
const STYLE: Style = Style {
    width: None,
    charset: Charset::Unicode,
    paint: Paint::Plain,
};

/// The page.
pub(crate) fn html(report: &Report, clock: &Clock) -> String {
    let [since, until] =
        [&report.since, &report.until].map(|it| escaped(&clock.local_of(it, "%Y-%m-%d %H:%M %Z")));
    let mut page = HEAD.to_owned();
    page.push_str(&format!("<h1>Memory of users, {since} to {until}</h1>\n"));
    if report.accounts.is_empty() {
        page.push_str(
            "<p>Nothing is kept of this time: nobody held anything, or bursard did not run.</p>\n",
        );
    }
    for sentence in sentences(report, clock, &STYLE) {
        page.push_str(&format!("<p>{}</p>\n", escaped(&sentence)));
    }
    page.push_str(&svg::held(report, clock));
    page.push_str(&svg::met(report, clock));
    page.push_str(&svg::people(report));
    page.push_str(&table(report, clock));
    page.push_str("</body></html>\n");
    page
}

fn table(report: &Report, clock: &Clock) -> String {
    let heads = [
        "Account",
        "Kills",
        "Refused",
        "Notices",
        "Told before",
        "Most",
        "Mean",
        "Limit",
        "Last kill",
        "Programs killed",
    ];
    let heads: String = heads
        .iter()
        .map(|it| format!("<th scope=\"col\">{it}</th>"))
        .collect();
    let rows: String = report
        .accounts
        .iter()
        .take(MOST)
        .map(|it| row(it, clock))
        .collect();
    let others = report.accounts.len().saturating_sub(MOST);
    let note = match others {
        0 => String::new(),
        others => format!("<p>{others} more accounts: bursar report --csv has all.</p>\n"),
    };
    format!(
        "<div class=\"wide\"><table><thead><tr>{heads}</tr></thead>\n<tbody>{rows}</tbody></table></div>\n{note}"
    )
}

fn row(account: &Account, clock: &Clock) -> String {
    let last = account
        .last_kill_time
        .as_ref()
        .map(|it| clock.local_of(it, "%Y-%m-%d %H:%M"));
    let kills = match account.kills {
        0 => "<td>0</td>".to_owned(),
        kills => format!("<td class=\"bad\">{kills}</td>"),
    };
    let cells = [
        account.refusals.to_string(),
        account.notices.to_string(),
        told_before(account),
        narrow_size(account.max),
        narrow_size(account.mean),
        account.limit.map_or_else(|| "none".to_owned(), narrow_size),
        last.unwrap_or_default(),
        programs(account, &STYLE),
    ];
    let cells: String = cells
        .iter()
        .map(|it| format!("<td>{}</td>", escaped(it)))
        .collect();
    format!(
        "<tr><td>{}</td>{kills}{cells}</tr>\n",
        escaped(&STYLE.shown(&account.account))
    )
}
