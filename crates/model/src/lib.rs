// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words of bursar as types (GLOSSARY.md). No I/O, no unsafe, no clock.

#![forbid(unsafe_code)]

mod account;
mod bounds;
mod event;
mod id;
mod quantity;
mod resource;
mod size;
mod text;
mod who;

pub use account::{
    AccountKind, AccountStatus, DaemonStatus, KernelHalfStatus, ReapStatus, TriggerKind,
};
pub use bounds::{Bounds, BoundsError, BoundsSpec, DEFAULT_BARRIER, DEFAULT_NOTICE};
pub use event::{Candidate, Event, EventKind, Trigger};
pub use id::{AccountId, Gid, Nanos, Pid, Uid};
pub use quantity::{Bytes, PageSize, Pages};
pub use resource::{Resource, Row};
pub use size::{Percent, SizeError, SizeSpec};
pub use text::printable;
pub use who::{Who, WhoError};
