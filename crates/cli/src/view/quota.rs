// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar quota`: an account to the one whose it is.

use bursar_model::{AccountKind, AccountStatus, Bytes, EventKind, Row};
use bursar_protocol::Quota;

use crate::clock::Clock;
use crate::style::Style;
use crate::view::bar::{bar, percent, tone};
use crate::view::event::event_line;
use crate::view::paragraph::paragraph;
use crate::view::status::memory;
use crate::view::words::count;

/// In place of what follows above the bounds.
const OBSERVED: &str = "These bounds are observed, not enforced: nothing is refused and nothing is killed. Your \
                        administrator sees what enforcing would do.";
/// Columns of the bar.
const BAR: usize = 30;

/// A few lines.
pub(crate) fn quota(quota: &Quota, clock: &Clock, style: &Style) -> String {
    let own = quota.account.as_ref();
    let mut text = own.map_or_else(
        || "no limit: bursar does not limit your memory\n".into(),
        |own| of_own(own, quota, clock, style),
    );
    for account in &quota.shared {
        text.push('\n');
        text.push_str(&of_shared(account, quota.barrier_refuses, style));
    }
    text.push_str(&recent(quota, clock, style));
    if let Some(hint) = &quota.hint {
        text.push('\n');
        text.push_str(&from_administrator(hint, style));
    }
    text
}

/// What the administrator wants users to read.
pub(crate) fn from_administrator(hint: &str, style: &Style) -> String {
    paragraph(
        "",
        &format!("From your administrator: {}", style.shown(hint)),
        style.width,
    )
}

/// The last kills and refusals, and what can be done about more of them.
fn recent(quota: &Quota, clock: &Clock, style: &Style) -> String {
    if quota.recent.is_empty() {
        return String::new();
    }
    let mut text = String::from("\nThe last kills and refusals:\n");
    for event in &quota.recent {
        text.push_str(&event_line(event, clock, style));
        text.push('\n');
    }
    let has = |kind| quota.recent.iter().any(|it| it.event == kind);
    let mut advice = Vec::new();
    if has(EventKind::Kill) {
        advice.push(
            "To be refused memory instead of being killed: bursar run --tmalloc -- PROGRAM. To save work in time: \
             bursar run --on-notice COMMAND -- PROGRAM.",
        );
    }
    if has(EventKind::Refused) {
        advice.push("What was refused is granted again when your programs hold less: end some, or use less in each.");
    }
    if has(EventKind::NoVictim) {
        advice.push("Nothing could be killed: remove files in memory (bursar why names them), or end programs yourself.");
    }
    text.push_str(&paragraph("", &advice.join(" "), style.width));
    text
}

fn of_own(account: &AccountStatus, quota: &Quota, clock: &Clock, style: &Style) -> String {
    let row = memory(account);
    let name = style.shown(&account.account);
    let holder = match account.kind {
        AccountKind::Shared => format!("You and the others in the shared account {name} hold"),
        AccountKind::User | AccountKind::Group | AccountKind::Default => "You hold".into(),
    };
    let mut text = levels(&holder, account, &row, style);
    let sentences = [
        rules(account, &row, quota.barrier_refuses),
        history(account, &row),
        beancounters(account),
        why(quota, clock, style),
        exactness(quota),
    ];
    for sentence in sentences.iter().filter(|sentence| !sentence.is_empty()) {
        text.push_str(&paragraph("", sentence, style.width));
    }
    text
}

/// One that is entered: what others have done in it is theirs.
fn of_shared(account: &AccountStatus, barrier_refuses: bool, style: &Style) -> String {
    let row = memory(account);
    let name = style.shown(&account.account);
    let holder = format!("The shared account {name}, which you may enter or are in, holds");
    let mut text = levels(&holder, account, &row, style);
    let rules = rules(account, &row, barrier_refuses);
    if !rules.is_empty() {
        text.push_str(&paragraph("", &rules, style.width));
    }
    text
}

