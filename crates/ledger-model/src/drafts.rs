// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drafts of rules for who leaves: what is wanted, and what is wrong with simpler ones.

use crate::ledger::{Leavers, Rules};

/// The rules that hold today, with another one for leavers.
macro_rules! draft {
    ($(#[$doc:meta])* $name:ident, $leavers:ident, $unseen:literal, $dying:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default)]
        pub struct $name;

        impl Rules for $name {
            const IS_FORMER: bool = false;
            const LANES: usize = 8;
            const LEAVERS: Leavers = Leavers::$leavers;
            const UNSEEN_SHARE_ALL: bool = $unseen;
            const DYING_SHARE_ALL: bool = $dying;
            fn lifetime(_: u32) -> u32 {
                10_000
            }
            fn grace(_: u32) -> (u32, u32) {
                (2_000, 0)
            }
        }
    };
}

draft!(
    /// Leavers take off nothing; all that may be shared is taken off the correction.
    Mended, KeepAll, true, true
);
draft!(
    /// Of the dying a scan takes off half of what was not credited, as today.
    DyingAsToday, KeepAll, true, false
);
draft!(
    /// The same, and leavers take their own growth along.
    ProposedDyingAsToday, BeforeTheSum, true, false
);
draft!(
    /// The same as the first, and the sum sinks at once.
    MendedSinkFirst, KeepAllSinkFirst, true, true
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
    /// Who could not be looked at takes off too little.
    Unseen, KeepAll, false, true
);
