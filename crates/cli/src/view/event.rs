// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar events`: one line a fact.

use bursar_model::{Event, EventKind};
use bursar_text::event::{facts, kind};

use crate::clock::Clock;
use crate::style::{Style, Tone};

/// Columns of the kind: `limit_changed`.
const KIND: usize = 13;

/// One line, without its end. Never cut: it may be all that is left of a fact.
pub(crate) fn event_line(event: &Event, clock: &Clock, style: &Style) -> String {
    let kind = style.toned(tone(event.event), &format!("{:<KIND$}", kind(event.event)));
    let mut line = format!("{}  {kind}", clock.stamp(&event.time, style.charset));
    if let Some(account) = &event.account {
        line.push_str(&format!("  {}", style.shown(account)));
    }
    let facts = facts(event, style.charset);
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
    line.push_str(&format!("  {}", facts(event, style.charset).join("; ")));
    (line.trim_end().to_owned(), tone(event.event))
}

const fn tone(kind: EventKind) -> Option<Tone> {
    match kind {
        EventKind::Notice
        | EventKind::Refused
        | EventKind::WouldNotice
        | EventKind::WouldRefuse
        | EventKind::WouldKill
        | EventKind::Asked => Some(Tone::Warning),
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

#[cfg(test)]
mod tests {
    use bursar_text::event::trigger_name;
    use insta::assert_snapshot;

    use super::*;
    use crate::sample::{self, clock, style};
    use crate::style::Charset;

    #[test]
    fn the_names_are_those_of_the_contract() {
        for event in sample::events() {
            let told = serde_json::to_value(event.event).unwrap();
            assert_eq!(told, kind(event.event));
            if let Some(trigger) = event.trigger {
                assert_eq!(
                    serde_json::to_value(trigger).unwrap(),
                    trigger_name(trigger)
                );
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
