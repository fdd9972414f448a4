// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar events`.

use bursar_host::Users;
use bursar_model::{Event, Who};
use bursar_protocol::{Operation, Reply};
use clap::Args;

use crate::caller::{Caller, Form, heard, json};
use crate::failure::Failure;
use crate::of_user::OfUser;
use crate::output;
use crate::since::Since;
use crate::view;
use crate::whose::Whose;

/// Show what happened: notices, refusals, kills, changes of limits
///
/// One line a fact, in the order in which bursard learned of them. An ordinary user sees what concerns himself.
#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Whose: a user name, a uid, or =name (a shared account); without it, everybody's
    who: Option<Who>,
    #[command(flatten)]
    of_user: OfUser,
    /// And then what happens from now on; without --since only that
    #[arg(long)]
    follow: bool,
    /// Not older than T: how long ago (90s, 10m, 2h, 1d), a local time (09:30, today, yesterday,
    /// 2026-11-21, "2026-11-21 09:30") or a moment (RFC 3339)
    #[arg(long, value_name = "T")]
    since: Option<Since>,
}

impl Events {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let who = self.of_user.or(self.who.as_ref());
        let mut users = Users::new(1);
        let whose = who.as_ref().map(|who| Whose::new(who, &mut users));
        let whose = whose.transpose()?;
        let is_wanted = |event: &Event| whose.as_ref().is_none_or(|whose| whose.is_of(event));
        let since = match (self.since, self.follow) {
            (Some(since), _) => Some(since.as_of(&caller.clock)),
            (None, true) => Some(Since::Moment(caller.clock.now()).as_of(&caller.clock)),
            (None, false) => None,
        };
        let mut client = caller.connect()?;
        let Reply::Events(past) = heard(client.ask(Operation::Events {
            since,
            follow: self.follow,
        })?)?
        else {
            return Err(Failure::off_topic());
        };
        let wanted = past.iter().filter(|event| is_wanted(event));
        let lines = wanted.map(|event| line(event, caller));
        let lines = lines.collect::<Result<Vec<_>, _>>()?;
        if !lines.is_empty() {
            output::say(&lines.join("\n"))?;
        } else if let Some(whose) = &whose {
            whose.insist(caller.uid)?;
        }
        if !self.follow {
            return Ok(());
        }
        output::end_with_reader()?;
        while let Some(event) = client.next_event()? {
            if is_wanted(&event) {
                output::say(&line(&event, caller)?)?;
            }
        }
        Err(Failure::unreachable(
            "bursard closed the stream of events: it ended or is being restarted",
        ))
    }
}

fn line(event: &Event, caller: &Caller) -> Result<String, Failure> {
    match caller.form {
        Form::People => Ok(view::event::event_line(event, &caller.clock, &caller.style)),
        Form::Json => json(event),
    }
}
