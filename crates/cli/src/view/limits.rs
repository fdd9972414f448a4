// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar limit`: limits as configured, and what a change did.

use std::collections::BTreeMap;

use bursar_model::{
    BoundsSpec, Bytes, KillManner, Mode, Resource, RowBounds, SizeSpec, Until, Who,
};
use bursar_protocol::{EntryOrigin, LimitEntry};
use bursar_text::entry::said;

use crate::caller::Role;
use crate::clock::Clock;
use crate::style::Style;
use crate::view::paragraph::paragraph;
use crate::view::table::{Align, Cell, Table, cut};
use crate::view::words::listed;

/// The daemon names at most so many accounts of a limit.
const MOST_NAMED: usize = 100;
/// How many of them are shown before "and 97 more".
const MOST_SHOWN: usize = 3;
/// What the name of whom a limit is for may take of a terminal, columns: with a mode and an end 80 are enough.
const WIDEST_WHO: usize = 24;

/// How limits are shown.
pub(crate) struct Shown<'a> {
    /// With where they stand.
    pub(crate) has_origin: bool,
    /// The role of the reader.
    pub(crate) role: Role,
    /// When and where.
    pub(crate) clock: &'a Clock,
    /// On a machine with so much memory.
    pub(crate) ram: Bytes,
}

/// `limit show`.
pub(crate) fn limits(entries: &[LimitEntry], shown: &Shown<'_>, style: &Style) -> String {
    let Shown {
        has_origin,
        role,
        clock,
        ..
    } = *shown;
    if entries.is_empty() {
        let advice = match role {
            Role::Root => "no limit is configured; set one: bursar limit set alice 8G",
            Role::User => "no limit is configured for you",
        };
        return paragraph("", advice, style.width);
    }
    // Columns that would say the same of every entry are left out.
    let has_mode = entries.iter().any(|it| mode(it) != ENFORCED);
    let has_end = entries.iter().any(|it| it.until.is_some());
    let heads = [
        (true, "WHO", Align::Left),
        (true, "LIMIT", Align::Right),
        (true, "NOTICE", Align::Right),
        (true, "BARRIER", Align::Right),
        (has_mode, "MODE", Align::Left),
        (has_end, "UNTIL", Align::Left),
        (has_origin, "FROM", Align::Left),
    ];
    let is_shown = heads.map(|(is_shown, ..)| is_shown);
    let heads = heads.into_iter().filter(|(is_shown, ..)| *is_shown);
    let heads: Vec<_> = heads.map(|(_, head, align)| (head, align)).collect();
    let mut table = Table::new(&heads);
    for entry in entries {
        let cells = cells(entry, shown, style).into_iter().zip(is_shown);
        let cells = cells.filter_map(|(cell, is_shown)| is_shown.then(|| Cell::new(cell)));
        table.push(cells.collect());
    }
    let mut text = table.lines(2, style);
    let notes: Vec<String> = entries
        .iter()
        .flat_map(|entry| {
            let of_origin = has_origin.then(|| overridden(entry, style)).flatten();
            let notes = notes(entry, style).into_iter();
            notes.chain(end(entry, clock, style)).chain(of_origin)
        })
        .collect();
    if !notes.is_empty() {
        text.push('\n');
    }
    for note in notes {
        text.push_str(&paragraph("note: ", &note, style.width));
    }
    text
}

/// What each column says of an entry.
fn cells(entry: &LimitEntry, shown: &Shown<'_>, style: &Style) -> [String; 7] {
    let [limit, notice, barrier] = match entry.is_silent {
        true => ["-", "-", "-"].map(str::to_owned),
        false => {
            let held = entry.memory.spelled_out(shown.ram);
            [
                held.limit.to_string(),
                bound(held.notice),
                bound(held.barrier),
            ]
        }
    };
    let or_none = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
    [
        cut(&style.shown(&entry.who.to_string()), WIDEST_WHO, style),
        limit,
        notice,
        barrier,
        mode(entry).to_owned(),
        or_none(entry.until.map(|it| shown.clock.coming(it))),
        or_none(entry.origin.as_ref().map(|it| place(it, style))),
    ]
}

