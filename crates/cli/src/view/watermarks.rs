// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report on watermarks, for people.

use bursar_model::{Bytes, Nanos};
use bursar_protocol::{
    DecisionReport, NodeReport, RestoreReport, StallReport, UserStalls, WatermarksReport,
};

use crate::clock::Clock;
use crate::style::{Style, Tone};
use crate::view::paragraph::paragraph;
use crate::view::table::{Align, Cell, Table};
use crate::view::words::{count, narrow_count, narrow_size, span};

/// Users shown; `--json` has the others.
const USERS_SHOWN: usize = 10;
/// Decisions that `explain` tells.
const DECISIONS_TOLD: usize = 5;

fn head(report: &WatermarksReport, style: &Style) -> String {
    let tone = if report.is_acting {
        Tone::Good
    } else {
        Tone::Warning
    };
    let standing = style.shown(&report.standing);
    let mut text = paragraph("", &standing, style.width);
    if style.width.is_none_or(|width| standing.len() <= width) {
        text = style.painted(tone, text.trim_end()) + "\n";
    }
    let back = if report.scale == report.scale_original {
        "its original".to_owned()
    } else {
        format!("originally {}", report.scale_original)
    };
    let scale = format!(
        "watermark_scale_factor {} ({back}, at most {}), model {}",
        report.scale,
        report.scale_highest,
        style.shown(&report.model)
    );
    text + &paragraph("", &scale, style.width)
}

/// `bursar watermarks status`.
pub(crate) fn status(report: &WatermarksReport, style: &Style) -> String {
    let mut text = head(report, style);
    text.push('\n');
    text.push_str(&nodes(&report.nodes, style));
    text.push('\n');
    text.push_str(&stalls(&report.stalls, report.pressure_avg10, style));
    if !report.users.is_empty() {
        text.push('\n');
        text.push_str(&users(&report.users, style));
    }
    for turned in &report.turned {
        let line = format!(
            "{} = {}, originally {}",
            style.shown(&turned.name),
            turned.value,
            turned.original
        );
        text.push_str(&paragraph("changed: ", &line, style.width));
    }
    if let Some((now, most)) = report.negative_dentries {
        let line = format!("{now} negative dentries, at most {most} wanted");
        text.push_str(&paragraph("", &line, style.width));
    }
    for remark in &report.remarks {
        text.push_str(&paragraph("note: ", &style.shown(remark), style.width));
    }
    text
}

fn nodes(nodes: &[NodeReport], style: &Style) -> String {
    let mut table = Table::new(&[
        ("NODE", Align::Right),
        ("FREE", Align::Right),
        ("MIN", Align::Right),
        ("LOW", Align::Right),
        ("HIGH", Align::Right),
        ("BROKEN UP", Align::Right),
    ]);
    for node in nodes {
        let tone = match node.free {
            free if free < node.min => Some(Tone::Bad),
            free if free < node.low => Some(Tone::Warning),
            _ => None,
        };
        // Order 9 is a huge page of 2 MiB, the block that is asked for most.
        let broken = match node.unusable_permille.get(9) {
            Some(permille) => format!("{} %", permille / 10),
            None => "-".to_owned(),
        };
        table.push(vec![
            Cell::new(node.node.to_string()),
            Cell::toned(narrow_size(node.free), tone),
            Cell::new(narrow_size(node.min)),
            Cell::new(narrow_size(node.low)),
            Cell::new(narrow_size(node.high)),
            Cell::new(broken),
        ]);
    }
    table.lines(2, style)
}

fn stalls(stalls: &StallReport, pressure: Option<u32>, style: &Style) -> String {
    let since_boot = format!(
        "{} and {} since boot",
        count(
            stalls.reclaims_since_boot,
            "stall for memory",
            "stalls for memory"
        ),
        count(
            stalls.compactions_since_boot,
            "for large blocks",
            "for large blocks"
        ),
    );
    let mut text = paragraph("", &since_boot, style.width);
    match (&stalls.measured, &stalls.unmeasured) {
        (Some(times), _) => {
            let line = format!(
                "since bursard started: {} took {}, {} took {}; the longest {}",
                count(times.reclaims, "reclaim", "reclaims"),
                span(Nanos::new(times.reclaim_ns), style.charset),
                count(times.compactions, "compaction", "compactions"),
                span(Nanos::new(times.compaction_ns), style.charset),
                span(Nanos::new(times.longest_ns), style.charset),
            );
            text.push_str(&paragraph("", &line, style.width));
        }
        (None, why) => {
            let why = why.as_deref().unwrap_or("no reason was given");
            let line = format!("their time is not measured: {}", style.shown(why));
            text.push_str(&paragraph("", &line, style.width));
        }
    }
    if let Some(pressure) = pressure {
        let line = format!(
            "pressure {}.{:02} % of the last 10 s, kswapd's own work included",
            pressure / 100,
            pressure % 100
        );
        text.push_str(&paragraph("", &line, style.width));
    }
    text
}

