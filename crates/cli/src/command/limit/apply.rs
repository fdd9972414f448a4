// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar limit apply`: a whole file of limits at once.

use std::io::Read;
use std::path::{Path, PathBuf};

use bursar_config::{Limits, MAX_FILE};
use bursar_model::Reason;
use bursar_protocol::{Applied, Apply as Asked, EntryChange, Operation, Reply};
use clap::Args;
use serde::Serialize;

use super::{UNKNOWN, terms};
use crate::caller::{Caller, heard};
use crate::failure::{Code, Failure};
use crate::view;

/// Make limits.toml say what a file says, all of it at once
///
/// Entries that FILE has are set, those that it does not have are cleared; what differs is shown. Where
/// nothing differs nothing is written. Entries of drop-ins (limits.toml.d/*.toml) are left alone.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 limits.toml says what FILE says (with --check: it does so already), 1 failed, 3 not
permitted, 4 daemon not reachable. 2: with --check something would change; without it FILE is wrong.
With --check a FILE that is wrong exits with 1.

Examples: bursar limit apply limits.toml --check
          bursar limit apply - <limits.toml")]
pub(crate) struct Apply {
    /// A file of limits; - is stdin
    file: PathBuf,
    /// Show what would change, and change nothing
    #[arg(long)]
    check: bool,
    /// Apply it even if somebody is over a new limit already: the largest process is killed at once. Also where it
    /// limits root, or has no entry
    #[arg(long)]
    force: bool,
    /// Why, in one line of at most 200 bytes: recorded with each change; FILE has reasons of its own
    #[arg(long, value_name = "TEXT")]
    reason: Option<Reason>,
}

/// What it did.
#[derive(Debug, Serialize)]
struct Done<'a> {
    /// With --check: whether anything would change.
    changed: bool,
    check: bool,
    changes: &'a [EntryChange],
    remarks: &'a [String],
}

impl Apply {
    pub(super) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let Self {
            file,
            check,
            force,
            reason,
        } = self;
        // In check mode 2 means that something would change, and nothing else.
        let wrong = |message: String| match check {
            true => Failure::failed(message),
            false => Failure::usage(message),
        };
        let text = read(&file).map_err(&wrong)?;
        let errors = Limits::parse(&text, &file).err();
        if let Some(error) = errors {
            let lines: Vec<String> = error.findings().iter().map(ToString::to_string).collect();
            return Err(wrong(lines.join("\n")));
        }
        let is_stdin = file.as_os_str() == "-";
        let ask = Operation::ApplyLimits(Asked {
            name: match is_stdin {
                true => "stdin".to_owned(),
                false => file.display().to_string(),
            },
            text,
            check,
            force,
            terms: terms(reason),
        });
        let reply = caller.connect()?.ask(ask).map_err(|error| {
            let failure = Failure::from(error);
            if check {
                failure
            } else {
                failure.adding(UNKNOWN)
            }
        })?;
        let Reply::Applied(applied) = heard(reply)? else {
            return Err(Failure::off_topic().adding(UNKNOWN));
        };
        let Applied { changes, remarks } = *applied;
        let changed = !changes.is_empty();
        let done = Done {
            changed,
            check,
            changes: &changes,
            remarks: &remarks,
        };
        caller.answer(&done, |_| {
            view::limit_changes::applied(&changes, &remarks, check, &caller.style)
        })?;
        match check && changed {
            true => Err(Failure::Answer(Code::Usage)),
            false => Ok(()),
        }
    }
}

/// The file's text, at most as much as a file of limits may have.
fn read(file: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("cannot read {file:?}: {error}");
    let source: Box<dyn Read> = match file.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(file).map_err(failed)?),
    };
    let mut text = String::new();
    let mut bounded = source.take(MAX_FILE.saturating_add(1));
    bounded.read_to_string(&mut text).map_err(failed)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_FILE {
        let most = MAX_FILE >> 20;
        return Err(format!(
            "{file:?} is larger than {most} MiB; is it the right file?"
        ));
    }
    Ok(text)
}
