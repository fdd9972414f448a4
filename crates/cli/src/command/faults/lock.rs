// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar faults lock`, and what `bursar run --lock` shares with it.

use std::ffi::{OsStr, OsString};

use bursar_faults::LockRequest;
use bursar_model::{Bytes, SizeSpec};
use clap::Args;

use crate::caller::Caller;
use crate::failure::Failure;
use crate::launch::Launch;
use crate::output;

/// The first thread's stack is prefaulted this deep unless told otherwise, bytes.
const DEFAULT_STACK: u64 = 512 << 10;

/// Run a command with all its memory resident and locked (the same as bursar run --lock)
///
/// Before its main() begins, malloc's heap and the stack are made resident, freed memory is told to stay
/// with the program, and all of its memory is locked, now and in future. Where that is not possible the
/// command is not started, and nothing is left locked.
#[derive(Debug, Args)]
pub(crate) struct Lock {
    #[command(flatten)]
    locking: LockOptions,
    /// Only say whether it could be done, as far as that is known before it runs
    #[arg(long)]
    dry_run: bool,
    /// The command and its arguments
    #[arg(
        last = true,
        required = true,
        value_name = "CMD",
        help_heading = "Arguments"
    )]
    command: Vec<OsString>,
}

/// How to lock.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Locking")]
pub(crate) struct LockOptions {
    /// Make malloc's heap this large and resident before main()
    #[arg(long, value_name = "SIZE")]
    heap: Option<SizeSpec>,
    /// Make the stack resident this deep (512K without this)
    #[arg(long, value_name = "SIZE")]
    stack: Option<SizeSpec>,
    /// Lock pages when they are first touched, not before: takes no memory that is never used, but each
    /// first touch faults
    #[arg(long)]
    on_fault: bool,
    /// Leave malloc as it is: it gives freed memory back, and getting it again faults. Not with --heap,
    /// which it would give back at once
    #[arg(long, conflicts_with = "heap")]
    keep_malloc: bool,
    /// Lock what the command executes, too; a script that executes another program in its place needs this.
    /// A child that executes nothing is not locked
    #[arg(long)]
    lock_children: bool,
}

impl LockOptions {
    /// Whether any was given.
    pub(crate) fn is_any(&self) -> bool {
        self.heap.is_some()
            || self.stack.is_some()
            || self.on_fault
            || self.keep_malloc
            || self.lock_children
    }

    /// The environment that does it.
    pub(crate) fn environment(
        &self,
        program: &OsStr,
    ) -> Result<Vec<(OsString, OsString)>, Failure> {
        let ram = bursar_host::Proc::host()
            .and_then(|proc| proc.meminfo())
            .map_err(bursar_faults::Error::from)?
            .total;
        let size = |size: Option<SizeSpec>, name: &str, default: u64| match size {
            None => Ok(Bytes::new(default)),
            Some(size) => size.resolve(ram).ok_or_else(|| {
                Failure::usage(format!("{name} needs a size; 0 leaves it as it is"))
            }),
        };
        let request = LockRequest {
            heap: size(self.heap, "--heap", 0)?,
            stack: size(self.stack, "--stack", DEFAULT_STACK)?,
            on_fault: self.on_fault,
            keep_malloc: self.keep_malloc,
            children: self.lock_children,
        };
        Ok(request.environment(program)?)
    }

    /// Adds it to a command.
    pub(crate) fn prepare(&self, launch: &mut Launch, caller: &Caller) -> Result<(), Failure> {
        launch.insist()?;
        let environment = self.environment(launch.program())?;
        launch.set(environment);
        // Where the library asks for room in the account.
        launch.set(vec![(
            "BURSAR_SOCKET".into(),
            OsString::from(&caller.socket),
        )]);
        Ok(())
    }
}

impl Lock {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let mut launch = Launch::of(self.command);
        self.locking.prepare(&mut launch, caller)?;
        if self.dry_run {
            return output::say(
                "its heap and stack can be locked; what else it maps is asked for when it starts",
            );
        }
        Err(launch.exec())
    }
}
