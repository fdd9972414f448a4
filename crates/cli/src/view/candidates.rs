// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The processes that were weighed when a victim was chosen.

use bursar_model::{Candidate, Event, EventKind};

use crate::clock::Clock;
use crate::style::{Style, Tone};
use crate::view::paragraph::paragraph;
use crate::view::table::{Align, Cell, Table};
use crate::view::words::{count, narrow_size};

/// How much is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    Usual,
    /// Parents, beginnings and command lines of all candidates, too.
    Full,
}

/// The largest, largest first, the victim marked; how many more there were.
pub(crate) fn candidates(kill: &Event, detail: Detail, clock: &Clock, style: &Style) -> String {
    let mut text = match detail {
        Detail::Usual => usual(kill, style),
        Detail::Full => full(kill, clock, style),
    };
    let shown = u32::try_from(kill.candidates.len()).unwrap_or(u32::MAX);
    let more = kill
        .candidates_met
        .map_or(0, |met| met.saturating_sub(shown));
    if more > 0 {
        let more = count(more.into(), "smaller one", "smaller ones");
        text.push_str(&format!("    and {more}\n"));
    }
    text
}

/// What became of it, or why nothing did.
fn fate(kill: &Event, candidate: &Candidate) -> &'static str {
    if kill.pid == Some(candidate.pid) {
        match kill.event {
            EventKind::WouldKill => "would be killed",
            _ => "killed",
        }
    } else if candidate.spared {
        "spared"
    } else {
        ""
    }
}

fn tone_of(kill: &Event, candidate: &Candidate) -> Option<Tone> {
    (kill.pid == Some(candidate.pid)).then_some(Tone::Bad)
}

fn usual(kill: &Event, style: &Style) -> String {
    let mut table = Table::new(&[
        ("PID", Align::Right),
        ("HELD", Align::Right),
        ("COMMAND", Align::Left),
        ("", Align::Left),
    ]);
    for candidate in &kill.candidates {
        let tone = tone_of(kill, candidate);
        table.push(vec![
            Cell::toned(candidate.pid.to_string(), tone),
            Cell::toned(narrow_size(candidate.bytes), tone),
            Cell::toned(style.shown(&candidate.comm), tone),
            Cell::toned(fate(kill, candidate), tone),
        ]);
    }
    table.indented_lines(4, 2, style)
}

/// One after the other: command lines are long.
fn full(kill: &Event, clock: &Clock, style: &Style) -> String {
    let mut text = String::new();
    for candidate in &kill.candidates {
        let tone = tone_of(kill, candidate);
        let fate = fate(kill, candidate);
        let comma = if fate.is_empty() { "" } else { ", " };
        let head = format!(
            "{:>7}  {:>6}  {}{comma}{fate}",
            candidate.pid,
            narrow_size(candidate.bytes),
            style.shown(&candidate.comm)
        );
        text.push_str(&style.toned(tone, &head));
        text.push('\n');
        for line in facts(candidate, clock, style) {
            text.push_str(&paragraph("                 ", &line, style.width));
        }
    }
    text
}

fn facts(candidate: &Candidate, clock: &Clock, style: &Style) -> Vec<String> {
    let began = candidate
        .began
        .as_ref()
        .map(|it| format!("began {}", clock.local_of(it, "%Y-%m-%d %H:%M:%S")));
    let parent = candidate.parent.map(|parent| match &candidate.parent_comm {
        Some(comm) => format!("parent {} ({parent})", style.shown(comm)),
        None => format!("parent {parent}"),
    });
    let origin: Vec<String> = began.into_iter().chain(parent).collect();
    let command = candidate.command.as_ref().map(|it| style.shown(it));
    let origin = Some(origin.join(", ")).filter(|it| !it.is_empty());
    origin.into_iter().chain(command).collect()
}

#[cfg(test)]
mod tests {
    use bursar_model::{Bytes, EventKind, Pid};
    use insta::assert_snapshot;

    use super::*;
    use crate::sample::{HOSTILE, clock, style};

    #[test]
    fn in_full_parents_beginnings_and_command_lines_are_told() {
        let mut kill = Event::new(EventKind::Kill);
        kill.pid = Some(Pid::new(4242));
        kill.candidates_met = Some(4);
        let mut victim = Candidate::new(Pid::new(4242), "python3".into(), Bytes::from_mib(400));
        victim.parent = Some(Pid::new(812));
        victim.parent_comm = Some("jupyter-lab".into());
        victim.began = Some("2026-11-21T04:15:00.000000Z".into());
        victim.command = Some(
            "python3 -m ipykernel_launcher -f /run/user/60901/jupyter/kernel-1234.json".into(),
        );
        let mut other = Candidate::new(Pid::new(99), HOSTILE.into(), Bytes::from_mib(3));
        other.parent = Some(Pid::new(1));
        kill.candidates = vec![
            victim,
            other,
            Candidate::new(Pid::new(7), "sh".into(), Bytes::ZERO),
        ];
        assert_snapshot!(candidates(&kill, Detail::Full, &clock(), &style(70)));
    }
}
