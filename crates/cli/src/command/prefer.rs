// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar prefer`: which of one's own processes goes first. It is the process's `oom_score_adj`, which whoever chooses a
//! victim looks at anyway.

use std::ffi::OsString;

use bursar_host::{Adjusted, HostError, Proc, Process, leave_oom_score_minimum};
use bursar_model::Pid;
use clap::Args;
use serde::Serialize;

use crate::caller::Caller;
use crate::complaint::complain;
use crate::failure::{Code, Failure};
use crate::launch::Launch;

/// Say which of your processes goes first when your account is over its limit
///
/// Of the account's processes that hold a sixteenth of the limit the one with the highest value is killed first, whoever
/// is larger. It helps only inside your account: another process of yours lives longer for it. What a process starts
/// afterwards has its value, too. Without bursard it is the order of the kernel's OOM killer.
#[derive(Debug, Args)]
pub(crate) struct Prefer {
    /// The processes
    #[arg(required_unless_present = "command", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pids: Vec<u32>,
    /// How far in front, 1 to 1000: the highest goes first. 0: not in front any more
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(i16).range(0..=1000))]
    by: i16,
    /// A command that goes first, with its arguments; bursar becomes it
    #[arg(
        last = true,
        conflicts_with = "pids",
        value_name = "CMD",
        help_heading = "Arguments"
    )]
    command: Vec<OsString>,
}

/// What became of one of them.
#[derive(Debug, Serialize)]
struct Preferred {
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    comm: Option<String>,
    /// What it has now.
    #[serde(skip_serializing_if = "Option::is_none")]
    oom_score_adj: Option<i16>,
    /// What it had.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<i16>,
    /// Why it was not changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip)]
    code: Option<Code>,
}

impl Prefer {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let failed = |error: HostError| Failure::failed(error.to_string());
        // Of root, too: what it gives a process is to be above the least that its user may set.
        leave_oom_score_minimum().map_err(|error| Failure::failed(error.to_string()))?;
        let proc = Proc::host().map_err(failed)?;
        if self.command.is_empty() {
            let all: Vec<Preferred> = self
                .pids
                .iter()
                .map(|&pid| self.prefer(&proc, pid))
                .collect();
            for it in &all {
                if let Some(reason) = &it.reason {
                    complain(&format!("{}: {reason}", it.pid));
                }
            }
            caller.answer(&all, |all| {
                let lines: Vec<String> = all.iter().filter_map(|it| in_words(it, caller)).collect();
                lines.join("\n")
            })?;
            return match all.iter().filter_map(|it| it.code).max() {
                Some(code) => Err(Failure::Answer(code)),
                None => Ok(()),
            };
        }
        let own = self.prefer(&proc, std::process::id());
        if let (Some(reason), Some(code)) = (own.reason, own.code) {
            return Err(Failure::Wrong(
                code,
                format!("the command would not go first: it {reason}"),
            ));
        }
        Err(Launch::of(self.command).exec())
    }

    fn prefer(&self, proc: &Proc, pid: u32) -> Preferred {
        let mut found = Preferred {
            pid,
            comm: None,
            oom_score_adj: None,
            before: None,
            reason: None,
            code: None,
        };
        if let Err((reason, code)) = self.change(proc, &mut found) {
            found.reason = Some(reason);
            found.code = Some(code);
        }
        found
    }

    fn change(&self, proc: &Proc, found: &mut Preferred) -> Result<(), (String, Code)> {
        let failed = |error: HostError| (format!("cannot be changed: {error}"), Code::Failed);
        let gone = || ("no such process".to_owned(), Code::Failed);
        // Held by its directory: nobody who gets its number later is meant.
        let process = proc.process(Pid::new(found.pid)).map_err(failed)?;
        let process: Process = process.ok_or_else(gone)?;
        let status = process.status().map_err(failed)?.ok_or_else(gone)?;
        found.comm = process.comm().ok().flatten().map(|it| it.to_printable());
        if status.tgid.get() != found.pid {
            let reason = format!("is a thread, not a process: name process {}", status.tgid);
            return Err((reason, Code::Failed));
        }
        if found.pid == 1 || status.memory.is_none() {
            return Err((
                "is never a victim: there is nothing to prefer".to_owned(),
                Code::Usage,
            ));
        }
        let before = process.oom_score_adj().map_err(failed)?.ok_or_else(gone)?;
        found.before = Some(before);
        match process.set_oom_score_adj(self.by).map_err(failed)? {
            Adjusted::Done => found.oom_score_adj = Some(self.by),
            Adjusted::Gone => return Err(gone()),
            Adjusted::Denied => {
                let reason = match self.by < before {
                    true => format!(
                        "not permitted: it is not yours, or root has given it {before} and you may not go below"
                    ),
                    false => "not permitted: it is not yours".to_owned(),
                };
                return Err((reason, Code::NotPermitted));
            }
        }
        Ok(())
    }
}

fn in_words(it: &Preferred, caller: &Caller) -> Option<String> {
    let (now, before) = (it.oom_score_adj?, it.before?);
    let comm = caller.style.shown(it.comm.as_deref().unwrap_or_default());
    let what = match now {
        0 => "goes first no more".to_owned(),
        _ => format!("goes first, before those below {now}"),
    };
    Some(format!("{comm}[{}] {what} (it had {before})", it.pid))
}
