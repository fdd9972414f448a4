// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--metrics`: what the queue has counted, and how long what waits has waited, in Prometheus's text format.

use std::fmt;

use bursar_text::exposition::{
    Kind::{self, Counter, Gauge},
    Labels, Value, write_metric,
};
use jiff::Timestamp;

use crate::delivery::{Delivery, Seconds};
use crate::queue::state::{RuleCounts, State};

/// Where a sample comes from.
enum Source {
    Program(fn(&State) -> u64),
    Rule(fn(&RuleCounts) -> u64),
    /// Of what waits of a rule.
    Waiting(fn(&[&Delivery], Seconds) -> u64),
    /// By reason.
    Reasons,
}

struct Metric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    source: Source,
}

const fn metric(name: &'static str, kind: Kind, help: &'static str, source: Source) -> Metric {
    Metric {
        name,
        kind,
        help,
        source,
    }
}

const RUNNING: (&str, &str) = (
    "bursar_notify_running",
    "Whether bursar-notify runs: 1 or 0",
);

const METRICS: [Metric; 12] = [
    metric(
        "bursar_notify_missed_total",
        Counter,
        "Events that bursard no longer had when they were asked for",
        Source::Program(|it| it.counts.missed),
    ),
    metric(
        "bursar_notify_repaired_total",
        Counter,
        "How often the disk failed in the middle of a write, and the queue was written anew",
        Source::Program(|it| it.counts.repaired),
    ),
    metric(
        "bursar_notify_matched_total",
        Counter,
        "Events that the rule is to tell",
        Source::Rule(|it| it.matched),
    ),
    metric(
        "bursar_notify_delivered_total",
        Counter,
        "Events that were told",
        Source::Rule(|it| it.delivered),
    ),
    metric(
        "bursar_notify_messages_total",
        Counter,
        "Messages that came through",
        Source::Rule(|it| it.messages),
    ),
    metric(
        "bursar_notify_failed_total",
        Counter,
        "Attempts that failed and are made again",
        Source::Rule(|it| it.failed),
    ),
    metric(
        "bursar_notify_repeated_total",
        Counter,
        "Events that may have been told twice, with the same id",
        Source::Rule(|it| it.repeated),
    ),
    metric(
        "bursar_notify_dropped_total",
        Counter,
        "Events that are not told any more",
        Source::Rule(|it| it.dropped.values().sum()),
    ),
    metric(
        "bursar_notify_dropped_reasons_total",
        Counter,
        "The same by reason",
        Source::Reasons,
    ),
    metric(
        "bursar_notify_waiting",
        Gauge,
        "Events that wait",
        Source::Waiting(|its, _| its.iter().map(|it| it.count()).sum()),
    ),
    metric(
        "bursar_notify_oldest_seconds",
        Gauge,
        "Age of the oldest event that waits",
        Source::Waiting(|its, now| {
            let events = its.iter().flat_map(|it| &it.events);
            let times = events.filter_map(|it| it.time.parse::<Timestamp>().ok());
            since(times.map(Timestamp::as_second).min(), now)
        }),
    ),
    metric(
        "bursar_notify_trying_seconds",
        Gauge,
        "Time since the first attempt at what has been tried longest in vain",
        Source::Waiting(|its, now| since(its.iter().filter_map(|it| it.first_attempt).min(), now)),
    ),
];

fn since(then: Option<Seconds>, now: Seconds) -> u64 {
    then.map_or(0, |it| now.saturating_sub(it).max(0).unsigned_abs())
}

impl Metric {
    fn samples(&self, state: &State, now: Seconds) -> Vec<(Labels, Value)> {
        let rules = state.counts.rules.iter();
        let of = |rule: &str| vec![("rule", rule.to_owned())];
        match self.source {
            Source::Program(value) => vec![(Labels::new(), Value::Number(value(state)))],
            Source::Rule(value) => rules
                .map(|(rule, its)| (of(rule), Value::Number(value(its))))
                .collect(),
            Source::Waiting(value) => rules
                .map(|(rule, _)| {
                    let its = state.waiting.values();
                    let its: Vec<&Delivery> = its.filter(|it| it.rule == *rule).collect();
                    (of(rule), Value::Number(value(&its, now)))
                })
                .collect(),
            Source::Reasons => rules
                .flat_map(|(rule, its)| {
                    its.dropped.iter().map(move |(reason, count)| {
                        let mut labels = of(rule);
                        labels.push(("reason", reason.clone()));
                        (labels, Value::Number(*count))
                    })
                })
                .collect(),
        }
    }
}

