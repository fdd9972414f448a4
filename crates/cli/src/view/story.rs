// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar why`: a kill and what followed it, in sentences.

use bursar_model::{Bytes, Event, EventKind, Pid, Trigger};

use crate::caller::Role;
use crate::clock::Clock;
use crate::look::{Charset, Look, Tone};
use crate::view::paragraph::paragraph;
use crate::view::table::{Align, Cell, Table};
use crate::view::words::{count, narrow_size, span};

/// Which kill is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Last,
    Of(Pid),
}

/// The story that `events` tell, oldest first.
pub(crate) fn story(
    events: &[Event],
    which: Which,
    role: Role,
    clock: &Clock,
    look: &Look,
) -> String {
    let is_start = |event: &&Event| {
        use EventKind::{Kill, KillFailed, NoVictim, WouldKill};
        matches!(event.event, Kill | KillFailed | WouldKill | NoVictim)
    };
    if let Some(files) = events.iter().find(|it| it.event == EventKind::NoVictim) {
        return held_by_files(files, clock, look);
    }
    let Some(kill) = events.iter().find(is_start) else {
        return paragraph("", &nothing(which, role), look.width);
    };
    let mut text = paragraph("", &opening(kill, which, clock, look), look.width);
    text.push_str(&paragraph("", &breach(kill, look), look.width));
    if !kill.candidates.is_empty() {
        text.push_str(&format!("\n{}\n", candidates(kill, look)));
    }
    text.push_str(&paragraph("", &decision(kill, look), look.width));
    text.push_str(&paragraph("", &aftermath(kill, events, look), look.width));
    text.push_str("\nWhat can be done now:\n");
    for advice in advice(kill, role, look) {
        text.push_str(&paragraph("- ", &advice, look.width));
    }
    text
}

/// Nobody was killed, for what is over are files.
fn held_by_files(event: &Event, clock: &Clock, look: &Look) -> String {
    let time = clock.told(&event.time, look.charset);
    let of_them = event.files_bytes.map_or_else(String::new, |bytes| {
        format!(" Of that {bytes} are files in memory (tmpfs, System V segments).")
    });
    let sentence = format!(
        "Nobody was killed {time}: killing would not have helped. {}{of_them}",
        breach(event, look)
    );
    let mut text = paragraph("", &sentence, look.width);
    if !event.files.is_empty() {
        let mut table = Table::new(&[("HELD", Align::Right), ("FILE", Align::Left)]);
        for file in &event.files {
            table.push(vec![
                Cell::toned(narrow_size(file.bytes), None),
                Cell::toned(look.shown(&file.place), None),
            ]);
        }
        text.push_str(&format!("\n{}\n", table.indented_lines(4, 2, look)));
    }
    text.push_str("\nWhat can be done now:\n");
    text.push_str(&paragraph(
        "- ",
        "remove files, or ask who made them to; until then processes may hold a sixteenth of the limit \
         beside them, at least 8 MiB",
        look.width,
    ));
    text
}

fn nothing(which: Which, role: Role) -> String {
    let what = match which {
        Which::Last => "no kill is recorded".to_owned(),
        Which::Of(pid) => format!("no kill of process {pid} is recorded"),
    };
    match role {
        Role::Root => format!("{what}; bursar events shows all that is"),
        // He cannot tell "none" from "not yours", and neither should an answer pretend to.
        Role::User => match which {
            Which::Last => format!(
                "{what} for you; when a program of yours vanished all the same, somebody or something \
                 else ended it (see dmesg, journalctl)"
            ),
            // The last kill is always remembered, one before it need not be.
            Which::Of(_) => format!(
                "{what} for you among what is remembered; an administrator can ask for what is older. \
                 Or somebody or something else ended it (see dmesg, journalctl)"
            ),
        },
    }
}

fn opening(kill: &Event, which: Which, clock: &Clock, look: &Look) -> String {
    let time = clock.told(&kill.time, look.charset);
    let process = process(kill, look.charset);
    match (kill.event, which) {
        (EventKind::KillFailed, _) => format!("{process} was to be killed {time}, which failed."),
        (EventKind::WouldKill, _) => {
            format!("{process} would have been killed {time}, but bursard runs dry.")
        }
        (_, Which::Last) => format!("The last to be killed was {process}, {time}."),
        (_, Which::Of(_)) => format!("{process} was killed {time}."),
    }
}

