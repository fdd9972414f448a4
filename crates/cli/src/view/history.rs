// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar history`: held against limit over time.

use bursar_model::{Bytes, Uid, UsageSample, UsageSeries};
use serde::Serialize;

use crate::clock::Clock;
use crate::style::{Charset, Style, Tone};
use crate::view::paragraph::paragraph;
use crate::view::table::{Align, Cell, Table};
use crate::view::words::{count, narrow_size};

/// Lines of the picture.
const ROWS: usize = 10;
/// Columns before it: an amount, a blank and the axis.
const MARGIN: usize = 9;
/// A wider picture is not easier to read.
const WIDEST: usize = 160;

/// As programs read it.
#[derive(Debug, Serialize)]
pub(crate) struct Json<'a> {
    account: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<Uid>,
    since: String,
    until: String,
    interval_seconds: u64,
    samples: Vec<JsonSample>,
}

#[derive(Debug, Serialize)]
struct JsonSample {
    time: String,
    observed_ms: u32,
    mean: Bytes,
    max: Bytes,
    limit: Option<Bytes>,
    notices: u32,
    refusals: u32,
    kills: u32,
}

impl<'a> Json<'a> {
    pub(crate) fn new(series: &'a UsageSeries) -> Self {
        let samples = series.samples.iter().map(|it| JsonSample {
            time: Clock::moment(it.start),
            observed_ms: it.observed_ms,
            mean: it.mean,
            max: it.max,
            limit: it.limit,
            notices: it.notices,
            refusals: it.refusals,
            kills: it.kills,
        });
        Self {
            account: &series.account,
            uid: series.uid,
            since: Clock::moment(series.from),
            until: Clock::moment(series.until),
            interval_seconds: series.span_seconds,
            samples: samples.collect(),
        }
    }
}

/// A picture where there is a width, else a line for each interval. `whose`: as it was asked for.
pub(crate) fn history(series: &UsageSeries, whose: &str, clock: &Clock, style: &Style) -> String {
    let Some(first) = series.samples.first() else {
        let since = clock.local_at(series.from, "%Y-%m-%d %H:%M");
        let whose = if whose == "you" {
            "you".to_owned()
        } else {
            style.shown(whose)
        };
        return paragraph(
            "",
            &format!(
                "nothing is kept of {whose} since {since}: nothing was held, or bursard did not run"
            ),
            style.width,
        );
    };
    match style.width {
        Some(width) => picture(series, first, width.min(WIDEST), clock, style),
        None => lines(series, clock, style),
    }
}

fn lines(series: &UsageSeries, clock: &Clock, style: &Style) -> String {
    let mut table = Table::new(&[
        ("TIME", Align::Left),
        ("MEAN", Align::Right),
        ("MAX", Align::Right),
        ("LIMIT", Align::Right),
        ("NOTICES", Align::Right),
        ("REFUSED", Align::Right),
        ("KILLS", Align::Right),
    ]);
    for sample in &series.samples {
        table.push(vec![
            Cell::new(clock.local_at(sample.start, "%Y-%m-%d %H:%M")),
            Cell::new(narrow_size(sample.mean)),
            Cell::new(narrow_size(sample.max)),
            Cell::new(sample.limit.map_or_else(|| "none".to_owned(), narrow_size)),
            Cell::new(sample.notices.to_string()),
            Cell::new(sample.refusals.to_string()),
            Cell::new(sample.kills.to_string()),
        ]);
    }
    table.lines(2, style)
}

/// What was held in the minutes before something happened.
pub(crate) fn before(series: &UsageSeries, clock: &Clock, style: &Style) -> String {
    format!("\nHeld before:\n{}", lines(series, clock, style))
}

/// What is shown in one column.
#[derive(Debug, Clone, Copy, Default)]
struct Column {
    max: Bytes,
    limit: Option<Bytes>,
    notices: u32,
    refusals: u32,
    kills: u32,
}