fn levels(holder: &str, account: &AccountStatus, row: &Row, style: &Style) -> String {
    let mut text = paragraph("", &held(holder, account, row), style.width);
    if row.limit.is_some() {
        let line = format!("{}  {}", bar(row, BAR, style.charset), percent(row));
        text.push_str(&style.toned(tone(row), &line));
        text.push('\n');
    }
    text
}

fn held(holder: &str, account: &AccountStatus, row: &Row) -> String {
    let processes = count(account.processes.into(), "process", "processes");
    match row.limit {
        None => format!("{holder} {} in {processes}; there is no limit.", row.held),
        Some(limit) if row.held > limit => {
            let over = row.held.saturating_sub(limit);
            format!(
                "{holder} {} in {processes}, {over} more than the limit of {limit}.",
                row.held
            )
        }
        Some(limit) => {
            let left = limit.saturating_sub(row.held);
            format!(
                "{holder} {} of {limit} in {processes}; {left} left.",
                row.held
            )
        }
    }
}

/// Beancounters that have a bound.
fn beancounters(account: &AccountStatus) -> String {
    let told = account
        .resources
        .beans
        .iter()
        .filter_map(|(resource, bean)| {
            let barrier = bean.barrier?;
            let held = bean.held.map_or_else(String::new, |it| format!("{it} of "));
            let so_far = match bean.failcnt {
                0 => "not yet".to_owned(),
                number => format!("so far {}", count(number, "time", "times")),
            };
            let name = resource.name();
            Some(match bean.mode.is_observed() {
                true => format!("{name}: {held}{barrier}; observed, not enforced."),
                false => format!("{name}: {held}{barrier}; more is refused ({so_far})."),
            })
        });
    told.collect::<Vec<_>>().join(" ")
}

/// Until when the limit is what it is, and why, where the administrator has said so.
fn why(quota: &Quota, clock: &Clock, style: &Style) -> String {
    let until = quota.until.map(|it| {
        let until = clock.coming(it);
        format!("This limit holds until {until}; then the one before holds again.")
    });
    let reason = quota.reason.as_ref();
    let reason = reason.map(|it| {
        format!(
            "The reason given for this limit: {}.",
            style.shown(it.as_str())
        )
    });
    let said: Vec<String> = until.into_iter().chain(reason).collect();
    said.join(" ")
}

fn rules(account: &AccountStatus, row: &Row, barrier_refuses: bool) -> String {
    if account.mode.is_observed() {
        return OBSERVED.to_owned();
    }
    let mut rules = Vec::new();
    if let Some(notice) = row.notice {
        rules.push(format!("Above {notice} you are told."));
    }
    if let Some(barrier) = row.barrier.filter(|_| barrier_refuses) {
        rules.push(format!("Requests beyond {barrier} are refused."));
    }
    if let Some(limit) = row.limit {
        rules.push(format!("Above {limit} the largest process is killed."));
    }
    rules.join(" ")
}

fn history(account: &AccountStatus, row: &Row) -> String {
    let refused = account
        .resources
        .beans
        .values()
        .fold(row.failcnt, |sum, it| sum.saturating_add(it.failcnt));
    let killed = match account.kills {
        0 => "nothing killed".into(),
        kills => {
            let killed = count(kills, "process", "processes");
            format!("{killed} killed (bursar why tells the last one's story)")
        }
    };
    let mut text = format!(
        "The most ever held: {}. So far: {}, {}, {killed}.",
        row.maxheld,
        count(account.notices, "notice", "notices"),
        count(refused.saturating_sub(account.kills), "refusal", "refusals"),
    );
    if account.dying > Bytes::ZERO {
        text.push_str(&format!(
            " {} of killed processes is not back yet.",
            account.dying
        ));
    }
    if account.unkillable > Bytes::ZERO {
        text.push_str(&format!(
            " {} of what is held is of killed processes that give nothing back.",
            account.unkillable
        ));
    }
    text
}

