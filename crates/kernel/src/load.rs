// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loads the objects, attaches them and pins everything. What runs afterwards is opened from the
//! pins (kernel_half.rs): a kernel half just loaded and one taken over are the same thing.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags};

use crate::abi::{self, abi_constant, ledger_state};
use crate::membership;
use crate::older_kernels;
use crate::pins::Pins;
use crate::skeleton::ledger::{self, LedgerSkel};
use crate::skeleton::membership::MembershipSkelBuilder;
use crate::skeleton::{copy_on_write, tmpfs_count};
use crate::support::{KernelTypes, TimerSupport};
use crate::{Error, Options};

/// Writes the constants that a program's dead branches are cut by, and fits its maps to the kernel. Each object has those it uses.
macro_rules! set_knobs {
    ($skel:expr, $object:literal, $options:expr, { $($field:ident: $value:expr),* $(,)? }) => {{
        let rodata = $skel.maps.rodata_data.as_deref_mut().ok_or($crate::Error::Unsupported {
            object: $object,
            reason: "its constants are missing".to_owned(),
        })?;
        rodata.possible_cpus = $options.possible_cpus;
        rodata.counter_batch = $options.counter_batch();
        rodata.page_shift = $options.page_size.shift();
        rodata.count_file = $options.count_file.into();
        rodata.max_records = $options.max_processes;
        rodata.max_accounts = $options.max_accounts;
        rodata.has_bpf_loop = $crate::older_kernels::has_loops().into();
        $(rodata.$field = $value;)*
        $crate::older_kernels::fit_maps($skel.open_object_mut(), $options.max_processes.max($options.max_accounts))?;
    }};
}
pub(crate) use set_knobs;

/// Makes an open object use the ledger's maps instead of its own.
macro_rules! share_maps {
    ($skel:expr, $ledger:expr, [$($map:ident),*]) => {
        $($skel.maps.$map.reuse_fd($ledger.maps.$map.as_fd()).map_err(Error::io("share a map"))?;)*
    };
    ($skel:expr, $ledger:expr) => {
        share_maps!(
            $skel,
            $ledger,
            [accounts, payers, mm_index, mms, events, state_map, sharers, members, subordinates, cpu_offsets, spared_programs,
             exempt_cgroups]
        )
    };
}

/// The same with maps that are pinned.
macro_rules! share_pinned {
    ($skel:expr, $pins:expr, { $($map:ident: $pin:literal),* $(,)? }) => {$(
        let shared = $pins.map($pin)?;
        $skel.maps.$map.reuse_fd(shared.as_fd()).map_err(Error::io("share a map"))?;
    )*};
}
pub(crate) use share_pinned;

/// Loads, attaches and pins a kernel half in which nothing has a limit yet. `before`: those that it is to
/// replace.
pub(crate) fn load(pins: &Pins, options: &Options, before: &[Pins]) -> Result<(), Error> {
    pins.create()?;
    let loaded = load_into(pins, options, before);
    if loaded.is_err() {
        // The first error is the one that matters; a leftover directory is removed by the next.
        let _ = pins.remove();
    }
    loaded
}

