// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loads the objects, attaches them and pins everything. What runs afterwards is opened from the
//! pins (half.rs): a kernel half just loaded and one taken over are the same thing.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::abi::{self, abi_constant, ledger_state};
use crate::error::into_io;
use crate::pins::Pins;
use crate::skeleton::{calls, discover, ledger, resum};
use crate::{Error, Options};

fn unsupported(object: &'static str) -> impl Fn(libbpf_rs::Error) -> Error {
    move |error| {
        let reason = into_io(&error);
        if reason.kind() == std::io::ErrorKind::PermissionDenied
            && !rustix::process::geteuid().is_root()
        {
            return Error::NotPermitted {
                what: "load BPF programs",
                reason: reason.to_string(),
            };
        }
        Error::Unsupported {
            object,
            reason: reason.to_string(),
        }
    }
}

/// Writes the constants that a program's dead branches are cut by. Each object has those it uses.
macro_rules! set_knobs {
    ($skel:expr, $object:literal, $options:expr, { $($field:ident: $value:expr),* $(,)? }) => {{
        let rodata = $skel.maps.rodata_data.as_deref_mut().ok_or(Error::Unsupported {
            object: $object,
            reason: "its constants are missing".to_owned(),
        })?;
        rodata.possible_cpus = $options.possible_cpus;
        rodata.page_shift = $options.page_size.shift();
        rodata.count_file = $options.count_file.into();
        rodata.max_records = $options.max_processes;
        rodata.max_accounts = $options.max_accounts;
        $(rodata.$field = $value;)*
    }};
}

/// Makes an open object use the ledger's maps instead of its own.
macro_rules! share_maps {
    ($skel:expr, $shared:expr, [$($map:ident),*]) => {
        $($skel.maps.$map.reuse_fd($shared.$map.as_fd()).map_err(Error::io("share a map"))?;)*
    };
}

/// The maps that the ledger object makes and the others reuse.
struct Shared {
    accounts: MapHandle,
    payers: MapHandle,
    mm_index: MapHandle,
    mms: MapHandle,
    events: MapHandle,
    state_map: MapHandle,
}

/// Loads, attaches and pins a kernel half in which nothing has a limit yet.
pub(crate) fn load(pins: &Pins, options: &Options) -> Result<(), Error> {
    pins.create()?;
    let loaded = load_into(pins, options);
    if loaded.is_err() {
        // The first error is the one that matters; a leftover directory is removed by the next.
        let _ = pins.remove();
    }
    loaded
}

fn load_into(pins: &Pins, options: &Options) -> Result<(), Error> {
    let mut storage = MaybeUninit::uninit();
    let mut open = ledger::LedgerSkelBuilder::default()
        .open(&mut storage)
        .map_err(unsupported("ledger"))?;
    set_knobs!(open, "ledger", options, {});
    for (map, entries) in [
        (&mut open.maps.accounts, options.max_accounts),
        // every uid of a shared account needs an entry too
        (
            &mut open.maps.payers,
            options.max_accounts.saturating_mul(4),
        ),
        (&mut open.maps.mm_index, options.max_processes),
        (&mut open.maps.mms, options.max_processes),
        (&mut open.maps.events, options.events_bytes),
    ] {
        map.set_max_entries(entries)
            .map_err(Error::io("size a map"))?;
    }
    let mut ledger = open.load().map_err(unsupported("ledger"))?;

    macro_rules! shared {
        ($($map:ident),*) => {
            Shared { $($map: MapHandle::try_from(&ledger.maps.$map).map_err(Error::io("share a map"))?,)* }
        };
    }
    let shared = shared!(accounts, payers, mm_index, mms, events, state_map);
    write_first_state(&shared.state_map)?;

    let mut storage = MaybeUninit::uninit();
    let mut open = calls::CallsSkelBuilder::default()
        .open(&mut storage)
        .map_err(unsupported("calls"))?;
    set_knobs!(open, "calls", options, { counter_batch: options.counter_batch() });
    share_maps!(
        open,
        shared,
        [accounts, payers, mm_index, mms, events, state_map]
    );
    let mut calls = open.load().map_err(unsupported("calls"))?;

    let mut storage = MaybeUninit::uninit();
    let mut open = resum::ResumSkelBuilder::default()
        .open(&mut storage)
        .map_err(unsupported("resum"))?;
    set_knobs!(open, "resum", options, { counter_batch: options.counter_batch() });
    share_maps!(
        open,
        shared,
        [accounts, payers, mm_index, mms, events, state_map]
    );
    let mut resum = open.load().map_err(unsupported("resum"))?;

    let mut storage = MaybeUninit::uninit();
    let mut open = discover::DiscoverSkelBuilder::default()
        .open(&mut storage)
        .map_err(unsupported("discover"))?;
    set_knobs!(open, "discover", options, {});
    share_maps!(
        open,
        shared,
        [accounts, payers, mm_index, mms, events, state_map]
    );
    let discover = open.load().map_err(unsupported("discover"))?;

    crate::call::run(calls.progs.prepare.as_fd(), "prepare the ledger", &mut [])?;

    macro_rules! pin {
        ($($what:expr => $name:literal),* $(,)?) => {
            $($what.pin(pins.path($name)).map_err(Error::io("pin the kernel half"))?;)*
        };
    }
    pin! {
        ledger.maps.accounts => "accounts",
        ledger.maps.payers => "payers",
        ledger.maps.mms => "mms",
        ledger.maps.events => "events",
        ledger.maps.state_map => "state",
        resum.maps.tickers => "tickers",
        calls.progs.configure => "configure",
        calls.progs.open_account => "open_account",
        calls.progs.close_account => "close_account",
        calls.progs.set_limit => "set_limit",
        calls.progs.run_oom_killer => "run_oom_killer",
        resum.progs.start_timer => "start_timer",
        ledger.progs.on_rss_stat => "on_rss_stat",
    }
    let attached = discover.progs.meet_every_task.attach();
    let mut link = attached.map_err(unsupported("discover"))?;
    pin! { link => "link_discover" }
    let attached = ledger.progs.on_exit_mmap.attach();
    let mut link = attached.map_err(unsupported("ledger (exit_mmap)"))?;
    pin! { link => "link_exit_mmap" }
    if options.event_trigger {
        let attached = ledger.progs.on_rss_stat.attach();
        let mut link = attached.map_err(unsupported("ledger (rss_stat)"))?;
        pin! { link => "link_rss_stat" }
    }
    Ok(())
}

fn write_first_state(map: &MapHandle) -> Result<(), Error> {
    let state = ledger_state {
        abi_version: abi_constant::ABI_VERSION.0,
        generation: 1,
        payers_generation: 1,
        ticket: 1,
        // slot 0 is the template of `default`
        account_high_water: 1,
        ..ledger_state::default()
    };
    map.update(&0u32.to_ne_bytes(), abi::bytes_of(&state), MapFlags::ANY)
        .map_err(Error::io("write the ledger's state"))
}
