// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Watermarks that move before anybody stalls (S4): observe ([`Observer`]), let
//! `bursar_policy::watermarks` decide, act, record, and put everything back.

#![forbid(unsafe_code)]

mod compactor;
mod decision_log;
mod dentries;
mod engine;
mod huge_pages;
mod knob;
mod observer;
mod paths;
mod reclaimer;
mod report;
mod saved;
mod thread;
pub mod trace;

pub use decision_log::{Act, DecisionLog, Record, StallCounters};
pub use engine::{AccountFacts, Effort, Engine, Pause, Standing, StartError, UserRows, recover};
pub use knob::Knob;
pub use observer::{Detail, Measured, Observer};
pub use paths::Paths;
pub use report::{report, restored};
pub use saved::{Restored, SavedError, SavedValues, Turned};
pub use thread::EngineThread;