fn users(users: &[UserStalls], style: &Style) -> String {
    let mut table = Table::new(&[
        ("WHO", Align::Left),
        ("STALLS", Align::Right),
        ("TIME", Align::Right),
        ("LONGEST", Align::Right),
        ("CAUSE", Align::Right),
    ]);
    for user in users.iter().take(USERS_SHOWN) {
        let who = match (&user.account, user.uid) {
            (Some(account), _) => style.shown(account),
            (None, Some(uid)) => format!("uid {uid}"),
            (None, None) => "others".to_owned(),
        };
        let times = &user.times;
        let waited = times.reclaim_ns.saturating_add(times.compaction_ns);
        let tone = (waited > 0).then_some(Tone::Warning);
        table.push(vec![
            Cell::new(who),
            Cell::new(narrow_count(
                times.reclaims.saturating_add(times.compactions),
            )),
            Cell::toned(span(Nanos::new(waited), style.charset), tone),
            Cell::new(span(Nanos::new(times.longest_ns), style.charset)),
            Cell::new(format!("{} %", user.cause_permille / 10)),
        ]);
    }
    let mut text = table.lines(2, style);
    if users.len() > USERS_SHOWN {
        let more = users.len() - USERS_SHOWN;
        text.push_str(&format!("and {more} more: --json has them\n"));
    }
    text
}

/// `bursar watermarks explain`.
pub(crate) fn explanation(report: &WatermarksReport, clock: &Clock, style: &Style) -> String {
    let mut text = head(report, style);
    let now = &report.forecast;
    text.push('\n');
    text.push_str(&paragraph("now: ", &style.shown(&now.text), style.width));
    if now.needed > Bytes::ZERO {
        let line = format!(
            "between the marks {} should be free; demand {}/s, kswapd {}/s",
            now.needed, now.demand, now.supply
        );
        text.push_str(&paragraph("     ", &line, style.width));
    }
    let told = report.decisions.iter().rev().filter(|it| is_change(it));
    let told: Vec<&DecisionReport> = told.take(DECISIONS_TOLD).collect();
    text.push('\n');
    if told.is_empty() {
        text.push_str("nothing was changed, and nothing had to be\n");
    }
    for decision in told.into_iter().rev() {
        text.push_str(&line(decision, clock, style));
    }
    if let Some(worst) = cause(&report.users) {
        text.push_str(&paragraph("", &style.shown(&worst), style.width));
    }
    for remark in &report.remarks {
        text.push_str(&paragraph("note: ", &style.shown(remark), style.width));
    }
    let effort = format!(
        "looked {}, wrote {}, used {} of processor time",
        count(report.ticks, "time", "times"),
        count(report.writes, "value", "values"),
        span(Nanos::new(report.cpu_ns), style.charset)
    );
    text + &paragraph("", &effort, style.width)
}

fn is_change(decision: &DecisionReport) -> bool {
    decision.scale.is_some() || decision.compact.is_some()
}

/// Who waited most, and who caused most of it.
fn cause(users: &[UserStalls]) -> Option<String> {
    let name = |user: &UserStalls| match (&user.account, user.uid) {
        (Some(account), _) => account.clone(),
        (None, Some(uid)) => format!("uid {uid}"),
        (None, None) => "others".to_owned(),
    };
    let victim = users
        .iter()
        .find(|user| user.times.reclaims > 0 || user.times.compactions > 0)?;
    let causer = users.iter().max_by_key(|user| user.cause_permille)?;
    Some(format!(
        "{} waited longest; {} caused most of it ({} % of the demand that woke kswapd)",
        name(victim),
        name(causer),
        causer.cause_permille / 10
    ))
}

/// `bursar watermarks history`.
pub(crate) fn history(report: &WatermarksReport, clock: &Clock, style: &Style) -> String {
    let mut text = String::new();
    if report.decisions_dropped > 0 {
        text.push_str(&format!(
            "{} older decisions are not kept\n",
            report.decisions_dropped
        ));
    }
    for decision in &report.decisions {
        text.push_str(&line(decision, clock, style));
    }
    if text.is_empty() {
        text.push_str("nothing was decided yet\n");
    }
    text
}

fn line(decision: &DecisionReport, clock: &Clock, style: &Style) -> String {
    let mut words = style.shown(&decision.text);
    if is_change(decision) {
        words = format!("{}: {words}", style.shown(&decision.act));
    }
    if decision.times > 1 {
        words.push_str(&format!(
            "; {} times until {}",
            decision.times,
            clock.stamp(&decision.until, style.charset)
        ));
    }
    if let Some(stalls) = decision.stalls_after.filter(|_| is_change(decision)) {
        words.push_str(&format!(
            "; in the minute after: {}",
            count(stalls, "stall", "stalls")
        ));
        if let Some(time) = decision.stall_ns_after.filter(|&time| time > 0) {
            words.push_str(&format!(", {}", span(Nanos::new(time), style.charset)));
        }
    }
    let stamp = clock.stamp(&decision.time, style.charset);
    paragraph(&format!("{stamp}  "), &words, style.width)
}

