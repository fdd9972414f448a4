// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate's code, run where any kernel lets it run (`bpf/gate_cost.bpf.c`).

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapHandle, OpenObject};

use super::Loaded;
use crate::bpf::gate_cost::{GateCostSkel, GateCostSkelBuilder};

/// The loaded programs, of which one at a time runs at the beginning of each system call.
pub(crate) struct Decision<'storage>(GateCostSkel<'storage>);

impl<'storage> Decision<'storage> {
    /// Beside a kernel half, whose maps it uses.
    pub(crate) fn load(
        storage: &'storage mut MaybeUninit<OpenObject>,
        kernel_half: &Loaded,
    ) -> Result<Self> {
        let mut open = GateCostSkelBuilder::default()
            .open(storage)
            .context("open the gate's code")?;
        let options = kernel_half.options();
        let rodata = open
            .maps
            .rodata_data
            .as_deref_mut()
            .context("the gate's constants")?;
        rodata.possible_cpus = options.possible_cpus;
        rodata.counter_batch = options.counter_batch();
        rodata.page_shift = options.page_size.shift();
        rodata.max_records = options.max_processes;
        rodata.max_accounts = options.max_accounts;
        open.maps.births.set_max_entries(options.max_processes)?;
        let pins = kernel_half.pins()?;
        let maps = &mut open.maps;
        for (map, name) in [
            (&mut maps.accounts, "accounts"),
            (&mut maps.payers, "payers"),
            (&mut maps.mm_index, "mm_index"),
            (&mut maps.mms, "mms"),
            (&mut maps.events, "events"),
            (&mut maps.state_map, "state"),
            (&mut maps.cpu_offsets, "cpu_offsets"),
            (&mut maps.members, "members"),
        ] {
            let shared = MapHandle::from_pinned_path(pins.join(name))?;
            map.reuse_fd(shared.as_fd()).context("share a map")?;
        }
        for mut program in open.open_object_mut().progs_mut() {
            let is_ours = program
                .name()
                .to_str()
                .is_some_and(|it| it.ends_with("_at_entry"));
            program.set_autoload(is_ours);
        }
        Ok(Self(open.load().context("load the gate's code")?))
    }

    /// The program that does nothing, until what is returned is dropped.
    pub(crate) fn attach_nothing(&self) -> Result<Link> {
        let program = &self.0.progs.nothing_at_entry;
        program.attach().context("attach nothing")
    }

    /// The one that decides, until what is returned is dropped.
    pub(crate) fn attach(&self) -> Result<Link> {
        let program = &self.0.progs.decide_at_entry;
        program.attach().context("attach the gate's code")
    }
}
