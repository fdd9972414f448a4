// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar limit log`: who changed an entry, when, from what to what, and why.

use bursar_host::Users;
use bursar_model::{Event, EventKind, Who};
use bursar_protocol::{Operation, Reply};
use clap::Args;
use jiff::Timestamp;

use super::WHO;
use crate::caller::Caller;
use crate::failure::Failure;
use crate::since::Since;
use crate::view;
use crate::whose::{Whose, insist_on_group};

/// Show how a limit was changed: when, by which user, old and new value, reason
///
/// One line a change, oldest first, as far back as events are kept (events.keep_bytes). An ordinary user sees
/// those of his own entry.
#[derive(Debug, Args)]
#[command(after_help = WHO)]
pub(crate) struct Log {
    /// Whose entry, as it is written; without it, all
    who: Option<Who>,
}

impl Log {
    pub(super) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let since = Since::Moment(Timestamp::UNIX_EPOCH).as_of(&caller.clock);
        let asked = Operation::Events {
            since: Some(since),
            follow: false,
        };
        let Reply::Events(events) = caller.ask(asked)? else {
            return Err(Failure::off_topic());
        };
        let who = self.who.as_ref().map(ToString::to_string);
        let changes: Vec<&Event> = events
            .iter()
            .filter(|it| is_change(it) && (who.is_none() || it.account == who))
            .collect();
        if let (Some(who), []) = (&self.who, changes.as_slice()) {
            whose_entry(who, caller)?;
        }
        caller.answer(&changes, |changes| match changes.as_slice() {
            [] => {
                let whose = who.map_or_else(
                    || "a limit".to_owned(),
                    |it| format!("the limit of {}", caller.style.shown(&it)),
                );
                format!("no change of {whose} is recorded; what else happened: bursar events\n")
            }
            changes => {
                let lines = changes
                    .iter()
                    .map(|it| view::event::event_line(it, &caller.clock, &caller.style) + "\n");
                lines.collect()
            }
        })
    }
}

/// Where nothing is recorded: an entry of somebody who is not there, or whose entry is not the caller's business,
/// is not the same as one that nobody changed.
fn whose_entry(who: &Who, caller: &Caller) -> Result<(), Failure> {
    let mut users = Users::new(1);
    match who {
        Who::User(_) | Who::Uid(_) => Whose::new(who, &mut users)?.insist(caller.uid),
        Who::Group(_) => insist_on_group(who),
        Who::Shared(_) | Who::Default => Ok(()),
    }
}

/// Not what tells who is over a new limit.
fn is_change(event: &Event) -> bool {
    event.event == EventKind::LimitChanged && event.overcommit.is_none()
}
