// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The types of `bpf/abi.h`, as BTF carried them over, and how their bytes are read.

use std::mem::{MaybeUninit, size_of};

pub(crate) use crate::skeleton::tmpfs::types::count_files_args;

pub(crate) use crate::skeleton::calls::types::{
    abi_constant, account, account_flag, account_history, configure_args, event, event_kind,
    ledger_state, measure, open_account_args, request, reserve_args, run_killer_args,
    set_limit_args, trigger, uid_range,
};

pub(crate) use crate::skeleton::dirty::types::{dirty_facts, dirty_sum};
pub(crate) use crate::skeleton::entered::types::membership;

pub(crate) use crate::skeleton::survey::types::{
    begin_survey_args, end_survey_args, mm_record, sharer,
};

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

/// Plain C data: every bit pattern is a value.
///
/// # Safety
/// Implement it for `repr(C)` types of integers only.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers and arrays of integers, see abi.h.
unsafe impl Plain for account {}
// SAFETY: as above.
unsafe impl Plain for event {}
// SAFETY: as above.
unsafe impl Plain for ledger_state {}
// SAFETY: as above.
unsafe impl Plain for set_limit_args {}
// SAFETY: as above.
unsafe impl Plain for open_account_args {}
// SAFETY: as above.
unsafe impl Plain for run_killer_args {}
// SAFETY: as above.
unsafe impl Plain for reserve_args {}
// SAFETY: as above.
unsafe impl Plain for configure_args {}
// SAFETY: as above.
unsafe impl Plain for count_files_args {}
// SAFETY: as above.
unsafe impl Plain for begin_survey_args {}
// SAFETY: as above.
unsafe impl Plain for end_survey_args {}
// SAFETY: as above.
unsafe impl Plain for sharer {}
// SAFETY: as above.
unsafe impl Plain for dirty_facts {}
// SAFETY: as above.
unsafe impl Plain for dirty_sum {}
// SAFETY: as above.
unsafe impl Plain for membership {}
// SAFETY: as above.
unsafe impl Plain for mm_record {}

/// A copy of the value that `bytes` holds; `None` when they are too few.
pub(crate) fn read<T: Plain>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: `bytes` has at least that many bytes, the two do not overlap, and T: Plain.
    unsafe {
        value
            .as_mut_ptr()
            .cast::<u8>()
            .copy_from_nonoverlapping(bytes.as_ptr(), size_of::<T>());
        Some(value.assume_init())
    }
}

/// The bytes of a value.
pub(crate) fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: T: Plain, and the types of abi.h have explicit padding only.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
}

/// The bytes of a value, to be written.
pub(crate) fn bytes_of_mut<T: Plain>(value: &mut T) -> &mut [u8] {
    // SAFETY: T: Plain, so whatever is written is a value.
    unsafe {
        std::slice::from_raw_parts_mut(std::ptr::from_mut(value).cast::<u8>(), size_of::<T>())
    }
}
