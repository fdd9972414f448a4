// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar status`.

use bursar_model::Who;
use bursar_protocol::{Ask, Reply};
use clap::Args;

use crate::caller::Caller;
use crate::failure::Failure;
use crate::view;

/// Show the accounts, the fullest first
///
/// The bar is what is held of the limit; the stroke in it is the notice level. MAX is the most ever
/// held, REFUSED counts how often a bound was met (failcnt), KILLS the processes killed. An ordinary
/// user sees his own account.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Whose account; without it, all
    who: Option<Who>,
}

impl Status {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let Reply::Status(status) = caller.ask(Ask::Status {
            who: self.who.clone(),
        })?
        else {
            return Err(Failure::off_topic());
        };
        caller.answer(&*status, |status| {
            view::status::status(status, self.who.as_ref(), caller.role, &caller.look)
        })
    }
}
