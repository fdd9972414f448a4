// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A whole file of limits put in the place of `limits.toml`, or only compared with it.

use std::path::Path;

use bursar_config::{Limit, Limits};
use bursar_model::printable;
use bursar_protocol::{Applied, Apply, EntryChange, ErrorKind, Refusal, Reply};

use super::actor::author;
use super::limits::{change_limits, limits_refused, remarks_on};
use super::permission::{Answer, config_refusal, only_root, refusal};
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
            let empty = unless_empty(&before, &new, &name).err();
            let refused = empty.map(|it| it.message);
            let refused = refused.or_else(|| limits_refused(daemon, &new));
            remarks.extend(refused.map(|it| format!("it would be refused: {it}")));
        }
    } else if !changes.is_empty() {
        if !force {
            unless_empty(&before, &new, &name)?;
        }
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

/// A text without any limit takes all of them away: seldom is that meant, and what was to write it may have failed.
fn unless_empty(before: &Limits, new: &Limits, name: &str) -> Result<(), Refusal> {
    if new.before().file || !before.before().file {
        return Ok(());
    }
    let name = printable(name.as_bytes(), NAME_WIDTH);
    let message = format!(
        "{name} has no limit at all, and applying it would clear all of {:?}; look whether it was written whole, or add \
         --force",
        before.path()
    );
    Err(refusal(ErrorKind::Refused, message))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_limits_is_refused_where_there_are_some() {
        let read = |text: &str| Limits::parse(text, Path::new("/l.toml")).unwrap();
        let some = read("[limits]\nalice = { memory = \"1G\" }\n");
        let ending =
            read("[temporary]\nalice = { memory = \"1G\", until = \"2090-01-01T00:00:00Z\" }\n");
        for empty in ["", "# none\n", "[limits]\n"] {
            let empty = read(empty);
            for before in [&some, &ending] {
                let refused = unless_empty(before, &empty, "stdin").unwrap_err().message;
                assert_eq!(
                    refused,
                    "stdin has no limit at all, and applying it would clear all of \"/l.toml\"; look whether it was \
                     written whole, or add --force"
                );
                assert!(unless_empty(&empty, before, "stdin").is_ok());
            }
            assert!(unless_empty(&empty, &read(""), "stdin").is_ok());
        }
        assert!(unless_empty(&some, &ending, "stdin").is_ok());
    }
}
