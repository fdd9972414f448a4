// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What became of a victim's memory.

use std::sync::Arc;

use bursar_model::{Bytes, Nanos, Pid};
use bursar_policy::Peculiarity;

/// How a victim ended up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// A reaper took its memory.
    Released,
    /// It gave its memory back itself, as fast as it could.
    Exited,
    /// It gave its memory back itself, with its threads raised above others.
    Raised,
    /// It was gone before the signal.
    Gone,
    /// It must or could not be signalled.
    NotKilled(String),
    /// The kernel does not let us signal it.
    NotPermitted,
    /// A living process has the same memory, which stays until that one ends, too.
    MmShared(Pid),
    /// It was signalled, and is still there with its memory. Not waited for any longer.
    Stuck(String),
}

/// Shared memory that does not come back with a victim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stays {
    /// How much of it the victim had mapped and touched.
    pub bytes: Bytes,
    /// What it is called, made printable; at most eight names.
    pub names: Vec<String>,
    /// Living processes that map it; at most eight.
    pub holders: Vec<Pid>,
}

/// What a reaper tells while it works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReapEvent {
    /// A victim was sent SIGKILL.
    Signalled {
        /// Its [`crate::Victim::tag`].
        tag: u64,
        /// CLOCK_MONOTONIC.
        at: Nanos,
    },
    /// Nothing more will be done about a victim.
    Settled(Box<Report>),
}

/// What became of one victim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The victim's [`crate::Victim::tag`].
    pub tag: u64,
    /// The victim.
    pub pid: Pid,
    /// How it ended up.
    pub fate: Fate,
    /// When SIGKILL was sent, CLOCK_MONOTONIC.
    pub signalled: Nanos,
    /// From the signal to its memory being back, or to giving up on it.
    pub took: Nanos,
    /// What came back: private memory. `None` where nobody had looked in time.
    pub freed: Option<Bytes>,
    /// What stays although it is dead.
    pub stays: Option<Stays>,
    /// What is peculiar about it.
    pub found: Vec<Peculiarity>,
}

impl Fate {
    /// The `method` of an event; `None` where no memory came back.
    pub const fn method(&self) -> Option<&'static str> {
        match self {
            Self::Released => Some("process_mrelease"),
            Self::Exited | Self::Gone => Some("exit"),
            Self::Raised => Some("raised_exit"),
            Self::NotKilled(_) | Self::NotPermitted | Self::MmShared(_) | Self::Stuck(_) => None,
        }
    }
}

/// Where events go.
pub(crate) type Outbox = Arc<dyn Fn(ReapEvent) + Send + Sync>;
