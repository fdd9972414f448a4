// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words of bursar as types (GLOSSARY.md). No I/O, no unsafe, no clock.

#![forbid(unsafe_code)]

mod abridged;
mod account;
mod beancounter;
mod bounds;
mod entry;
mod event;
mod exempt_cgroup;
mod gate;
mod id;
mod mode;
mod namespace;
mod quantity;
mod reap;
mod reason;
mod resource;
mod size;
mod subject;
mod text;
mod until;
mod usage;
mod watch_level;
mod who;

pub use abridged::abridged;
pub use account::{
    AccountKind, AccountStatus, BackendKind, Correction, DaemonCounts, DaemonStatus,
    KernelHalfStatus, KillManner, PssScanStatus, Rows,
};
pub use beancounter::{Bean, Bill, How, RowBounds, RowBoundsError};
pub use bounds::{Bounds, BoundsError, BoundsSpec, DEFAULT_BARRIER, DEFAULT_NOTICE};
pub use entry::{Actor, EntrySpec};
pub use event::{Candidate, Event, EventKind, HeldFile, ProgramGroup, RowRefusal, Trigger};
pub use exempt_cgroup::{CgroupExtent, CgroupHierarchy, ExemptCgroup};
pub use gate::{GateMode, GateStatus, Measure, Request};
pub use id::{AccountId, Gid, Nanos, Pid, Uid};
pub use mode::Mode;
pub use namespace::namespace_bytes;
pub use quantity::{Bytes, PageSize, Pages};
pub use reap::{REAP_BUCKETS_MS, ReapBucket, ReapStatus};
pub use reason::{MAX_REASON, Reason, ReasonError};
pub use resource::{Class, Resource, Row, Unit};
pub use size::{Percent, SizeError, SizeSpec};
pub use subject::Subject;
pub use text::printable;
pub use until::{Until, UntilError};
pub use usage::{AccountUsage, UsagePart, UsageSample, UsageSeries, UsageSummary};
pub use watch_level::{WatchLevel, WatchLevelError};
pub use who::{Who, WhoError};
