// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The types of `bpf/include/abi.h`, as BTF carried them over, and how their bytes are read.

pub(crate) use bursar_pod::{Pod, bytes_of, bytes_of_mut, read};

pub(crate) use crate::skeleton::tmpfs_count::types::count_files_args;

pub(crate) use crate::skeleton::ledger::types::{
    abi_constant, account, account_flag, account_history, begin_pss_scan_args, configure_args,
    end_pss_scan_args, event, event_kind, identify_args, ledger_state, measure, member, mm_record,
    open_account_args, program, promise_args, request, run_killer_args, set_limit_args,
    set_subordinates_args, sharer, subordinate, trigger, uid_range, watch_args,
};

pub(crate) use crate::skeleton::dirty::types::{dirty_facts, dirty_sum};
pub(crate) use crate::skeleton::membership::types::membership;

/// `NO_BOUND_PAGES` of abi.h: macros do not reach BTF.
const NO_BOUND_PAGES: i64 = i64::MAX;

/// A bound as the kernel half stores it.
pub(crate) fn bound_to_pages(bound: Option<bursar_model::Pages>) -> i64 {
    bound.map_or(NO_BOUND_PAGES, |pages| {
        i64::try_from(pages.get()).unwrap_or(NO_BOUND_PAGES)
    })
}

/// The bound that the kernel half stored.
pub(crate) fn bound_from_pages(pages: i64) -> Option<bursar_model::Pages> {
    (pages != NO_BOUND_PAGES).then(|| count(pages))
}

/// A sum that may be negative for a moment while two CPUs book; nobody holds less than nothing.
pub(crate) fn count(pages: i64) -> bursar_model::Pages {
    bursar_model::Pages::new(u64::try_from(pages).unwrap_or(0))
}

/// What a record has booked, in pages (pages.bpf.h `booked_on()`).
pub(crate) fn pages_booked(record: &mm_record) -> i64 {
    const BOOKED_BITS: u32 = 44;
    (record.booked & ((1 << BOOKED_BITS) - 1)).cast_signed()
}

// SAFETY: integers and arrays of integers, padding made explicit (abi.h).
unsafe impl Pod for account {}
// SAFETY: as above.
unsafe impl Pod for event {}
// SAFETY: as above.
unsafe impl Pod for ledger_state {}
// SAFETY: as above.
unsafe impl Pod for set_limit_args {}
// SAFETY: as above.
unsafe impl Pod for open_account_args {}
// SAFETY: as above.
unsafe impl Pod for run_killer_args {}
// SAFETY: as above.
unsafe impl Pod for promise_args {}
// SAFETY: as above.
unsafe impl Pod for watch_args {}
// SAFETY: as above.
unsafe impl Pod for subordinate {}
// SAFETY: as above.
unsafe impl Pod for set_subordinates_args {}
// SAFETY: as above.
unsafe impl Pod for configure_args {}
// SAFETY: as above.
unsafe impl Pod for count_files_args {}
// SAFETY: as above.
unsafe impl Pod for begin_pss_scan_args {}
// SAFETY: as above.
unsafe impl Pod for end_pss_scan_args {}
// SAFETY: as above.
unsafe impl Pod for sharer {}
// SAFETY: as above.
unsafe impl Pod for dirty_facts {}
// SAFETY: as above.
unsafe impl Pod for dirty_sum {}
// SAFETY: as above.
unsafe impl Pod for membership {}
// SAFETY: as above.
unsafe impl Pod for mm_record {}
// SAFETY: as above.
unsafe impl Pod for program {}
// SAFETY: as above.
unsafe impl Pod for identify_args {}
