// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What differs between sets of rules.

use crate::rules::Current;

/// What differs between sets of rules.
pub trait Rules: Copy {
    /// Whether an address space without an owner is credited for ever, giving back a little renews the credit, and
    /// there is neither patience nor a cap (the rules before ABI version 7).
    const IS_FORMER: bool;
    /// Surveys that can be under way at once.
    const LANES: usize;
    /// A correction ends so long after a survey that took so long, ms.
    fn lifetime(survey_ms: u32) -> u32;
    /// What waits for a survey decides without one after so long; and for how long then.
    fn grace(survey_ms: u32) -> (u32, u32);
}

impl Rules for Current {
    const IS_FORMER: bool = false;
    const LANES: usize = 8;
    fn lifetime(_: u32) -> u32 {
        10_000
    }
    fn grace(_: u32) -> (u32, u32) {
        (2_000, 0)
    }
}
