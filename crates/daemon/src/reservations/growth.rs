// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of a process's reservation has become resident, judged from outside.
//!
//! A process that was granted memory touches it when it likes, and tells nobody. Its resident memory
//! grows by what it touches; also by memory that it did not reserve (mappings of its own). Of that what
//! was mapped after the grant is known: its writable memory grew by more than was granted. Where in doubt
//! it counts as not touched, so that too much stays reserved rather than too little.
//!
//! What became resident may be given back, and what the process was promised is its own again. So growth counts from
//! when it was promised, at each look.
//!
//! What it had mapped and unmaps it tells nobody either (free(3) within a heap). As its writable memory and
//! its address space shrink by more than its resident memory, so much less of what it said that it has
//! mapped is needed; and all that it has mapped and not touched suffices, with what it has not placed yet: twice,
//! for it may place that once before it looks, finds that it has shrunk, and counts from there.
//!
//! The doubt that remains: memory that the process had mapped before, did not reserve, and touches only
//! now (a stack, a heap of Java's). By that much, until the process renews, too little may be reserved.

use bursar_host::Statm;
use bursar_model::{Bytes, PageSize};

/// By so much a process can shrink before it looks what of its memory is left (tmalloc's credit.rs).
const UNNOTICED: Bytes = Bytes::from_mib(16);

/// What a process has reserved from now on, in pages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Promise {
    pub(super) kept: u64,
    pub(super) granted: u64,
    /// Of what is kept.
    pub(super) untouched: u64,
}

/// A process when it was granted something.
#[derive(Debug, Clone, Copy)]
pub(super) struct Snapshot {
    resident: u64,
    writable: u64,
    size: u64,
    /// By how much its writable memory may grow because of the grant.
    granted: u64,
    /// What of its reservation lay in no memory that it had mapped.
    unplaced: u64,
    /// Its reservation, less what it has unmapped since.
    promised: u64,
}

impl Snapshot {
    /// `unplaced` pages of the `promised` ones lie in no memory that it has mapped.
    pub(super) const fn new(now: &Statm, granted: u64, unplaced: u64, promised: u64) -> Self {
        Self {
            resident: now.anonymous.get(),
            writable: now.data.get(),
            size: now.size.get(),
            granted,
            unplaced,
            promised,
        }
    }

    /// Its reservation, less what it has unmapped since: as much can be reserved again.
    pub(super) const fn promised(&self) -> u64 {
        self.promised
    }

    /// What has to be reserved by what is there now.
    pub(super) fn still_reserved(&mut self, now: &Statm, error: u64, page: PageSize) -> u64 {
        let left = self.promised.saturating_sub(self.grown_by(now, error));
        let gone = self.unmapped(now, left, error, page);
        self.forget_unmapped(gone);
        left.saturating_sub(gone)
    }

    /// Pages of what it had reserved that are resident now and were not then; `error`: by how much two
    /// readings of a counter may differ.
    pub(super) fn grown_by(&self, now: &Statm, error: u64) -> u64 {
        let mapped = now.data.get().saturating_sub(self.writable);
        let unreserved = mapped.saturating_sub(self.granted);
        let grown = now.anonymous.get().saturating_sub(self.resident);
        grown.saturating_sub(unreserved).saturating_sub(error)
    }

    /// Of `reserved` pages those that it had mapped and not touched, and has mapped no more.
    pub(super) fn unmapped(&self, now: &Statm, reserved: u64, error: u64, page: PageSize) -> u64 {
        let writable = self.writable.saturating_sub(now.data.get());
        let shrunk = writable.min(self.size.saturating_sub(now.size.get()));
        let were_resident = self.resident.saturating_sub(now.anonymous.get());
        let untouched = now.data.get().saturating_sub(now.anonymous.get());
        // Before the process looks, it may have used as much as it has not placed, without having spent it.
        let unnoticed = page.pages_within(UNNOTICED).get();
        let unplaced = self.unplaced.saturating_mul(2).saturating_add(unnoticed);
        let needed = unplaced.saturating_add(untouched);
        let gone = shrunk.saturating_sub(were_resident);
        gone.min(reserved.saturating_sub(needed))
            .saturating_sub(error)
    }

