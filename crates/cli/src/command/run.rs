// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar run`: a command, prepared. Each option is a step that adds to the [`Launch`].

mod gate;
mod on_notice;
mod signals;
mod tmalloc;

use std::ffi::OsString;

use bursar_model::Who;
use bursar_protocol::{Operation, Reply};
use clap::Args;

use crate::caller::Caller;
use crate::command::faults::lock::LockOptions;
use crate::failure::Failure;
use crate::launch::Launch;

/// Run a command with memory prepared for it
///
/// bursar becomes the command: its process number, signals and exit code are the command's own.
/// With --lock all its memory is made resident and locked before its main() begins, so that it takes no
/// page faults while it works; see also `bursar faults verify`.
/// With --tmalloc its malloc reserves before it allocates: near the barrier it returns NULL, and what it
/// has returned does not get the command killed.
/// With --gate whatever it and its children ask for is refused at the barrier, where the kernel cannot
/// do that by itself (`bursar doctor` says so): bursar stays as the command's parent, hands on signals
/// and ends as the command ends.
/// With --on-notice a shell command of yours runs each time that the account comes to its notice, so that the
/// program's work can be saved: bursar stays as the parent, as with --gate.
/// With --account the command and all its children pay into a shared account instead of their user's:
/// there is no way out of it, by no change of user, session or namespace.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Make all its memory resident and lock it
    #[arg(long)]
    lock: bool,
    #[command(flatten)]
    locking: LockOptions,
    /// Make its malloc answer NULL before the account's barrier is passed; not with --lock, whose
    /// library keeps the C library's malloc from giving memory back. Programs that load no library of
    /// ours (static, setuid, with capabilities) are refused
    #[arg(long, conflicts_with = "lock")]
    tmalloc: bool,
    /// Refuse growth of it and its children at the account's barrier, also where the kernel has no
    /// gate
    #[arg(long)]
    gate: bool,
    /// Run this shell command each time that the account comes to its notice; it finds the program's
    /// process in BURSAR_PID, and BURSAR_HELD and BURSAR_LIMIT in bytes
    #[arg(long, value_name = "CMD", conflicts_with = "gate")]
    on_notice: Option<String>,
    /// The shared account it pays into, with all its children, as long as they live; root may enter
    /// any, others those granted to them
    #[arg(long, value_name = "=NAME")]
    account: Option<Who>,
    /// The command and its arguments
    #[arg(
        last = true,
        required = true,
        value_name = "CMD",
        help_heading = "Arguments"
    )]
    command: Vec<OsString>,
}

impl Run {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let mut launch = Launch::of(self.command);
        // First: what follows asks for room in the account that will pay.
        if let Some(account) = self.account {
            enter(caller, account)?;
        }
        if self.lock {
            self.locking.prepare(&mut launch, caller)?;
        } else if self.locking.is_any() {
            return Err(Failure::usage(
                "--heap, --stack, --on-fault, --keep-malloc and --lock-children say how to lock; add --lock",
            ));
        }
        if self.tmalloc {
            tmalloc::prepare(&mut launch, caller)?;
        }
        if let Some(command) = self.on_notice {
            return Err(on_notice::run(command, &launch, caller));
        }
        if self.gate {
            return Err(gate::run(launch, caller));
        }
        Err(launch.exec())
    }
}

/// This process becomes the command, so it is this process that enters.
fn enter(caller: &Caller, account: Who) -> Result<(), Failure> {
    match caller.ask(Operation::Enter { account })? {
        Reply::Entered { .. } => Ok(()),
        _ => Err(Failure::off_topic()),
    }
}