fn exactness(quota: &Quota) -> String {
    match quota.error_bound_bytes {
        Bytes::ZERO | Bytes::MAX => String::new(),
        bound => format!("What is held is right within {bound}."),
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::sample::{account, clock, kill, style, with_history};
    use crate::style::Charset;

    fn shown(account: Option<AccountStatus>, style: &Style) -> String {
        shown_with(account, Vec::new(), style)
    }

    fn shown_with(
        account: Option<AccountStatus>,
        shared: Vec<AccountStatus>,
        style: &Style,
    ) -> String {
        quota(
            &Quota {
                account,
                shared,
                error_bound_bytes: Bytes::new(512 << 10),
                barrier_refuses: false,
                recent: Vec::new(),
                hint: None,
                reason: None,
                until: None,
            },
            &clock(),
            style,
        )
    }

    #[test]
    fn an_account_is_told_to_its_owner() {
        let shared = with_history(account("=render", 0, 7900, Some(8 << 10)), 3, 1);
        let mut over = with_history(account("alice", 1000, 520, Some(512)), 12, 2);
        over.processes = 1;
        over.dying = Bytes::from_mib(301);
        let accounts = [
            Some(account("alice", 1000, 410, Some(512))),
            Some(over),
            Some(shared),
            Some(account("bob", 1001, 90, None)),
            None,
        ];
        let texts = accounts.map(|account| shown(account, &style(80)));
        assert_snapshot!(texts.join("---\n"));
    }

    #[test]
    fn what_is_only_observed_is_said_in_place_of_what_would_follow() {
        let mut alice = account("alice", 1000, 410, Some(512));
        alice.mode = bursar_model::Mode::Observe;
        let text = shown(Some(alice), &style(200));
        assert!(text.contains(OBSERVED), "{text}");
        assert!(!text.contains("the largest process is killed"), "{text}");
    }

    #[test]
    fn shared_accounts_are_told_to_who_may_enter_them() {
        let lab = with_history(account("=lab", 0, 7900, Some(8 << 10)), 3, 1);
        let mut empty = account("=render", 0, 0, None);
        empty.processes = 0;
        let own = account("alice", 1000, 410, Some(512));
        let without_limit = shown_with(None, vec![lab.clone()], &style(80));
        let told = shown_with(Some(own), vec![lab, empty], &style(80));
        let lines = without_limit.lines().skip(1);
        assert!(lines.eq(told.lines().skip(5).take(5)), "{without_limit}");
        assert_snapshot!(told);
    }

    #[test]
    fn the_last_kills_come_with_what_can_be_done_and_the_administrators_word() {
        let hint = "for larger jobs use sbatch";
        let told = quota(
            &Quota {
                account: Some(account("alice", 1000, 410, Some(512))),
                shared: Vec::new(),
                error_bound_bytes: Bytes::ZERO,
                barrier_refuses: false,
                recent: vec![kill("alice")],
                hint: Some(hint.into()),
                reason: Some("thesis".parse().unwrap()),
                until: Some("2027-01-01T08:00:00Z".parse().unwrap()),
            },
            &clock(),
            &style(80),
        );
        let (_, recent) = told.split_once("The last kills and refusals:\n").unwrap();
        assert!(
            recent.contains("kill           alice  python3[4242]"),
            "{told}"
        );
        assert!(recent.contains("bursar run --tmalloc"), "{told}");
        assert!(!recent.contains("What was refused"), "{told}");
        let in_one_line = told.split_whitespace().collect::<Vec<_>>().join(" ");
        for said in [
            "limit holds until 2027-01-01 ",
            "given for this limit: thesis.",
        ] {
            assert!(in_one_line.contains(said), "{told}");
        }
        let last = format!("\nFrom your administrator: {hint}\n");
        assert!(told.ends_with(&last), "{told}");
    }

    #[test]
    fn an_ascii_terminal_of_sixty_columns_gets_what_it_can_show() {
        let style = Style {
            charset: Charset::Ascii,
            ..style(60)
        };
        let text = shown(Some(account("alice", 1000, 410, Some(512))), &style);
        assert!(text.is_ascii(), "{text}");
        assert_snapshot!(text);
    }
}
