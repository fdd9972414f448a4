// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes of limits, written down: what an entry said, what it says, who changed it and why.

use std::os::unix::ffi::OsStrExt;

use bursar_config::{Limit, Limits};
use bursar_model::{Actor, Event, EventKind, Reason, Until, printable};
use bursar_protocol::EntryChange;
use bursar_text::entry;

use super::{MOST_NAMED, Responder};

/// Characters of a file's name.
const PATH_WIDTH: usize = 300;

/// Who changed entries, and why.
#[derive(Debug, Clone)]
pub(crate) struct Author {
    pub(crate) actor: Actor,
    /// Of the whole change; without one each new entry's own.
    pub(crate) reason: Option<Reason>,
    /// The file that it was taken from by a command, made printable.
    pub(crate) source: Option<String>,
}

impl Responder {
    /// One event for each entry, a hundred at most; of more only how many they are.
    pub(crate) fn note_changes(
        &mut self,
        changes: impl IntoIterator<Item = (EntryChange, Author)>,
    ) {
        let mut changes = changes.into_iter();
        for (change, author) in changes.by_ref().take(MOST_NAMED) {
            self.tell(event(change, author));
        }
        let Some((_, author)) = changes.next() else {
            return;
        };
        let others = changes.count().saturating_add(1);
        let mut event = Event::new(EventKind::LimitChanged);
        let what = format!("{others} more entries changed");
        event.reason = Some(with_source(what, author.source.as_deref()));
        event.actor = Some(Box::new(author.actor));
        event.stated_reason = author.reason;
        self.tell(event);
    }

    fn tell(&mut self, event: Event) {
        let event = self.recorder.tell(event);
        self.fresh.push(event);
    }
}

/// What differs between limits that were in force and those that were read since.
pub(crate) fn by_files(before: &Limits, now: &Limits) -> Vec<(EntryChange, Author)> {
    let has_come = |until: Until| until.is_past(now.now());
    // The clock was set back.
    let is_back = |new: Option<&Limit>| {
        let until = new.and_then(|it| it.until);
        until.is_some_and(|it| it.is_past(before.now()))
    };
    let changes = now.changes_since(before).into_iter();
    let pairs = changes.map(|(who, old, new)| {
        let path = old.filter(|it| it.until.is_some()).or(new).or(old);
        let path = path.map(|it| it.path.as_os_str().as_bytes());
        let file = printable(path.unwrap_or_default(), PATH_WIDTH);
        let author = Author {
            actor: match old.and_then(|it| it.until).is_some_and(has_come) || is_back(new) {
                true => Actor::Clock { file },
                false => Actor::Reload { file },
            },
            reason: None,
            source: None,
        };
        let (old, new) = (old.map(Limit::spec), new.map(Limit::spec));
        (EntryChange { who, old, new }, author)
    });
    pairs.collect()
}

fn event(change: EntryChange, author: Author) -> Event {
    let EntryChange { who, old, new } = change;
    let mut event = Event::new(EventKind::LimitChanged);
    event.account = Some(who.to_string());
    let what = new.as_ref().map_or("limit cleared".into(), entry::bounds);
    event.reason = Some(with_source(what, author.source.as_deref()));
    let own = || new.as_ref().and_then(|it| it.reason.clone());
    event.stated_reason = author.reason.or_else(own);
    event.old = old.map(Box::new);
    event.new = new.map(Box::new);
    event.actor = Some(Box::new(author.actor));
    event
}

fn with_source(what: String, source: Option<&str>) -> String {
    match source {
        Some(source) => format!("{what} (from {source})"),
        None => what,
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::{BoundsSpec, EntrySpec, Pid, Uid};

    use super::*;

    fn spec(limit: &str, reason: Option<&str>) -> EntrySpec {
        EntrySpec {
            memory: Some(BoundsSpec::of_limit(limit.parse().unwrap())),
            reason: reason.map(|it| it.parse().unwrap()),
            ..EntrySpec::default()
        }
    }

    fn told(old: Option<EntrySpec>, new: Option<EntrySpec>, author: &Author) -> String {
        let who = "alice".parse().unwrap();
        let event = event(EntryChange { who, old, new }, author.clone());
        bursar_text::event::line(&event, bursar_text::Charset::Unicode)
    }

    #[test]
    fn a_change_is_told_with_what_was_who_did_it_and_why() {
        let root = Author {
            actor: Actor::Request {
                uid: Uid::new(0),
                pid: Pid::new(7),
                login_uid: Some(Uid::new(1000)),
                said_by: None,
            },
            reason: None,
            source: None,
        };
        assert_eq!(
            told(
                Some(spec("4G", Some("first term"))),
                Some(spec("8G", Some("thesis"))),
                &root
            ),
            "limit_changed alice: memory 8G; was memory 4G, reason: first term; by uid 0 (logged in as uid 1000); \
             reason: thesis"
        );
        let file = Author {
            actor: Actor::Reload {
                file: "/etc/l.toml".into(),
            },
            reason: Some("end of term".parse().unwrap()),
            source: None,
        };
        assert_eq!(
            told(Some(spec("4G", None)), None, &file),
            "limit_changed alice: limit cleared; was memory 4G; read from /etc/l.toml; reason: end of term"
        );
    }
}