impl Column {
    const fn tone(&self) -> Option<Tone> {
        match (self.kills, self.refusals) {
            (0, 0) => None,
            (0, _) => Some(Tone::Warning),
            _ => Some(Tone::Bad),
        }
    }
}

/// Where moments are.
#[derive(Debug, Clone, Copy)]
struct Axis {
    from: u64,
    until: u64,
    cells: usize,
}

impl Axis {
    fn column_of(self, moment: u64) -> usize {
        let length = self.until.saturating_sub(self.from).max(1);
        let at = moment.saturating_sub(self.from).min(length);
        let column = u128::from(at) * self.cells as u128 / u128::from(length);
        usize::try_from(column)
            .unwrap_or(0)
            .min(self.cells.saturating_sub(1))
    }

    /// Short enough to stand beside others.
    fn label(self, moment: u64, clock: &Clock) -> String {
        let format = match self.until.saturating_sub(self.from) {
            ..=129_600 => "%H:%M",
            129_601..=5_184_000 => "%m-%d %H:%M",
            _ => "%Y-%m-%d",
        };
        clock.local_at(moment, format)
    }
}

fn columns(series: &UsageSeries, axis: Axis) -> Vec<Column> {
    let mut columns = vec![Column::default(); axis.cells];
    for sample in &series.samples {
        let end = sample
            .start
            .saturating_add(series.span_seconds)
            .saturating_sub(1);
        let (first, last) = (axis.column_of(sample.start), axis.column_of(end));
        for column in columns.iter_mut().take(last.saturating_add(1)).skip(first) {
            column.max = column.max.max(sample.max);
            column.limit = sample.limit.or(column.limit);
        }
        if let Some(column) = columns.get_mut(first) {
            column.notices = column.notices.saturating_add(sample.notices);
            column.refusals = column.refusals.saturating_add(sample.refusals);
            column.kills = column.kills.saturating_add(sample.kills);
        }
    }
    // While nothing is held the limit is what it was.
    let mut last = None;
    for column in &mut columns {
        column.limit = column.limit.or(last);
        last = column.limit;
    }
    columns
}

fn picture(
    series: &UsageSeries,
    first: &UsageSample,
    width: usize,
    clock: &Clock,
    style: &Style,
) -> String {
    let axis = Axis {
        from: series.from.max(first.start),
        until: series
            .until
            .max(first.start.saturating_add(series.span_seconds)),
        cells: width.saturating_sub(MARGIN).max(1),
    };
    let columns = columns(series, axis);
    let levels = columns
        .iter()
        .flat_map(|it| [Some(it.max), it.limit])
        .flatten();
    let top = levels.max().unwrap_or_default().max(Bytes::new(1));
    let mut text = head(series, axis, clock, style);
    for row in (0..ROWS).rev() {
        let label = match row {
            _ if row + 1 == ROWS => narrow_size(top),
            0 => "0".to_owned(),
            _ if row == ROWS / 2 => narrow_size(top.scaled(row as u64, ROWS as u64)),
            _ => String::new(),
        };
        let cells: String = columns.iter().map(|it| cell(it, row, top, style)).collect();
        text.push_str(format!("{label:>7} {}{cells}", vertical(style.charset)).trim_end());
        text.push('\n');
    }
    let marks = [
        (
            "killed",
            columns.iter().map(|it| it.kills).collect::<Vec<_>>(),
            Some(Tone::Bad),
        ),
        (
            "refused",
            columns.iter().map(|it| it.refusals).collect(),
            Some(Tone::Warning),
        ),
        ("told", columns.iter().map(|it| it.notices).collect(), None),
    ];
    for (label, counts, tone) in marks
        .into_iter()
        .filter(|(_, counts, _)| counts.iter().any(|it| *it > 0))
    {
        let cells: String = counts.iter().map(|count| mark(*count)).collect();
        let cells = style.toned(tone, cells.trim_end());
        text.push_str(&format!("{label:>7}  {cells}\n"));
    }
    text.push_str(&times(axis, clock));
    text.push_str(&in_words(series, clock, style));
    text
}

