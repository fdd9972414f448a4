// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar status`: the state in words, a table of accounts, what else to know.

use bursar_model::{
    AccountStatus, BackendKind, Bytes, DaemonStatus, GateMode, KernelHalfStatus, Resource, Row, Who,
};
use bursar_top::Machine;

use crate::caller::Role;
use crate::style::{Style, Tone};
use crate::view::bar::{bar, percent, tone};
use crate::view::paragraph::paragraph;
use crate::view::table::{Align, Cell, Table, cut};
use crate::view::words::{count, listed, narrow_count, narrow_size, span};

/// Names of accounts that are only observed in a note.
const OBSERVED_NAMED: usize = 3;

/// `bursar status` for people.
pub(crate) fn status(
    status: &DaemonStatus,
    asked: Option<&Who>,
    role: Role,
    style: &Style,
) -> String {
    let mut text = state(status, style);
    text.push('\n');
    if status.accounts.is_empty() {
        text.push_str(&nobody(asked, role, style));
    } else {
        text.push_str(&accounts(&status.accounts, style));
    }
    let notes = notes(status, style);
    if !notes.is_empty() {
        text.push('\n');
    }
    for note in notes {
        text.push_str(&paragraph("note: ", &style.shown(&note), style.width));
    }
    text
}

/// The memory row; an account without one holds nothing.
pub(crate) fn memory(account: &AccountStatus) -> Row {
    account
        .resources
        .get(&Resource::Memory)
        .copied()
        .unwrap_or_default()
}

/// The machine's part of it, for a screen that is followed.
pub(crate) fn machine(status: &DaemonStatus, style: &Style) -> Machine {
    let (state, tone) = state_words(status);
    Machine {
        ram: status.ram_bytes,
        available: None,
        state,
        tone,
        notes: notes(status, style),
    }
}

/// Whether limits hold, by what, and how exactly.
fn state(status: &DaemonStatus, style: &Style) -> String {
    let (state, tone) = state_words(status);
    let lines = paragraph("", &state, style.width);
    lines
        .lines()
        .map(|line| style.toned(tone, line) + "\n")
        .collect()
}

fn state_words(status: &DaemonStatus) -> (String, Option<Tone>) {
    let half = &status.kernel_half;
    let (sentence, tone) = if status.dry_run {
        let sentence = "dry run: a scan of /proc every 200 ms says which processes it would kill, and kills none";
        (sentence, Some(Tone::Warning))
    } else {
        enforcement(half)
    };
    let bound = match (status.error_bound_bytes, tone) {
        // The trace pipe's is bounded by nothing; its sentence says that already.
        (Bytes::ZERO | Bytes::MAX, _) | (_, Some(Tone::Bad)) => String::new(),
        (bound, _) => format!("; held is exact to {bound}"),
    };
    let gate = match (half.attached, half.gate.mode) {
        (false, _) => "",
        (true, GateMode::Strict) => "; gate: strict",
        (true, GateMode::BestEffort) => "; gate: best effort",
        (true, GateMode::None) => "; gate: none",
    };
    (format!("{sentence}{bound}{gate}"), tone)
}

const fn enforcement(half: &KernelHalfStatus) -> (&'static str, Option<Tone>) {
    match (half.attached, half.event_trigger, half.timer, half.trigger) {
        (true, true, true, _) => ("kernel half attached, limits hold by event and timer", None),
        (true, true, false, _) => ("kernel half attached, limits hold by event", None),
        (true, false, true, _) => (
            "kernel half attached, limits hold by timer, every 200 ms",
            None,
        ),
        (true, false, false, _) => (
            "kernel half attached, limits hold only while bursard runs: it is told and decides",
            Some(Tone::Warning),
        ),
        (false, _, _, Some(BackendKind::Trace)) => (
            "no kernel half: limits hold only while bursard runs, by the trace pipe",
            Some(Tone::Warning),
        ),
        (false, _, _, Some(BackendKind::Poll)) => (
            "no kernel half: limits hold only while bursard runs, by a scan every 200 ms",
            Some(Tone::Warning),
        ),
        (false, _, _, Some(BackendKind::Bpf) | None) => {
            ("no kernel half: limits do not hold", Some(Tone::Bad))
        }
    }
}

fn nobody(asked: Option<&Who>, role: Role, style: &Style) -> String {
    if let Some(who) = asked {
        let who = style.shown(&who.to_string());
        return paragraph(
            "",
            &format!("no limit concerns {who}; see bursar limit show"),
            style.width,
        );
    }
    let advice = match role {
        Role::Root => {
            "nobody has a limit yet; set one: bursar limit set alice 8G (or, for every user, bursar \
             limit set default 25%)"
        }
        Role::User => "no limit concerns you",
    };
    paragraph("", advice, style.width)
}

