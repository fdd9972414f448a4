// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar history`.

use bursar_host::Users;
use bursar_model::Who;
use bursar_protocol::{Operation, Reply};
use clap::Args;

use crate::caller::{Caller, Role};
use crate::failure::Failure;
use crate::of_user::OfUser;
use crate::since::Since;
use crate::view;
use crate::whose::Whose;

/// Show what an account held over time, against its limit, and when it was killed in
///
/// On a terminal a picture, with marks where something was killed or refused; elsewhere a line for each interval.
/// Intervals are minutes for a day, quarter-hours for a month, days beyond that. An ordinary user sees himself.
#[derive(Debug, Args)]
pub(crate) struct History {
    /// Whose: a user name, a uid, or =name (a shared account); without it, my own
    who: Option<Who>,
    #[command(flatten)]
    of_user: OfUser,
    /// From T on: how long ago (2h, 7d), a local time (09:30, today, yesterday, 2026-11-21, "2026-11-21
    /// 09:30") or a moment (RFC 3339)
    #[arg(long, value_name = "T", default_value = "7d")]
    since: Since,
}

impl History {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let who = self.of_user.or(self.who.as_ref());
        if who.is_none() && caller.role == Role::Root {
            return Err(Failure::usage(
                "whose history? name a user, a uid or a shared account (=name); bursar report has all of them",
            ));
        }
        let since = Some(self.since.as_of(&caller.clock));
        let asked = Operation::Usage {
            who: who.clone(),
            since,
        };
        let Reply::Usage(series) = caller.ask(asked)? else {
            return Err(Failure::off_topic());
        };
        if series.samples.is_empty()
            && let Some(who) = who.as_ref().filter(|_| caller.role == Role::Root)
        {
            // A name mistyped is not the same as one of whom nothing is kept.
            Whose::new(who, &mut Users::new(1))?.insist(caller.uid)?;
        }
        let whose = match &who {
            Some(who) => who.to_string(),
            None => "you".to_owned(),
        };
        caller.answer(&view::history::Json::new(&series), |_| {
            view::history::history(&series, &whose, &caller.clock, &caller.style)
        })
    }
}
