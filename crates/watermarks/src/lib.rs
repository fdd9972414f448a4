// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Watermarks that move before anybody stalls (S4): observe ([`Observer`]), let
//! `bursar_policy::watermarks` decide, act, record, and put everything back.

#![forbid(unsafe_code)]

mod compactor;
mod dentries;
mod engine;
mod huge_pages;
mod journal;
mod keeper;
mod knob;
mod observer;
mod originals;
mod places;
mod reclaimer;
mod report;
pub mod trace;

pub use engine::{Effort, Engine, Pause, Standing, StartError, UserRows, recover};
pub use journal::{Act, Journal, Record, Tally};
pub use keeper::Keeper;
pub use knob::Knob;
pub use observer::{Detail, Measured, Observer};
pub use originals::{Originals, OriginalsError, Restored, Turned};
pub use places::Places;
pub use report::{report, restored};
