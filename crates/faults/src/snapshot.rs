// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a watch has counted: faults by process, mapping and instruction.

use bursar_model::{Pid, Uid, printable};

use crate::Histogram;
use crate::booked::{Booked, balance, spread};
use crate::skeleton::types::{counts, fault_record, mapping_kind, process, slot, watch_state};

/// What a watch has counted so far.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// By index; the first stands for those that found no room.
    pub processes: Vec<WatchedProcess>,
    /// By index; the first stands for those that found no room.
    pub mappings: Vec<Mapping>,
    /// What was booked for each of them, as it was booked.
    pub(crate) booked: Vec<Booked>,
    /// Minor faults of a flood whose mapping nobody saw: shared out among their process' mappings as those
    /// that were seen.
    pub shared_out: u64,
    /// How long minor faults took that were timed.
    pub minor: Histogram,
    /// How long major faults took.
    pub major: Histogram,
    /// Where in the program, of the faults that were timed; most first.
    pub sites: Vec<Site>,
    /// What could not be told apart.
    pub losses: Losses,
}

/// A process that was met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedProcess {
    /// Its number.
    pub pid: Pid,
    /// Its real user when it was met.
    pub uid: Uid,
    /// Its name as harmless text, since its last exec.
    pub comm: String,
    /// When it began, nanoseconds after boot: tells it from a later one of the same number.
    pub start_ns: u64,
}

/// What kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MappingKind {
    /// None: the kernel did it itself (populate, mlock, ptrace, O_DIRECT).
    ByKernel,
    /// The first thread's stack.
    Stack,
    /// What brk() grows: malloc's first arena.
    Heap,
    /// A file's pages.
    File,
    /// Any other memory: mmap, other threads' stacks.
    Anon,
    /// It could not be looked up: the program was changing its mappings at that moment.
    Unknown,
    /// More mappings than a watch tells apart.
    Overflow,
    /// Nobody looked: of a process that lived in a flood only.
    Unseen,
}

/// Faults in one mapping of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Its index in the snapshot.
    pub index: usize,
    /// Index of the process.
    pub process: usize,
    /// What kind of mapping it is.
    pub kind: MappingKind,
    /// Its first address when first met; 0 without one.
    pub start: u64,
    /// The first address behind it.
    pub end: u64,
    /// `r`, `w`, `x` and `s` (shared) or `p` (private), as in /proc/PID/maps.
    pub permissions: String,
    /// The file's name without its folder, as harmless text.
    pub file: Option<String>,
    /// The file's inode.
    pub inode: u64,
    /// The device of its file system, `8:1`, as in /proc/PID/maps; stat(2) says another one on btrfs.
    pub device: String,
    /// Whether the file goes to a disk: its pages are made read-only each time they are written back.
    pub is_written_back: bool,
    /// Faults without a disk.
    pub minor: u64,
    /// Faults that waited for a disk.
    pub major: u64,
    /// How many of both were timed; all of them in a watch with [`Timing::Each`](crate::Timing::Each).
    pub timed: u64,
    /// How many of those met a page that was there and could not be written.
    pub timed_protected: u64,
}

/// Faults at one instruction in one mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Index of the mapping that was touched.
    pub mapping: usize,
    /// The instruction that touched it.
    pub instruction: u64,
    /// How many of those that were timed.
    pub count: u64,
}

/// One fault, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultRecord {
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
    /// How long it took, nanoseconds.
    pub latency_ns: Option<u64>,
    /// The address touched.
    pub address: u64,
    /// The instruction that touched it (of the kernel, if [`Self::in_kernel`]).
    pub instruction: u64,
    /// Index of the mapping.
    pub mapping: usize,
    /// The process.
    pub pid: Pid,
    /// The thread.
    pub tid: Pid,
    /// The thread's name as harmless text.
    pub comm: String,
    /// Whether a disk was waited for.
    pub is_major: bool,
    /// Whether the kernel touched it in a system call (read() into a fresh buffer).
    pub in_kernel: bool,
    /// Return addresses, innermost first, as far as frame pointers lead.
    pub stack: Vec<u64>,
}

