// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Between which values the scale factor may be moved, and how it relates to pages.

use super::sample::Sample;

/// The kernel's own bounds (39c65a94cd96, 5.17; 1,000 before).
pub const KERNEL_SCALE: (u32, u32) = (1, 3000);

/// Between which values `vm.watermark_scale_factor` may be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaleBounds {
    lowest: u32,
    highest: u32,
}

impl ScaleBounds {
    /// From `lowest`, the value the machine had, to `highest`; both are brought into the kernel's own
    /// bounds, and `highest` is never below `lowest`.
    pub fn new(lowest: u32, highest: u32) -> Self {
        let (least, most) = KERNEL_SCALE;
        let lowest = lowest.clamp(least, most);
        Self {
            lowest,
            highest: highest.clamp(lowest, most),
        }
    }

    /// What the machine had before.
    pub const fn lowest(self) -> u32 {
        self.lowest
    }

    /// What it gets at most.
    pub const fn highest(self) -> u32 {
        self.highest
    }

    /// `scale`, or the nearest that is allowed.
    pub fn clamp(self, scale: u32) -> u32 {
        scale.clamp(self.lowest, self.highest)
    }
}

/// Pages between the min and the low mark at a scale factor, in a zone
/// (mm/page_alloc.c `__setup_per_zone_wmarks()`: at least a quarter of min).
pub fn gap_of_zone(managed: u64, min: u64, scale: u32) -> u64 {
    let scaled = u128::from(managed).saturating_mul(u128::from(scale)) / 10_000;
    u64::try_from(scaled).unwrap_or(u64::MAX).max(min / 4)
}

/// The same for all zones of a node together.
pub fn gap_of_node(sample: &Sample, node: u16, scale: u32) -> u64 {
    sample.sum_of_node(node, |zone| gap_of_zone(zone.managed, zone.min, scale))
}

/// The smallest scale factor that gives a node at least this gap; below a quarter of min no factor
/// changes anything (a dead zone).
pub fn scale_for_gap(sample: &Sample, node: u16, gap: u64) -> u32 {
    let managed = sample.sum_of_node(node, |zone| zone.managed);
    if managed == 0 {
        return 0;
    }
    let scale = u128::from(gap)
        .saturating_mul(10_000)
        .div_ceil(u128::from(managed));
    u32::try_from(scale).unwrap_or(u32::MAX)
}

/// The most that may be asked for: the low mark and 2 % more must stay below what is free or could be
/// made so, or kswapd would run for ever (memoptimizer's own check).
pub fn highest_that_can_be_met(sample: &Sample) -> u32 {
    let there = sample.free().saturating_add(sample.holdings.reclaimable());
    let min = sample.sum(|zone| zone.min);
    let managed = sample.managed();
    if managed == 0 {
        return 0;
    }
    // The high mark is two gaps above min, and kswapd works until it is reached.
    let room = there.saturating_mul(98) / 100;
    let gap = room.saturating_sub(min) / 2;
    let scale = u128::from(gap).saturating_mul(10_000) / u128::from(managed);
    u32::try_from(scale).unwrap_or(u32::MAX)
}
