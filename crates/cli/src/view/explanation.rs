// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar why`: a kill and what followed it, in sentences.

use bursar_model::{Event, EventKind, Pid, Request, Trigger, Who};

use bursar_text::event::{method_words, rate};

use crate::caller::Role;
use crate::clock::Clock;
use crate::style::{Charset, Style};
use crate::view::candidates::{Detail, candidates};
use crate::view::paragraph::paragraph;
use crate::view::table::{Align, Cell, Table};
use crate::view::words::{count, narrow_size, span};

/// Which kill is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Which {
    Last,
    Of(Pid),
    Whose(Who),
}

/// What `events` say, oldest first.
pub(crate) fn explanation(
    events: &[Event],
    which: &Which,
    role: Role,
    detail: Detail,
    clock: &Clock,
    style: &Style,
) -> String {
    let Some(last) = events.last() else {
        return paragraph("", &nothing(which, role, style), style.width);
    };
    let mut text = String::new();
    let mut about = last;
    let is_kernels = |it: &&Event| it.event == EventKind::Reaped;
    if let Some(kernels) = events.iter().find(is_kernels)
        && !events.iter().any(is_kill)
    {
        text.push_str(&by_the_kernel(kernels, clock, style));
        about = kernels;
    } else if let Some(kill) = events.iter().find(|it| is_kill(it)) {
        text.push_str(&killed(kill, events, which, detail, clock, style));
        about = kill;
    } else if let Some(files) = events.iter().find(|it| is_of_files(it)) {
        text.push_str(&held_by_files(files, clock, style));
        about = files;
    }
    if let Some(event) = events.iter().find(|it| is_no_victim(it)) {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&no_victim(event, clock, style));
        about = event;
    }
    text.push_str("\nWhat can be done now:\n");
    for advice in advice(about, role, style) {
        text.push_str(&paragraph("- ", &advice, style.width));
    }
    text
}

fn is_kill(event: &Event) -> bool {
    use EventKind::{Kill, KillFailed, WouldKill};
    matches!(event.event, Kill | KillFailed | WouldKill)
}

fn is_of_files(event: &Event) -> bool {
    event.event == EventKind::NoVictim && event.files_bytes.is_some()
}

/// Nothing was killed, and something happened.
fn is_no_victim(event: &Event) -> bool {
    matches!(event.event, EventKind::NoVictim | EventKind::Refused) && !is_of_files(event)
}

fn killed(
    kill: &Event,
    events: &[Event],
    which: &Which,
    detail: Detail,
    clock: &Clock,
    style: &Style,
) -> String {
    let mut text = paragraph("", &opening(kill, which, clock, style), style.width);
    for sentence in [
        identity(kill, clock, style),
        breach(kill, style),
        programs(kill, style),
    ] {
        if !sentence.is_empty() {
            text.push_str(&paragraph("", &sentence, style.width));
        }
    }
    if let Some(bytes) = kill.files_bytes {
        let sentence = format!(
            "Of what the account held {bytes} are files in memory (tmpfs, memfd), which a kill does not free."
        );
        text.push_str(&paragraph("", &sentence, style.width));
        text.push_str(&files(kill, style));
    }
    if !kill.candidates.is_empty() {
        text.push_str(&format!("\n{}\n", candidates(kill, detail, clock, style)));
    }
    text.push_str(&paragraph("", &decision(kill, style), style.width));
    text.push_str(&paragraph("", &aftermath(kill, events, style), style.width));
    text
}

/// The kernel's own OOM killer took it: bursar has seen that and decided nothing.
fn by_the_kernel(event: &Event, clock: &Clock, style: &Style) -> String {
    let time = clock.told(&event.time, style.charset);
    let process = process(event, style.charset);
    let account = account(event, style);
    let account = account
        .strip_prefix("The ")
        .map_or_else(|| account.clone(), |it| format!("the {it}"));
    let sentence = format!(
        "{process} of {account} was killed {time} by the kernel's OOM killer, not by bursar: the machine, or the \
         memory cgroup that it was in (MemoryMax= of its service or session), had no memory left."
    );
    let end = "See which: journalctl -k --grep 'Out of memory|oom-kill'.";
    paragraph("", &sentence, style.width) + &paragraph("", end, style.width)
}

