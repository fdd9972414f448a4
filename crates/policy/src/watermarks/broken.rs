// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How broken up free memory is.

use super::sample::{ORDERS, Zone};

/// Of a zone's free pages, those in blocks too small for `order`, thousandths: the kernel's
/// unusable_index (mm/vmstat.c `unusable_free_index()`), computed from buddyinfo alone. All of nothing
/// is unusable.
pub fn unusable_permille(zone: &Zone, order: usize) -> u32 {
    let all = zone.pages_from(0);
    if all == 0 {
        return 1000;
    }
    let usable = zone.pages_from(order.min(ORDERS));
    let unusable = u128::from(all.saturating_sub(usable)) * 1000 / u128::from(all);
    u32::try_from(unusable).unwrap_or(1000)
}
