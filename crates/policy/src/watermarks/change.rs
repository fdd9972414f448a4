// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What happened between two samples. A counter that went backwards (a restored checkpoint, a kernel's
//! own wrap) counts as not moved.

use super::sample::{Counters, Sample};

/// What happened between two samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Change {
    /// Seconds between them; more than 0.
    pub seconds: f64,
    /// Pages that kswapd took back.
    pub steal_kswapd: u64,
    /// Pages that anybody took back.
    pub steal: u64,
    /// Runs of kswapd.
    pub kswapd_runs: u64,
    /// Allocations that had to reclaim.
    pub alloc_stalls: u64,
    /// Allocations that had to compact.
    pub compact_stalls: u64,
    /// Huge pages asked for by page faults, whether they were got or not.
    pub huge_asked: u64,
    /// Those that were not got.
    pub huge_failed: u64,
    /// File pages read again soon after they were taken back.
    pub refaults: u64,
    /// Time in stalls; 0 where nobody measures it.
    pub stall_ns: u64,
}

impl Change {
    /// From `before` to `now`; `None` when no time passed or it ran backwards.
    pub fn between(before: (u64, &Counters), now: &Sample) -> Option<Self> {
        let (at, old) = before;
        let nanos = now.at.get().checked_sub(at).filter(|&nanos| nanos > 0)?;
        let new = &now.counters;
        Some(Self {
            seconds: nanos as f64 / 1e9,
            steal_kswapd: new.steal_kswapd.saturating_sub(old.steal_kswapd),
            steal: new.steal().saturating_sub(old.steal()),
            kswapd_runs: new.kswapd_runs.saturating_sub(old.kswapd_runs),
            alloc_stalls: new.alloc_stalls.saturating_sub(old.alloc_stalls),
            compact_stalls: new.compact_stalls.saturating_sub(old.compact_stalls),
            huge_asked: new.huge_asked().saturating_sub(old.huge_asked()),
            huge_failed: new.thp_fallbacks.saturating_sub(old.thp_fallbacks),
            refaults: new.refaults.saturating_sub(old.refaults),
            stall_ns: match (new.stall_ns, old.stall_ns) {
                (Some(new), Some(old)) => new.saturating_sub(old),
                _ => 0,
            },
        })
    }

    /// Allocations that had to wait.
    pub const fn stalls(&self) -> u64 {
        self.alloc_stalls.saturating_add(self.compact_stalls)
    }
}
