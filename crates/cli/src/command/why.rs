// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar why`.

use bursar_model::Pid;
use bursar_protocol::{Ask, Reply};
use clap::Args;

use crate::caller::Caller;
use crate::failure::Failure;
use crate::view;
use crate::view::story::Which;

/// Tell why a process was killed
///
/// The last one, or the one that had this number: when, for which account, what else was weighed, who
/// decided, and how long it took until the memory was back.
#[derive(Debug, Args)]
pub(crate) struct Why {
    /// The process that was killed; without it, the last one
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
}

impl Why {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let pid = self.pid.map(Pid::new);
        let Reply::Why(events) = caller.ask(Ask::Why { pid })? else {
            return Err(Failure::off_topic());
        };
        let which = pid.map_or(Which::Last, Which::Of);
        caller.answer(&events, |events| {
            view::story::story(events, which, caller.role, &caller.clock, &caller.look)
        })
    }
}
