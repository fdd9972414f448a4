// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bench's own BPF programs.

use std::mem::MaybeUninit;

use anyhow::{Context, Result};
use bursar_host::machine;
use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::bpf::{empty, trivial};

/// A program that does nothing.
pub(crate) struct Empty(#[expect(dead_code, reason = "detaches when dropped")] Link);

/// Where it is called at every RSS event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum EventHook {
    /// The tracepoint.
    Tracepoint,
    /// The entry of the function that has the tracepoint.
    FunctionEntry,
}

impl Empty {
    pub(crate) fn attach(hook: EventHook) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let mut open = empty::EmptySkelBuilder::default()
            .open(&mut storage)
            .context("open empty")?;
        let is_entry = hook == EventHook::FunctionEntry;
        open.progs.bench_empty.set_autoload(!is_entry);
        open.progs.bench_empty_at_entry.set_autoload(is_entry);
        let loaded = open.load().context("load the empty program")?;
        let program = match hook {
            EventHook::Tracepoint => &loaded.progs.bench_empty,
            EventHook::FunctionEntry => &loaded.progs.bench_empty_at_entry,
        };
        Ok(Self(program.attach().context("attach the empty program")?))
    }
}

/// S1's "trivial" killer.
pub(crate) struct Trivial {
    _link: Link,
}

impl Trivial {
    pub(crate) fn attach(uid: u32, limit_bytes: u64) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let mut open = trivial::TrivialSkelBuilder::default()
            .open(&mut storage)
            .context("open trivial")?;
        let rodata = open
            .maps
            .rodata_data
            .as_deref_mut()
            .context("trivial's constants")?;
        rodata.limited_uid = uid;
        rodata.limit_pages = i64::try_from(
            machine::page_size()
                .pages_within(bursar_model::Bytes::new(limit_bytes))
                .get(),
        )?;
        let loaded = open
            .load()
            .context("load the trivial killer (it needs the kernel's open-coded task iterator)")?;
        let link = loaded
            .progs
            .bench_trivial
            .attach()
            .context("attach the trivial killer")?;
        Ok(Self { _link: link })
    }
}
