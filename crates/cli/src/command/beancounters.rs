// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar beancounters`.

use std::thread::sleep;
use std::time::{Duration, Instant};

use bursar_model::Who;
use bursar_protocol::{Operation, Reply};
use clap::{Args, ValueEnum};

use crate::caller::{Caller, Form, json};
use crate::command::physpages;
use crate::failure::Failure;
use crate::of_user::OfUser;
use crate::output;
use crate::view;

/// So long a scan may take before an older one is shown, and so often is asked.
const TIMEOUT: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_millis(200);

/// Show what an account holds of each kernel resource: its whole bill
///
/// HELD is what it has now, MAX the most it ever had, BARRIER where more is refused, FAILED how often it
/// was. HOW says where the numbers are from: exact, sampled, modelled, or not to be had on this kernel.
/// Looking takes about 2 microseconds for each task and each open file of the machine; between two
/// looks nothing is counted unless there is a limit on it. Which pages several accounts map is counted
/// first, as by `bursar physpages`. An ordinary user sees his own bill.
#[derive(Debug, Args)]
pub(crate) struct Beancounters {
    /// Whose bill; without it, those of all ordinary users
    who: Option<Who>,
    #[command(flatten)]
    of_user: OfUser,
    /// A table for people, OpenVZ's /proc/user_beancounters, or JSON
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// How bills are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Ubc,
    Json,
}

impl Beancounters {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let who = self.of_user.or(self.who.as_ref());
        // Pages that cannot be counted are worked out; the bill says which.
        let _ = physpages::count(caller, who.as_ref());
        let begun = Instant::now();
        let found = loop {
            let who = who.clone();
            let Reply::Beancounters(found) = caller.ask(Operation::Beancounters { who })? else {
                return Err(Failure::off_topic());
            };
            if !found.is_looking || begun.elapsed() > TIMEOUT {
                break found;
            }
            sleep(AGAIN);
        };
        let format = match caller.form {
            Form::Json => Format::Json,
            Form::People => self.format,
        };
        output::say(&match format {
            Format::Table => view::beancounters::table(&found, &caller.style),
            Format::Ubc => view::beancounters::ubc(&found.bills),
            Format::Json => json(&found)?,
        })
    }
}
