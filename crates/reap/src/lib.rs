// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes a killed process's memory back at once, wherever it was running (S2).
//!
//! [`observer`] observes a victim, `bursar-policy` decides what to do about it, a [`Pool`] of reaper
//! threads does it and tells in a [`Report`] what became of it. Processes can keep whoever asks them waiting for
//! ever: a [`TimedQuery`] asks for others, and who is lost so is given up ([`Monitor`], [`Blocklist`]). docs/REAP.md has the
//! measurements.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod autogroup;
mod cpu_slot;
mod helper;
mod interval;
mod job;
mod observer;
mod pool;
mod preempt;
mod priority;
mod progress;
mod report;
mod reporter;
mod shared_mm;
mod supervisor;
mod unblock;
mod waker;
mod worker;

pub use job::{Errand, Job, Victim};
pub use pool::{Pool, PoolError, Priority};
pub use report::{Fate, News, Report, Stays};
