// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar quota`.

use bursar_protocol::{Operation, Reply};
use clap::Args;

use crate::caller::Caller;
use crate::failure::Failure;
use crate::view;

/// Show my own account, and the shared ones I may enter: held, limit, what is left
#[derive(Debug, Args)]
pub(crate) struct Quota {}

impl Quota {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let Reply::Quota(quota) = caller.ask(Operation::Quota)? else {
            return Err(Failure::off_topic());
        };
        caller.answer(&*quota, |quota| {
            view::quota::quota(quota, &caller.clock, &caller.style)
        })
    }
}
