// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes samples: files of /proc and one of /proc/sys, through descriptors that stay open, into one
//! [`Sample`] that is filled again; nothing is allocated after the first. What changes all the time is in
//! buddyinfo and vmstat; zoneinfo, which costs more than both, has the marks, which change when somebody
//! sets them. Where there is one node and nobody asks for free blocks by order ([`Detail::Sums`]), vmstat
//! alone is enough.

use std::path::Path;

use bursar_host::vm::{BuddyInfo, KeptFile, VmStat, VmStatReader, ZoneInfo, ZoneKind};
use bursar_host::{HostError, Malformed, MemInfo};
use bursar_model::Nanos;
use bursar_policy::watermarks::{Counters, Holdings, ORDERS, Sample, Zone};

use crate::Paths;

/// The factor, which somebody else may set, is looked at this often.
const SCALE_EVERY_NS: u64 = 1_000_000_000;
/// Swap's room and huge pages: both change slowly, and meminfo costs more than the files that do not.
const MEMORY_EVERY_NS: u64 = 5_000_000_000;
/// Free blocks by order, where nobody decides on them.
const BLOCKS_EVERY_NS: u64 = 1_000_000_000;
/// Somebody decides on them for so long after page faults asked for this many huge pages between two
/// looks; fewer there mostly are.
const HUGE_FOR_NS: u64 = 60_000_000_000;
const MANY_HUGE: u64 = 8;
/// The zones' marks and sizes: they change with the factor, and otherwise when somebody sets
/// `min_free_kbytes` or plugs memory.
const ZONES_EVERY_NS: u64 = 10_000_000_000;

/// What no file says: `None` where the kernel half does not run, and where nothing is freed ahead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// Time that allocations spent reclaiming and compacting by themselves, nanoseconds.
    pub stall_ns: Option<u64>,
    /// How slowly kswapd reacts in a bad moment, nanoseconds.
    pub reaction_ns: Option<u64>,
    /// How fast memory was given back at our word, bytes a second.
    pub prefree_rate: Option<u64>,
}

/// What a sample says of free memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Free blocks of each order, now.
    Orders,
    /// Free memory of each node, now; free blocks of each order, and to which zone of a node what changed
    /// belongs, as of a second ago at most, as long as nobody asks for many huge pages.
    Sums,
}

/// The open files and what they said last.
#[derive(Debug)]
pub struct Observer {
    detail: Detail,
    zoneinfo: KeptFile,
    buddyinfo: KeptFile,
    vmstat: KeptFile,
    meminfo: KeptFile,
    scale: KeptFile,
    zones: ZoneInfo,
    blocks: BuddyInfo,
    counters: VmStatReader,
    sample: Sample,
    /// When page faults asked for many huge pages.
    huge_at: Option<Nanos>,
    /// Free pages of the machine, of which the sample's zones know.
    free_seen: u64,
    memory: Option<MemInfo>,
    /// When the factor was looked at; `None`: it has to be looked at again.
    scale_at: Option<Nanos>,
    /// The same of `memory`, and of the zones.
    memory_at: Option<Nanos>,
    /// See `memory_at`.
    blocks_at: Option<Nanos>,
    /// See `memory_at`.
    zones_at: Option<Nanos>,
    page_shift: u32,
}

fn at(path: &Path) -> impl Fn(Malformed) -> HostError {
    move |source| HostError::Malformed {
        path: path.to_owned(),
        source,
    }
}

impl Observer {
    /// Opens the files, all for reading.
    ///
    /// # Errors
    /// When one of them is not there: a kernel without /proc/zoneinfo cannot be watched.
    pub fn open(paths: &Paths, detail: Detail) -> Result<Self, HostError> {
        let open = |name: &str| KeptFile::open(&paths.proc.join(name));
        Ok(Self {
            detail,
            zoneinfo: open("zoneinfo")?,
            buddyinfo: open("buddyinfo")?,
            vmstat: open("vmstat")?,
            meminfo: open("meminfo")?,
            scale: open("sys/vm/watermark_scale_factor")?,
            zones: ZoneInfo::default(),
            blocks: BuddyInfo::default(),
            counters: VmStatReader::default(),
            sample: Sample::default(),
            memory: None,
            scale_at: None,
            memory_at: None,
            blocks_at: None,
            huge_at: None,
            free_seen: 0,
            zones_at: None,
            page_shift: bursar_host::machine::page_size().shift(),
        })
    }

    /// The zones as the file last showed them, those without memory and DMA included.
    pub fn zones(&self) -> &ZoneInfo {
        &self.zones
    }

    /// /proc/meminfo as it was five seconds ago at most; `None` before the first look.
    pub fn memory(&self) -> Option<&MemInfo> {
        self.memory.as_ref()
    }

    /// The last sample.
    pub fn sample(&self) -> &Sample {
        &self.sample
    }