/// What tells it apart from others of its name.
fn identity(kill: &Event, clock: &Clock, style: &Style) -> String {
    let began = kill.began.as_ref();
    let began = began.map(|it| format!("began {}", clock.told(it, style.charset)));
    let command = kill.command.as_ref();
    let command = command.map(|it| format!("its command line was: {}", style.shown(it)));
    let known: Vec<String> = began.into_iter().chain(command).collect();
    match known.as_slice() {
        [] => String::new(),
        [first, ..] if first.starts_with("began") => format!("It {}.", known.join("; ")),
        _ => format!("{}.", known.join("; ").replacen("its", "Its", 1)),
    }
}

/// Programs of which there were several, if they are what the account was full of.
fn programs(kill: &Event, style: &Style) -> String {
    let told: Vec<String> = kill
        .programs
        .iter()
        .filter(|it| kill.victim_bytes.is_none_or(|victim| it.bytes > victim))
        .map(|it| {
            let by = it.begun_by.as_ref();
            let by = by.map_or_else(String::new, |by| format!(", begun by {}", style.shown(by)));
            let times = match style.charset {
                Charset::Unicode => "×",
                Charset::Ascii => "x",
            };
            format!(
                "{} {times} {}, {} together{by}",
                it.count,
                style.shown(&it.comm),
                it.bytes
            )
        })
        .collect();
    match told.as_slice() {
        [] => String::new(),
        told => format!("There were {}.", told.join("; ")),
    }
}

/// A refusal, or nobody whom it is allowed to kill.
fn no_victim(event: &Event, clock: &Clock, style: &Style) -> String {
    let time = clock.told(&event.time, style.charset);
    if event.event == EventKind::NoVictim {
        let reason = event.reason.as_ref().map(|it| style.shown(it));
        let reason = reason.unwrap_or_else(|| "why is not recorded".into());
        let sentence = format!(
            "Nobody was killed {time}: {reason}. {}",
            breach(event, style)
        );
        return paragraph("", &sentence, style.width);
    }
    let who = match (&event.comm, event.pid) {
        (None, None) => "A request".to_owned(),
        _ => process(event, style.charset),
    };
    let of = account(event, style);
    let of = of
        .strip_prefix("The ")
        .map_or_else(|| of.clone(), |it| format!("the {it}"));
    let what = event.reason.as_ref();
    let what = what.map_or_else(String::new, |it| format!(": {}", style.shown(it)));
    let mut sentence = format!("{who} of {of} was refused {time}{what}.");
    let others = event.refusals.map_or(0, |it| it.saturating_sub(1));
    if others > 0 {
        let others = count(others, "other request", "other requests");
        sentence.push_str(&format!(" So were {others} shortly before."));
    }
    paragraph("", &sentence, style.width)
}

/// Nobody was killed, for what is over are files.
fn held_by_files(event: &Event, clock: &Clock, style: &Style) -> String {
    let time = clock.told(&event.time, style.charset);
    let of_them = event.files_bytes.map_or_else(String::new, |bytes| {
        format!(" Of that {bytes} are files in memory (tmpfs, System V segments).")
    });
    let sentence = format!(
        "Nobody was killed {time}: killing would not have helped. {}{of_them}",
        breach(event, style)
    );
    let mut text = paragraph("", &sentence, style.width);
    text.push_str(&files(event, style));
    text
}

fn files(event: &Event, style: &Style) -> String {
    let mut text = String::new();
    if !event.files.is_empty() {
        let mut table = Table::new(&[("HELD", Align::Right), ("FILE", Align::Left)]);
        for file in &event.files {
            table.push(vec![
                Cell::toned(narrow_size(file.bytes), None),
                Cell::toned(style.shown(&file.place), None),
            ]);
        }
        text.push_str(&format!("\n{}\n", table.indented_lines(4, 2, style)));
    }
    text
}