/// What a table leaves out so that it fits. The first that fits is taken.
struct Plan {
    gap: usize,
    name: usize,
    bar: usize,
    percent: bool,
    processes: bool,
    max: bool,
    refused: bool,
}

/// Narrower and narrower; what is dropped last is what the table is for: who, how full, who died.
const PLANS: [Plan; 11] = [
    plan(2, 32, 30, true, 0),
    plan(2, 32, 20, true, 0),
    plan(2, 24, 18, true, 0),
    plan(2, 16, 16, true, 0),
    plan(2, 16, 12, true, 0),
    plan(2, 12, 10, true, 0),
    plan(2, 12, 8, false, 0),
    plan(1, 10, 8, false, 0),
    plan(1, 8, 6, false, 1),
    plan(1, 8, 6, false, 2),
    plan(1, 8, 0, false, 3),
];

const fn plan(gap: usize, name: usize, bar: usize, percent: bool, dropped: u8) -> Plan {
    Plan {
        gap,
        name,
        bar,
        percent,
        max: dropped < 1,
        refused: dropped < 2,
        processes: dropped < 3,
    }
}

fn accounts(accounts: &[AccountStatus], style: &Style) -> String {
    let mut sorted: Vec<&AccountStatus> = accounts.iter().collect();
    sorted.sort_by_cached_key(|account| std::cmp::Reverse(fullness(account)));
    let [widest, .., narrowest] = &PLANS;
    let Some(columns) = style.width else {
        return table(
            &sorted,
            &Plan {
                name: usize::MAX,
                bar: 20,
                ..*widest
            },
            style,
        )
        .lines(2, style);
    };
    let tables = PLANS.iter().map(|plan| (plan, table(&sorted, plan, style)));
    let fitting = tables
        .into_iter()
        .find(|(plan, table)| table.width(plan.gap) <= columns);
    let (plan, table) = fitting.unwrap_or_else(|| (narrowest, table(&sorted, narrowest, style)));
    table.lines(plan.gap, style)
}

/// The fullest first, those without a limit last. Names in reverse, because the order is reversed.
fn fullness(account: &AccountStatus) -> (bool, u128, Bytes, std::cmp::Reverse<String>) {
    let row = memory(account);
    let share = row
        .limit
        .map(|limit| (u128::from(row.held.get()) << 32) / u128::from(limit.get().max(1)));
    (
        share.is_some(),
        share.unwrap_or(0),
        row.held,
        std::cmp::Reverse(account.account.clone()),
    )
}

fn table(accounts: &[&AccountStatus], plan: &Plan, style: &Style) -> Table {
    let slash = if plan.gap > 1 { " / " } else { "/" };
    let held_of_limit = format!("HELD{slash}LIMIT");
    let mut heads = vec![("ACCOUNT", Align::Left)];
    heads.extend(plan.processes.then_some(("PROCS", Align::Right)));
    heads.push((&held_of_limit, Align::Right));
    heads.extend((plan.bar > 0).then_some(("", Align::Left)));
    heads.extend(plan.percent.then_some(("", Align::Right)));
    heads.extend(plan.max.then_some(("MAX", Align::Right)));
    heads.extend(plan.refused.then_some(("FAILCNT", Align::Right)));
    heads.push(("KILLS", Align::Right));
    let mut table = Table::new(&heads);
    let widest_limit = accounts
        .iter()
        .map(|account| limit(&memory(account)).len())
        .max()
        .unwrap_or(0);
    for account in accounts {
        let row = memory(account);
        let tone = tone(&row);
        let amounts = format!(
            "{}{slash}{:<widest_limit$}",
            narrow_size(row.held),
            limit(&row)
        );
        let mut cells = vec![Cell::new(cut(
            &style.shown(&account.account),
            plan.name,
            style,
        ))];
        cells.extend(
            plan.processes
                .then(|| Cell::new(narrow_count(account.processes.into()))),
        );
        cells.push(Cell::new(amounts));
        cells.extend((plan.bar > 0).then(|| Cell::toned(bar(&row, plan.bar, style.charset), tone)));
        cells.extend(plan.percent.then(|| Cell::toned(percent(&row), tone)));
        cells.extend(plan.max.then(|| Cell::new(narrow_size(row.maxheld))));
        cells.extend(plan.refused.then(|| Cell::new(narrow_count(row.failcnt))));
        cells.push(Cell::new(narrow_count(account.kills)));
        table.push(cells);
    }
    table
}

fn limit(row: &Row) -> String {
    row.limit.map_or_else(|| "none".into(), narrow_size)
}