/// `python3 (process 4242)`.
fn process(event: &Event, charset: Charset) -> String {
    match (&event.comm, event.pid) {
        (Some(comm), Some(pid)) => format!("{} (process {pid})", charset.shown(comm)),
        (Some(comm), None) => charset.shown(comm),
        (None, Some(pid)) => format!("process {pid}"),
        (None, None) => "a process".into(),
    }
}

fn breach(kill: &Event, look: &Look) -> String {
    let account = account(kill, look);
    let over = kill
        .overcommit
        .or_else(|| Some(kill.held?.saturating_sub(kill.limit?)));
    let sentence = match (kill.held, kill.limit, over) {
        (Some(held), Some(limit), Some(over)) => {
            format!("{account} held {held}, {over} more than its limit of {limit}.")
        }
        (Some(held), Some(limit), None) => format!("{account} held {held}; its limit was {limit}."),
        (Some(held), None, _) => format!("{account} held {held}."),
        (None, Some(limit), _) => format!("{account} was over its limit of {limit}."),
        (None, None, _) => format!("{account} was over its limit."),
    };
    match kill.victim_bytes {
        Some(bytes) if kill.candidates.is_empty() => format!("{sentence} The victim held {bytes}."),
        _ => sentence,
    }
}

fn account(event: &Event, look: &Look) -> String {
    match &event.account {
        Some(name) if name.starts_with('=') => format!("The shared account {}", look.shown(name)),
        Some(name) => format!("The account {}", look.shown(name)),
        None => "An account".into(),
    }
}

/// The largest, largest first, the victim marked; how many more there were.
fn candidates(kill: &Event, look: &Look) -> String {
    let mut table = Table::new(&[
        ("PID", Align::Right),
        ("HELD", Align::Right),
        ("COMMAND", Align::Left),
        ("", Align::Left),
    ]);
    for candidate in &kill.candidates {
        let is_victim = kill.pid == Some(candidate.pid);
        let (mark, tone) = if is_victim {
            ("killed", Some(Tone::Bad))
        } else {
            ("", None)
        };
        table.push(vec![
            Cell::toned(candidate.pid.to_string(), tone),
            Cell::toned(narrow_size(candidate.bytes), tone),
            Cell::toned(look.shown(&candidate.comm), tone),
            Cell::toned(mark, tone),
        ]);
    }
    let mut text = table.indented_lines(4, 2, look);
    let shown = u32::try_from(kill.candidates.len()).unwrap_or(u32::MAX);
    let more = kill
        .candidates_met
        .map_or(0, |met| met.saturating_sub(shown));
    if more > 0 {
        text.push_str(&format!(
            "    and {}\n",
            count(more.into(), "smaller one", "smaller ones")
        ));
    }
    text
}

fn decision(kill: &Event, look: &Look) -> String {
    let who = match kill.trigger {
        Some(Trigger::Event) => "The kernel half decided, at the very event that crossed the limit",
        Some(Trigger::Timer) => "The kernel half decided, at its timer of 200 ms",
        Some(Trigger::Notifier) => "bursard decided, on an event that reached it",
        Some(Trigger::Poll) => "bursard decided, at its scan of /proc every 200 ms",
        None => "Which trigger decided is not recorded",
    };
    let signal = match (kill.event, kill.latency_ns) {
        (EventKind::KillFailed | EventKind::WouldKill, _) | (_, None) => String::new(),
        (_, Some(latency)) => format!(
            "; the signal went out {} later",
            span(latency, look.charset)
        ),
    };
    let reason = match &kill.reason {
        Some(reason) => format!(" ({})", look.shown(reason)),
        None => String::new(),
    };
    format!("{who}{signal}{reason}.")
}

fn aftermath(kill: &Event, events: &[Event], look: &Look) -> String {
    if matches!(kill.event, EventKind::KillFailed | EventKind::WouldKill) {
        return "Nothing was freed by it.".into();
    }
    let is_end = |event: &&Event| event.event == EventKind::Reaped && event.pid == kill.pid;
    let Some(reaped) = events.iter().find(is_end) else {
        return "That its memory is back is not recorded (yet).".into();
    };
    let took = reaped.duration_ns.map(|it| span(it, look.charset));
    let reason = reaped.reason.as_ref().map(|reason| look.shown(reason));
    let Some(method) = reaped.method.as_deref() else {
        let after = took.map_or_else(String::new, |took| format!(" after {took}"));
        let reason = reason.unwrap_or_else(|| "why is not recorded".into());
        return format!("Its memory was not back{after}: {reason}.");
    };
    let after = took.map_or_else(String::new, |took| format!(" {took} after the signal"));
    let freed = match reaped.freed_bytes {
        Some(freed) => format!("Its memory, {freed}, was back"),
        None => "Its memory was back".into(),
    };
    let method = match method {
        "exit" => ", given back by its own exit".into(),
        method => format!(", taken back by {}", look.shown(method)),
    };
    let rate = match reaped.bytes_per_second {
        Some(rate) if rate > Bytes::ZERO => format!(" ({rate} a second)"),
        _ => String::new(),
    };
    let reason = reason.map_or_else(String::new, |reason| format!("; {reason}"));
    format!("{freed}{after}{method}{rate}{reason}.")
}

