// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An entry of the limits in words, and who changed it: for events, the log and differences.

use bursar_model::{Actor, BoundsSpec, EntrySpec, KillManner};

use crate::Charset;

/// `memory 2G (notice 80%), numproc 200:220, mode observe, kill graceful, granted to alice @staff, reason: thesis`.
#[must_use]
pub fn said(spec: &EntrySpec) -> String {
    let mut text = bounds(spec);
    if let Some(reason) = &spec.reason {
        text.push_str(&format!(", reason: {reason}"));
    }
    text
}

/// The same without the reason.
#[must_use]
pub fn bounds(spec: &EntrySpec) -> String {
    let mut parts: Vec<String> = spec.memory.iter().map(memory).collect();
    let rows = spec.rows.iter();
    parts.extend(rows.map(|(resource, bounds)| format!("{} {bounds}", resource.name())));
    parts.extend(spec.mode.map(|it| format!("mode {it}")));
    match spec.kill {
        Some(KillManner::Graceful) => parts.push("kill graceful".to_owned()),
        Some(KillManner::AtOnce) => parts.push("kill at once".to_owned()),
        None => {}
    }
    if let Some(granted) = &spec.granted {
        let names: Vec<String> = granted.iter().map(ToString::to_string).collect();
        parts.push(match names.as_slice() {
            [] => "granted to nobody".to_owned(),
            names => format!("granted to {}", names.join(" ")),
        });
    }
    parts.extend(spec.until.map(|it| format!("until {it}")));
    parts.join(", ")
}

fn memory(memory: &BoundsSpec) -> String {
    let written = [("notice", memory.notice), ("barrier", memory.barrier)];
    let bounds: Vec<String> = written
        .into_iter()
        .filter_map(|(name, size)| Some(format!("{name} {}", size?)))
        .collect();
    match bounds.as_slice() {
        [] => format!("memory {}", memory.limit),
        bounds => format!("memory {} ({})", memory.limit, bounds.join(", ")),
    }
}

/// `by uid 0 (logged in as uid 1000, says it acts for alice)`, `read from /etc/bursar/limits.toml`.
#[must_use]
pub fn actor(actor: &Actor, charset: Charset) -> String {
    match actor {
        Actor::Request {
            uid,
            login_uid,
            said_by,
            ..
        } => {
            let login = login_uid.map(|it| format!("logged in as uid {it}"));
            let said = said_by.as_deref();
            let said = said.map(|name| format!("says it acts for {}", charset.shown(name)));
            let more: Vec<String> = login.into_iter().chain(said).collect();
            match more.as_slice() {
                [] => format!("by uid {uid}"),
                more => format!("by uid {uid} ({})", more.join(", ")),
            }
        }
        Actor::Clock { file } => format!("by the clock (an end in {})", charset.shown(file)),
        Actor::Reload { file } => format!("read from {}", charset.shown(file)),
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::{Mode, Pid, Resource, RowBounds, Uid};

    use super::*;

    #[test]
    fn an_entry_is_said_with_all_that_it_has() {
        let full = EntrySpec {
            memory: Some(BoundsSpec {
                notice: Some("80%".parse().unwrap()),
                ..BoundsSpec::of_limit("2G".parse().unwrap())
            }),
            rows: [(
                Resource::Numproc,
                RowBounds::new(Some(200), Some(220)).unwrap(),
            )]
            .into(),
            mode: Some(Mode::Observe),
            kill: Some(KillManner::Graceful),
            granted: Some(vec!["alice".parse().unwrap(), "@staff".parse().unwrap()]),
            reason: Some("thesis".parse().unwrap()),
            until: Some("2026-12-01T08:00:00Z".parse().unwrap()),
        };
        let text = "memory 2G (notice 80%), numproc 200:220, mode observe, kill graceful, granted to alice @staff, until 2026-12-01T08:00:00Z";
        assert_eq!(bounds(&full), text);
        assert_eq!(said(&full), format!("{text}, reason: thesis"));
    }

    #[test]
    fn what_an_actor_says_of_itself_is_told_from_what_is_known() {
        let by = |login_uid, said_by: Option<&str>| {
            let request = Actor::Request {
                uid: Uid::new(0),
                pid: Pid::new(7),
                login_uid,
                said_by: said_by.map(str::to_owned),
            };
            actor(&request, Charset::Unicode)
        };
        assert_eq!(by(None, None), "by uid 0");
        assert_eq!(
            by(Some(Uid::new(1000)), Some("a\u{1b}")),
            "by uid 0 (logged in as uid 1000, says it acts for a\\x1b)"
        );
    }
}
