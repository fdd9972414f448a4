// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pagemap scan: which pages of the machine are mapped by whom, and what part of each counts for whom
//! (S5 section 3.2's physpages; its open question "on-demand RSS accounting").
//!
//! The kernel has no event that tells of the first and the last mapping of a page by an account, so
//! nothing is kept up to date: whoever wants to know has every process's page map read, once, at a pace
//! that leaves the machine to others. Between two counts that follow each other the rings of shared
//! pages stay, so that only what has changed changes hands, by S5's rule.

#![forbid(unsafe_code)]

mod count;
mod frames;
mod pace;
mod scan;

pub use count::{Count, Facts, Holding};
pub use pace::Pace;
pub use scan::{Looked, PagemapScanner};
