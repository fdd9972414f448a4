// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The last hour of an account: a column for each minute, as high as the most that was held then.

use bursar_model::{Bytes, UsageSample, UsageSeries};
use bursar_text::{Charset, Tone};
use ratatui::style::{Modifier, Style};

use super::{Pen, Rest};

/// Lines of the picture; with its head and its foot it is not drawn where there is less.
const ROWS: u16 = 4;
const MINUTES: usize = 60;
/// Eighths of a cell, from none to all.
const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// The same by letters, which know no eighths.
const LETTERS: [&str; 9] = [" ", ".", ".", ".", ":", ":", "#", "#", "#"];
const STEPS: u64 = EIGHTHS.len() as u64 - 1;

pub(super) fn draw(series: &UsageSeries, pen: Pen, rest: &mut Rest<'_>) {
    let minutes = minutes(series);
    let limit = minutes.iter().flatten().filter_map(|it| it.limit).max();
    let most = minutes.iter().flatten().map(|it| it.max).max();
    let (Some(most), true) = (most, rest.left.height >= ROWS + 2) else {
        return;
    };
    let top = limit.unwrap_or(Bytes::ZERO).max(most).max(Bytes::new(1));
    let what = if limit.is_some_and(|it| it >= most) {
        "limit"
    } else {
        "most held"
    };
    let width = rest.width().min(MINUTES);
    let shown = &minutes[MINUTES - width..];
    rest.say(
        &format!("the last {width} minutes; {what}: {top}"),
        Style::new().add_modifier(Modifier::DIM),
    );
    let cells = match pen.charset {
        Charset::Unicode => EIGHTHS,
        Charset::Ascii => LETTERS,
    };
    for row in (0..u64::from(ROWS)).rev() {
        let line: String = shown
            .iter()
            .map(|minute| cells[eighths(minute.as_ref(), row, top)])
            .collect();
        rest.say(&line, Style::new());
    }
    let marks: String = shown.iter().map(|it| mark(it.as_ref())).collect();
    let tone = if marks.contains('k') {
        Some(Tone::Bad)
    } else {
        Some(Tone::Warning)
    };
    let marks = marks.trim_end();
    let words = if marks.is_empty() {
        ""
    } else {
        "  k killed, r refused"
    };
    rest.say(&format!("{marks}{words}"), pen.style(tone));
}

/// The last hour, oldest first; of a minute in which nothing was held or seen there is nothing.
fn minutes(series: &UsageSeries) -> Vec<Option<UsageSample>> {
    let mut minutes = vec![None; MINUTES];
    let span = series.span_seconds.max(1);
    for sample in &series.samples {
        let age = series.until.saturating_sub(sample.start) / span;
        let place = usize::try_from(age).ok();
        let place = place.and_then(|age| (MINUTES - 1).checked_sub(age));
        if let Some(minute) = place.and_then(|it| minutes.get_mut(it)) {
            *minute = Some(*sample);
        }
    }
    minutes
}

/// How much of the row's cell is filled; something held is never nothing seen.
fn eighths(minute: Option<&UsageSample>, row: u64, top: Bytes) -> usize {
    let held = minute.map_or(0, |it| it.max.get());
    let all = STEPS * u64::from(ROWS);
    let filled = u128::from(held) * u128::from(all) / u128::from(top.get().max(1));
    let filled = u64::try_from(filled)
        .unwrap_or(all)
        .max(u64::from(held > 0));
    let of_row = filled.saturating_sub(row * STEPS).min(STEPS);
    usize::try_from(of_row).unwrap_or(0)
}

fn mark(minute: Option<&UsageSample>) -> char {
    match minute {
        Some(it) if it.kills > 0 => 'k',
        Some(it) if it.refusals > 0 => 'r',
        _ => ' ',
    }
}
