// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process that is to be killed, held so that nobody else can get its number.

use std::error::Error;
use std::num::NonZeroU64;

use bursar_host::{HostError, Pidfd, Proc, ProcessQuery, StartTime};
use bursar_model::Pid;

use super::Scan;

/// A process that is to be killed.
pub(super) struct HeldProcess {
    pub(super) pidfd: Pidfd,
    /// The same, for whoever sends the signal.
    pub(super) to_signal: Pidfd,
    /// In pidfs.
    pub(super) number: Option<NonZeroU64>,
    /// `None` where it does not say in time.
    pub(super) start: Option<StartTime>,
}

impl Scan {
    /// `None` where it has ended, or cannot be held.
    pub(super) fn hold(&mut self, pid: Pid) -> Option<HeldProcess> {
        self.try_hold(pid).unwrap_or_else(|error| {
            // Without the process, which may be another one each time.
            let why = error.source().map(ToString::to_string);
            self.unheld = Some(why.unwrap_or_else(|| error.to_string()));
            None
        })
    }

    /// When it began is only told to people: a process in an execve that it lets last does not say.
    fn try_hold(&mut self, pid: Pid) -> Result<Option<HeldProcess>, HostError> {
        let Some(pidfd) = Pidfd::open(pid)? else {
            return Ok(None);
        };
        let to_signal = pidfd.try_clone()?;
        let number = pidfd.number().ok().flatten();
        let start = match self.query.ask(pid, Proc::stat) {
            Some(stat) => match stat.ok().flatten() {
                Some(stat) => Some(stat.start),
                None => return Ok(None),
            },
            None => None,
        };
        Ok(Some(HeldProcess {
            pidfd,
            to_signal,
            number,
            start,
        }))
    }
}
