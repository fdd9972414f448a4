// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An event in one line: for `bursar events`, `bursar top` and bursard's log, which say the same.

use bursar_model::{Bytes, Event, EventKind, Nanos, Trigger};

use crate::words::span;
use crate::{Charset, entry};

/// A rate over less says nothing.
const SHORTEST_SPAN: Nanos = Nanos::new(1_000_000);

/// `kill alice: python3[4242] 301 MiB; held 512 MiB of 512 MiB`: all but the time.
#[must_use]
pub fn line(event: &Event, charset: Charset) -> String {
    let mut line = kind(event.event).to_owned();
    if let Some(account) = &event.account {
        line.push(' ');
        line.push_str(&charset.shown(account));
    }
    let facts = facts(event, charset);
    if !facts.is_empty() {
        line.push_str(": ");
        line.push_str(&facts.join("; "));
    }
    line
}

/// The kind's name in the contract.
#[must_use]
pub const fn kind(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Notice => "notice",
        EventKind::Refused => "refused",
        EventKind::Kill => "kill",
        EventKind::WouldNotice => "would_notice",
        EventKind::WouldRefuse => "would_refuse",
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

/// `python3[4242]`, `[4242]`.
#[must_use]
pub fn process(event: &Event, charset: Charset) -> Option<String> {
    let pid = event.pid?;
    let comm = event.comm.as_deref().unwrap_or_default();
    Some(format!("{}[{pid}]", charset.shown(comm)))
}

/// What the event has, whatever its kind: a fact that a later kernel half adds is shown as well.
#[must_use]
pub fn facts(event: &Event, charset: Charset) -> Vec<String> {
    let mut facts = Vec::new();
    let process = process(event, charset);
    match (process, event.victim_bytes) {
        (Some(process), Some(bytes)) => facts.push(format!("{process} {bytes}")),
        (Some(process), None) => facts.push(process),
        (None, Some(bytes)) => facts.push(format!("victim {bytes}")),
        (None, None) => {}
    }
    // What was refused says itself what it came on top of.
    let is_refusal = matches!(event.event, EventKind::Refused | EventKind::WouldRefuse);
    let has_level = is_refusal && event.barrier.is_some();
    match (event.held, event.limit, event.overcommit) {
        _ if has_level && event.reason.is_some() => {}
        (Some(held), Some(limit), Some(over)) => {
            facts.push(format!("held {held} of {limit}, over by {over}"));
        }
        (Some(held), Some(limit), None) => facts.push(format!("held {held} of {limit}")),
        (Some(held), None, _) => facts.push(format!("held {held}")),
        (None, Some(limit), _) => facts.push(format!("limit {limit}")),
        (None, None, Some(over)) => facts.push(format!("over by {over}")),
        (None, None, None) => {}
    }
    facts.extend(returned(event, charset));
    facts.extend(decided(event, charset));
    if !event.found.is_empty() {
        facts.push(charset.shown(&event.found.join(", ").replace('_', " ")));
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
    facts.extend(event.reason.as_ref().map(|reason| charset.shown(reason)));
    facts.extend(changed(event, charset));
    if let Some(more) = event.more {
        facts.push(format!("and {more} more since the last one stored"));
    }
    facts
}

/// What an entry said before it was changed, who did that, and why.
fn changed(event: &Event, charset: Charset) -> Vec<String> {
    let old = event.old.as_ref();
    let was = old.map(|old| format!("was {}", charset.shown(&entry::said(old))));
    let by = event.actor.as_ref().map(|it| entry::actor(it, charset));
    let why = event.stated_reason.as_ref();
    let why = why.map(|why| format!("reason: {}", charset.shown(why.as_str())));
    was.into_iter().chain(by).chain(why).collect()
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
    if let Some(rate) = rate(event) {
        text.push_str(&format!(", {rate}/s"));
    }
    if let Some(method) = &event.method {
        text.push_str(&format!(", by {}", method_words(method, charset)));
    }
    Some(text)
}

/// How fast it was. Of less than a millisecond a rate is noise: part of the memory was back before the signal.
#[must_use]
pub fn rate(event: &Event) -> Option<Bytes> {
    let is_measured = event.duration_ns.is_some_and(|it| it >= SHORTEST_SPAN);
    event
        .bytes_per_second
        .filter(|rate| is_measured && *rate > Bytes::ZERO)
}

/// What gave the memory back.
#[must_use]
pub fn method_words(method: &str, charset: Charset) -> String {
    match method {
        "exit" => "its own exit".to_owned(),
        "raised_exit" => "its own exit, at a raised priority".to_owned(),
        other => charset.shown(other),
    }
}

/// Who decided, and how fast.
fn decided(event: &Event, charset: Charset) -> Option<String> {
    let latency = event
        .latency_ns
        .map(|latency| format!("signal after {}", span(latency, charset)));
    let parts: Vec<String> = event
        .trigger
        .map(|trigger| format!("by {}", trigger_name(trigger)))
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
#[must_use]
pub const fn trigger_name(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::Event => "event",
        Trigger::Timer => "timer",
        Trigger::Notifier => "notifier",
        Trigger::Poll => "poll",
    }
}