/// `bursar watermarks restore`.
pub(crate) fn restored(report: &RestoreReport, style: &Style) -> String {
    if report.lines.is_empty() {
        return "nothing to put back: bursar has no value set now\n".to_owned();
    }
    let lines = report.lines.iter();
    lines
        .map(|line| paragraph("", &style.shown(line), style.width))
        .collect()
}

#[cfg(test)]
mod tests {
    use bursar_model::Uid;
    use bursar_protocol::{ForecastReport, StallTimes};
    use insta::assert_snapshot;
    use jiff::tz::TimeZone;

    use super::*;
    use crate::style::{Charset, Paint};

    const STYLE: Style = Style {
        width: Some(80),
        charset: Charset::Unicode,
        paint: Paint::Plain,
    };

    fn clock() -> Clock {
        Clock::stopped("2026-11-21T06:12:03Z".parse().unwrap(), TimeZone::UTC)
    }

    fn report() -> WatermarksReport {
        WatermarksReport {
            mode: "act".into(),
            model: "bursar".into(),
            standing: "acting".into(),
            is_acting: true,
            scale: 540,
            scale_original: 10,
            scale_highest: 1000,
            nodes: vec![NodeReport {
                node: 0,
                free: Bytes::from_mib(148),
                min: Bytes::from_mib(4),
                low: Bytes::from_mib(56),
                high: Bytes::from_mib(107),
                unusable_permille: vec![0, 1, 5, 20, 90, 200, 300, 400, 500, 610, 700],
            }],
            forecast: ForecastReport {
                reason: "enough".into(),
                text: "there is room enough for what is asked for (free 148 MiB, kswapd wakes at 56 MiB)".into(),
                demand: Bytes::from_mib(59),
                supply: Bytes::from_mib(1024),
                compaction: Bytes::ZERO,
                needed: Bytes::from_mib(47),
                margin: Bytes::ZERO,
                margin_kept: Bytes::ZERO,
                soonest_seconds: Some(2.5),
                likely_seconds: Some(9.0),
            },
            stalls: StallReport {
                reclaims_since_boot: 4,
                compactions_since_boot: 0,
                measured: Some(StallTimes {
                    reclaims: 4,
                    reclaim_ns: 22_410_063,
                    compactions: 0,
                    compaction_ns: 0,
                    longest_ns: 14_787_257,
                    wakeups: 116,
                }),
                unmeasured: None,
            },
            users: vec![
                UserStalls {
                    uid: Some(Uid::new(60001)),
                    account: Some("alice".into()),
                    times: StallTimes {
                        reclaims: 4,
                        reclaim_ns: 22_410_063,
                        longest_ns: 14_787_257,
                        wakeups: 10,
                        ..StallTimes::default()
                    },
                    cause_permille: 86,
                },
                UserStalls {
                    uid: Some(Uid::new(60002)),
                    account: Some("b\u{1b}[2Jo\nb".into()),
                    times: StallTimes {
                        wakeups: 106,
                        ..StallTimes::default()
                    },
                    cause_permille: 913,
                },
            ],
            decisions: vec![
                DecisionReport {
                    time: "2026-11-21T06:10:00Z".into(),
                    until: "2026-11-21T06:10:50Z".into(),
                    times: 50,
                    reason: "quiet".into(),
                    text: "nothing asks for more room than the kernel keeps by itself".into(),
                    act: "nothing to do".into(),
                    scale_before: 10,
                    ..DecisionReport::default()
                },
                DecisionReport {
                    time: "2026-11-21T06:10:51Z".into(),
                    until: "2026-11-21T06:10:51Z".into(),
                    times: 1,
                    reason: "ahead".into(),
                    text: "a burst may take 47 MiB before kswapd has made room, and memory may be low within 2.5 s: scale factor 10 up to 540".into(),
                    act: "done".into(),
                    scale_before: 10,
                    scale: Some(540),
                    stalls_after: Some(1),
                    stall_ns_after: Some(2_000_000),
                    ..DecisionReport::default()
                },
            ],
            pressure_avg10: Some(123),
            ticks: 1200,
            writes: 3,
            cpu_ns: 61_000_000,
            ..WatermarksReport::default()
        }
    }

    #[test]
    fn the_status_says_who_waited_and_because_of_whom() {
        assert_snapshot!(status(&report(), &STYLE));
    }

    #[test]
    fn the_explanation_says_what_was_seen_and_done() {
        assert_snapshot!(explanation(&report(), &clock(), &STYLE));
    }

    #[test]
    fn the_history_has_what_came_of_each_decision() {
        assert_snapshot!(history(&report(), &clock(), &STYLE));
    }

    #[test]
    fn nothing_to_put_back_is_said() {
        assert_eq!(
            restored(&RestoreReport::default(), &STYLE),
            "nothing to put back: bursar has no value set now\n"
        );
    }
}
