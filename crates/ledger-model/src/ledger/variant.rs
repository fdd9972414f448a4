// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What differs between sets of rules.

use crate::rules::Current;

/// What of an account's growth ends with who leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leavers {
    /// Nothing.
    KeepAll,
    /// Nothing, and the sum sinks at once, whoever loses its processor: what the two below are compared with.
    KeepAllSinkFirst,
    /// Its own pages, forked from or not, before the sum sinks.
    NeverAskForks,
    /// Of who has forked nobody, after the sum has sunk.
    AfterTheSum,
    /// The same, unless growth has been set back between.
    AfterTheSumChecked,
    /// Of who has forked nobody, before the sum sinks.
    BeforeTheSum,
}

/// What differs between sets of rules.
pub trait Rules: Copy {
    /// Whether an address space without an owner is credited for ever, giving back a little renews the credit, and
    /// there is neither patience nor a cap (the rules before ABI version 7).
    const IS_FORMER: bool;
    /// PSS scans that can be under way at once.
    const LANES: usize;
    /// What leavers take off their account's growth.
    const LEAVERS: Leavers = Leavers::KeepAll;
    /// Whether all of who could not be looked at may be shared when it leaves.
    const UNSEEN_SHARE_ALL: bool = true;
    /// Whether a PSS scan takes off all that the dying may share: as when it leaves.
    const DYING_SHARE_ALL: bool = true;
    /// A correction ends so long after a PSS scan that took so long, ms.
    fn lifetime(scan_ms: u32) -> u32;
    /// What waits for a PSS scan decides without one after so long; and for how long then.
    fn grace(scan_ms: u32) -> (u32, u32);
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
