// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules as they were before ABI version 7: what the adversary has to find, to show that it finds anything.

use crate::ledger::Rules;

/// Credit without an end, a grace for files, and PSS scans one after the other.
#[derive(Debug, Clone, Copy, Default)]
pub struct Former;

impl Rules for Former {
    const IS_FORMER: bool = true;
    const LANES: usize = 1;
    const UNSEEN_SHARE_ALL: bool = false;
    const DYING_SHARE_ALL: bool = false;
    fn lifetime(scan_ms: u32) -> u32 {
        (2 * (50 + scan_ms) + 100).min(2_100)
    }
    fn grace(scan_ms: u32) -> (u32, u32) {
        ((100 + 2 * scan_ms).min(500), 10_000)
    }
}