/// `alice, bob and 3 more are observed, not enforced`.
fn observed_note(accounts: &[AccountStatus]) -> Option<String> {
    let all = accounts.iter().filter(|it| it.mode.is_observed());
    let names: Vec<String> = all.map(|it| it.account.clone()).collect();
    let more = names.len().saturating_sub(OBSERVED_NAMED);
    let told = match names.as_slice() {
        [] => return None,
        [only] => format!("{only} is"),
        names if more == 0 => format!("{} are", listed(names)),
        names => {
            let first = names.iter().take(OBSERVED_NAMED).cloned();
            let more = [format!("{more} more")];
            format!("{} are", listed(&first.chain(more).collect::<Vec<_>>()))
        }
    };
    Some(format!(
        "{told} observed, not enforced: events would_notice, would_refuse and would_kill tell what enforcing would do"
    ))
}

fn notes(status: &DaemonStatus, style: &Style) -> Vec<String> {
    let mut notes: Vec<String> = observed_note(&status.accounts).into_iter().collect();
    for account in &status.accounts {
        if account.dying > Bytes::ZERO {
            notes.push(format!(
                "{} of processes of {} already killed are not back yet; they are not part of held",
                account.dying, account.account
            ));
        }
        if account.unkillable > Bytes::ZERO {
            notes.push(format!(
                "{} of what {} holds is of processes already killed that give nothing back (they wait for \
                 a device, a file system, a freezer); no kill frees it",
                account.unkillable, account.account
            ));
        }
    }
    let reaps = &status.reaps;
    if reaps.reaped > 0 {
        let mut note = format!(
            "{} of {} came back",
            reaps.freed,
            count(reaps.reaped, "killed process", "killed processes")
        );
        if let Some(longest) = reaps.longest {
            note.push_str(&format!(
                ", the longest wait {}",
                span(longest, style.charset)
            ));
        }
        if let Some(rate) = reaps.slowest_bytes_per_second {
            note.push_str(&format!(", at no less than {rate}/s"));
        }
        notes.push(note);
    }
    if reaps.unreaped > 0 {
        notes.push(format!(
            "the memory of {} did not come back in time (bursar events says why)",
            count(reaps.unreaped, "killed process", "killed processes")
        ));
    }
    if reaps.threads_lost > 0 {
        notes.push(format!(
            "{} of bursard lost so far to processes that keep their memory's lock, {} still wait there (its log says at which)",
            count(reaps.threads_lost, "thread", "threads"),
            reaps.threads_away
        ));
    }
    if reaps.turned_away > 0 {
        notes.push(format!(
            "{} not taken care of, because the reapers were behind",
            count(reaps.turned_away, "killed process", "killed processes")
        ));
    }
    if reaps.untold > 0 {
        notes.push(format!(
            "the end of {} is not told: too many at once",
            count(reaps.untold, "killed process", "killed processes")
        ));
    }
    notes.extend(status.remarks.iter().cloned());
    notes
}

#[cfg(test)]
mod tests {
    use bursar_model::{Nanos, ReapStatus};
    use insta::assert_snapshot;
    use unicode_width::UnicodeWidthStr;

    use super::*;
    use crate::sample::{HOSTILE, account, accounts, daemon, style, with_history};
    use crate::style::{Charset, Paint};

    fn shown(status: &DaemonStatus, style: &Style) -> String {
        super::status(status, None, Role::Root, style)
    }

    /// A daemon with everything that needs room.
    fn crowded() -> DaemonStatus {
        let mut status = daemon(accounts());
        status.accounts[0].dying = Bytes::from_mib(301);
        status.reaps = ReapStatus {
            reaped: 45,
            freed: Bytes::from_mib(13_312),
            slowest_bytes_per_second: Some(Bytes::from_mib(2_150)),
            longest: Some(Nanos::new(8_100_000)),
            ..ReapStatus::default()
        };
        status.remarks = vec![
            "limits.toml:7: nobody is called mallory; the limit is kept until somebody is".into(),
            format!("12 events did not fit the ring buffer, the last of {HOSTILE}"),
        ];
        status
    }

    #[test]
    fn memory_that_killed_processes_keep_is_told_apart() {
        let mut status = daemon(accounts());
        assert!(!shown(&status, &style(200)).contains("give nothing back"));
        status.accounts[1].unkillable = Bytes::from_mib(64);
        let note =
            "note: 64 MiB of what bob holds is of processes already killed that give nothing back";
        let text = shown(&status, &style(200));
        assert!(text.contains(note), "{text}");
    }

