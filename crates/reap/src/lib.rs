// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes a killed process's memory back at once, wherever it was running (S2).
//!
//! [`look`] observes a victim, `bursar-policy` decides what to do about it, a [`Crew`] of reaper
//! threads does it and tells in a [`Report`] what became of it. Processes can keep whoever asks them waiting for
//! ever: an [`Envoy`] asks for others, and who is lost so is given up ([`Vigil`], [`Barred`]). docs/REAP.md has the
//! measurements.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod barred;
mod beats;
mod bell;
mod clerk;
mod courier;
mod crew;
mod docket;
mod envoy;
mod hands;
mod job;
mod lead;
mod look;
mod mate;
mod overseer;
mod pacer;
mod post;
mod report;
mod seat;
mod session;
mod ticker;
mod twin;

pub use barred::{Asker, Barred, Payer};
pub use courier::{Courier, Heard};
pub use crew::{Crew, CrewError, Priority};
pub use envoy::Envoy;
pub use job::{Errand, Job, Victim};
pub use post::{Lost, Post, Sight, Vigil};
pub use report::{Fate, News, Report, Stays};
