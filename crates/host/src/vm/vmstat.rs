// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /proc/vmstat: how much was reclaimed, by whom, and who had to wait for it.

use super::KeptFile;
use crate::bytes::{number, required};
use crate::{HostError, Malformed};

/// Levels (`nr_*`, pages) and counters since boot. What a kernel does not have is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VmStat {
    /// Free pages.
    pub free: u64,
    /// Free pages in whole page blocks; 0 before 6.15.
    pub free_in_blocks: u64,
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
    /// Pages given back with MADV_FREE, by anybody.
    pub given_back: u64,
    /// Pages written to swap.
    pub swap_outs: u64,
    /// Processes killed by the kernel's OOM killer.
    pub oom_kills: u64,
}

/// Where a key's value goes. Values of several keys with one field add up: before 4.8 reclaim was counted
/// by zone (`pgsteal_kswapd_normal`), stalls were not (`allocstall`).
type Field = fn(&mut VmStat) -> &mut u64;

/// Reads the file again and again. A running kernel's lines stay where they are: of two hundred, those
/// that are wanted are found by counting, only their keys are compared, and what is behind the last of
/// them is not asked for.
#[derive(Debug, Default)]
pub struct VmStatReader {
    /// In the file's order.
    wanted: Vec<Wanted>,
    /// How far they reached, bytes.
    reached: usize,
}

#[derive(Debug)]
struct Wanted {
    /// Lines before it, behind the one wanted before it.
    skipped: usize,
    key: Box<[u8]>,
    field: Field,
}

/// The numbers may have grown by this much, bytes; a digit more in every third line.
const GROWN: usize = 64;

impl VmStatReader {
    /// Reads the file. Allocates only where its keys are not those of the last time.
    ///
    /// # Errors
    /// When it cannot be read, lacks the free pages, or a value is no number.
    pub fn look(&mut self, file: &mut KeptFile) -> Result<VmStat, HostError> {
        if !self.wanted.is_empty() {
            let text = file.read_beginning(self.reached.saturating_add(GROWN))?;
            if let Some(stat) = self.read_known(text) {
                return Ok(stat);
            }
        }
        match self.read(file.read()?) {
            Ok(stat) => Ok(stat),
            Err(source) => Err(HostError::Malformed {
                path: file.path().to_owned(),
                source,
            }),
        }
    }

    /// Reads the content of the file.
    ///
    /// # Errors
    /// When it lacks the free pages, or a value is no number.
    pub fn read(&mut self, text: &[u8]) -> Result<VmStat, Malformed> {
        match self.read_known(text) {
            Some(stat) => Ok(stat),
            None => self.learn(text),
        }
    }

    /// `None` when a wanted line is not where it was, or says no number.
    fn read_known(&mut self, text: &[u8]) -> Option<VmStat> {
        if self.wanted.is_empty() {
            return None;
        }
        let mut stat = VmStat::default();
        let mut ends = memchr::memchr_iter(b'\n', text);
        let mut begin = 0;
        for wanted in &self.wanted {
            if let Some(last) = wanted.skipped.checked_sub(1) {
                begin = ends.nth(last)? + 1;
            }
            let end = ends.next()?;
            let line = text.get(begin..end)?;
            begin = end + 1;
            let value = line.strip_prefix(&*wanted.key)?.strip_prefix(b" ")?;
            let sum = (wanted.field)(&mut stat);
            *sum = sum.saturating_add(number(value)?);
        }
        self.reached = begin;
        Some(stat)
    }

    fn learn(&mut self, text: &[u8]) -> Result<VmStat, Malformed> {
        let mut wanted = Vec::new();
        let mut reached = 0;
        let mut stat = VmStat::default();
        let mut free = None;
        let mut skipped = 0;
        let mut end = 0;
        for line in text.split(|&byte| byte == b'\n') {
            end += line.len() + 1;
            let (key, value) = match memchr::memchr(b' ', line) {
                Some(space) => line.split_at(space),
                None if line.is_empty() => (line, line),
                None => return Err(Malformed::new("a line is no key and value")),
            };
            let Some(field) = field_of(key) else {
                skipped += 1;
                continue;
            };
            let count = count(key, value)?;
            reached = end;
            if key == b"nr_free_pages" {
                free = Some(count);
            }
            let sum = field(&mut stat);
            *sum = sum.saturating_add(count);
            wanted.push(Wanted {
                skipped: std::mem::take(&mut skipped),
                key: key.into(),
                field,
            });
        }
        required(free, "nr_free_pages")?;
        *self = Self { wanted, reached };
        Ok(stat)
    }
}

impl VmStat {
    /// Reads the content of the file, once.
    ///
    /// # Errors
    /// When it lacks the free pages, or a value is no number.
    pub fn parse(text: &[u8]) -> Result<Self, Malformed> {
        VmStatReader::default().read(text)
    }
}

fn field_of(key: &[u8]) -> Option<Field> {
    Some(match key {
        b"nr_free_pages" => |stat| &mut stat.free,
        b"nr_free_pages_blocks" => |stat| &mut stat.free_in_blocks,
        b"nr_inactive_file" | b"nr_active_file" => |stat| &mut stat.file,
        b"nr_inactive_anon" | b"nr_active_anon" => |stat| &mut stat.anon,
        b"nr_slab_reclaimable" => |stat| &mut stat.slab_reclaimable,
        b"pgsteal_khugepaged" | b"pgsteal_proactive" => |stat| &mut stat.steal_other,
        b"compact_stall" => |stat| &mut stat.compact_stalls,
        b"compact_fail" => |stat| &mut stat.compact_fails,
        b"pageoutrun" => |stat| &mut stat.kswapd_runs,
        b"compact_daemon_wake" => |stat| &mut stat.kcompactd_wakes,
        b"workingset_refault" | b"workingset_refault_file" => |stat| &mut stat.refaults,
        b"thp_fault_alloc" => |stat| &mut stat.thp_faults,
        b"thp_fault_fallback" => |stat| &mut stat.thp_fallbacks,
        b"pglazyfree" => |stat| &mut stat.given_back,
        b"pswpout" => |stat| &mut stat.swap_outs,
        b"oom_kill" => |stat| &mut stat.oom_kills,
        _ if key.starts_with(b"pgsteal_kswapd") => |stat| &mut stat.steal_kswapd,
        _ if key.starts_with(b"pgsteal_direct") => |stat| &mut stat.steal_direct,
        _ if key.starts_with(b"pgscan_kswapd") => |stat| &mut stat.scan_kswapd,
        _ if key.starts_with(b"allocstall") => |stat| &mut stat.alloc_stalls,
        _ => return None,
    })
}

fn count(key: &[u8], value: &[u8]) -> Result<u64, Malformed> {
    number(value).ok_or_else(|| {
        let key = key.get(..key.len().min(40)).unwrap_or_default();
        Malformed::new(format!("{} is no number that fits", key.escape_ascii()))
    })
}
