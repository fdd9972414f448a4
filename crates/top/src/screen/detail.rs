// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The chosen account: what bursard says of it in full, its last hour, its beancounters, its events.

use bursar_model::{AccountKind, Bytes};
use bursar_text::paragraph::paragraph;
use bursar_text::words::count;
use ratatui::style::{Modifier, Style};

use super::columns::growth;
use super::{Pen, Rest, events, heading, usage};
use crate::top::wait;
use crate::{Account, Top};

/// Lines kept for events where there is room for more than that.
const EVENTS: u16 = 4;

pub(super) fn draw(top: &Top, pen: Pen, rest: &mut Rest<'_>) {
    let shown = top.shown();
    let Some(account) = shown.get(top.position(&shown)) else {
        rest.head("nobody is chosen", heading());
        return;
    };
    let name = pen.placed(account.name());
    let uid = account.status.uid;
    let uid = uid.map_or_else(String::new, |uid| format!(", uid {uid}"));
    let kind = match account.status.kind {
        AccountKind::User => "a limit of his own",
        AccountKind::Group => "by a limit for each member of a group",
        AccountKind::Shared => "shared",
        AccountKind::Default => "by the default limit",
    };
    rest.head(&format!("{name}{uid}, {kind}"), heading());
    let below = if rest.left.height > 2 * EVENTS {
        rest.bottom(EVENTS)
    } else {
        rest.bottom(0)
    };
    for fact in facts(account) {
        for line in paragraph("", &fact, Some(rest.width())).lines() {
            rest.say(line, Style::new());
        }
    }
    if let Some(series) = top.usage(account) {
        usage::draw(series, pen, rest);
    }
    match top.bill(account.name()) {
        None => rest.say(
            "asking for its beancounters ...",
            Style::new().add_modifier(Modifier::DIM),
        ),
        Some(bill) => {
            let fitting = usize::from(rest.left.height);
            let hidden = bill.lines.len().saturating_sub(fitting);
            let whole = if hidden > 0 {
                fitting.saturating_sub(1)
            } else {
                fitting
            };
            for line in bill.lines.iter().take(whole) {
                rest.say(&pen.placed(line), Style::new());
            }
            if hidden > 0 {
                let more = hidden.saturating_add(1);
                rest.say(
                    &format!("and {more} more lines: bursar beancounters"),
                    Style::new(),
                );
            }
        }
    }
    let mut lower = rest.within(below);
    if below.height > 0 {
        events(top, pen, Some(account.name()), &mut lower);
    }
}

fn facts(account: &Account) -> Vec<String> {
    let row = account.memory();
    let status = &account.status;
    let bound = |bound: Option<Bytes>| bound.map_or_else(|| "none".to_owned(), |it| it.to_string());
    let mut facts = vec![
        format!(
            "holds {} in {}, at most {} so far; notice {}, barrier {}, limit {}",
            row.held,
            count(status.processes.into(), "process", "processes"),
            row.maxheld,
            bound(row.notice),
            bound(row.barrier),
            bound(row.limit)
        ),
        format!(
            "kills {} ({} since top began), refusals and breaches {} ({}), notices {} ({})",
            status.kills,
            account.new_kills(),
            row.failcnt,
            account.new_refusals(),
            status.notices,
            account.new_notices()
        ),
    ];
    if let Some(rate) = account.pace.rate().filter(|rate| *rate != 0) {
        let end = account.pace.time_to(row.limit);
        let end = end.map_or_else(String::new, |it| {
            format!("; at this rate its limit is reached in {}", wait(it))
        });
        facts.push(format!("growth {}{end}", growth(rate)));
    }
    let parts = [
        (
            status.dying,
            "of killed processes not back yet, not part of held",
        ),
        (
            status.unkillable,
            "of held: killed processes that give nothing back",
        ),
        (
            status.unmapped,
            "of held: files in memory that no process maps",
        ),
        (
            status.stuck,
            "of those would stay if all its processes were killed",
        ),
        (status.reserved, "granted in advance and not yet held"),
    ];
    for (bytes, what) in parts {
        if bytes > Bytes::ZERO {
            facts.push(format!("{bytes} {what}"));
        }
    }
    facts
}