/// What could not be told apart; totals are right all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Losses {
    /// Processes beyond the 4095 that are told apart.
    pub processes: u64,
    /// Mappings beyond the 16383.
    pub mappings: u64,
    /// Faults whose mapping could not be looked up.
    pub lookups: u64,
    /// Instructions beyond the 16384.
    pub sites: u64,
    /// Whole records for which there was no room.
    pub records: u64,
    /// Threads that could not be watched; their faults are missing.
    pub threads: u64,
    /// Threads that were about to end and had not when the watch was over: their last faults are
    /// missing.
    pub unfinished: u64,
}

fn text(bytes: &[i8]) -> String {
    let bytes: Vec<u8> = bytes
        .iter()
        .map(|&byte| byte.cast_unsigned())
        .take_while(|&byte| byte != 0)
        .collect();
    printable(&bytes, 256)
}

/// A device as the kernel numbers it inside (include/linux/kdev_t.h).
fn device(number: u32) -> String {
    const MINOR_BITS: u32 = 20;
    format!(
        "{}:{}",
        number >> MINOR_BITS,
        number & ((1 << MINOR_BITS) - 1)
    )
}

impl WatchedProcess {
    pub(crate) fn decode(process: &process) -> Self {
        Self {
            pid: Pid::new(process.tgid),
            uid: Uid::new(process.uid),
            comm: text(&process.comm),
            start_ns: process.start_boottime_ns,
        }
    }
}

impl MappingKind {
    fn decode(kind: mapping_kind, index: usize) -> Self {
        if index == 0 {
            return Self::Overflow;
        }
        match kind {
            mapping_kind::MAPPING_BY_KERNEL => Self::ByKernel,
            mapping_kind::MAPPING_STACK => Self::Stack,
            mapping_kind::MAPPING_HEAP => Self::Heap,
            mapping_kind::MAPPING_FILE => Self::File,
            mapping_kind::MAPPING_ANON => Self::Anon,
            mapping_kind::MAPPING_OVERFLOW => Self::Overflow,
            mapping_kind::MAPPING_UNSEEN => Self::Unseen,
            _ => Self::Unknown,
        }
    }

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ByKernel => "(by the kernel)",
            Self::Stack => "[stack]",
            Self::Heap => "[heap]",
            Self::File => "file",
            Self::Anon => "anon",
            Self::Unknown => "(unknown)",
            Self::Overflow => "(others)",
            Self::Unseen => "(not looked at)",
        }
    }
}

impl Mapping {
    /// Without its faults, but for those that were timed.
    pub(crate) fn decode(index: usize, slot: &slot, counts: &counts) -> Self {
        let kind = MappingKind::decode(slot.kind, index);
        // include/linux/mm.h
        let flag = |bit: u32, letter: char| if slot.flags & bit != 0 { letter } else { '-' };
        let permissions = [
            flag(1, 'r'),
            flag(2, 'w'),
            flag(4, 'x'),
            if slot.flags & 8 != 0 { 's' } else { 'p' },
        ];
        Self {
            index,
            process: slot.process as usize,
            kind,
            start: slot.start,
            end: slot.end,
            permissions: permissions.iter().collect(),
            file: (kind == MappingKind::File).then(|| text(&slot.name)),
            inode: slot.inode,
            device: device(slot.device),
            is_written_back: slot.is_written_back != 0,
            minor: 0,
            major: 0,
            timed: counts.timed,
            timed_protected: counts.timed_protected,
        }
    }

    fn set(&mut self, booked: &Booked) {
        self.minor = booked.minor.unsigned_abs();
        self.major = booked.major.unsigned_abs();
    }

    /// Minor and major.
    pub const fn total(&self) -> u64 {
        self.minor.saturating_add(self.major)
    }
}

impl FaultRecord {
    pub(crate) fn decode(record: &fault_record) -> Self {
        let depth = usize::try_from(record.stack_bytes).unwrap_or(0) / size_of::<u64>();
        Self {
            time_ns: record.time_ns,
            latency_ns: (record.latency_ns > 0).then_some(record.latency_ns),
            address: record.address,
            instruction: record.instruction,
            mapping: record.slot as usize,
            pid: Pid::new(record.tgid),
            tid: Pid::new(record.tid),
            comm: text(&record.comm),
            is_major: record.is_major != 0,
            in_kernel: record.is_kernel != 0,
            stack: record.stack.iter().take(depth).copied().collect(),
        }
    }
}

