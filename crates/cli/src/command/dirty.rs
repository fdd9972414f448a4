// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar dirty`.

use bursar_protocol::{Operation, Reply};
use clap::Args;

use crate::caller::Caller;
use crate::failure::Failure;
use crate::view;

/// Show how much of the page cache each account has dirtied
///
/// A page counts for who dirtied it until it is written or given up, also when he has ended. Counting
/// begins when somebody first asks: what was dirty before is nobody's. Where the kernel lets nobody see
/// when pages become clean, only how many became dirty is known. Root only.
#[derive(Debug, Args)]
pub(crate) struct Dirty {}

impl Dirty {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let Reply::Dirty(report) = caller.ask(Operation::Dirty)? else {
            return Err(Failure::off_topic());
        };
        caller.answer(&*report, |report| view::dirty::dirty(report, &caller.style))
    }
}
