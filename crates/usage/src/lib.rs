// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What accounts held over time: a sample a minute for a day, a quarter-hour for a month, a day for two years
//! (docs/design/13-usage-files.md).
//!
//! - [`Tier`]: how long an interval is, how much of them a file has, how many files are kept
//! - `record`: a sample, a name as 64 bytes with a checksum; `file`: records one after another
//! - [`Store`]: the directory. It adds samples, makes coarser ones out of finer ones, and stays within its bound
//! - [`Store::series`], [`Store::summary`]: what is read out of it
//!
//! Usable without bursard. Knows no clock: who calls says what time it is, and may contradict himself.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod consolidate;
mod directory;
mod file;
mod query;
mod record;
mod store;
mod summary;
mod tier;

pub use query::Wanted;
pub use store::{Entry, Store, StoreFacts};
pub use tier::Tier;