impl Losses {
    pub(crate) fn decode(state: &watch_state) -> Self {
        Self {
            processes: state.processes_lost,
            mappings: state.slots_lost,
            lookups: state.lookups_failed,
            sites: state.sites_lost,
            records: state.records_lost,
            threads: state.threads_lost,
            unfinished: 0,
        }
    }

    /// Whether anything was lost.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }
}

/// Sets the mappings' faults; returns how many were shared out.
fn set_faults(mappings: &mut [Mapping], mut booked: Vec<Booked>) -> u64 {
    let facts: Vec<_> = mappings
        .iter()
        .map(|it| {
            let process = u32::try_from(it.process).unwrap_or(0);
            (process, it.kind == MappingKind::Unseen)
        })
        .collect();
    let process_of = |index: usize| facts.get(index).map_or(0, |(process, _)| *process);
    let is_unseen = |index: usize| facts.get(index).is_some_and(|(_, is_unseen)| *is_unseen);
    balance(&mut booked, process_of);
    let shared_out = spread(&mut booked, process_of, is_unseen);
    for (mapping, booked) in mappings.iter_mut().zip(&booked) {
        mapping.set(booked);
    }
    shared_out
}

impl Snapshot {
    /// With these mappings, and what was booked for each.
    pub(crate) fn of(mut mappings: Vec<Mapping>, booked: Vec<Booked>) -> Self {
        let shared_out = set_faults(&mut mappings, booked.clone());
        Self {
            mappings,
            booked,
            shared_out,
            ..Self::default()
        }
    }

    /// The mappings in which faults were taken since an earlier snapshot, with those alone. What a mapping
    /// lacks is taken from the others of that span, not from what was there before: so sums are the growth
    /// of the kernel's counters.
    pub fn since(&self, earlier: &Self) -> Vec<Mapping> {
        let grown = self.booked.iter().enumerate().map(|(index, now)| {
            let before = earlier.booked.get(index).copied().unwrap_or_default();
            now.since(before)
        });
        let grown = grown.collect();
        let mut mappings = self.mappings.clone();
        for (mapping, before) in mappings.iter_mut().zip(&earlier.mappings) {
            mapping.timed = mapping.timed.saturating_sub(before.timed);
            mapping.timed_protected = mapping
                .timed_protected
                .saturating_sub(before.timed_protected);
        }
        set_faults(&mut mappings, grown);
        mappings.retain(|mapping| mapping.total() > 0);
        mappings
    }

    /// All faults: (minor, major). What getrusage says, summed over all that was watched.
    pub fn totals(&self) -> (u64, u64) {
        self.mappings
            .iter()
            .fold((0u64, 0u64), |(minor, major), mapping| {
                (
                    minor.saturating_add(mapping.minor),
                    major.saturating_add(mapping.major),
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_numbered_as_in_maps() {
        assert_eq!(device(8 << 20 | 1), "8:1");
        assert_eq!(device(0xfff << 20 | 0xf_ffff), "4095:1048575");
    }

    fn mapping(index: usize, kind: MappingKind) -> Mapping {
        Mapping {
            index,
            process: 1,
            kind,
            start: 0,
            end: 0,
            permissions: String::new(),
            file: None,
            inode: 0,
            device: String::new(),
            is_written_back: false,
            minor: 0,
            major: 0,
            timed: 0,
            timed_protected: 0,
        }
    }

    fn snapshot(booked: [i64; 4]) -> Snapshot {
        let kinds = [
            MappingKind::Overflow,
            MappingKind::ByKernel,
            MappingKind::Anon,
            MappingKind::Unknown,
        ];
        let mappings = kinds
            .into_iter()
            .enumerate()
            .map(|(index, kind)| mapping(index, kind))
            .collect();
        Snapshot::of(
            mappings,
            booked.map(|minor| Booked { minor, major: 0 }).to_vec(),
        )
    }

    #[test]
    fn faults_that_began_and_do_not_count_are_not_in_a_span_either() {
        // 40 by the kernel before; then 12 that count and 12 that do not: the kernel's counters grew by 12.
        let (before, after) = (snapshot([0, 40, 0, 0]), snapshot([0, 28, 12, 12]));
        let total = |mappings: &[Mapping]| mappings.iter().map(Mapping::total).sum::<u64>();
        assert_eq!((before.totals(), after.totals()), ((40, 0), (52, 0)));
        assert_eq!(total(&after.since(&before)), 12);
        assert_eq!(total(&after.since(&Snapshot::default())), 52);
    }
}