    /// The machine now, with what the kernel half has measured, if it does.
    ///
    /// # Errors
    /// When a file cannot be read or understood; the sample is then the old one or partly new, and
    /// must not be used.
    pub fn look(&mut self, now: Nanos, measured: Measured) -> Result<&Sample, HostError> {
        let is_due = |seen: Option<Nanos>, every_ns: u64| {
            seen.is_none_or(|seen| now.get().saturating_sub(seen.get()) >= every_ns)
        };
        if is_due(self.memory_at, MEMORY_EVERY_NS) {
            match MemInfo::parse(self.meminfo.read()?) {
                Ok(memory) => self.memory = Some(memory),
                Err(source) => return Err(at(self.meminfo.path())(source)),
            }
            self.memory_at = Some(now);
        }
        if is_due(self.scale_at, SCALE_EVERY_NS) {
            let scale = self.scale_now()?;
            if scale != self.sample.scale {
                self.zones_at = None;
            }
            self.sample.scale = scale;
            self.scale_at = Some(now);
        }
        if is_due(self.zones_at, ZONES_EVERY_NS) {
            let text = self.zoneinfo.read()?;
            if let Err(source) = self.zones.read(text) {
                return Err(at(self.zoneinfo.path())(source));
            }
            self.zones_at = Some(now);
            self.blocks_at = None;
        }
        let is_one_node = self.sample.nodes().nth(1).is_none();
        let are_huge_asked = !is_due(self.huge_at, HUGE_FOR_NS);
        let are_sums_enough = self.detail == Detail::Sums && is_one_node && !are_huge_asked;
        let are_blocks_due = !are_sums_enough || is_due(self.blocks_at, BLOCKS_EVERY_NS);
        if are_blocks_due {
            let text = self.buddyinfo.read()?;
            if let Err(source) = self.blocks.read(text) {
                return Err(at(self.buddyinfo.path())(source));
            }
            self.blocks_at = Some(now);
            self.fill_zones();
        }
        let vmstat = self.counters.look(&mut self.vmstat)?;
        if !are_blocks_due {
            self.move_free(vmstat.free);
        }
        self.free_seen = vmstat.free;
        let asked_before = self.sample.counters.huge_asked();
        self.fill(now, &vmstat, measured);
        let asked = self.sample.counters.huge_asked();
        if asked.saturating_sub(asked_before) >= MANY_HUGE && asked_before > 0 {
            self.huge_at = Some(now);
        }
        Ok(&self.sample)
    }

    /// The factor as it stands at this moment.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn scale_now(&mut self) -> Result<u32, HostError> {
        let scale = parse_number(self.scale.read()?);
        scale.ok_or_else(|| {
            at(self.scale.path())(Malformed::because("its content is no number that fits"))
        })
    }

    /// The next look takes nothing for known: marks are about to change.
    pub fn forget(&mut self) {
        self.scale_at = None;
        self.zones_at = None;
    }

    fn fill(&mut self, now: Nanos, vmstat: &VmStat, measured: Measured) {
        let sample = &mut self.sample;
        sample.at = now;
        sample.counters = Counters {
            steal_kswapd: vmstat.steal_kswapd,
            steal_direct: vmstat.steal_direct,
            steal_other: vmstat.steal_other,
            scan_kswapd: vmstat.scan_kswapd,
            alloc_stalls: vmstat.alloc_stalls,
            compact_stalls: vmstat.compact_stalls,
            thp_fallbacks: vmstat.thp_fallbacks,
            thp_faults: vmstat.thp_faults,
            refaults: vmstat.refaults,
            kswapd_runs: vmstat.kswapd_runs,
            stall_ns: measured.stall_ns,
        };
        sample.reaction_ns = measured.reaction_ns;
        sample.prefree_rate = measured.prefree_rate.map(|rate| rate >> self.page_shift);
        sample.holdings = Holdings {
            file: vmstat.file,
            anon: vmstat.anon,
            slab_reclaimable: vmstat.slab_reclaimable,
            swap_free: self
                .memory
                .as_ref()
                .map_or(0, |memory| memory.swap_free.get() >> self.page_shift),
        };
    }

    /// Free memory of the only node is `free` pages now, those that nobody ordinary gets included. What
    /// came or went is the highest zone's, as far as it has as much.
    fn move_free(&mut self, free: u64) {
        let mut moved = free
            .cast_signed()
            .saturating_sub(self.free_seen.cast_signed());
        for zone in self.sample.zones.iter_mut().rev() {
            let before = zone.free;
            zone.free = before.saturating_add_signed(moved);
            moved =
                moved.saturating_sub(zone.free.cast_signed().saturating_sub(before.cast_signed()));
        }
    }

    fn fill_zones(&mut self) {
        let sample = &mut self.sample;
        sample.zones.clear();
        for zone in self.zones.zones() {
            // DMA is a reserve that nobody ordinary gets, Device is not given out at all; a 4 GiB
            // x86 guest without DMA zone or a 64-bit ARM whose only zone is called DMA keeps it.
            let is_reserve = zone.kind == ZoneKind::Dma && zone.managed < SMALL_ZONE;
            if !zone.is_populated() || is_reserve || zone.kind == ZoneKind::Device {
                continue;
            }
            let marks = zone.marks();
            let mut blocks = [0; ORDERS];
            let mut free = zone.free;
            let found = self.blocks.zones().iter();
            if let Some(now) = found
                .into_iter()
                .find(|it| it.node == zone.node && it.kind == zone.kind)
            {
                for (room, count) in blocks.iter_mut().zip(now.blocks()) {
                    *room = *count;
                }
                free = now.pages_from(0);
            }
            sample.zones.push(Zone {
                node: zone.node,
                free,
                min: marks.min,
                low: marks.low,
                high: marks.high,
                managed: zone.managed,
                blocks,
            });
        }
    }
}

/// x86's DMA zone has 16 MiB, 4,096 pages; arm64's is most of the memory.
const SMALL_ZONE: u64 = 8192;

fn parse_number(text: &[u8]) -> Option<u32> {
    str::from_utf8(text).ok()?.trim().parse().ok()
}
