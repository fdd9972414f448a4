// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel half: eBPF programs that count, decide and kill (`bpf/`), and what loads them, pins
//! them and talks to them.
//!
//! Probe ([`Support`]), decide ([`Options`]), load and pin ([`KernelHalf::start`]). What runs is
//! always opened from its pins, so that one just loaded and one found running are the same thing.

mod abi;
mod books;
mod call;
mod error;
mod facts;
mod half;
mod journal;
mod load;
mod mapped;
mod options;
mod pins;
mod query;
mod skeleton;
mod support;

pub use books::{AccountReading, Books, History, PageBounds, Slot};
pub use error::Error;
pub use facts::Facts;
pub use half::{KernelHalf, Started};
pub use journal::{Entry, EntryKind, Journal, Weighed};
pub use options::{Options, Settings};
pub use support::{Ability, Finding, Support};

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
