// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is loaded into the machine while something is measured: the contenders.

mod ballast;
mod cgroup;
mod decision;
mod footprint;
mod kernel_half;
mod observer;
mod program;
mod trace;

use anyhow::Result;
use bursar_e2e::Binaries;

pub(crate) use ballast::Ballast;
pub(crate) use cgroup::{Cgroup, version as cgroup_version};
pub(crate) use decision::Decision;
pub(crate) use footprint::maps_bytes;
pub(crate) use kernel_half::{Loaded, far_bounds, options, pages, programs_on_rss_stat, sweep};
pub(crate) use observer::Observer;
pub(crate) use program::{Empty, EventHook, Trivial};
pub(crate) use trace::Trace;

/// Whom the bench's programs run as, and where what they need is.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) binaries: Binaries,
    first_uid: u32,
}

/// The throw-away users, by what limits them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Nobody pays for him.
    Unlimited,
    /// Far below his limit.
    Far,
    /// Near his limit: every event is counted exactly.
    Near,
    /// Limited by something that is not bursar.
    Other,
    /// Above a limit that is only observed.
    Observed,
}

impl Stage {
    pub(crate) fn new(first_uid: u32) -> Result<Self> {
        Ok(Self {
            binaries: Binaries::beside_us()?,
            first_uid,
        })
    }

    pub(crate) fn uid(&self, user: User) -> u32 {
        self.first_uid
            + match user {
                User::Unlimited => 0,
                User::Far => 1,
                User::Near => 2,
                User::Other => 3,
                User::Observed => 4,
            }
    }

    /// Users beyond the named ones, for tables that need many.
    pub(crate) fn further_uid(&self, index: u32) -> u32 {
        FURTHER_UIDS + index
    }
}

/// Beyond every range that login.defs, containers' subordinate ids or systemd hand out.
const FURTHER_UIDS: u32 = 0x7fff_0000;

/// What can be loaded. Loading and taking away happens between measurements, never in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Load {
    Empty,
    Loaded,
    Trace,
    Trivial,
    Cgroup,
}

/// Something loaded; gone when it is dropped.
pub(crate) enum Raised {
    Empty(#[expect(dead_code, reason = "lives as long as the measurement")] Empty),
    Loaded(Box<Loaded>),
    Trace(#[expect(dead_code, reason = "lives as long as the measurement")] Box<Trace>),
    Trivial(#[expect(dead_code, reason = "lives as long as the measurement")] Trivial),
    Cgroup(Cgroup),
}

/// More than any measurement of cost ever holds.
pub(crate) const FAR_BYTES: u64 = 4 << 30;

impl Load {
    pub(crate) fn raise(self, stage: &Stage) -> Result<Raised> {
        Ok(match self {
            Self::Empty => Raised::Empty(Empty::attach(EventHook::Tracepoint)?),
            Self::Loaded => Raised::Loaded(Box::new(Loaded::for_cost(stage)?)),
            Self::Trace => Raised::Trace(Box::new(Trace::start(stage, FAR_BYTES)?)),
            Self::Trivial => Raised::Trivial(Trivial::attach(stage.uid(User::Other), FAR_BYTES)?),
            Self::Cgroup => Raised::Cgroup(Cgroup::make("cost", FAR_BYTES)?),
        })
    }
}

impl Raised {
    /// The file through which a process enters the contender, if it does not find everybody.
    pub(crate) fn entrance(&self) -> Option<std::path::PathBuf> {
        match self {
            Self::Cgroup(group) => Some(group.entrance()),
            _ => None,
        }
    }
}
