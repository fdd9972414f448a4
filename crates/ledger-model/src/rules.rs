// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `rules.h` as Rust sees it.

#![allow(unsafe_code)]

use std::ffi::c_int;

/// An address space that is dying (`struct dying`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dying {
    /// When it last began; 0: never.
    pub since_ms: u32,
    /// What it held then, pages.
    pub credit_pages: u32,
    /// Of its pages so many stay with the living that share them.
    pub shared_pages: u32,
}

/// An account's patience with what is credited (`struct patience`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Patience {
    /// Since when it has been above its limit by more than an eighth; 0: it is not.
    pub above_ms: u32,
    /// Who has been dying since before then counts; 0: no such time.
    pub credit_from_ms: u32,
    /// Nothing has gone in time.
    pub is_out: u32,
}

/// An account whose processes may share more than is known (`struct doubt`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Doubt {
    /// What counts, as far as is known, pages; as are all of these.
    pub level_pages: i64,
    /// Its limit.
    pub limit_pages: i64,
    /// The limit, or the notice while that is not passed.
    pub bound_pages: i64,
    /// May be shared; out: with what has ended, where that counts.
    pub soft_pages: i64,
    /// May have ceased to be shared.
    pub hard_pages: i64,
    /// Taken off the correction because processes have left: the most that they shared.
    pub ended_pages: i64,
    /// Of the soft ones, what no page fault has copied and nobody else has unmapped.
    pub sure_pages: i64,
    /// Counted twice for certain: forks made them so, and nothing has undone it.
    pub forked_pages: i64,
    /// Given back with MADV_FREE, perhaps.
    pub given_pages: i64,
    /// The sum of resident sets.
    pub held_pages: i64,
    /// Of one process.
    pub largest_pages: i64,
    /// Of one process: so much is there in any case.
    pub sure_of_one_pages: i64,
    /// What was certain when the limit was crossed, and what was free then; 0: it was not.
    pub asked_pages: i64,
    /// Since it was last within the limit, at most.
    pub grown_pages: i64,
    /// Out: the level up to which it waits.
    pub wait_at_most_pages: i64,
    /// Out: no more is held, whatever is shared.
    pub at_most_pages: i64,
}

/// What an account in doubt does (`enum wait`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It decides.
    Not,
    /// It waits for a PSS scan.
    ForScan,
    /// It waits, but who grows further dies.
    ButGrowers,
}

unsafe extern "C" {
    fn begin_credit(dying: *mut Dying, pages: u32, shared_pages: u32, now_ms: u32);
    fn is_kept(dying: *mut Dying, patience_is_out: u32);
    fn split_dying(
        dying: *const Dying,
        pages: i64,
        from_ms: u32,
        page_shift: u32,
        now_ms: u32,
        credit_pages: *mut i64,
    ) -> i64;
    fn add_files_credit(credit_pages: i64, kept_pages: i64, sure_pages: i64) -> i64;
    fn has_files_credit(since_ms: u32, patience_is_out: u32, now_ms: u32) -> c_int;
    fn excess_of_credit(credit_pages: i64, limit_pages: i64) -> i64;
    fn kill_above_pages(
        limit_pages: i64,
        stuck_pages: i64,
        unkillable_pages: i64,
        page_shift: u32,
    ) -> i64;
    fn keep_patience(
        patience: *mut Patience,
        total_pages: i64,
        limit_pages: i64,
        now_ms: u32,
    ) -> c_int;
    fn wait_for_scan(doubt: *mut Doubt) -> c_int;
    fn rank_of(pages: i64, limit_pages: i64, raised: c_int, is_spared: c_int) -> i64;
}

/// log2 of the page size that the model has.
pub const PAGE_SHIFT: u32 = 12;

/// The rules that hold today.
#[derive(Debug, Clone, Copy, Default)]
pub struct Current;

impl Dying {
    /// It begins to die.
    pub fn begin(&mut self, pages: u32, shared_pages: u32, now_ms: u32) {
        // SAFETY: a live struct of that layout; pure arithmetic.
        unsafe { begin_credit(self, pages, shared_pages, now_ms) }
    }