fn load_into(pins: &Pins, options: &Options, before: &[Pins]) -> Result<(), Error> {
    let mut storage = MaybeUninit::uninit();
    let mut open = ledger::LedgerSkelBuilder::default()
        .open(&mut storage)
        .map_err(Error::unsupported("ledger"))?;
    let types = KernelTypes::get();
    let hears_events = options.hears_events(types.has_task_iterator);
    // Else bursard reads the iterator.
    let walks_alone = options.timer_trigger && types.has_task_iterator;
    let timers = TimerSupport::probe();
    set_knobs!(open, "ledger", options, {
        has_timers: timers.has_timers,
        events_are_preempted: timers.holds_cpu,
        defers_decisions: timers.defers_work(options),
        hears_events: hears_events,
        event_decides: options.event_trigger,
        event_asks: options.notifier_trigger,
    });
    for (map, entries) in [
        (&mut open.maps.accounts, options.max_accounts),
        // every uid of a shared account needs an entry too
        (
            &mut open.maps.payers,
            options.max_accounts.saturating_mul(4),
        ),
        (&mut open.maps.mm_index, options.max_processes),
        (&mut open.maps.mms, options.max_processes),
        (
            &mut open.maps.subordinates,
            2 * abi_constant::SUBORDINATES.0,
        ),
        (&mut open.maps.events, options.events_bytes),
        (&mut open.maps.seen_on, options.possible_cpus),
    ] {
        map.set_max_entries(entries)
            .map_err(Error::io("size a map"))?;
    }
    for program in [
        &mut open.progs.on_clock,
        &mut open.progs.on_switch,
        &mut open.progs.on_deferred,
        &mut open.progs.start_deferred,
    ] {
        program.set_autoload(!timers.has_timers);
    }
    open.progs.start_timer.set_autoload(timers.has_timers);
    open.progs.meet_every_task.set_autoload(!walks_alone);
    open.progs.on_exit_mmap.set_autoload(types.tells_of_ends);
    open.progs
        .on_exit_mmap_return
        .set_autoload(!types.tells_of_ends);
    if let Some(members) = membership::handed_on(before) {
        let shared = open.maps.members.reuse_fd(members.as_fd());
        shared.map_err(Error::io("share who has entered an account"))?;
    }
    let mut ledger = open.load().map_err(Error::unsupported("ledger"))?;

    write_first_state(&ledger.maps.state_map)?;
    crate::call::run(ledger.progs.prepare.as_fd(), "prepare the ledger", &mut [])?;

    let start_ticks = match timers.has_timers {
        true => &mut ledger.progs.start_timer,
        false => &mut ledger.progs.start_deferred,
    };

    macro_rules! pin {
        ($($what:expr => $name:expr),* $(,)?) => {
            $($what.pin(pins.path($name)).map_err(Error::io("pin the kernel half"))?;)*
        };
    }
    pin! {
        ledger.maps.accounts => "accounts",
        ledger.maps.payers => "payers",
        ledger.maps.mm_index => "mm_index",
        ledger.maps.mms => "mms",
        ledger.maps.events => "events",
        ledger.maps.taken_events => "taken_events",
        ledger.maps.state_map => "state",
        ledger.maps.sharers => "sharers",
        ledger.maps.members => "members",
        ledger.maps.subordinates => "subordinates",
        ledger.maps.cpu_offsets => "cpu_offsets",
        ledger.maps.spared_programs => "spared_programs",
        ledger.maps.exempt_cgroups => "exempt_cgroups",
        ledger.maps.resum_timers => "resum_timers",
        ledger.progs.configure => "configure",
        ledger.progs.open_account => "open_account",
        ledger.progs.close_account => "close_account",
        ledger.progs.set_limit => "set_limit",
        ledger.progs.promise => "promise",
        ledger.progs.watch => "watch",
        ledger.progs.set_subordinates => "set_subordinates",
        ledger.progs.identify_program => "identify_program",
        ledger.progs.run_oom_killer => "run_oom_killer",
        ledger.progs.begin_pss_scan => "begin_pss_scan",
        ledger.progs.end_pss_scan => "end_pss_scan",
        start_ticks => "start_timer",
        ledger.progs.on_rss_stat => "on_rss_stat",
    }
    if timers.defers_work(options) {
        for (program, name) in [
            (&ledger.progs.on_deferred, "link_deferred"),
            (&ledger.progs.on_clock, "link_clock"),
            (&ledger.progs.on_switch, "link_switch"),
        ] {
            let attached = program.attach();
            let mut link =
                attached.map_err(Error::unsupported("ledger (re-sum without timers)"))?;
            pin! { link => name }
        }
    }
    if let Err(error) = load_tmpfs(pins, options, &ledger, timers) {
        tracing::warn!(%error, "files in tmpfs that nobody maps are not counted");
    }
    if let Err(error) = load_entered(pins, &ledger) {
        tracing::warn!(%error, "nobody can enter an account: children could not be kept in it");
    }
    if !walks_alone {
        let attached = ledger.progs.meet_every_task.attach();
        let mut link = attached.map_err(Error::unsupported("ledger (iter)"))?;
        pin! { link => "link_discover" }
    }
    let program = if types.tells_of_ends {
        &ledger.progs.on_exit_mmap
    } else {
        &ledger.progs.on_exit_mmap_return
    };
    let attached = program.attach();
    let mut link = attached.map_err(Error::unsupported("ledger (exit_mmap)"))?;
    pin! { link => "link_exit_mmap" }
    match ledger.progs.on_exec.attach() {
        Ok(mut link) => {
            pin! { link => "link_exec" }
        }
        Err(error) => {
            tracing::warn!(%error, "which programs are executed is not known: none of them is spared")
        }
    }
    match ledger.progs.on_cgroup_move.attach() {
        Ok(mut link) => {
            pin! { link => "link_cgroup_move" }
        }
        Err(error) => {
            tracing::info!(%error, "who moves into a control group that is exempt is found by the re-sum only")
        }
    }
    match ledger.progs.on_signal.attach() {
        Ok(mut link) => {
            pin! { link => "link_signal" }
        }
        Err(error) => {
            tracing::info!(%error, "deaths by others' hands are found by the re-sum only")
        }
    }
    if hears_events {
        let attached = ledger.progs.on_rss_stat.attach();
        let mut link = attached.map_err(Error::unsupported("ledger (rss_stat)"))?;
        pin! { link => "link_rss_stat" }
    }
    if let Err(error) = load_watch(pins, options, &ledger, timers) {
        tracing::info!(%error, "copies of shared pages are seen by PSS scans only");
    }
    Ok(())
}