    #[test]
    fn accounts_that_are_only_observed_are_named_and_many_are_counted() {
        let note = |names: &[&str]| {
            let observed = |name: &&str| {
                let mut it = account(name, 1000, 1, Some(2));
                it.mode = bursar_model::Mode::Observe;
                it
            };
            observed_note(&names.iter().map(observed).collect::<Vec<_>>())
        };
        assert_eq!(observed_note(&accounts()), None);
        let told = "observed, not enforced: events would_notice, would_refuse and would_kill tell what enforcing would do";
        for (names, said) in [
            (&["alice"][..], "alice is"),
            (&["alice", "bob"], "alice and bob are"),
            (&["a", "b", "c", "d", "e"], "a, b, c and 2 more are"),
        ] {
            assert_eq!(note(names), Some(format!("{said} {told}")));
        }
    }

    #[test]
    fn eighty_columns_show_everything() {
        assert_snapshot!(shown(&crowded(), &style(80)));
    }

    #[test]
    fn sixty_columns_show_everything_closer() {
        assert_snapshot!(shown(&crowded(), &style(60)));
    }

    #[test]
    fn forty_columns_show_who_and_how_full() {
        assert_snapshot!(shown(&crowded(), &style(40)));
    }

    #[test]
    fn a_wide_terminal_has_wide_bars() {
        assert_snapshot!(shown(&crowded(), &style(160)));
    }

    #[test]
    fn a_pipe_gets_whole_names() {
        let pipe = Style {
            width: None,
            ..style(0)
        };
        assert_snapshot!(shown(&crowded(), &pipe));
    }

    #[test]
    fn an_ascii_terminal_gets_ascii() {
        let ascii = Style {
            charset: Charset::Ascii,
            ..style(80)
        };
        let text = shown(&crowded(), &ascii);
        assert!(text.is_ascii(), "{text}");
        assert_snapshot!(text);
    }

    #[test]
    fn colours_say_how_near_the_limit_an_account_is() {
        let colours = Style {
            paint: Paint::Colours,
            ..style(80)
        };
        assert_snapshot!(shown(&daemon(accounts()), &colours).replace('\x1b', "<ESC>"));
    }

    #[test]
    fn without_accounts_it_says_what_to_do() {
        let none = daemon(Vec::new());
        let who = "alice".parse().unwrap();
        let texts = [
            super::status(&none, None, Role::Root, &style(80)),
            super::status(&none, None, Role::User, &style(80)),
            super::status(&none, Some(&who), Role::Root, &style(80)),
        ];
        assert_snapshot!(texts.join("---\n"));
    }

    #[test]
    fn two_hundred_accounts_fit_every_terminal() {
        let many = (0..200u32).map(|number| {
            let held = u64::from(number) * 37 % 1100;
            let it = account(&format!("user{number:03}"), 1000 + number, held, Some(1023));
            with_history(it, u64::from(number).pow(4), number.into())
        });
        let status = daemon(many.collect());
        for width in [40, 60, 80, 100, 200] {
            let text = shown(&status, &style(width));
            assert_eq!(text.matches("user").count(), 200, "{width}");
            for line in text.lines() {
                assert!(line.width() <= width, "{width}: {line:?}");
            }
        }
        let text = shown(&status, &style(80));
        assert_snapshot!(text.lines().take(12).collect::<Vec<_>>().join("\n"));
    }

    #[test]
    fn nothing_is_too_large_for_sixty_columns() {
        let mut huge = with_history(
            account(&HOSTILE.repeat(9), 1, 0, Some(1)),
            u64::MAX,
            u64::MAX,
        );
        huge.processes = u32::MAX;
        let most = Some(Bytes::new(1023 << 20));
        let row = Row {
            held: Bytes::new(1023 << 20),
            maxheld: Bytes::new(1023 << 20),
            limit: most,
            ..memory(&huge)
        };
        huge.resources.insert(Resource::Memory, row);
        for line in shown(&daemon(vec![huge]), &style(60)).lines() {
            assert!(line.width() <= 60, "{line:?}");
        }
    }

    #[test]
    fn the_first_line_says_whether_limits_hold() {
        let mut lines = Vec::new();
        for attached in [true, false] {
            for (event_trigger, timer) in
                [(true, true), (true, false), (false, true), (false, false)]
            {
                for trigger in [BackendKind::Bpf, BackendKind::Trace, BackendKind::Poll] {
                    let mut status = daemon(Vec::new());
                    let half = &mut status.kernel_half;
                    (half.attached, half.event_trigger, half.timer) =
                        (attached, event_trigger, timer);
                    half.trigger = Some(trigger);
                    lines.extend(
                        shown(&status, &style(100))
                            .lines()
                            .next()
                            .map(str::to_owned),
                    );
                }
            }
        }
        lines.dedup();
        assert_snapshot!(lines.join("\n"));
    }
}
