// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a watch has counted: faults by process, mapping and instruction.

use bursar_model::{Pid, Uid, printable};

use crate::Histogram;
use crate::booked::Booked;
use crate::skeleton::types::{fault_record, mapping_kind, process, slot, watch_state};

/// What a watch has counted so far.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// By index; the first stands for those that found no room.
    pub processes: Vec<WatchedProcess>,
    /// By index; the first stands for those that found no room.
    pub mappings: Vec<Mapping>,
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
    /// What it is.
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
    /// Faults without a disk.
    pub minor: u64,
    /// Faults that waited for a disk.
    pub major: u64,
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
    pub(crate) fn decode(index: usize, slot: &slot, booked: &Booked) -> Self {
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
            minor: booked.minor.unsigned_abs(),
            major: booked.major.unsigned_abs(),
        }
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

impl Snapshot {
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