    /// So many pages that are not mapped any more are known; growth counts from where it did.
    pub(super) fn forget_unmapped(&mut self, gone: u64) {
        self.writable = self.writable.saturating_sub(gone);
        self.size = self.size.saturating_sub(gone);
        self.promised = self.promised.saturating_sub(gone);
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::Pages;
    use proptest::prelude::*;

    use super::*;

    const SMALL: PageSize = PageSize::new(4096).unwrap();

    /// A process as its own malloc knows it.
    #[derive(Debug, Clone, Copy, Default)]
    struct Model {
        /// Granted: address space not taken yet, and taken but not touched.
        credit: u64,
        untouched: u64,
        resident: u64,
        writable: u64,
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Allocate(u64),
        Touch(u64),
        /// Unmaps so much that it has not touched, and so much that it has.
        Unmap(u64, u64),
        /// Maps memory that it did not reserve, and touches a part.
        Map(u64, u64),
        /// Unmaps so much of what it was granted and has touched: that is its credit again.
        GiveBack(u64),
        Look,
    }

    impl Model {
        fn statm(self) -> Statm {
            Statm {
                size: Pages::new(self.writable + 700),
                anonymous: Pages::new(self.resident),
                data: Pages::new(self.writable),
            }
        }

        fn take(&mut self, step: Step) {
            match step {
                Step::Allocate(pages) => {
                    let pages = pages.min(self.credit);
                    self.credit -= pages;
                    self.untouched += pages;
                    self.writable += pages;
                }
                Step::Touch(pages) => {
                    let pages = pages.min(self.untouched);
                    self.untouched -= pages;
                    self.resident += pages;
                }
                Step::Unmap(untouched, touched) => {
                    let untouched = untouched.min(self.untouched);
                    let touched = touched.min(self.resident);
                    self.untouched -= untouched;
                    self.resident -= touched;
                    self.writable -= untouched + touched;
                }
                Step::Map(pages, touched) => {
                    self.writable += pages;
                    self.resident += touched.min(pages);
                }
                Step::GiveBack(pages) => {
                    let pages = pages.min(self.resident.saturating_sub(50));
                    self.resident -= pages;
                    self.writable -= pages;
                    self.credit += pages;
                }
                Step::Look => {}
            }
        }
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let pages = 0..200_u64;
        let step = prop_oneof![
            pages.clone().prop_map(Step::Allocate),
            pages.clone().prop_map(Step::Touch),
            pages.clone().prop_map(Step::GiveBack),
            Just(Step::Look),
        ];
        prop::collection::vec(step, 0..40)
    }

    proptest! {
        /// Without memory of other kinds nothing that was granted is ever unreserved, what was touched is seen, and
        /// what was given back is reserved again.
        #[test]
        fn what_is_not_resident_stays_reserved(steps in steps(), granted in 0..1000_u64) {
            let mut model = Model { credit: granted, resident: 50, writable: 500, ..Model::default() };
            let mut snapshot = Snapshot::new(&model.statm(), granted, granted, granted);
            for step in steps {
                model.take(step);
                if matches!(step, Step::Look) {
                    let reserved = snapshot.still_reserved(&model.statm(), 0, SMALL);
                    prop_assert_eq!(reserved, model.credit + model.untouched);
                }
            }
        }
    }

    proptest! {
        /// Whatever it maps, touches and unmaps: what it can still touch without asking stays reserved.
        #[test]
        fn of_what_is_unmapped_only_what_nobody_can_touch_is_given_up(
            steps in prop::collection::vec(
                prop_oneof![
                    (0..20_000_u64).prop_map(Step::Allocate),
                    (0..20_000_u64).prop_map(Step::Touch),
                    (0..20_000_u64, 0..20_000_u64).prop_map(|(untouched, touched)| Step::Unmap(untouched, touched)),
                    (0..9_000_u64, 0..9_000_u64).prop_map(|(pages, touched)| Step::Map(pages, touched)),
                    Just(Step::Look),
                ],
                0..40,
            ),
            credit in 0..10_000_u64,
            untouched in 0..100_000_u64,
        ) {
            let mut model = Model { credit, untouched, resident: 50, writable: 500 + untouched };
            let mut reserved = credit + untouched;
            let mut snapshot = Snapshot::new(&model.statm(), 0, credit, reserved);
            for step in steps {
                model.take(step);
                if matches!(step, Step::Look) {
                    let gone = snapshot.unmapped(&model.statm(), reserved, 0, SMALL);
                    snapshot.forget_unmapped(gone);
                    reserved -= gone;
                    prop_assert!(reserved >= model.credit + model.untouched, "{reserved} {model:?}");
                }
            }
        }
    }

    #[test]
    fn a_heap_that_was_freed_untouched_is_reserved_no_more() {
        let mut model = Model {
            credit: 20,
            untouched: 9000,
            resident: 50,
            writable: 9050,
        };
        let mut snapshot = Snapshot::new(&model.statm(), 20, 20, 9020);
        model.take(Step::Unmap(8900, 30));
        // It may use its credit before it notices, and then once more.
        let left = 20 + 20 + 100 + 4096;
        assert_eq!(
            snapshot.unmapped(&model.statm(), 9020, 0, SMALL),
            9020 - left
        );
        // What may be unnoticed is bytes: of larger pages fewer.
        let large = PageSize::new(64 << 10).unwrap();
        let of_large = snapshot.unmapped(&model.statm(), 9020, 0, large);
        assert_eq!(of_large, 9020 - (20 + 20 + 100 + 256));
        snapshot.forget_unmapped(9020 - left);
        assert_eq!(snapshot.unmapped(&model.statm(), left, 0, SMALL), 0);
    }

    #[test]
    fn what_becomes_read_only_is_mapped_all_the_same() {
        let mut model = Model {
            untouched: 9000,
            resident: 5000,
            writable: 14_000,
            ..Model::default()
        };
        let snapshot = Snapshot::new(&model.statm(), 0, 0, 9000);
        model.writable -= 5000;
        let statm = Statm {
            size: Pages::new(model.writable + 5700),
            ..model.statm()
        };
        assert_eq!(snapshot.unmapped(&statm, 9000, 0, SMALL), 0);
    }

    /// A reservation was reduced by what had become resident, for good: the process, which knew nothing of it, took its
    /// credit twice.
    #[test]
    fn what_was_touched_and_given_back_is_reserved_again() {
        let mut model = Model {
            credit: 100,
            resident: 50,
            writable: 50,
            ..Model::default()
        };
        let mut snapshot = Snapshot::new(&model.statm(), 100, 100, 100);
        let mut reserved_after = |step| {
            model.take(step);
            snapshot.still_reserved(&model.statm(), 0, SMALL)
        };
        assert_eq!(reserved_after(Step::Allocate(100)), 100);
        assert_eq!(reserved_after(Step::Touch(80)), 20);
        assert_eq!(reserved_after(Step::GiveBack(80)), 100);
        assert_eq!(reserved_after(Step::Allocate(80)), 100);
        assert_eq!(snapshot.promised(), 100);
    }

    /// Memory mapped beside it hides what was touched, never the other way round.
    #[test]
    fn mappings_of_its_own_count_as_not_reserved() {
        let mut model = Model {
            credit: 100,
            ..Model::default()
        };
        let snapshot = Snapshot::new(&model.statm(), 100, 100, 100);
        model.take(Step::Allocate(100));
        model.take(Step::Map(300, 300));
        assert_eq!(snapshot.grown_by(&model.statm(), 0), 0);
        model.take(Step::Touch(40));
        assert_eq!(snapshot.grown_by(&model.statm(), 0), 40);
        assert_eq!(snapshot.grown_by(&model.statm(), 16), 24);
    }
}
