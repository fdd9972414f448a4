// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar doctor`.

mod kernel;
mod ledger;
mod machine;

use clap::Args;

use crate::caller::Caller;
use crate::failure::Failure;
use crate::view;

/// Show what this machine and its kernel give, and what each missing ability costs
///
/// Run it as root: some abilities show only when they are tried, and only root may try. bursard compares
/// what its kernel half has in the ledger with /proc, which takes some seconds at most. The exit code
/// says whether doctor could look, not what it found; --json has the findings.
#[derive(Debug, Args)]
pub(crate) struct Doctor {}

impl Doctor {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let mut abilities = machine::abilities(caller);
        abilities.extend(ledger::abilities(caller));
        abilities.extend(kernel::abilities());
        caller.answer(&abilities, |abilities| {
            view::abilities::abilities(abilities, &caller.style)
        })
    }
}
