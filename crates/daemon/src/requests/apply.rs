// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A whole file of limits put in the place of `limits.toml`, or only compared with it.

use std::path::Path;

use bursar_config::{Limit, Limits};
use bursar_model::printable;
use bursar_protocol::{Applied, Apply, EntryChange, Reply};

use super::actor::author;
use super::limits::{change_limits, limits_refused, remarks_on};
use super::permission::{Answer, config_refusal, only_root};
use crate::control::Requester;
use crate::daemon::Daemon;
use crate::responder::Author;

/// Characters of a file's name.
const NAME_WIDTH: usize = 300;

pub(super) fn apply(daemon: &mut Daemon, requester: Requester, asked: Apply) -> Answer {
    only_root(requester.uid, "apply limits")?;
    let Apply {
        name,
        text,
        check,
        force,
        terms,
    } = asked;
    // Whoever asks in either way wants nothing changed.
    let check = check || terms.dry_run;
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
        let author = Author {
            source: Some(printable(name.as_bytes(), NAME_WIDTH)),
            ..author(&daemon.accounts, requester, &terms)
        };
        let all = changes.iter().cloned();
        let by_one = all.map(|change| (change, author.clone()));
        daemon.responder.note_changes(by_one);
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
        old: old.map(Limit::spec),
        new: new.map(Limit::spec),
    });
    change.collect()
}
