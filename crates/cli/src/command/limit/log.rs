// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar limit log`: who changed an entry, when, from what to what, and why.

use bursar_model::{Event, EventKind, Who};
use bursar_protocol::{Operation, Reply};
use clap::Args;
use jiff::Timestamp;

use super::WHO;
use crate::caller::Caller;
use crate::failure::Failure;
use crate::since::Since;
use crate::view;

/// Show how a limit was changed: when, by whom, from what to what, and why
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
        let who = self.who.map(|it| it.to_string());
        let changes: Vec<&Event> = events
            .iter()
            .filter(|it| is_change(it) && (who.is_none() || it.account == who))
            .collect();
        caller.answer(&changes, |changes| match changes.as_slice() {
            [] => "no change of it is recorded; events say more: bursar events\n".to_owned(),
            changes => {
                let lines = changes
                    .iter()
                    .map(|it| view::event::event_line(it, &caller.clock, &caller.style) + "\n");
                lines.collect()
            }
        })
    }
}

/// Not what tells who is over a new limit.
fn is_change(event: &Event) -> bool {
    event.event == EventKind::LimitChanged && event.overcommit.is_none()
}