fn head(series: &UsageSeries, axis: Axis, clock: &Clock, style: &Style) -> String {
    let limit = series.samples.last().and_then(|it| it.limit);
    let limit = limit.map_or_else(|| "no limit".to_owned(), |it| format!("limit {it}"));
    let from = clock.local_at(axis.from, "%Y-%m-%d %H:%M");
    let name = style.shown(&series.account);
    paragraph(
        "",
        &format!("{name}: held since {from}; {limit}"),
        style.width,
    )
}

const fn vertical(charset: Charset) -> char {
    match charset {
        Charset::Unicode => '│',
        Charset::Ascii => '|',
    }
}

fn cell(column: &Column, row: usize, top: Bytes, style: &Style) -> String {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let eighths_of = |level: Bytes| {
        let all = level.scaled(ROWS as u64 * 8, top.get()).get();
        usize::try_from(all).unwrap_or(usize::MAX).min(ROWS * 8)
    };
    // The least that is held is seen.
    let least = usize::from(column.max > Bytes::ZERO);
    let filled = eighths_of(column.max)
        .max(least)
        .saturating_sub(row * 8)
        .min(8);
    let is_limit = column.limit.is_some_and(|it| {
        let row_of = eighths_of(it).saturating_sub(1) / 8;
        row_of == row
    });
    let character = match (style.charset, filled, is_limit) {
        (Charset::Unicode, 0, true) => '─',
        (Charset::Unicode, filled, _) => BLOCKS.get(filled).copied().unwrap_or(' '),
        (Charset::Ascii, 0..4, true) => '-',
        (Charset::Ascii, 0..4, false) if row > 0 || filled == 0 => ' ',
        (Charset::Ascii, ..) => '#',
    };
    match column.tone().filter(|_| filled > 0) {
        Some(tone) => style.painted(tone, &character.to_string()),
        None => character.to_string(),
    }
}

fn mark(count: u32) -> char {
    match count {
        0 => ' ',
        1..=9 => char::from_digit(count, 10).unwrap_or('+'),
        _ => '+',
    }
}

/// The first moment on the left, now on the right, and one between them where there is room.
fn times(axis: Axis, clock: &Clock) -> String {
    let middle = axis.from.midpoint(axis.until);
    let labels = [axis.from, middle].map(|it| axis.label(it, clock));
    let [first, second] = labels;
    let last = "now";
    let mut line = first;
    let center = (axis.cells / 2).saturating_sub(second.len() / 2);
    if line.len() + 2 <= center && center + second.len() + 2 + last.len() <= axis.cells {
        line = format!("{line:<center$}{second}");
    }
    let end = axis.cells.saturating_sub(last.len());
    if line.len() + 2 <= end {
        line = format!("{line:<end$}{last}");
    }
    format!("{:MARGIN$}{line}\n", "")
}

