// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Events in plain English.

use bursar_model::{Event, EventKind};

use crate::delivery::Delivery;

/// What happened, as a sentence. `is_own`: to whoever reads it.
pub(super) fn sentence(event: &Event, is_own: bool) -> String {
    let whose = if is_own {
        "your programs"
    } else {
        "its programs"
    };
    let program = program(event);
    let limit = event.limit.map(|it| format!(" of a limit of {it}"));
    let held = event
        .held
        .map(|it| format!("{whose} held {it}{}", limit.unwrap_or_default()));
    let of_held = held
        .clone()
        .map_or_else(String::new, |it| format!("; {it}"));
    let reason = event.reason.clone();
    let because = reason
        .clone()
        .map_or_else(String::new, |it| format!(": {it}"));
    let which = event
        .victim_bytes
        .map_or_else(String::new, |it| format!(", which held {it},"));
    // A row of beancounters; its reason says of which.
    let more = match event.row {
        Some(_) => "",
        None => " more memory",
    };
    match event.event {
        EventKind::Notice => format!(
            "{}; near the limit requests are refused, and at the limit a program is killed.",
            held.unwrap_or_else(|| format!("{whose} hold much memory"))
        ),
        EventKind::Refused => format!("{program} was refused{more}{because}."),
        EventKind::Kill => format!("{program}{which} was killed{of_held}."),
        EventKind::Asked => format!("{program} was asked to end{of_held}."),
        EventKind::NoVictim => {
            format!("{whose} are over the limit and none could be killed{because}.")
        }
        EventKind::KillFailed => {
            format!("{program} should have been killed and could not be{because}.")
        }
        EventKind::Reaped => match event.freed_bytes {
            Some(bytes) => format!("the memory of {program} is back: {bytes}."),
            None => format!("the memory of {program} is not back yet{because}."),
        },
        EventKind::WouldNotice => format!(
            "would have been a notice: {}.",
            held.unwrap_or_else(|| whose.to_owned())
        ),
        EventKind::WouldRefuse => {
            format!("{program} would have been refused{more}{because}.")
        }
        EventKind::WouldKill => format!("{program}{which} would have been killed{of_held}."),
        EventKind::LimitChanged => match event.limit {
            Some(limit) => format!("the limit is {limit} now{because}."),
            None => format!("the limit was changed{because}."),
        },
        EventKind::Attached => format!("limits are in force{because}."),
        EventKind::Released => format!("limits are not in force any more{because}."),
        EventKind::Reloaded => format!("the limits were read again{because}."),
        EventKind::Lost => format!("events were lost{because}."),
    }
}

fn program(event: &Event) -> String {
    let name = event.comm.as_deref().filter(|it| !it.is_empty());
    match (name, event.pid) {
        (Some(name), Some(pid)) => format!("{name} (process {pid})"),
        (Some(name), None) => name.to_owned(),
        (None, Some(pid)) => format!("process {pid}"),
        (None, None) => "a program".to_owned(),
    }
}

/// The gravest of it, in a few words.
pub(super) fn headline(delivery: &Delivery, is_own: bool) -> String {
    let of_yours = if is_own { " of your" } else { "" };
    let your = if is_own { "your programs" } else { "programs" };
    let of = |kind| delivery.count_of(kind);
    // Administrators are told of what is amiss with bursar before what it did as it should.
    let alarms = [
        (
            EventKind::Released,
            "limits are not in force any more".to_owned(),
        ),
        (EventKind::Lost, "events were lost".to_owned()),
        (EventKind::KillFailed, "a kill failed".to_owned()),
    ];
    let of_alarms = alarms.iter().find(|(kind, _)| of(*kind) > 0);
    if let (Some((_, words)), false) = (of_alarms, is_own) {
        return words.clone();
    }
    let kills = of(EventKind::Kill);
    match (kills, is_own) {
        (1, true) => return "one of your programs was killed".to_owned(),
        (1, false) => return "a program was killed".to_owned(),
        (2.., _) => return format!("{kills}{of_yours} programs were killed"),
        _ => {}
    }
    let graver = [
        (EventKind::NoVictim, format!("{your} are over the limit")),
        (EventKind::Asked, format!("{your} were asked to end")),
        (
            EventKind::Refused,
            format!("requests of {your} were refused"),
        ),
        (
            EventKind::Notice,
            format!("{your} are near the memory limit"),
        ),
        (EventKind::LimitChanged, "a limit was changed".to_owned()),
    ];
    let found = alarms
        .into_iter()
        .chain(graver)
        .find(|(kind, _)| of(*kind) > 0);
    found.map_or_else(|| summary(delivery), |(_, words)| words)
}

/// `3 kills, 1 notice`, the kinds as they are called.
pub(super) fn summary(delivery: &Delivery) -> String {
    let parts = delivery
        .kinds
        .iter()
        .map(|(kind, count)| format!("{count} {}", kind.replace('_', " ")));
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bursar_model::{Resource, RowRefusal};

    use crate::delivery::Recipient;

    #[test]
    fn a_refused_row_is_not_told_as_memory() {
        let mut event = Event::new(EventKind::Refused);
        event.comm = Some("bash".to_owned());
        event.reason = Some("1 more of numproc with 20 held and a barrier of 20".to_owned());
        let memory = sentence(&event, true);
        event.row = Some(RowRefusal {
            resource: Resource::Numproc,
            asked: 1,
            held: 20,
            barrier: 20,
        });
        assert_eq!(memory.replace(" more memory:", ":"), sentence(&event, true));
        assert!(sentence(&event, true).starts_with("bash was refused: 1 more of numproc"));
    }

    #[test]
    fn administrators_hear_first_what_is_amiss_with_bursar() {
        let mut digest = Delivery::new(1, "admins", Recipient::Administrators, 0, 0);
        digest.add(&Event::new(EventKind::Kill));
        assert_eq!(headline(&digest, false), "a program was killed");
        for (kind, words) in [
            (EventKind::KillFailed, "a kill failed"),
            (EventKind::Lost, "events were lost"),
            (EventKind::Released, "limits are not in force any more"),
        ] {
            digest.add(&Event::new(kind));
            assert_eq!(headline(&digest, false), words);
        }
        assert_eq!(headline(&digest, true), "one of your programs was killed");
    }
}
