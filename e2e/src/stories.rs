// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All stories of the main job.

mod apply;
mod audit;
mod bad_days;
mod beancounters;
mod beancounters_cost;
mod callers;
mod check;
mod command;
mod cost;
mod deaths;
mod directory;
mod dirty;
mod drop_ins;
mod entered;
mod evasion;
mod exempt;
mod faults;
mod gate;
mod graceful;
mod growers;
mod hostile;
mod huge_page_pool;
mod innocent;
mod kernel_memory;
mod kill;
mod limits;
mod locked;
mod log_level;
mod login;
mod machine;
mod metrics;
mod network_buffers;
mod notify;
mod observe;
mod package;
mod payers;
mod physpages;
mod prefer;
mod preview;
mod privvmpages;
mod processes;
mod reap;
mod recording;
mod rlimit_gate;
mod spared;
mod storm;
mod subordinate;
mod survival;
mod swapped;
mod tcp_buffers;
mod telling;
mod temporary;
mod three_calls;
mod tmalloc;
mod top;
mod triggers;
mod units;
mod unkillable;
mod usage;
mod waiting;
mod who;

use crate::runner::Story;

/// Beginnings of the names of those that every kernel is to tell, however the others are shared out:
/// what the kernel half does differently from one to the next.
const EVERYWHERE: &[&str] = &[
    "the_largest_is_killed_after",
    "two_that_cross",
    "a_breach_is_killed_while_bursard",
    "another_version_takes_over",
    "the_timer_alone_kills_without",
    "held_is_what_proc_says",
    "a_uid_change_moves",
    "a_dead_first_thread",
    "a_child_of_vfork",
    "evasion_plainly",
    "evasion_by_a_file_in_tmpfs",
    "evasion_by_hundreds_that",
    "evasion_by_many_pages_in",
    "root_that_shares",
    "exempt_groups_are_nobodys",
    "spared_programs_go_after_others_that",
    "events_in_the_hands",
    "copies_of_shared_pages",
    "without_bursard_a_correction",
    "ledger_check_agrees",
    "subordinate_uids_files_count",
    "gate_says_what",
    "gate_under_the_unit",
    "beancounters_under_the_unit",
    "gate_refuses_every_way",
    "gate_is_never_passed",
    "gate_takes_everything_back",
    "when_the_machine_runs_out",
    "verifier_cost",
    "an_entered_account_cannot",
    "dirty_pages_are",
    "waiting_ends",
];

/// Whether every kernel is to tell it.
pub fn is_for_everywhere(name: &str) -> bool {
    EVERYWHERE.iter().any(|part| name.starts_with(part))
}

/// In the order in which they are told.
pub fn all() -> Vec<Story> {
    [
        kill::STORIES,
        exempt::STORIES,
        spared::STORIES,
        survival::STORIES,
        swapped::STORIES,
        huge_page_pool::STORIES,
        limits::STORIES,
        log_level::STORIES,
        three_calls::STORIES,
        processes::STORIES,
        unkillable::STORIES,
        usage::STORIES,
        payers::STORIES,
        subordinate::STORIES,
        units::STORIES,
        check::STORIES,
        metrics::STORIES,
        network_buffers::STORIES,
        tcp_buffers::STORIES,
        notify::STORIES,
        triggers::STORIES,
        hostile::STORIES,
        locked::STORIES,
        &evasion::stories(),
        innocent::STORIES,
        bad_days::STORIES,
        drop_ins::STORIES,
        apply::STORIES,
        audit::STORIES,
        prefer::STORIES,
        preview::STORIES,
        observe::STORIES,
        login::STORIES,
        temporary::STORIES,
        gate::STORIES,
        graceful::STORIES,
        privvmpages::STORIES,
        beancounters::STORIES,
        beancounters_cost::STORIES,
        kernel_memory::STORIES,
        cost::STORIES,
        deaths::STORIES,
        faults::STORIES,
        faults::VERIFY_STORIES,
        storm::STORIES,
        machine::STORIES,
        physpages::STORIES,
        entered::STORIES,
        telling::STORIES,
        waiting::STORIES,
        who::STORIES,
        top::STORIES,
        package::STORIES,
        directory::STORIES,
        dirty::STORIES,
        tmalloc::STORIES,
        callers::STORIES,
        callers::CONFORMANCE_STORIES,
        callers::SUITE_STORIES,
        callers::UNDISTURBED_STORIES,
        rlimit_gate::STORIES,
        reap::STORIES,
        recording::STORIES,
    ]
    .concat()
}

/// Throw-away users: nobody on any machine has these numbers.
pub(crate) const ALICE: u32 = 60001;
pub(crate) const BOB: u32 = 60002;
/// What alice is called in messages: in guests she has a name (xtask/src/vm/init.sh).
pub(crate) const ALICE_IS: [&str; 2] = ["60001", "u60001"];

/// The most by which an account may be over its limit at a kill, beside what one event can add at
/// once: a page, or a huge page where the kernel makes them unasked.
pub fn allowance() -> u64 {
    (512 << 10) + unasked()
}

/// What one page fault may bring beyond a page, in bytes.
pub fn unasked() -> u64 {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let is_unasked = enabled.is_ok_and(|text| text.contains("[always]"));
    let size = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    let size = size.ok().filter(|_| is_unasked);
    size.and_then(|it| it.trim().parse().ok()).unwrap_or(0)
}

/// In a guest without KVM. arm64's processors do not say so, but QEMU's board for guests does, with KVM too.
fn is_emulated() -> bool {
    let says = |path, what| std::fs::read_to_string(path).is_ok_and(|text| text.contains(what));
    says("/proc/cpuinfo", "QEMU") || says("/proc/device-tree/compatible", "dummy-virt")
}

/// How long who is to outlive another one is watched after that, in milliseconds.
fn watched_ms() -> u32 {
    if is_emulated() { 3000 } else { 1000 }
}

fn median(mut figures: Vec<u64>) -> u64 {
    figures.sort_unstable();
    figures.get(figures.len() / 2).copied().unwrap_or(0)
}
