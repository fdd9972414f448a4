// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether memory will run short before the kernel has made room, and what to do about it (S4).
//!
//! A [`Sample`] goes into a [`Model`], a [`Verdict`] comes out: what the scale factor of the watermarks
//! should be, which node should be compacted, why, and what was seen and is expected.

mod bounds;
mod broken;
mod change;
mod demand;
mod feedback;
mod line;
mod margin;
mod model;
mod sample;
mod stock;
mod trend;
mod verdict;
mod words;

pub use bounds::{
    KERNEL_SCALE, ScaleBounds, gap_of_node, gap_of_zone, highest_that_can_be_met, scale_for_gap,
};
pub use broken::unusable_permille;
pub use change::Change;
pub use demand::{Demand, Supply, WINDOWS_MS};
pub use feedback::Feedback;
pub use line::{Line, MAX_WINDOW, Reach, Window};
pub use model::{Model, ModelChoice};
pub use sample::{Counters, Holdings, ORDERS, Sample, Zone};
pub use stock::Stock;
pub use trend::Trend;
pub use verdict::{Forecast, Reason, Verdict};
pub use words::sentence;