/// Not every kernel has the events that tell of a copy, or trampolines, by which shared pages are seen being moved.
fn load_watch(
    pins: &Pins,
    options: &Options,
    ledger: &LedgerSkel<'_>,
    timers: TimerSupport,
) -> Result<(), Error> {
    if KernelTypes::get().tells_of_moves {
        match load_copies(pins, options, ledger, timers, true) {
            Err(error) => {
                tracing::info!(%error, "shared pages that are moved during a PSS scan may be taken off twice")
            }
            done => return done,
        }
    }
    load_copies(pins, options, ledger, timers, false)
}

fn load_copies(
    pins: &Pins,
    options: &Options,
    ledger: &LedgerSkel<'_>,
    timers: TimerSupport,
    sees_moves: bool,
) -> Result<(), Error> {
    let mut storage = MaybeUninit::uninit();
    let mut open = copy_on_write::CopyOnWriteSkelBuilder::default()
        .open(&mut storage)
        .map_err(Error::unsupported("copy_on_write"))?;
    set_knobs!(open, "copy_on_write", options, {
        events_are_preempted: timers.holds_cpu,
        defers_decisions: timers.defers_work(options),
        event_decides: options.event_trigger,
        event_asks: options.notifier_trigger,
    });
    share_maps!(open, ledger);
    share_maps!(open, ledger, [due_times, seen_on, faults_on]);
    let types = KernelTypes::get();
    let has_huge_pages = types.tells_of_collapses;
    open.progs.on_collapse.set_autoload(has_huge_pages);
    open.progs.on_mremap.set_autoload(sees_moves);
    let mut object = open.load().map_err(Error::unsupported("copy_on_write"))?;
    if sees_moves {
        let attached = object.progs.on_mremap.attach();
        let mut link = attached.map_err(Error::unsupported("copy_on_write (copy_vma)"))?;
        link.pin(pins.path("link_mremap"))
            .map_err(Error::io("pin the kernel half"))?;
    }
    let mut programs = vec![
        (&mut object.progs.on_user_fault, "on_user_fault"),
        (&mut object.progs.on_kernel_fault, "on_kernel_fault"),
        (&mut object.progs.on_page_alloc, "on_page_alloc"),
    ];
    if has_huge_pages {
        programs.push((&mut object.progs.on_collapse, "on_collapse"));
    }
    for (program, name) in programs {
        program
            .pin(pins.path(name))
            .map_err(Error::io("pin the kernel half"))?;
    }
    Ok(())
}

