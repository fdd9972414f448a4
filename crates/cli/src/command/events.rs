// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar events`.

use bursar_model::Event;
use bursar_protocol::{Ask, Reply};
use clap::Args;

use crate::caller::{Caller, Form, heard, json};
use crate::failure::Failure;
use crate::output;
use crate::since::Since;
use crate::view;

/// Show what happened: notices, refusals, kills, changes of limits
///
/// One line a fact, oldest first. An ordinary user sees what concerns himself.
#[derive(Debug, Args)]
pub(crate) struct Events {
    /// And then what happens from now on; without --since only that
    #[arg(long)]
    follow: bool,
    /// Not older than T: a moment (RFC 3339) or how long ago (90s, 10m, 2h, 1d)
    #[arg(long, value_name = "T")]
    since: Option<Since>,
}

impl Events {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let now = caller.clock.now();
        let since = match (self.since, self.follow) {
            (Some(since), _) => Some(since.as_of(now)),
            (None, true) => Some(Since::Moment(now).as_of(now)),
            (None, false) => None,
        };
        let mut client = caller.connect()?;
        let Reply::Events(past) = heard(client.ask(Ask::Events {
            since,
            follow: self.follow,
        })?)?
        else {
            return Err(Failure::off_topic());
        };
        if !past.is_empty() {
            let lines = past.iter().map(|event| line(event, caller));
            output::say(&lines.collect::<Result<Vec<_>, _>>()?.join("\n"))?;
        }
        if !self.follow {
            return Ok(());
        }
        output::end_with_reader();
        while let Some(event) = client.next_event()? {
            output::say(&line(&event, caller)?)?;
        }
        Err(Failure::unreachable(
            "bursard closed the stream of events: it ended or is being restarted",
        ))
    }
}

fn line(event: &Event, caller: &Caller) -> Result<String, Failure> {
    match caller.form {
        Form::People => Ok(view::event::event_line(event, &caller.clock, &caller.look)),
        Form::Json => json(event),
    }
}
