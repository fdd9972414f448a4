// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S2's margin: what others may take while a killed process's memory comes back. kswapd alone keeps it, by the gap
//! between the marks: who frees memory at our word does so in storms only, and a kill may be the first sign of one.

use super::bounds::gap_of_node;
use super::sample::Sample;

/// The gap that keeps a node's part of the margin, by its size.
pub(super) fn gap_of_margin(sample: &Sample, node: u16, margin: u64) -> u64 {
    let managed = sample.sum_of_node(node, |zone| zone.managed);
    let part = u128::from(margin) * u128::from(managed);
    u64::try_from(part / u128::from(sample.managed().max(1))).unwrap_or(u64::MAX)
}

/// What stays free at a factor while anything can be given up: below it kswapd works.
pub(super) fn kept_at(sample: &Sample, scale: u32) -> u64 {
    let gaps = sample.nodes().map(|node| gap_of_node(sample, node, scale));
    gaps.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::super::sample::Zone;
    use super::*;

    #[test]
    fn each_node_keeps_its_part() {
        let zone = |node, managed| Zone {
            node,
            managed,
            ..Zone::default()
        };
        let sample = Sample {
            zones: vec![zone(0, 30_000), zone(1, 10_000)],
            ..Sample::default()
        };
        assert_eq!(gap_of_margin(&sample, 0, 4000), 3000);
        assert_eq!(gap_of_margin(&sample, 1, 4000), 1000);
        assert_eq!(kept_at(&sample, 1000), 4000);
        assert_eq!(gap_of_margin(&Sample::default(), 0, 4000), 0);
    }
}
