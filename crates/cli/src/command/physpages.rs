// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar physpages`.

use std::thread;
use std::time::{Duration, Instant};

use bursar_model::Who;
use bursar_protocol::{Operation, Physpages as Counted, PhyspagesReply, Reply};
use clap::{Args, ValueEnum};

use crate::caller::{Caller, heard};
use crate::failure::Failure;
use crate::of_user::OfUser;
use crate::view;

/// Between two looks whether the count is done.
const AGAIN: Duration = Duration::from_millis(20);
/// A count that takes longer than this does not end: a terabyte in small pages takes two minutes.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Show which part of the machine's mapped pages each account has
///
/// A page that programs of several accounts map (a library, a file, shared memory) is split among them, so
/// that the parts of all accounts, with what no account pays for, are the pages that are mapped. Nothing is
/// counted until somebody asks; a count takes at most a quarter of one core. An ordinary user sees his own
/// part, which may be some seconds old.
#[derive(Debug, Args)]
pub(crate) struct Physpages {
    /// Whose part; without it, everybody's
    who: Option<Who>,
    #[command(flatten)]
    of_user: OfUser,
    /// How a page of n accounts is split
    #[arg(long, value_name = "RULE", default_value = "exact")]
    rule: Rule,
}

/// How a shared page is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rule {
    /// 1/n for each
    Exact,
    /// A power of two for each, as beancounters do: 1/2, 1/4, 1/4 for three
    Shift,
}

impl Physpages {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let who = self.of_user.or(self.who.as_ref());
        let found = count(caller, who.as_ref())?;
        caller.answer(&found, |found| {
            view::physpages::physpages(found, self.rule, &caller.style)
        })
    }
}

/// Has mapped pages counted and waits for it.
pub(crate) fn count(caller: &Caller, who: Option<&Who>) -> Result<Counted, Failure> {
    let began = Instant::now();
    let mut client = caller.connect()?;
    let mut ticket = None;
    loop {
        let ask = Operation::Physpages {
            who: who.cloned(),
            ticket,
        };
        let Reply::Physpages(reply) = heard(client.ask(ask)?)? else {
            return Err(Failure::off_topic());
        };
        match *reply {
            PhyspagesReply::Counted(found) => return Ok(found),
            PhyspagesReply::Counting { ticket: promised } => ticket = Some(promised),
        }
        if began.elapsed() > TIMEOUT {
            return Err(Failure::failed(
                "mapped pages are still being counted after ten minutes; is bursard stopped?",
            ));
        }
        thread::sleep(AGAIN);
    }
}
