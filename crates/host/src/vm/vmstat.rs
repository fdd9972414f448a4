// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /proc/vmstat: how much was reclaimed, by whom, and who had to wait for it.

use crate::Malformed;
use crate::bytes::{number, required};

/// Levels (`nr_*`, pages) and counters since boot. What a kernel does not have is 0, unless it says
/// otherwise here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VmStat {
    /// Free pages.
    pub free: u64,
    /// Free pages in whole page blocks (6.15).
    pub free_in_blocks: Option<u64>,
    /// File pages, used lately or not.
    pub file: u64,
    /// Anonymous pages, used lately or not.
    pub anon: u64,
    /// Kernel objects that can be given back, pages.
    pub slab_reclaimable: u64,
    /// Pages that kswapd took back.
    pub steal_kswapd: u64,
    /// Pages that allocations took back by themselves.
    pub steal_direct: u64,
    /// Pages that others took back: khugepaged, and memory.reclaim (6.14).
    pub steal_other: u64,
    /// Pages that kswapd looked at.
    pub scan_kswapd: u64,
    /// Allocations that had to reclaim: S4's stalls. One per direct reclaim, all zones together.
    pub alloc_stalls: u64,
    /// Allocations that had to compact.
    pub compact_stalls: u64,
    /// Those of them that got nothing for it.
    pub compact_fails: u64,
    /// Runs of kswapd.
    pub kswapd_runs: u64,
    /// Wake-ups of kcompactd.
    pub kcompactd_wakes: u64,
    /// File pages read again soon after they were taken back.
    pub refaults: u64,
    /// Page faults that wanted a huge page and got it.
    pub thp_faults: u64,
    /// Page faults that wanted a huge page and got small ones.
    pub thp_fallbacks: u64,
    /// Pages written to swap.
    pub swap_outs: u64,
    /// Processes killed by the kernel's OOM killer.
    pub oom_kills: u64,
}

impl VmStat {
    /// Reads the content of the file.
    ///
    /// # Errors
    /// When it lacks the free pages, or a value is no number.
    pub fn parse(text: &[u8]) -> Result<Self, Malformed> {
        let mut stat = Self::default();
        let mut free = None;
        let mut rest = text;
        while !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
            let (line, behind) = rest.split_at(end);
            rest = behind.get(1..).unwrap_or_default();
            if line.is_empty() {
                continue;
            }
            let Some(space) = memchr::memchr(b' ', line) else {
                return Err(Malformed::new("a line is no key and value"));
            };
            let (key, value) = line.split_at(space);
            let Some((room, adds)) = stat.room(key) else {
                if key == b"nr_free_pages" {
                    free = Some(self::count(key, value)?);
                } else if key == b"nr_free_pages_blocks" {
                    stat.free_in_blocks = Some(self::count(key, value)?);
                }
                continue;
            };
            let count = count(key, value)?;
            *room = if adds {
                room.saturating_add(count)
            } else {
                count
            };
        }
        stat.free = required(free, "nr_free_pages")?;
        Ok(stat)
    }

    /// Where the value of a key goes, and whether several keys add up there. Before 4.8 reclaim was
    /// counted by zone (`pgsteal_kswapd_normal`), stalls were not (`allocstall`).
    fn room(&mut self, key: &[u8]) -> Option<(&mut u64, bool)> {
        Some(match key {
            b"nr_inactive_file" | b"nr_active_file" => (&mut self.file, true),
            b"nr_inactive_anon" | b"nr_active_anon" => (&mut self.anon, true),
            b"nr_slab_reclaimable" => (&mut self.slab_reclaimable, false),
            b"pgsteal_khugepaged" | b"pgsteal_proactive" => (&mut self.steal_other, true),
            b"compact_stall" => (&mut self.compact_stalls, false),
            b"compact_fail" => (&mut self.compact_fails, false),
            b"pageoutrun" => (&mut self.kswapd_runs, false),
            b"compact_daemon_wake" => (&mut self.kcompactd_wakes, false),
            b"workingset_refault" | b"workingset_refault_file" => (&mut self.refaults, true),
            b"thp_fault_alloc" => (&mut self.thp_faults, false),
            b"thp_fault_fallback" => (&mut self.thp_fallbacks, false),
            b"pswpout" => (&mut self.swap_outs, false),
            b"oom_kill" => (&mut self.oom_kills, false),
            _ if key.starts_with(b"pgsteal_kswapd") => (&mut self.steal_kswapd, true),
            _ if key.starts_with(b"pgsteal_direct") => (&mut self.steal_direct, true),
            _ if key.starts_with(b"pgscan_kswapd") => (&mut self.scan_kswapd, true),
            _ if key.starts_with(b"allocstall") => (&mut self.alloc_stalls, true),
            _ => return None,
        })
    }
}

fn count(key: &[u8], value: &[u8]) -> Result<u64, Malformed> {
    number(value).ok_or_else(|| {
        let key = key.get(..key.len().min(40)).unwrap_or_default();
        Malformed::new(format!("{} is no number that fits", key.escape_ascii()))
    })
}