const ENFORCED: &str = "enforce";

/// What becomes of whoever is over the limit.
fn mode(entry: &LimitEntry) -> &'static str {
    match (entry.mode, entry.kill) {
        (Mode::Observe, _) => "observe",
        (Mode::Enforce, Some(KillManner::Graceful)) => "graceful",
        (Mode::Enforce, Some(KillManner::AtOnce) | None) => ENFORCED,
    }
}

/// `/etc/bursar/limits.toml:3`.
fn place(origin: &EntryOrigin, style: &Style) -> String {
    format!("{}:{}", style.shown(&origin.file), origin.line)
}

/// `alice ends tomorrow 09:00; then memory 4G`.
fn end(entry: &LimitEntry, clock: &Clock, style: &Style) -> Option<String> {
    let who = style.shown(&entry.who.to_string());
    let then = match &entry.then {
        Some(spec) => style.shown(&said(spec)),
        None => format!("{who} has no entry"),
    };
    let until = clock.coming(entry.until?);
    Some(format!("{who} holds until {until}; then {then}"))
}

/// What is added to the answer of `limit set`.
pub(crate) fn ends(until: Until, clock: &Clock, style: &Style) -> String {
    let until = clock.coming(until);
    paragraph(
        "",
        &format!("It ends {until}; then the previous limit applies again."),
        style.width,
    )
}

fn overridden(entry: &LimitEntry, style: &Style) -> Option<String> {
    let places: Vec<String> = entry.overrides.iter().map(|it| place(it, style)).collect();
    let who = style.shown(&entry.who.to_string());
    (!places.is_empty()).then(|| format!("{who} wins over {}", listed(&places)))
}

fn bound(spelled_out: Option<SizeSpec>) -> String {
    spelled_out.unwrap_or(SizeSpec::None).to_string()
}

fn notes(entry: &LimitEntry, style: &Style) -> Vec<String> {
    let who = style.shown(&entry.who.to_string());
    let mut notes = Vec::new();
    if !entry.rows.is_empty() {
        let has = if entry.is_silent { "has" } else { "also has" };
        notes.push(format!("{who} {has} {}", listed_rows(&entry.rows)));
    }
    let is_one = matches!(entry.who, Who::User(_) | Who::Uid(_) | Who::Shared(_));
    match entry.accounts.as_slice() {
        [] if entry.remark.is_none() && entry.memory.limit != SizeSpec::None => {
            notes.push(format!("{who} concerns nobody now"))
        }
        [] => {}
        accounts if entry.who == Who::Default => {
            let text = format!("default concerns {} now", concerned(accounts, style));
            notes.push(text);
        }
        [only]
            if is_one
                && (*only == entry.who.to_string() || matches!(entry.who, Who::Shared(_))) => {}
        accounts => notes.push(format!("{who} concerns {}", concerned(accounts, style))),
    }
    let covers = entry.covers.as_ref();
    notes.extend(covers.map(|it| {
        let it = style.shown(it);
        format!("{who} covers {it} (accounts.uid_min and accounts.exempt in bursar.toml)")
    }));
    let reason = entry.reason.as_ref();
    notes.extend(reason.map(|it| format!("{who}: reason: {}", style.shown(it.as_str()))));
    notes.extend(
        entry
            .remark
            .as_ref()
            .map(|remark| format!("{who}: {}", style.shown(remark))),
    );
    notes
}

