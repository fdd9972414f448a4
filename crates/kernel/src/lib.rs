// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel half: eBPF programs that count, decide and kill (`bpf/`), and what loads them, pins
//! them and talks to them.
//!
//! Probe ([`Support`]), decide ([`Options`]), load and pin ([`KernelHalf::start`]). What runs is
//! always opened from its pins, so that one just loaded and one found running are the same thing.

mod abi;
mod account;
mod accounts;
mod beancounters;
mod bpf_selftest;
mod call;
mod dirty;
mod error;
mod event_ring;
mod event_source;
mod events_in_hand;
mod exempt_cgroups;
mod facts;
mod gate;
mod kernel_half;
mod load;
mod mapped;
mod membership;
mod older_kernels;
mod oom_killer;
mod options;
mod pins;
mod previous;
mod pss_scan;
mod query;
mod resource_iterator;
mod root_cgroup;
mod selftest;
mod selftest_account;
mod skeleton;
mod spared_programs;
mod stalls;
mod subordinates;
mod support;
mod tmpfs_gate;
mod undelivered;

pub use account::{AccountReading, Corrected, History, PageBounds, Slot};
pub use accounts::{AccountTable, AddressSpace, Part};
pub use beancounters::{Beancounters, Enforcement, KernelMemory, RowReading, Wanted};
pub use bpf_selftest::{Unit, run_units};
pub use dirty::{DirtyFacts, DirtyMode, DirtyPages, DirtySum};
pub use error::Error;
pub use event_ring::{BillRefusal, EventRing, KernelEvent, KernelEventKind, Refusal, Weighed};
pub use event_source::EventSource;
pub use events_in_hand::RecordedEvents;
pub use facts::Facts;
pub use gate::Gate;
pub use kernel_half::{KernelHalf, Started};
pub use membership::{Membership, MembershipReader};
pub use oom_killer::OomKiller;
pub use options::{Options, Settings};
pub use pss_scan::{Found, GivenBackNote, Outcome, PssScan, PssScans, ScanResults, Sharer};
pub use resource_iterator::{ResourceIterator, Seen, SeenFile, SeenKind, SeenSpace, SeenTask};
pub use spared_programs::ProgramFile;
pub use stalls::{StallMeter, StallRow, StallTotal};
pub use subordinates::{SubordinateTable, UidRange};
pub use support::{Ability, Finding, Support, WITHOUT};
pub use undelivered::Undelivered;

/// What libbpf has to say goes to `sink`, line by line, instead of to stderr.
pub fn log_libbpf(sink: fn(&str)) {
    static SINK: std::sync::OnceLock<fn(&str)> = std::sync::OnceLock::new();
    let _ = SINK.set(sink);
    let print = |_level, text: String| {
        if let Some(sink) = SINK.get() {
            text.lines().for_each(sink);
        }
    };
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Info, print)));
}
