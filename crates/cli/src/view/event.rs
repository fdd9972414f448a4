// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar events`: one line a fact.

use bursar_model::{Event, EventKind, Trigger};

use crate::clock::Clock;
use crate::style::{Charset, Style, Tone};
use crate::view::words::span;

/// Columns of the kind: `limit_changed`.
const KIND: usize = 13;

/// One line, without its end. Never cut: it may be all that is left of a fact.
pub(crate) fn event_line(event: &Event, clock: &Clock, style: &Style) -> String {
    let kind = style.toned(tone(event.event), &format!("{:<KIND$}", kind(event.event)));
    let mut line = format!("{}  {kind}", clock.stamp(&event.time, style.charset));
    if let Some(account) = &event.account {
        line.push_str(&format!("  {}", style.shown(account)));
    }
    let facts = facts(event, style);
    if !facts.is_empty() {
        line.push_str(&format!("  {}", facts.join("; ")));
    }
    line.trim_end().to_owned()
}

/// The same for a screen that is followed: without the day, and its tone apart.
pub(crate) fn event_short(event: &Event, clock: &Clock, style: &Style) -> (String, Option<Tone>) {
    let time = clock.time(&event.time, style.charset);
    let mut line = format!("{time}  {:<KIND$}", kind(event.event));
    if let Some(account) = &event.account {
        line.push_str(&format!("  {}", style.shown(account)));
    }
    line.push_str(&format!("  {}", facts(event, style).join("; ")));
    (line.trim_end().to_owned(), tone(event.event))
}

/// The kind's name in the contract.
pub(crate) const fn kind(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Notice => "notice",
        EventKind::Refused => "refused",
        EventKind::Kill => "kill",
        EventKind::WouldKill => "would_kill",
        EventKind::Reaped => "reaped",
        EventKind::Asked => "asked",
        EventKind::NoVictim => "no_victim",
        EventKind::KillFailed => "kill_failed",
        EventKind::LimitChanged => "limit_changed",
        EventKind::Attached => "attached",
        EventKind::Released => "released",
        EventKind::Reloaded => "reloaded",
        EventKind::Lost => "lost",
    }
}

const fn tone(kind: EventKind) -> Option<Tone> {
    match kind {
        EventKind::Notice | EventKind::Refused | EventKind::WouldKill | EventKind::Asked => {
            Some(Tone::Warning)
        }
        EventKind::Kill | EventKind::NoVictim | EventKind::KillFailed | EventKind::Lost => {
            Some(Tone::Bad)
        }
        EventKind::Reaped
        | EventKind::LimitChanged
        | EventKind::Attached
        | EventKind::Released
        | EventKind::Reloaded => None,
    }
}

/// `python3[4242]`, `[4242]`.
pub(crate) fn process(event: &Event, charset: Charset) -> Option<String> {
    let pid = event.pid?;
    let comm = event.comm.as_deref().unwrap_or_default();
    Some(format!("{}[{pid}]", charset.shown(comm)))
}

/// What the event has, whatever its kind: a fact that a later kernel half adds is shown as well.
fn facts(event: &Event, style: &Style) -> Vec<String> {
    let mut facts = Vec::new();
    let process = process(event, style.charset);
    match (process, event.victim_bytes) {
        (Some(process), Some(bytes)) => facts.push(format!("{process} {bytes}")),
        (Some(process), None) => facts.push(process),
        (None, Some(bytes)) => facts.push(format!("victim {bytes}")),
        (None, None) => {}
    }
    match (event.held, event.limit, event.overcommit) {
        (Some(held), Some(limit), Some(over)) => {
            facts.push(format!("held {held} of {limit}, over by {over}"));
        }
        (Some(held), Some(limit), None) => facts.push(format!("held {held} of {limit}")),
        (Some(held), None, _) => facts.push(format!("held {held}")),
        (None, Some(limit), _) => facts.push(format!("limit {limit}")),
        (None, None, Some(over)) => facts.push(format!("over by {over}")),
        (None, None, None) => {}
    }
    facts.extend(returned(event, style.charset));
    facts.extend(decided(event, style.charset));
    if !event.found.is_empty() {
        facts.push(style.shown(&event.found.join(", ").replace('_', " ")));
    }
    if let Some(bytes) = event.stays_bytes {
        let holders: Vec<String> = event.holders.iter().map(ToString::to_string).collect();
        let held = if holders.is_empty() {
            String::new()
        } else {
            format!(", held by {}", holders.join(", "))
        };
        facts.push(format!("up to {bytes} stays{held}"));
    }
    facts.extend(event.reason.as_ref().map(|reason| style.shown(reason)));
    if let Some(more) = event.more {
        facts.push(format!("and {more} more since the last one stored"));
    }
    facts
}

/// How the memory came back, or that it did not.
fn returned(event: &Event, charset: Charset) -> Option<String> {
    let duration = event.duration_ns.map(|it| span(it, charset));
    if event.event == EventKind::Reaped && event.method.is_none() {
        return Some(duration.map_or_else(
            || "not back".to_owned(),
            |duration| format!("not back after {duration}"),
        ));
    }
    let mut text = match (event.freed_bytes, duration) {
        (Some(freed), Some(duration)) => format!("{freed} back in {duration}"),
        (Some(freed), None) => format!("{freed} back"),
        (None, Some(duration)) => format!("back in {duration}"),
        (None, None) => return None,
    };
    if let Some(rate) = event.bytes_per_second {
        text.push_str(&format!(", {rate}/s"));
    }
    if let Some(method) = &event.method {
        text.push_str(&format!(", by {}", charset.shown(method)));
    }
    Some(text)
}

/// Who decided, and how fast.
fn decided(event: &Event, charset: Charset) -> Option<String> {
    let latency = event
        .latency_ns
        .map(|latency| format!("signal after {}", span(latency, charset)));
    let parts: Vec<String> = event
        .trigger
        .map(|trigger| format!("by {}", name(trigger)))
        .into_iter()
        .chain(latency)
        .collect();
    if parts.is_empty() {
        None
    } else {
        Some(parts.join(", "))
    }
}

/// The trigger's name in the contract.
const fn name(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::Event => "event",
        Trigger::Timer => "timer",
        Trigger::Notifier => "notifier",
        Trigger::Poll => "poll",
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::sample::{self, clock, style};

    #[test]
    fn the_names_are_those_of_the_contract() {
        for event in sample::events() {
            let told = serde_json::to_value(event.event).unwrap();
            assert_eq!(told, kind(event.event));
            if let Some(trigger) = event.trigger {
                assert_eq!(serde_json::to_value(trigger).unwrap(), name(trigger));
            }
        }
    }

    fn lines(style: &Style) -> String {
        let lines: Vec<String> = sample::events()
            .iter()
            .map(|event| event_line(event, &clock(), style))
            .collect();
        lines.join("\n")
    }

    #[test]
    fn every_kind_of_event_is_one_line() {
        assert_snapshot!(lines(&style(80)));
    }

    #[test]
    fn memory_that_is_not_back_is_not_told_to_be_back() {
        let mut event = sample::unreaped();
        event.more = Some(300);
        let line = event_line(&event, &clock(), &style(80));
        assert!(
            line.ends_with(
                "  python3[4242]; not back after 2 s; somebody holds its memory's lock; and 300 more since \
                 the last one stored"
            ),
            "{line}"
        );
    }

    #[test]
    fn lines_are_ascii_where_the_locale_is() {
        let text = lines(&Style {
            charset: Charset::Ascii,
            ..style(80)
        });
        assert!(text.is_ascii(), "{text}");
    }
}
