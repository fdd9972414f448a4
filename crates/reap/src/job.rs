// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a reaper is asked to do.

use std::sync::Arc;

use bursar_host::Pidfd;
use bursar_model::{Bytes, Nanos};

use crate::report::{Fate, Report};
use bursar_watchdog::Owner;

/// What is to be done with the victims of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// Send SIGKILL, then take their memory.
    Kill,
    /// SIGKILL has been sent: take their memory.
    Reap,
}

/// One process. The pidfd was opened before it was decided that this process is the one.
#[derive(Debug, Clone)]
pub struct Victim {
    /// A hold on it.
    pub pidfd: Arc<Pidfd>,
    /// Who pays for it, where that is known.
    pub owner: Option<Owner>,
    /// When SIGKILL was sent, CLOCK_MONOTONIC; of [`JobKind::Kill`] the reaper knows better.
    pub signalled: Nanos,
    /// Its anonymous memory and swap at the signal, where whoever sent it knows: a look afterwards can
    /// find most of it gone.
    pub private: Option<Bytes>,
    /// Somebody says that it is dying: nothing is done about one that is not.
    pub is_unverified: bool,
    /// For the caller to find its report by.
    pub tag: u64,
}

/// Victims that are dealt with together: all are signalled before the first one's memory is taken, so
/// that two who share one memory both are dying by then.
#[derive(Debug, Clone)]
pub struct Job {
    /// What to do.
    pub kind: JobKind,
    /// The processes that it is about.
    pub victims: Vec<Victim>,
}

impl Victim {
    /// One that nobody has looked at.
    pub fn new(pidfd: Pidfd, signalled: Nanos, tag: u64) -> Self {
        Self {
            pidfd: Arc::new(pidfd),
            owner: None,
            signalled,
            private: None,
            is_unverified: false,
            tag,
        }
    }

    /// Of one that nobody has reaped or looked at.
    pub(crate) fn report(&self, fate: Fate) -> Report {
        Report {
            tag: self.tag,
            pid: self.pidfd.pid(),
            fate,
            signalled: self.signalled,
            took: Nanos::new(0),
            freed: self.private,
            stays: None,
            found: Vec::new(),
        }
    }
}
