// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar quota`.

use std::time::Duration;

use bursar_protocol::{Operation, Reply};
use clap::Args;

use crate::caller::{Caller, Form, heard};
use crate::failure::Failure;
use crate::view;

/// No login waits longer for it.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Show my own account, and the shared ones I may enter: held, limit, what is left
#[derive(Debug, Args)]
pub(crate) struct Quota {
    /// One line for a login: from half of the limit on, or where something was killed since the last one; else
    /// nothing
    #[arg(long)]
    brief: bool,
}

impl Quota {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        if self.brief {
            return in_brief(caller);
        }
        let Reply::Quota(quota) = caller.ask(Operation::Quota)? else {
            return Err(Failure::off_topic());
        };
        caller.answer(&*quota, |quota| {
            view::quota::quota(quota, &caller.clock, &caller.style)
        })
    }
}

fn in_brief(caller: &Caller) -> Result<(), Failure> {
    let mut client = caller.connect_within(TIMEOUT)?;
    let Reply::Brief(brief) = heard(client.ask(Operation::Brief)?)? else {
        return Err(Failure::off_topic());
    };
    let line = view::brief::brief(&brief, &caller.style);
    match (caller.form, line.is_empty()) {
        (Form::People, true) => Ok(()),
        _ => caller.answer(&*brief, |_| line),
    }
}
