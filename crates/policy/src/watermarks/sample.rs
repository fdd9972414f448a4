// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a model is shown of the machine at one moment.

use bursar_model::Nanos;

/// Orders a kernel can have.
pub const ORDERS: usize = 16;

/// One zone that allocations come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Zone {
    /// The NUMA node.
    pub node: u16,
    /// Free pages.
    pub free: u64,
    /// The marks without a boost, pages.
    pub min: u64,
    /// See `min`.
    pub low: u64,
    /// See `min`.
    pub high: u64,
    /// Pages the page allocator was given.
    pub managed: u64,
    /// Free blocks of each order.
    pub blocks: [u64; ORDERS],
}

/// Counters since boot, of the whole machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Pages that kswapd took back.
    pub steal_kswapd: u64,
    /// Pages that stalled allocations took back.
    pub steal_direct: u64,
    /// Pages that others took back.
    pub steal_other: u64,
    /// Pages that kswapd looked at.
    pub scan_kswapd: u64,
    /// Runs of kswapd: each is a trial of the gap it was woken at.
    pub kswapd_runs: u64,
    /// Allocations that had to reclaim.
    pub alloc_stalls: u64,
    /// Allocations that had to compact.
    pub compact_stalls: u64,
    /// Page faults that wanted a huge page and got small ones.
    pub thp_fallbacks: u64,
    /// Page faults that wanted a huge page and got it.
    pub thp_faults: u64,
    /// File pages read again soon after they were taken back.
    pub refaults: u64,
    /// Time in which allocations reclaimed or compacted by themselves, nanoseconds, all tasks
    /// together; `None` where nobody measures it.
    pub stall_ns: Option<u64>,
}

/// What the machine holds that could be given up, pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holdings {
    /// File pages.
    pub file: u64,
    /// Anonymous pages.
    pub anon: u64,
    /// Kernel objects that can be given back.
    pub slab_reclaimable: u64,
    /// Room in swap.
    pub swap_free: u64,
}

/// The machine at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// When it was read, CLOCK_MONOTONIC.
    pub at: Nanos,
    /// Zones that ordinary allocations come from: no DMA, none without memory. Sorted by node.
    pub zones: Vec<Zone>,
    /// Counters since boot.
    pub counters: Counters,
    /// What could be given up.
    pub holdings: Holdings,
    /// `vm.watermark_scale_factor` as it stands, ten-thousandths of a zone.
    pub scale: u32,
    /// How slowly kswapd reacts in a bad moment, from wake-up to work, nanoseconds: the mean of the
    /// slowest reactions of the last spans of ten seconds. `None` where nobody measures it or it was
    /// not woken.
    pub reaction_ns: Option<u64>,
    /// How fast memory was given back at our word since the last sample, pages a second; `None` where
    /// nothing was asked for.
    pub prefree_rate: Option<u64>,
}

impl Zone {
    /// Free pages in blocks of at least this order.
    pub fn pages_from(&self, order: usize) -> u64 {
        let blocks = self.blocks.iter().enumerate().skip(order);
        blocks
            .map(|(order, count)| count.saturating_mul(1 << order))
            .fold(0, u64::saturating_add)
    }
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            at: Nanos::new(0),
            zones: Vec::new(),
            counters: Counters::default(),
            holdings: Holdings::default(),
            scale: 0,
            reaction_ns: None,
            prefree_rate: None,
        }
    }
}

impl Sample {
    /// Free pages of all zones.
    pub fn free(&self) -> u64 {
        self.sum(|zone| zone.free)
    }

    /// Managed pages of all zones.
    pub fn managed(&self) -> u64 {
        self.sum(|zone| zone.managed)
    }

    /// The sum of something over all zones.
    pub fn sum(&self, of: impl Fn(&Zone) -> u64) -> u64 {
        self.zones.iter().map(of).fold(0, u64::saturating_add)
    }

    /// The same over the zones of one node.
    pub fn sum_of_node(&self, node: u16, of: impl Fn(&Zone) -> u64) -> u64 {
        let zones = self.zones.iter().filter(|zone| zone.node == node);
        zones.map(of).fold(0, u64::saturating_add)
    }

    /// The nodes there are.
    pub fn nodes(&self) -> impl Iterator<Item = u16> {
        let mut last = None;
        self.zones.iter().filter_map(move |zone| {
            let is_new = last != Some(zone.node);
            last = Some(zone.node);
            is_new.then_some(zone.node)
        })
    }
}

impl Holdings {
    /// What reclaim could take, pages. Anonymous pages only as far as swap has room (memoptimizer
    /// counts them on machines without swap).
    pub const fn reclaimable(&self) -> u64 {
        let anon = if self.anon < self.swap_free {
            self.anon
        } else {
            self.swap_free
        };
        self.file
            .saturating_add(self.slab_reclaimable)
            .saturating_add(anon)
    }
}

impl Counters {
    /// Pages taken back by anybody.
    pub const fn steal(&self) -> u64 {
        self.steal_kswapd
            .saturating_add(self.steal_direct)
            .saturating_add(self.steal_other)
    }

    /// Huge pages that page faults asked for, whether they got them or not.
    pub const fn huge_asked(&self) -> u64 {
        self.thp_faults.saturating_add(self.thp_fallbacks)
    }

    /// Allocations that had to wait, for reclaim or for compaction.
    pub const fn stalls(&self) -> u64 {
        self.alloc_stalls.saturating_add(self.compact_stalls)
    }
}