fn concerned(accounts: &[String], style: &Style) -> String {
    let shown: Vec<String> = accounts
        .iter()
        .take(MOST_SHOWN)
        .map(|name| style.shown(name))
        .collect();
    let more = accounts.len().saturating_sub(shown.len());
    match more {
        0 => listed(&shown),
        // Cut short by the daemon: who knows how many.
        _ if accounts.len() >= MOST_NAMED => {
            format!("{} and at least {more} more", shown.join(", "))
        }
        _ => format!("{} and {more} more", shown.join(", ")),
    }
}

/// `limit set`, done, on a machine with `ram` bytes of memory.
pub(crate) fn set(
    who: &Who,
    memory: Option<BoundsSpec>,
    rows: &BTreeMap<Resource, RowBounds>,
    remarks: &[String],
    ram: Bytes,
    style: &Style,
) -> String {
    let mut sentences: Vec<String> = memory
        .map(|memory| set_memory(who, memory.spelled_out(ram), style))
        .into_iter()
        .collect();
    if !rows.is_empty() {
        let who = style.shown(&who.to_string());
        sentences.push(format!(
            "{who} is limited to {} from now on",
            listed_rows(rows)
        ));
    }
    changed(&sentences.join("; "), remarks, style)
}

/// `numproc 200:220, numfile unlimited`.
fn listed_rows(rows: &BTreeMap<Resource, RowBounds>) -> String {
    let said: Vec<String> = rows
        .iter()
        .map(
            |(resource, bounds)| match (bounds.barrier(), bounds.limit()) {
                (None, None) => format!("{} unlimited", resource.name()),
                (Some(barrier), limit) if limit == Some(barrier) => {
                    format!("{} {barrier}", resource.name())
                }
                _ => format!("{} {bounds}", resource.name()),
            },
        )
        .collect();
    said.join(", ")
}

fn set_memory(who: &Who, memory: BoundsSpec, style: &Style) -> String {
    let who = style.shown(&who.to_string());
    let sentence = match memory.limit {
        SizeSpec::None => format!("{who} has no limit from now on"),
        SizeSpec::Bytes(_) | SizeSpec::Percent(_) => {
            format!("{who} has a limit of {} from now on", of_ram(memory.limit))
        }
    };
    let bounds = format!(
        "notice {}, barrier {}",
        bound(memory.notice),
        bound(memory.barrier)
    );
    format!("{sentence} ({bounds})")
}

fn of_ram(limit: SizeSpec) -> String {
    match limit {
        SizeSpec::Percent(percent) => format!("{percent} of RAM"),
        SizeSpec::Bytes(_) | SizeSpec::None => limit.to_string(),
    }
}

/// `limit set` of what is so already.
pub(crate) fn as_before(who: &Who, remarks: &[String], style: &Style) -> String {
    let who = style.shown(&who.to_string());
    changed(
        &format!("{who} has this limit already; nothing changed"),
        remarks,
        style,
    )
}

/// `limit clear`, done.
pub(crate) fn cleared(who: &Who, temporary: bool, remarks: &[String], style: &Style) -> String {
    let who = style.shown(&who.to_string());
    let limit = if temporary {
        "temporary limit"
    } else {
        "limit"
    };
    changed(&format!("the {limit} of {who} is cleared"), remarks, style)
}