fn in_words(series: &UsageSeries, clock: &Clock, style: &Style) -> String {
    let mut all = UsageSample::default();
    let mut peak = UsageSample::default();
    for sample in &series.samples {
        all.merge(sample);
        if sample.max > peak.max {
            peak = *sample;
        }
    }
    let at = clock.local_at(peak.start, "%Y-%m-%d %H:%M");
    // A peak between two looks has no mean.
    let mean = match all.mean {
        Bytes::ZERO => String::new(),
        mean => format!("; {mean} on average while anything was held"),
    };
    let mut text = format!("Most held: {} ({at}){mean}.", peak.max);
    if all.is_eventful() {
        let met = [
            (all.kills, "process killed", "processes killed"),
            (all.refusals, "request refused", "requests refused"),
            (all.notices, "notice", "notices"),
        ];
        let met = met.iter().filter(|(number, ..)| *number > 0);
        let met: Vec<String> = met
            .map(|(number, one, many)| count((*number).into(), one, many))
            .collect();
        text.push_str(&format!(" {}.", met.join(", ")));
    }
    paragraph("", &text, style.width)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use proptest::prelude::*;
    use unicode_width::UnicodeWidthStr;

    use super::*;
    use crate::sample::{HOSTILE, clock, style};
    use crate::style::Paint;

    const QUARTER: u64 = 900;
    /// 2026-11-21T05:15:03Z, as the samples' clock has it.
    const NOW: u64 = 1_795_238_103;

    /// A week of somebody who works by day, grows, and was killed at the end.
    fn week() -> UsageSeries {
        let from = NOW - 7 * 86_400;
        let samples = (0..7 * 96).filter_map(|quarter| {
            let start = from - from % QUARTER + quarter * QUARTER;
            let hour = start % 86_400 / 3600;
            let held = match hour {
                8..12 | 13..18 => 120 + quarter / 2,
                12 => 60,
                _ => return None,
            };
            let is_last = quarter > 7 * 96 - 60 && hour == 16 && start.is_multiple_of(3600);
            Some(UsageSample {
                start,
                observed_ms: 900_000,
                mean: Bytes::from_mib(held * 9 / 10),
                max: if is_last {
                    Bytes::from_mib(512)
                } else {
                    Bytes::from_mib(held)
                },
                limit: Some(Bytes::from_mib(512)),
                notices: u32::from(is_last),
                refusals: if is_last { 12 } else { 0 },
                kills: u32::from(is_last),
            })
        });
        UsageSeries {
            account: "alice".into(),
            uid: Some(Uid::new(60_901)),
            from,
            until: NOW,
            span_seconds: QUARTER,
            samples: samples.collect(),
        }
    }

    #[test]
    fn a_week_fits_a_terminal() {
        assert_snapshot!(history(&week(), "alice", &clock(), &style(80)));
    }

    #[test]
    fn a_narrow_ascii_terminal_has_one_too() {
        let style = Style {
            charset: Charset::Ascii,
            ..style(50)
        };
        assert_snapshot!(history(&week(), "alice", &clock(), &style));
    }

    #[test]
    fn elsewhere_it_is_a_line_for_each_interval() {
        let mut series = week();
        series.samples.truncate(3);
        series.samples[1].limit = None;
        let style = Style {
            width: None,
            ..style(80)
        };
        assert_snapshot!(history(&series, "alice", &clock(), &style));
    }

    #[test]
    fn of_whom_nothing_is_kept_that_is_said() {
        let series = UsageSeries {
            from: NOW - 3600,
            until: NOW,
            span_seconds: 60,
            ..UsageSeries::default()
        };
        let said = history(&series, HOSTILE, &clock(), &style(200));
        assert!(said.starts_with("nothing is kept of \\x1b[2J"), "{said}");
        assert!(!said.contains('\x1b'));
    }

    #[test]
    fn json_has_moments_and_numbers() {
        let series = week();
        let json = serde_json::to_value(Json::new(&series)).unwrap();
        assert_eq!(json["interval_seconds"], 900);
        assert_eq!(json["until"], "2026-11-21T05:15:03Z");
        assert_eq!(json["samples"][0]["limit"], 512 << 20);
        assert_eq!(
            json["samples"].as_array().unwrap().len(),
            series.samples.len()
        );
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_terminal(
            width in 40usize..200,
            span in 1u64..100_000,
            samples in proptest::collection::vec((0u64..1_000_000, any::<u64>(), any::<Option<u64>>(), any::<u32>()), 1..50),
        ) {
            let samples = samples.into_iter().map(|(start, max, limit, kills)| UsageSample {
                start, max: Bytes::new(max), limit: limit.map(Bytes::new), kills, refusals: kills, ..UsageSample::default()
            });
            let series = UsageSeries {
                account: "a".repeat(20),
                until: 2_000_000, span_seconds: span, samples: samples.collect(), ..UsageSeries::default()
            };
            let style = Style { paint: Paint::Plain, ..style(width) };
            for line in history(&series, "a", &clock(), &style).lines() {
                prop_assert!(line.width() <= width, "{line:?}");
            }
        }
    }
}