fn nothing(which: &Which, role: Role, style: &Style) -> String {
    let what = match which {
        Which::Last => "no kill is recorded".to_owned(),
        Which::Of(pid) => format!(
            "no kill of process {pid} is recorded (of the user with this uid: bursar why --user {pid})"
        ),
        Which::Whose(who) => {
            let who = style.shown(&who.to_string());
            format!("nothing of {who} is recorded to have been killed or refused")
        }
    };
    match role {
        Role::Root => format!("{what}; bursar events shows all that is"),
        // He cannot tell "none" from "not yours", and neither should an answer pretend to.
        Role::User => match which {
            Which::Last | Which::Whose(_) => format!(
                "{what} for you; if one of your programs disappeared, bursar did not kill it (see dmesg, journalctl)"
            ),
            // Where a last kill is not remembered bursard says so; one before it need not be.
            Which::Of(_) => format!(
                "{what} for you among what is remembered; an administrator can ask for what is older. \
                 Or somebody or something else ended it (see dmesg, journalctl)"
            ),
        },
    }
}

fn opening(kill: &Event, which: &Which, clock: &Clock, style: &Style) -> String {
    let time = clock.told(&kill.time, style.charset);
    let process = process(kill, style.charset);
    match (kill.event, which) {
        (EventKind::KillFailed, _) => format!("{process} was to be killed {time}, which failed."),
        (EventKind::WouldKill, _) => {
            format!("{process} would have been killed {time}, but its account is only observed.")
        }
        (_, Which::Last) => format!("The last to be killed was {process}, {time}."),
        (_, Which::Of(_)) => format!("{process} was killed {time}."),
        (_, Which::Whose(who)) => {
            let who = style.shown(&who.to_string());
            format!("The last process of {who} to be killed was {process}, {time}.")
        }
    }
}

/// `python3 (process 4242)`.
fn process(event: &Event, charset: Charset) -> String {
    match (&event.comm, event.pid) {
        (Some(comm), Some(pid)) => match event.namespace_pid {
            Some(inside) => format!(
                "{} (process {inside} in a container, {pid} outside)",
                charset.shown(comm)
            ),
            None => format!("{} (process {pid})", charset.shown(comm)),
        },
        (Some(comm), None) => charset.shown(comm),
        (None, Some(pid)) => format!("process {pid}"),
        (None, None) => "a process".into(),
    }
}

fn breach(kill: &Event, style: &Style) -> String {
    let account = account(kill, style);
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

fn account(event: &Event, style: &Style) -> String {
    match &event.account {
        Some(name) if name.starts_with('=') => format!("The shared account {}", style.shown(name)),
        Some(name) => format!("The account {}", style.shown(name)),
        None => "An account".into(),
    }
}

fn decision(kill: &Event, style: &Style) -> String {
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
            span(latency, style.charset)
        ),
    };
    let reason = match &kill.reason {
        Some(reason) => format!(" ({})", style.shown(reason)),
        None => String::new(),
    };
    format!("{who}{signal}{reason}.")
}

fn aftermath(kill: &Event, events: &[Event], style: &Style) -> String {
    match kill.event {
        EventKind::KillFailed => return "Nothing was freed by it.".into(),
        EventKind::WouldKill => {
            return "It was not killed, and still runs unless it has ended since.".into();
        }
        _ => {}
    }
    let is_end = |event: &&Event| event.event == EventKind::Reaped && event.pid == kill.pid;
    let Some(reaped) = events.iter().find(is_end) else {
        return "There is no record yet that its memory was returned.".into();
    };
    let took = reaped.duration_ns.map(|it| span(it, style.charset));
    let reason = reaped.reason.as_ref().map(|reason| style.shown(reason));
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
    let words = method_words(method, style.charset);
    let method = match method {
        "exit" | "raised_exit" => format!(", given back by {words}"),
        _ => format!(", taken back by {words}"),
    };
    let rate = rate(reaped).map_or_else(String::new, |rate| format!(" ({rate} a second)"));
    let reason = reason.map_or_else(String::new, |reason| format!("; {reason}"));
    format!("{freed}{after}{method}{rate}{reason}.")
}

/// Files in memory are much of what was held, or were to grow.
fn is_about_files(event: &Event) -> bool {
    event.files_bytes.is_some() || event.request == Some(Request::File)
}

