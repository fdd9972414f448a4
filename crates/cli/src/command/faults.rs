// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar faults …`: page faults measured, watched, kept out, and proven absent (S3). These commands
//! ask this machine, no daemon.

pub(crate) mod lock;
mod measure;
mod verify;
mod watch;

use bursar_faults::Error;
use clap::Subcommand;

use crate::caller::Caller;
use crate::failure::{Code, Failure};

/// Page faults: measure them, watch them, keep them out of a program
#[derive(Debug, Subcommand)]
pub(crate) enum Faults {
    Measure(measure::Measure),
    Watch(watch::Watch),
    Verify(verify::Verify),
    Lock(lock::Lock),
}

impl Faults {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        match self {
            Self::Measure(command) => command.run(caller),
            Self::Watch(command) => command.run(caller),
            Self::Verify(command) => command.run(caller),
            Self::Lock(command) => command.run(caller),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::NotPermitted { .. } => Code::NotPermitted,
            Error::Host(bursar_host::HostError::Denied { .. }) => Code::NotPermitted,
            _ => Code::Failed,
        };
        Self::Wrong(code, error.to_string())
    }
}
