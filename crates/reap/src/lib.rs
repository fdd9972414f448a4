// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes a killed process's memory back where the process itself is slow to (S2).
//!
//! - A [`Job`] names the victims; a [`Reaper`] takes jobs and reports what became of each victim in a [`Report`].
//! - The [`watcher`] thread follows each victim from the signal to its end and decides when something is done.
//! - The [`worker`] thread does it: it observes a victim ([`observer`]), takes its memory, and unblocks what keeps it
//!   from exiting ([`unblock`]).
//! - `bursar-policy` decides what is done; `bursar-watchdog` replaces a worker that hangs at a process.
//!
//! docs/design/measured-reap.md has the measurements.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod case;
mod job;
mod observer;
mod priority;
mod reaper;
mod report;
mod shared_mm;
mod unblock;

mod watcher;
mod worker;

pub use job::{Job, JobKind, Victim};
pub use priority::Priority;
pub use reaper::{ReapError, Reaper};
pub use report::{Fate, ReapEvent, Report, Stays};