fn advice(kill: &Event, role: Role, look: &Look) -> Vec<String> {
    let name = kill
        .account
        .as_ref()
        .map_or_else(|| "WHO".into(), |name| look.shown(name));
    match role {
        Role::Root => vec![
            format!("raise the limit: bursar limit set {name} SIZE"),
            format!("see what {name} holds now: bursar status {name}"),
            "see what led to it: bursar events --since 1h".into(),
        ],
        Role::User => vec![
            "see how much is left: bursar quota".into(),
            "be told the moment it gets tight: bursar events --follow".into(),
            "start it again with less at a time (fewer workers, smaller batches)".into(),
            "or ask the administrator for a higher limit".into(),
        ],
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::look::Paint;
    use crate::sample::{HOSTILE, clock, kill, look, reaped, unreaped};

    fn told(events: &[Event], which: Which, role: Role) -> String {
        story(events, which, role, &clock(), &look(80))
    }

    #[test]
    fn a_kill_is_told_with_all_that_is_known() {
        let events = [kill("alice"), reaped()];
        assert_snapshot!(told(&events, Which::Last, Role::User));
    }

    #[test]
    fn an_administrator_is_told_what_he_can_do() {
        let mut event = kill("=render");
        event.candidates_met = Some(3);
        event.trigger = Some(Trigger::Poll);
        let mut back = reaped();
        back.method = Some("exit".into());
        assert_snapshot!(told(&[event, back], Which::Of(Pid::new(4242)), Role::Root));
    }

    #[test]
    fn memory_that_is_not_back_is_not_told_to_be_back() {
        let stuck = unreaped();
        let told = told(&[kill("alice"), stuck], Which::Last, Role::User).replace('\n', " ");
        let sentence = "Its memory was not back after 2 s: somebody holds its memory's lock.";
        assert!(told.contains(sentence), "{told}");
    }

    #[test]
    fn what_stays_of_memory_that_is_back_is_told() {
        let mut back = reaped();
        back.reason = Some("up to 5 MiB of shared memory stays (/dev/shm/a)".into());
        let told = told(&[kill("alice"), back], Which::Last, Role::User).replace('\n', " ");
        let end = "a second); up to 5 MiB of shared memory stays (/dev/shm/a).";
        assert!(told.contains(end), "{told}");
    }

    #[test]
    fn what_is_not_known_is_not_made_up() {
        let mut bare = Event::new(EventKind::Kill);
        bare.time = "no time".into();
        assert_snapshot!(told(&[bare], Which::Last, Role::User));
    }

    #[test]
    fn a_kill_that_failed_is_told_as_such() {
        let failed = Event {
            event: EventKind::KillFailed,
            comm: Some(HOSTILE.into()),
            reason: Some("the process was gone".into()),
            ..kill("alice")
        };
        assert_snapshot!(told(&[failed], Which::Last, Role::Root));
    }

    #[test]
    fn without_a_kill_it_says_so() {
        let pid = Which::Of(Pid::new(7));
        let texts = [
            told(&[], Which::Last, Role::Root),
            told(&[], pid, Role::Root),
            told(&[], Which::Last, Role::User),
            told(&[], pid, Role::User),
        ];
        assert_snapshot!(texts.join("---\n"));
    }

    #[test]
    fn the_victim_is_red_where_there_are_colours() {
        let look = Look {
            paint: Paint::Colours,
            ..look(80)
        };
        let text = story(&[kill("alice")], Which::Last, Role::Root, &clock(), &look);
        let red = text.lines().find(|line| line.contains("\x1b[31m")).unwrap();
        assert!(red.contains("4242") && red.contains("killed"), "{red:?}");
    }
}
