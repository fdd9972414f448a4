// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar report`.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bursar_host::Users;
use bursar_model::Who;
use bursar_protocol::{Operation, Reply};
use clap::Args;

use crate::caller::{Caller, Role};
use crate::failure::Failure;
use crate::of_user::OfUser;
use crate::output;
use crate::report::{By, Report, report};
use crate::since::Since;
use crate::view;
use crate::whose::Whose;

/// Who is named in it is not everybody's business.
const PRIVATE: u32 = 0o600;

/// Sum up the week: who was over the limit, with what, and which limits would do
///
/// For each account what was held, refused and killed, and whether its user was told before; who never comes near;
/// the busiest hour; limits that would have left 95 and 99 of a hundred users alone. Root sees all, others
/// themselves.
#[derive(Debug, Args)]
pub(crate) struct ReportOf {
    /// Whose: a user name, a uid, or =name (a shared account); without it, all
    who: Option<Who>,
    #[command(flatten)]
    of_user: OfUser,
    /// From T on: how long ago (24h, 7d, 30d), a local time (yesterday, 2026-11-21) or a moment (RFC 3339)
    #[arg(long, value_name = "T", default_value = "7d")]
    since: Since,
    /// What comes first
    #[arg(long, value_enum, default_value_t = By::default())]
    by: By,
    /// All accounts as comma-separated values
    #[arg(long, conflicts_with_all = ["json", "html"])]
    csv: bool,
    /// A page with pictures that needs no other file, written to this one; - is stdout
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    html: Option<PathBuf>,
}

impl ReportOf {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let report = self.ask(caller)?;
        match (&self.html, self.csv) {
            (Some(path), _) if path.as_os_str() == "-" => {
                output::say(&view::report::html(&report, &caller.clock))
            }
            (Some(path), _) => replace(path, &view::report::html(&report, &caller.clock)),
            (None, true) => output::say(&view::report::csv(&report)),
            (None, false) => caller.answer(&report, |it| {
                view::report::report(it, &caller.clock, &caller.style)
            }),
        }
    }

    fn ask(&self, caller: &Caller) -> Result<Report, Failure> {
        let who = self.of_user.or(self.who.as_ref());
        let since = Some(self.since.as_of(&caller.clock));
        let asked = Operation::UsageSummary {
            who: who.clone(),
            since: since.clone(),
        };
        let Reply::UsageSummary(summary) = caller.ask(asked)? else {
            return Err(Failure::off_topic());
        };
        if let Some(who) = who.as_ref().filter(|_| caller.role == Role::Root)
            && summary.accounts.is_empty()
        {
            Whose::new(who, &mut Users::new(1))?.insist(caller.uid)?;
        }
        let Reply::Events(events) = caller.ask(Operation::Events {
            since,
            follow: false,
        })?
        else {
            return Err(Failure::off_topic());
        };
        Ok(report(&summary, &events, self.by))
    }
}

/// A reader sees the old page or the new one, never half of one.
fn replace(path: &Path, page: &str) -> Result<(), Failure> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let written = tempfile::Builder::new()
        .prefix(".bursar-report-")
        .permissions(Permissions::from_mode(PRIVATE))
        .tempfile_in(directory)
        .and_then(|mut file| {
            file.write_all(page.as_bytes())?;
            file.persist(path).map_err(|error| error.error)
        });
    written.map(drop).map_err(|error| {
        Failure::failed(format!(
            "cannot write the report to {path:?}: {error}; does the directory exist, and may you write there?"
        ))
    })
}