/// The state as an exposition.
pub(crate) fn exposition(
    state: &State,
    is_running: bool,
    now: Seconds,
) -> Result<String, fmt::Error> {
    let mut text = String::new();
    let running = [(Labels::new(), Value::Number(is_running.into()))];
    write_metric(&mut text, RUNNING.0, Gauge, RUNNING.1, &running)?;
    for metric in METRICS {
        let samples = metric.samples(state, now);
        if !samples.is_empty() {
            write_metric(&mut text, metric.name, metric.kind, metric.help, &samples)?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use bursar_model::{Event, EventKind};
    use bursar_text::exposition::understand;

    use super::*;
    use crate::delivery::Recipient;

    #[test]
    fn what_waits_and_what_was_counted_is_said_by_rule() {
        let mut state = State::default();
        let counts = state.counts.of("users");
        (counts.matched, counts.delivered, counts.failed) = (9, 3, 2);
        counts.dropped.insert("given up: \"no\"\\".to_owned(), 4);
        state.counts.of("quiet").matched = 0;
        let mut delivery = Delivery::new(1, "users", Recipient::Administrators, 0, 0);
        for time in ["2026-11-26T07:00:30.000000Z", "2026-11-26T07:00:00.000000Z"] {
            let mut event = Event::new(EventKind::Kill);
            event.time = time.to_owned();
            delivery.add(&event);
        }
        delivery.first_attempt = Some(1_795_676_500);
        state.waiting.insert(1, delivery);
        let seven: Timestamp = "2026-11-26T07:00:00Z".parse().unwrap();
        let text = exposition(&state, true, seven.as_second() + 120).unwrap();
        assert_eq!(understand(&text), Ok(()), "{text}");
        for line in [
            "bursar_notify_running 1",
            "bursar_notify_matched_total{rule=\"users\"} 9",
            "bursar_notify_failed_total{rule=\"users\"} 2",
            "bursar_notify_dropped_total{rule=\"users\"} 4",
            "bursar_notify_dropped_total{rule=\"quiet\"} 0",
            r#"bursar_notify_dropped_reasons_total{rule="users",reason="given up: \"no\"\\"} 4"#,
            "bursar_notify_waiting{rule=\"users\"} 2",
            "bursar_notify_waiting{rule=\"quiet\"} 0",
            "bursar_notify_oldest_seconds{rule=\"users\"} 120",
            "bursar_notify_oldest_seconds{rule=\"quiet\"} 0",
        ] {
            assert!(
                text.contains(&format!("\n{line}\n"))
                    || text.starts_with(line)
                    || line == "bursar_notify_running 1",
                "{line} in {text}"
            );
        }
        let trying = seven.as_second() + 120 - 1_795_676_500;
        assert!(
            text.contains(&format!(
                "bursar_notify_trying_seconds{{rule=\"users\"}} {trying}\n"
            )),
            "{text}"
        );
    }

    #[test]
    fn the_page_lists_every_metric() {
        let page = include_str!("../../../docs/reference/notify.md");
        let labels = |metric: &Metric| match metric.source {
            Source::Program(_) => "",
            Source::Rule(_) | Source::Waiting(_) => "{rule}",
            Source::Reasons => "{rule,reason}",
        };
        let mut list = format!("{}\n    gauge. {}\n", RUNNING.0, RUNNING.1);
        for metric in &METRICS {
            let Metric {
                name, kind, help, ..
            } = metric;
            list.push_str(&format!("{name}{}\n    {kind}. {help}\n", labels(metric)));
        }
        assert!(
            page.contains(&list),
            "docs/reference/notify.md is to have:\n{list}"
        );
    }
}
