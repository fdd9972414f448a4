// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A command about to be run. Each option of `bursar run` adds what it needs, before the command
//! exists; then we become it, so that its pid, signals and exit code are its own. Only an rlimit gate
//! (command/run/gate) has it as a child.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use bursar_faults::program::{MAX_SCRIPTS, find, interpreter};
use bursar_model::printable;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use crate::failure::{Code, Failure};

/// A command about to be run.
#[derive(Debug)]
pub(crate) struct Launch {
    command: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl Launch {
    /// Of what was typed behind `--`.
    pub(crate) fn of(command: Vec<OsString>) -> Self {
        Self {
            command,
            environment: Vec::new(),
        }
    }

    /// The program's name as typed.
    pub(crate) fn program(&self) -> &OsStr {
        self.command
            .first()
            .map_or(OsStr::new(""), OsString::as_os_str)
    }

    /// Sets variables in its environment.
    pub(crate) fn set(&mut self, variables: Vec<(OsString, OsString)>) {
        self.environment.extend(variables);
    }

    /// Refuses as [`Self::exec`] would what is not there or cannot be executed: for whoever has to look into it
    /// before that.
    pub(crate) fn insist(&self) -> Result<(), Failure> {
        let refused = |errno: Errno| Err(self.failed(&errno.into()));
        let Some(mut path) = find(self.program()) else {
            return refused(Errno::NOENT);
        };
        // Who runs a script has to be there, too.
        for _ in 0..=MAX_SCRIPTS {
            if path.is_dir() {
                return refused(Errno::ACCESS);
            }
            if let Err(errno) = accessat(CWD, &path, Access::EXEC_OK, AtFlags::EACCESS) {
                return refused(errno);
            }
            match interpreter(&path) {
                Some(next) => path = next,
                None => return Ok(()),
            }
        }
        refused(Errno::LOOP)
    }

    /// Becomes it. Comes back only when that fails.
    pub(crate) fn exec(self) -> Failure {
        match self.command() {
            Ok(mut command) => self.failed(&command.exec()),
            Err(failure) => failure,
        }
    }

    /// Starts it as a child, with our own standard streams.
    pub(crate) fn spawn(&self) -> Result<Child, Failure> {
        let mut command = self.command()?;
        command.spawn().map_err(|error| self.failed(&error))
    }

    fn command(&self) -> Result<Command, Failure> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(Failure::usage("run what? write the command behind --"));
        };
        let mut command = Command::new(program);
        let environment = self.environment.iter().map(|(name, value)| (name, value));
        command.args(arguments).envs(environment);
        Ok(command)
    }

    fn failed(&self, error: &io::Error) -> Failure {
        let name = printable(self.program().as_encoded_bytes(), 256);
        match error.kind() {
            ErrorKind::NotFound => {
                let message = "there is no such program; is the name right?";
                Failure::Wrong(Code::NoCommand, format!("cannot run {name:?}: {message}"))
            }
            // Of fork(2), or of the exec: nothing is wrong with the command.
            ErrorKind::WouldBlock | ErrorKind::OutOfMemory => {
                Failure::failed(format!("cannot run {name:?}: {error}"))
            }
            _ => Failure::Wrong(Code::NotExecutable, format!("cannot run {name:?}: {error}")),
        }
    }
}