fn changed(sentence: &str, remarks: &[String], style: &Style) -> String {
    let mut text = paragraph("", sentence, style.width);
    for remark in remarks {
        text.push_str(&paragraph("note: ", &style.shown(remark), style.width));
    }
    text
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::sample::{clock, style};

    const RAM: Bytes = Bytes::from_mib(24 << 10);

    fn size(text: &str) -> SizeSpec {
        text.parse().unwrap()
    }

    fn entry(who: &str, limit: &str, accounts: &[&str], remark: Option<&str>) -> LimitEntry {
        LimitEntry {
            who: who.parse().unwrap(),
            memory: BoundsSpec::of_limit(size(limit)),
            is_silent: false,
            mode: Mode::Enforce,
            kill: None,
            rows: BTreeMap::new(),
            accounts: accounts.iter().map(|&name| name.to_owned()).collect(),
            remark: remark.map(str::to_owned),
            covers: None,
            origin: None,
            overrides: Vec::new(),
            reason: None,
            until: None,
            then: None,
        }
    }

    fn shown(entries: &[LimitEntry], has_origin: bool, role: Role, width: usize) -> String {
        let how = Shown {
            has_origin,
            role,
            clock: &clock(),
            ram: RAM,
        };
        limits(entries, &how, &style(width))
    }

    #[test]
    fn limits_are_shown_as_written_with_whom_they_concern() {
        let members: Vec<String> = (0..100).map(|number| format!("student{number}")).collect();
        let members: Vec<&str> = members.iter().map(String::as_str).collect();
        let mut entries = vec![
            entry("alice", "512M", &["alice"], None),
            entry("1007", "1536M", &["grace"], None),
            entry("@students", "25%", &members, None),
            entry("@staff", "12.5%", &["ann", "ben", "cid", "dan"], None),
            entry("@few", "1G", &["ann", "ben"], None),
            entry("=render", "8G", &["=render"], None),
            entry("mallory", "1G", &[], Some("nobody has this name")),
            entry("@empty", "1G", &[], None),
            entry("default", "none", &[], None),
        ];
        entries[0].memory.notice = Some(size("80%"));
        entries[0].memory.barrier = Some(size("500M"));
        assert_snapshot!(shown(&entries, false, Role::Root, 60));
    }

    #[test]
    fn what_is_not_said_of_memory_is_not_shown_as_no_limit() {
        let bounds = RowBounds::new(Some(200), Some(200)).unwrap();
        let rows_only = LimitEntry {
            is_silent: true,
            rows: [(Resource::Numproc, bounds)].into(),
            ..entry("@staff", "none", &[], None)
        };
        let text = shown(&[rows_only], false, Role::Root, 80);
        let row = text.lines().nth(1).unwrap();
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["@staff", "-", "-", "-"]
        );
        assert!(text.contains("note: @staff has numproc 200"), "{text}");
    }

    #[test]
    fn where_a_limit_stands_is_shown_when_that_is_asked() {
        let at = |file: &str, line| EntryOrigin {
            file: format!("/etc/bursar/{file}"),
            line,
        };
        let overriding = LimitEntry {
            origin: Some(at("limits.toml.d/50-term.toml", 2)),
            overrides: vec![at("limits.toml", 7), at("limits.toml.d/10-a.toml", 3)],
            ..entry("alice", "512M", &["alice"], None)
        };
        let text = shown(std::slice::from_ref(&overriding), true, Role::Root, 100);
        assert_eq!(
            text,
            "WHO    LIMIT  NOTICE  BARRIER  FROM\n\
             alice   512M     90%      95%  /etc/bursar/limits.toml.d/50-term.toml:2\n\
             \n\
             note: alice wins over /etc/bursar/limits.toml:7 and /etc/bursar/limits.toml.d/10-a.toml:3\n"
        );
        let text = shown(&[overriding], false, Role::Root, 100);
        assert!(!text.contains("/etc"), "{text}");
    }

    #[test]
    fn mode_and_end_have_columns_where_they_say_something() {
        let plain = entry("bob", "8G", &["bob"], None);
        let text = shown(std::slice::from_ref(&plain), false, Role::Root, 80);
        assert!(!text.contains("MODE") && !text.contains("UNTIL"), "{text}");
        let observed = LimitEntry {
            mode: Mode::Observe,
            ..entry("alice", "16G", &["alice"], None)
        };
        let graceful = LimitEntry {
            kill: Some(KillManner::Graceful),
            ..entry("carol", "16G", &["carol"], None)
        };
        let ending = LimitEntry {
            until: Some("2026-11-30T08:00:00Z".parse().unwrap()),
            ..entry("a-user-with-a-very-long-name", "12.5%", &["a"], None)
        };
        let text = shown(&[observed, plain.clone(), graceful], false, Role::Root, 80);
        assert_eq!(
            text,
            "WHO    LIMIT  NOTICE  BARRIER  MODE\n\
             alice    16G     90%      95%  observe\n\
             bob       8G     90%      95%  enforce\n\
             carol    16G     90%      95%  graceful\n"
        );
        let text = shown(&[ending, plain], false, Role::Root, 80);
        let end = clock().coming("2026-11-30T08:00:00Z".parse().unwrap());
        let mut lines = text.lines().skip(1);
        assert!(lines.next().unwrap().ends_with(&end), "{text}");
        assert!(lines.next().unwrap().ends_with("  -"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }

    #[test]
    fn a_limit_that_ends_is_shown_with_its_end_and_what_holds_then() {
        let mut entries = [
            entry("alice", "16G", &["alice"], None),
            entry("bob", "8G", &["bob"], None),
        ];
        let until: Until = "2026-11-30T08:00:00Z".parse().unwrap();
        for entry in &mut entries {
            entry.until = Some(until);
            entry.reason = Some("thesis".parse().unwrap());
        }
        entries[0].then = Some(Box::new(bursar_model::EntrySpec {
            memory: Some(BoundsSpec::of_limit(size("4G"))),
            ..Default::default()
        }));
        let text = shown(&entries, false, Role::Root, 80);
        let (_, notes) = text.split_once("\n\n").unwrap();
        let end = clock().coming(until);
        assert_eq!(
            notes,
            format!(
                "note: alice: reason: thesis\nnote: alice holds until {end}; then memory 4G\n\
                 note: bob: reason: thesis\nnote: bob holds until {end}; then bob has no entry\n"
            )
        );
    }

    #[test]
    fn a_notice_is_said_as_low_as_the_barrier_has_it() {
        let mut low = entry("alice", "1G", &["alice"], None);
        low.memory.barrier = Some(size("50%"));
        let text = shown(std::slice::from_ref(&low), false, Role::Root, 80);
        let row = text.lines().nth(1).unwrap();
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["alice", "1G", "50%", "50%"]
        );
        let text = set(&low.who, Some(low.memory), &low.rows, &[], RAM, &style(80));
        assert!(text.ends_with("(notice 50%, barrier 50%)\n"), "{text}");
    }

    #[test]
    fn without_limits_it_says_what_to_do() {
        assert_snapshot!(
            [Role::Root, Role::User]
                .map(|role| shown(&[], false, role, 80))
                .concat()
        );
    }

    #[test]
    fn a_change_is_told_with_what_it_means() {
        let who = |text: &str| text.parse().unwrap();
        let share = BoundsSpec {
            notice: Some(size("10G")),
            ..BoundsSpec::of_limit(size("120%"))
        };
        let remark = ["this is more than the machine has (24 GiB)".to_owned()];
        let none = BTreeMap::new();
        let bounds = |resource, text| (resource, RowBounds::parse(resource, text).unwrap());
        let rows = BTreeMap::from([
            bounds(Resource::Numproc, "200"),
            bounds(Resource::Kmemsize, "1M:2M"),
            bounds(Resource::Numfile, "unlimited"),
        ]);
        let texts = [
            set(
                &who("alice"),
                Some(BoundsSpec::of_limit(size("512M"))),
                &none,
                &[],
                RAM,
                &style(80),
            ),
            set(
                &who("default"),
                Some(share),
                &none,
                &remark,
                RAM,
                &style(80),
            ),
            set(&who("bob"), None, &rows, &remark, RAM, &style(80)),
            set(
                &who("=render"),
                Some(BoundsSpec::of_limit(SizeSpec::None)),
                &none,
                &[],
                RAM,
                &style(80),
            ),
            cleared(
                &who("@students"),
                false,
                &["3 users have the default now".to_owned()],
                &style(80),
            ),
        ];
        assert_snapshot!(texts.concat());
    }
}
