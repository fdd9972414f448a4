// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A whole file of limits put in the place of `limits.toml`, or only compared with it.

use std::path::Path;

use bursar_config::Limits;
use bursar_model::{EventKind, Uid};
use bursar_protocol::{Applied, Apply, EntryChange, Reply};

use super::limits::{change_limits, config_refusal, limits_refused, remarks_on, spec_of};
use super::permission::{Answer, only_root};
use crate::daemon::Daemon;

/// Entries recorded one by one; of more only how many they are.
const MOST_NAMED: usize = 100;

pub(super) fn apply(daemon: &mut Daemon, uid: Uid, asked: Apply) -> Answer {
    only_root(uid, "apply limits")?;
    let Apply {
        name,
        text,
        check,
        force,
    } = asked;
    let before = daemon.accounts.table.limits().clone();
    let new = before
        .with_text(&text, Path::new(&name))
        .map_err(|error| config_refusal(&error))?;
    let changes = changes(&before, &new);
    let mut remarks = Vec::new();
    if check {
        if !force && !changes.is_empty() {
            let refused = limits_refused(daemon, &new);
            remarks.extend(refused.map(|it| format!("it would be refused: {it}")));
        }
    } else if !changes.is_empty() {
        change_limits(daemon, new, force, |limit| {
            let remedy = "applying the file would kill at once; wait, choose a larger limit there";
            (format!("the limit of {limit} that holds then"), remedy)
        })?;
        record(daemon, &changes, &name);
        for change in &changes {
            remarks.extend(remarks_on(&daemon.accounts, &change.who));
        }
    }
    Ok(Reply::Applied(Box::new(Applied { changes, remarks })))
}

fn changes(before: &Limits, new: &Limits) -> Vec<EntryChange> {
    let written = before.written_changes(new).into_iter();
    let change = written.map(|(who, old, new)| EntryChange {
        who,
        old: old.map(spec_of),
        new: new.map(spec_of),
    });
    change.collect()
}

fn record(daemon: &mut Daemon, changes: &[EntryChange], name: &str) {
    let name = bursar_model::printable(name.as_bytes(), 300);
    for change in changes.iter().take(MOST_NAMED) {
        let what = match (&change.old, &change.new) {
            (_, None) => "limit cleared".to_owned(),
            (_, Some(new)) => match new.memory {
                Some(memory) => format!("memory limit {}", memory.limit),
                None => "beancounters".to_owned(),
            },
        };
        let account = Some(change.who.to_string());
        let reason = format!("{what} (from {name})");
        daemon
            .responder
            .note(EventKind::LimitChanged, account, reason);
    }
    let others = changes.len().saturating_sub(MOST_NAMED);
    if others > 0 {
        let reason = format!("{others} more entries changed (from {name})");
        daemon.responder.note(EventKind::LimitChanged, None, reason);
    }
}