    /// Somebody keeps it who is none of its owners.
    pub fn keep(&mut self, patience: &Patience) {
        // SAFETY: as above.
        unsafe { is_kept(self, patience.is_out) }
    }

    /// What of `pages` is held, and what is credited.
    pub fn split(&self, pages: i64, from_ms: u32, now_ms: u32) -> (i64, i64) {
        let mut credit = 0;
        // SAFETY: as above, and a number to write to.
        let held = unsafe { split_dying(self, pages, from_ms, PAGE_SHIFT, now_ms, &mut credit) };
        (held, credit)
    }
}

impl Patience {
    /// At each re-sum; whether it has ended now.
    pub fn keep(&mut self, total_pages: i64, limit_pages: i64, now_ms: u32) -> bool {
        // SAFETY: as above.
        unsafe { keep_patience(self, total_pages, limit_pages, now_ms) != 0 }
    }
}

impl Doubt {
    /// Whether it waits.
    pub fn wait(&mut self) -> Wait {
        // SAFETY: as above.
        match unsafe { wait_for_scan(self) } {
            1 => Wait::ForScan,
            2 => Wait::ButGrowers,
            _ => Wait::Not,
        }
    }
}

/// What of files is credited when who keeps `kept_pages` of them was killed for them.
pub fn files_credit(credit_pages: i64, kept_pages: i64, sure_pages: i64) -> i64 {
    // SAFETY: numbers in, a number out.
    unsafe { add_files_credit(credit_pages, kept_pages, sure_pages) }
}

/// Whether that is credited still.
pub fn is_files_credit(since_ms: u32, patience: &Patience, now_ms: u32) -> bool {
    // SAFETY: as above.
    unsafe { has_files_credit(since_ms, patience.is_out, now_ms) != 0 }
}

/// What of a credit counts all the same.
pub fn excess(credit_pages: i64, limit_pages: i64) -> i64 {
    // SAFETY: as above.
    unsafe { excess_of_credit(credit_pages, limit_pages) }
}

/// Above this somebody is killed.
pub fn kill_above(limit_pages: i64, stuck_pages: i64, unkillable_pages: i64) -> i64 {
    // SAFETY: as above.
    unsafe { kill_above_pages(limit_pages, stuck_pages, unkillable_pages, PAGE_SHIFT) }
}

/// Who of two dies: the one of the higher rank.
pub fn rank(pages: i64, limit_pages: i64, raised: i32, is_spared: bool) -> i64 {
    // SAFETY: as above.
    unsafe { rank_of(pages, limit_pages, raised, is_spared.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIFTS: [u32; 3] = [12, 14, 16];

    #[test]
    fn what_may_be_held_beside_what_stays_is_bytes_whatever_the_size_of_a_page() {
        for (limit_mib, stuck_mib, expected_mib) in [(64, 64, 72), (64, 10, 64), (1024, 1000, 1064)]
        {
            for shift in SHIFTS {
                let pages = |mib: i64| (mib << 20) >> shift;
                // SAFETY: numbers in, a number out.
                let above =
                    unsafe { kill_above_pages(pages(limit_mib), pages(stuck_mib), 0, shift) };
                assert_eq!(above, pages(expected_mib), "{stuck_mib} of {limit_mib}");
            }
        }
    }

    #[test]
    fn how_long_the_dying_are_credited_goes_by_bytes() {
        for shift in SHIFTS {
            let mut dying = Dying::default();
            let pages = (8_u64 << 30) >> shift;
            dying.begin(u32::try_from(pages).unwrap(), 0, 1);
            // 800 ms, and a millisecond for each 4 MiB.
            for (now, is_credited) in [(1 + 800 + 2048, true), (2 + 800 + 2048, false)] {
                let mut credit = 0;
                // SAFETY: a live struct of that layout and a number to write to.
                unsafe { split_dying(&dying, 100, 0, shift, now, &mut credit) };
                assert_eq!(credit > 0, is_credited, "{shift} {now}");
            }
        }
    }
}
