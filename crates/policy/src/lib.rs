// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bursar's decisions, pure: values in, verdicts out. No I/O, no clock, no traits.

#![forbid(unsafe_code)]

mod plan;
mod tally;
mod victim;

pub use plan::{Directory, Entry, NameError, Plan, Planned, plan};
pub use tally::{Crossing, Tally};
pub use victim::{Choice, Weighed, choose};
