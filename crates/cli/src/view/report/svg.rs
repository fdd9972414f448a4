// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pictures of a report. Colours are the page's (`var(--…)`), so that they suit light and dark.

use bursar_model::Bytes;

use super::markup::escaped;
use crate::clock::Clock;
use crate::report::Report;
use crate::view::words::narrow_size;

const WIDTH: u64 = 900;
const HEIGHT: u64 = 180;
/// For labels, on the left and below.
const LEFT: u64 = 60;
const BELOW: u64 = 22;

/// `part` of `whole` of a length, in tenths of a unit.
fn scaled(part: u64, whole: u64, length: u64) -> f64 {
    let tenths = u128::from(part) * u128::from(length) * 10 / u128::from(whole.max(1));
    let most = u128::from(length) * 10;
    f64::from(u32::try_from(tenths.min(most)).unwrap_or(0)) / 10.0
}

fn frame(title: &str, labels: &[(f64, f64, &str, String)], inside: &str) -> String {
    let title = escaped(title);
    let texts: String = labels
        .iter()
        .map(|(x, y, anchor, text)| {
            let text = escaped(text);
            format!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#)
        })
        .collect();
    let (width, height) = (LEFT + WIDTH + 10, HEIGHT + BELOW + 10);
    format!(
        "<figure><figcaption>{title}</figcaption>\
         <svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">\
         <line class=\"axis\" x1=\"{LEFT}\" y1=\"{HEIGHT}\" x2=\"{}\" y2=\"{HEIGHT}\"/>{inside}{texts}</svg></figure>\n",
        LEFT + WIDTH
    )
}

/// The least, the middle and the last moment.
fn moments(report: &Report, clock: &Clock) -> Vec<(f64, f64, &'static str, String)> {
    let (Some(first), Some(last)) = (report.parts.first(), report.parts.last()) else {
        return Vec::new();
    };
    let end = last.start.saturating_add(report.part_seconds);
    let y = (HEIGHT + BELOW - 4) as f64;
    let places = [
        (LEFT as f64, "start", first.start),
        (
            (LEFT + WIDTH / 2) as f64,
            "middle",
            first.start.midpoint(end),
        ),
        ((LEFT + WIDTH) as f64, "end", end),
    ];
    places
        .map(|(x, anchor, at)| (x, y, anchor, clock.local_at(at, "%Y-%m-%d %H:%M")))
        .to_vec()
}

/// Bars over the time, one a part. `value`: what they show.
fn bars(
    report: &Report,
    class: &str,
    top: u64,
    value: impl Fn(&crate::report::Part) -> u64,
) -> String {
    let (Some(first), Some(last)) = (report.parts.first(), report.parts.last()) else {
        return String::new();
    };
    let length = last
        .start
        .saturating_add(report.part_seconds)
        .saturating_sub(first.start);
    let width = scaled(report.part_seconds, length, WIDTH).max(1.0);
    let shown = report.parts.iter().filter(|it| value(it) > 0);
    let bars = shown.map(|part| {
        let x = LEFT as f64 + scaled(part.start - first.start, length, WIDTH);
        let height = scaled(value(part), top, HEIGHT - 15).max(1.0);
        let y = HEIGHT as f64 - height;
        format!(r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"/>"#)
    });
    bars.collect()
}

/// What all held, by the hour.
pub(super) fn held(report: &Report, clock: &Clock) -> String {
    let top = report
        .parts
        .iter()
        .map(|it| it.mean)
        .max()
        .unwrap_or_default();
    let mut labels = moments(report, clock);
    labels.push(((LEFT - 6) as f64, 20.0, "end", narrow_size(top)));
    labels.push(((LEFT - 6) as f64, HEIGHT as f64, "end", "0".to_owned()));
    frame(
        "Held by all accounts together",
        &labels,
        &bars(report, "held", top.get(), |it| it.mean.get()),
    )
}

/// What was killed and refused, by the hour.
pub(super) fn met(report: &Report, clock: &Clock) -> String {
    let most =
        |value: fn(&crate::report::Part) -> u64| report.parts.iter().map(value).max().unwrap_or(0);
    let top = most(|it| it.kills).max(most(|it| it.refusals));
    if top == 0 {
        return String::new();
    }
    let mut labels = moments(report, clock);
    labels.push(((LEFT - 6) as f64, 20.0, "end", top.to_string()));
    labels.push(((LEFT - 6) as f64, HEIGHT as f64, "end", "0".to_owned()));
    let refused = bars(report, "refused", top, |it| it.refusals);
    let killed = bars(report, "killed", top, |it| it.kills);
    frame(
        "Processes killed (red) and requests refused (yellow)",
        &labels,
        &(refused + &killed),
    )
}

/// What each user held at most, the smallest first, and the limits that are suggested.
pub(super) fn people(report: &Report) -> String {
    let mut most: Vec<Bytes> = report
        .accounts
        .iter()
        .filter(|it| it.uid.is_some())
        .map(|it| it.max)
        .collect();
    most.sort_unstable();
    let limits = report.suggestions.iter().map(|it| it.limit);
    let top = most.iter().copied().chain(limits).max().unwrap_or_default();
    let count = most.len() as u64;
    if count < 2 || top == Bytes::ZERO {
        return String::new();
    }
    // A thousand bars are no better than nine hundred.
    let shown = count.min(WIDTH);
    let width = scaled(1, shown, WIDTH).max(1.0);
    let height_of = |bytes: Bytes| scaled(bytes.get(), top.get(), HEIGHT - 15);
    let mut inside: String = (0..shown)
        .filter_map(|bar| {
            let place = usize::try_from(bar * count / shown).ok()?;
            let height = height_of(*most.get(place)?).max(0.5);
            let (x, y) = (LEFT as f64 + scaled(bar, shown, WIDTH), HEIGHT as f64 - height);
            Some(format!(r#"<rect class="held" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"/>"#))
        })
        .collect();
    let mut labels = vec![((LEFT - 6) as f64, 20.0, "end", narrow_size(top))];
    for suggestion in &report.suggestions {
        let y = HEIGHT as f64 - height_of(suggestion.limit);
        inside.push_str(&format!(
            r#"<line class="limit" x1="{LEFT}" y1="{y:.1}" x2="{}" y2="{y:.1}"/>"#,
            LEFT + WIDTH
        ));
        let x = (LEFT + 6) as f64;
        labels.push((
            x + if suggestion.percent > 95 { 130.0 } else { 0.0 },
            y - 3.0,
            "start",
            format!(
                "{} % of users: {}",
                suggestion.percent,
                narrow_size(suggestion.limit)
            ),
        ));
    }
    frame(
        "The most that each user held, and limits that would leave most users alone",
        &labels,
        &inside,
    )
}
