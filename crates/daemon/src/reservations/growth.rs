// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of a process's reservation has become resident, judged from outside.
//!
//! A process that was granted memory touches it when it likes, and tells nobody. Its resident memory
//! grows by what it touches; also by memory that it did not reserve (mappings of its own). Of that what
//! was mapped after the grant is known: its writable memory grew by more than was granted. Where in doubt
//! it counts as not touched, so that too much stays reserved rather than too little.
//!
//! The doubt that remains: memory that the process had mapped before, did not reserve, and touches only
//! now (a stack, a heap of Java's). By that much, until the process renews, too little may be reserved.

use bursar_host::Statm;

/// A process when it was granted something.
#[derive(Debug, Clone, Copy)]
pub(super) struct Snapshot {
    resident: u64,
    writable: u64,
    /// By how much its writable memory may grow because of the grant.
    granted: u64,
}

impl Snapshot {
    pub(super) const fn new(now: &Statm, granted: u64) -> Self {
        Self {
            resident: now.anonymous.get(),
            writable: now.data.get(),
            granted,
        }
    }

    /// Pages of what it had reserved that are resident now and were not then; `error`: by how much two
    /// readings of a counter may differ.
    pub(super) fn grown_by(&self, now: &Statm, error: u64) -> u64 {
        let mapped = now.data.get().saturating_sub(self.writable);
        let unreserved = mapped.saturating_sub(self.granted);
        let grown = now.anonymous.get().saturating_sub(self.resident);
        grown.saturating_sub(unreserved).saturating_sub(error)
    }

    /// From now on growth counts from here.
    pub(super) fn advance(&mut self, now: &Statm) {
        let mapped = now.data.get().saturating_sub(self.writable);
        self.granted = self.granted.saturating_sub(mapped);
        self.resident = now.anonymous.get();
        self.writable = now.data.get();
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::Pages;
    use proptest::prelude::*;

    use super::*;

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
        /// Maps memory that it did not reserve, and touches a part.
        Map(u64, u64),
        Look,
    }

    impl Model {
        fn statm(self) -> Statm {
            Statm {
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
                Step::Map(pages, touched) => {
                    self.writable += pages;
                    self.resident += touched.min(pages);
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
            Just(Step::Look),
        ];
        prop::collection::vec(step, 0..40)
    }

    proptest! {
        /// Without memory of other kinds nothing that was granted is ever unreserved, and what was touched is
        /// seen.
        #[test]
        fn what_is_not_resident_stays_reserved(steps in steps(), granted in 0..1000_u64) {
            let mut model = Model { credit: granted, resident: 50, writable: 500, ..Model::default() };
            let mut snapshot = Snapshot::new(&model.statm(), granted);
            let mut reserved = granted;
            for step in steps {
                model.take(step);
                if matches!(step, Step::Look) {
                    reserved -= snapshot.grown_by(&model.statm(), 0);
                    snapshot.advance(&model.statm());
                    prop_assert_eq!(reserved, model.credit + model.untouched);
                }
            }
        }
    }

    /// Memory mapped beside it hides what was touched, never the other way round.
    #[test]
    fn mappings_of_its_own_count_as_not_reserved() {
        let mut model = Model {
            credit: 100,
            ..Model::default()
        };
        let snapshot = Snapshot::new(&model.statm(), 100);
        model.take(Step::Allocate(100));
        model.take(Step::Map(300, 300));
        assert_eq!(snapshot.grown_by(&model.statm(), 0), 0);
        model.take(Step::Touch(40));
        assert_eq!(snapshot.grown_by(&model.statm(), 0), 40);
        assert_eq!(snapshot.grown_by(&model.statm(), 16), 24);
    }
}