/// What makes children of members members. Without it nobody enters an account.
fn load_entered(pins: &Pins, ledger: &LedgerSkel<'_>) -> Result<(), Error> {
    // Where LSM programs cannot be loaded at all, the other two are enough.
    match load_membership(pins, ledger, true) {
        Err(error @ Error::Unsupported { .. }) => {
            tracing::info!(%error, "a child that cannot be kept in an account is not refused");
            load_membership(pins, ledger, false)
        }
        done => done,
    }
}

fn load_membership(pins: &Pins, ledger: &LedgerSkel<'_>, may_refuse: bool) -> Result<(), Error> {
    let mut storage = MaybeUninit::uninit();
    let mut open = MembershipSkelBuilder::default()
        .open(&mut storage)
        .map_err(Error::unsupported("membership"))?;
    let has_entries = older_kernels::has_loops();
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.has_bpf_loop = has_entries;
    }
    older_kernels::fit_maps(open.open_object_mut(), 0)?;
    share_maps!(open, ledger);
    open.progs.inherit_membership.set_autoload(may_refuse);
    open.progs.note_login.set_autoload(may_refuse);
    let mut object = open.load().map_err(Error::unsupported("membership"))?;
    // In the order in which nothing stays behind when one is not to be had.
    let mut links = Vec::new();
    if may_refuse {
        let link = object.progs.inherit_membership.attach();
        links.push((link, "link_inherit_membership"));
        links.push((object.progs.note_login.attach(), "link_note_login"));
    }
    links.push((object.progs.member_born.attach(), "link_member_born"));
    links.push((object.progs.member_forked.attach(), "link_member_forked"));
    for (link, name) in links {
        let mut link = link.map_err(Error::unsupported("membership"))?;
        link.pin(pins.path(name))
            .map_err(Error::io("pin what keeps children in an account"))?;
    }
    object
        .maps
        .logins
        .pin(pins.path("logins"))
        .map_err(Error::io("pin who is logging in"))?;
    if !has_entries {
        return Ok(());
    }
    // Last: where this one is, the others are.
    object
        .progs
        .note_entry
        .pin(pins.path("note_entry"))
        .map_err(Error::io("pin what keeps children in an account"))
}

/// What counts files that nobody maps. Without it everything else works.
fn load_tmpfs(
    pins: &Pins,
    options: &Options,
    ledger: &LedgerSkel<'_>,
    timers: TimerSupport,
) -> Result<(), Error> {
    let mut storage = MaybeUninit::uninit();
    let mut open = tmpfs_count::TmpfsCountSkelBuilder::default()
        .open(&mut storage)
        .map_err(Error::unsupported("tmpfs_count"))?;
    set_knobs!(open, "tmpfs_count", options, { has_timers: timers.has_timers });
    open.progs
        .on_files_deferred
        .set_autoload(!timers.has_timers);
    share_maps!(
        open,
        ledger,
        [
            accounts,
            payers,
            events,
            state_map,
            members,
            subordinates,
            exempt_cgroups,
            due_times
        ]
    );
    let mut object = open.load().map_err(Error::unsupported("tmpfs_count"))?;
    let failed = || Error::io("pin the count of files");
    if timers.defers_work(options) {
        let attached = object.progs.on_files_deferred.attach();
        let mut link = attached.map_err(Error::unsupported("tmpfs_count (group_send_sig_info)"))?;
        link.pin(pins.path("link_files_deferred"))
            .map_err(failed())?;
    }
    object
        .maps
        .files_timers
        .pin(pins.path("files_timers"))
        .map_err(failed())?;
    object
        .progs
        .count_files
        .pin(pins.path("count_files"))
        .map_err(failed())?;
    // Last: where this one is, the others are.
    object
        .progs
        .start_files
        .pin(pins.path("start_files"))
        .map_err(failed())
}

fn write_first_state(map: &impl MapCore) -> Result<(), Error> {
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
