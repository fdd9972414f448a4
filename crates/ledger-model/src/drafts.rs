// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drafts of rules for who leaves: what is wanted, what is wrong with simpler ones, and with those before 2026-11-30.

use crate::ledger::{Leavers, Rules};
use crate::rules::Current;

/// The rules that hold today, with another one for leavers.
macro_rules! draft {
    ($(#[$doc:meta])* $name:ident, $leavers:ident, $unseen:literal, $dying:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default)]
        pub struct $name;

        impl Rules for $name {
            const IS_FORMER: bool = Current::IS_FORMER;
            const LANES: usize = Current::LANES;
            const LEAVERS: Leavers = Leavers::$leavers;
            const UNSEEN_SHARE_ALL: bool = $unseen;
            const DYING_SHARE_ALL: bool = $dying;
            fn lifetime(scan_ms: u32) -> u32 {
                Current::lifetime(scan_ms)
            }
            fn grace(scan_ms: u32) -> (u32, u32) {
                Current::grace(scan_ms)
            }
        }
    };
}

draft!(
    /// Of the dying a scan takes off half of what was not credited, as before.
    DyingAsBefore, KeepAll, true, false
);
draft!(
    /// The same, and leavers take their own growth along.
    ProposedDyingAsBefore, BeforeTheSum, true, false
);
draft!(
    /// Today's, and the sum sinks at once.
    SinkFirst, KeepAllSinkFirst, true, true
);
draft!(
    /// Leavers take their own growth along, before the sum sinks.
    Proposed, BeforeTheSum, true, true
);
draft!(
    /// The same after the sum has sunk, unless growth was set back between.
    ProposedAfter, AfterTheSumChecked, true, true
);
draft!(
    /// Whether it was set back is not asked.
    Late, AfterTheSum, true, true
);
draft!(
    /// Whether somebody was forked is not asked.
    Relay, NeverAskForks, true, true
);
draft!(
    /// Leavers take their own growth along, but for those that could not be looked at all that they grew.
    SeenOrNot, BeforeTheSum, false, true
);
draft!(
    /// Who could not be looked at takes off too little, as before.
    Unseen, KeepAll, false, true
);