fn advice(event: &Event, role: Role, style: &Style) -> Vec<String> {
    if is_of_files(event) {
        return vec![
            "remove files, or ask who made them to; until then processes may hold a sixteenth of the limit \
             beside them, at least 8 MiB"
                .into(),
        ];
    }
    let name = event
        .account
        .as_ref()
        .map_or_else(|| "WHO".into(), |name| style.shown(name));
    match (role, &event.row) {
        (Role::Root, Some(row)) => {
            let row = row.resource.name();
            vec![
                format!("raise the row: bursar limit set {name} {row}=BARRIER:LIMIT"),
                format!("see what {name} holds now: bursar beancounters {name}"),
            ]
        }
        (Role::Root, None) => vec![
            format!("raise the limit: bursar limit set {name} SIZE"),
            format!("see what {name} holds now: bursar status {name}"),
            "see what led to it: bursar events --since 1h".into(),
        ],
        (Role::User, Some(_)) => vec![
            "see how much is left: bursar beancounters".into(),
            "or ask the administrator for a higher limit".into(),
        ],
        (Role::User, None) if is_about_files(event) => vec![
            "remove files in memory that are not needed (df -t tmpfs says where they can be), or move them to a disk".into(),
            "see how much is left: bursar quota".into(),
            "or ask the administrator for a higher limit".into(),
        ],
        (Role::User, None) => vec![
            "see how much is left: bursar quota".into(),
            "be told the moment it gets tight: bursar events --follow".into(),
            "start it again with less at a time (fewer workers, smaller batches)".into(),
            "or ask the administrator for a higher limit".into(),
        ],
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::{Resource, RowRefusal};
    use insta::assert_snapshot;

    use super::*;
    use crate::sample::{HOSTILE, clock, kill, reaped, style, unreaped};
    use crate::style::Paint;

    fn told(events: &[Event], which: Which, role: Role) -> String {
        explanation(events, &which, role, Detail::Usual, &clock(), &style(80))
    }

    fn alice() -> Which {
        Which::Whose("alice".parse().unwrap())
    }

    #[test]
    fn of_somebody_it_is_told_that_nothing_could_be_killed_and_what_was_refused() {
        let mut refused = kill("alice");
        refused.event = EventKind::Refused;
        refused.comm = Some(HOSTILE.into());
        refused.refusals = Some(12);
        refused.reason = Some("mmap of 64 MiB with 490 MiB held and a barrier of 486 MiB".into());
        let mut row = Event::new(EventKind::Refused);
        row.time = refused.time.clone();
        row.account = Some("=lab".into());
        row.refusals = Some(1);
        row.reason = Some("1 more of numtcpsock with 100 held and a barrier of 100".into());
        row.row = Some(RowRefusal {
            resource: Resource::Numtcpsock,
            held: 100,
            asked: 1,
            barrier: 100,
        });
        let mut no_victim = kill("alice");
        no_victim.event = EventKind::NoVictim;
        (no_victim.pid, no_victim.comm, no_victim.victim_bytes) = (None, None, None);
        no_victim.reason = Some("over its limit, and all of its processes are protected".into());
        let texts = [
            told(&[kill("alice"), reaped(), refused], alice(), Role::User),
            told(&[no_victim], alice(), Role::Root),
            told(&[row], Which::Whose("=lab".parse().unwrap()), Role::Root),
        ];
        assert_snapshot!(texts.join("---\n"));
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
            told(&[], pid.clone(), Role::Root),
            told(&[], alice(), Role::Root),
            told(&[], Which::Last, Role::User),
            told(&[], pid, Role::User),
            told(&[], alice(), Role::User),
        ];
        assert_snapshot!(texts.join("---\n"));
    }

    #[test]
    fn the_victim_is_red_where_there_are_colours() {
        let style = Style {
            paint: Paint::Colours,
            ..style(80)
        };
        let text = explanation(
            &[kill("alice")],
            &Which::Last,
            Role::Root,
            Detail::Usual,
            &clock(),
            &style,
        );
        let red = text.lines().find(|line| line.contains("\x1b[31m")).unwrap();
        assert!(red.contains("4242") && red.contains("killed"), "{red:?}");
    }
}
