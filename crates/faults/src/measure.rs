// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S3's experiment: what a first touch costs against a touch of resident, locked memory.
//!
//! Each case prepares pages, touches each once, and compares the faults that getrusage counts with the
//! number that must come. Nothing is estimated: a count that differs is reported as wrong.

mod conditions;
mod pass;

use bursar_model::Bytes;
use serde::Serialize;

use self::conditions::SmallPages;
use self::pass::{Refused, pass};
use crate::{Capacity, Error, Faults};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    /// S3: posix_memalign page by page, first touch.
    Memalign,
    /// The same pages again.
    MemalignAgain,
    /// One mapping, first touch.
    Mapping,
    /// The same pages again: resident.
    MappingAgain,
    /// After mlockall (S3's second run).
    Locked,
    /// mlock of as much as RLIMIT_MEMLOCK allows.
    LockedByLimit,
    /// MAP_POPULATE.
    Populated,
    /// Huge pages, first touch.
    Huge,
    /// First write after fork: copy-on-write.
    AfterFork,
}

/// All cases, in the order of the table.
pub const CASES: [Case; 9] = [
    Case::Memalign,
    Case::MemalignAgain,
    Case::Mapping,
    Case::MappingAgain,
    Case::Locked,
    Case::LockedByLimit,
    Case::Populated,
    Case::Huge,
    Case::AfterFork,
];

/// One pass over the pages of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Pass {
    /// How long touching all pages took, nanoseconds.
    pub touch_ns: u64,
    /// Faults while touching.
    pub faults: Faults,
    /// Faults that had to come.
    pub expected: u64,
    /// How long preparing took (mapping, locking, populating), nanoseconds.
    pub prepare_ns: u64,
    /// Faults while preparing: populate and mlock count as well.
    pub prepare_faults: Faults,
}

/// What came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Measurement {
    /// The case.
    pub case: Case,
    /// Pages touched in each pass.
    pub pages: u64,
    /// The passes; none where it was refused.
    pub passes: Vec<Pass>,
    /// Why there are none, or something to know about the figures.
    pub remark: Option<String>,
}

impl Case {
    /// What it is, for the table.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Memalign => "posix_memalign one by one, first touch",
            Self::MemalignAgain => "  touched again: resident",
            Self::Mapping => "one mapping, first touch",
            Self::MappingAgain => "  touched again: resident",
            Self::Locked => "mlockall, then first touch",
            Self::LockedByLimit => "mlock within RLIMIT_MEMLOCK, first touch",
            Self::Populated => "MAP_POPULATE, first touch",
            Self::Huge => "huge pages, first touch",
            Self::AfterFork => "first write after fork: copy-on-write",
        }
    }
}

impl Measurement {
    /// Whether all counts are as they must be.
    pub fn is_right(&self) -> bool {
        self.passes
            .iter()
            .all(|pass| pass.faults.total() == pass.expected)
    }

    /// The pass with the median time.
    pub fn median(&self) -> Option<Pass> {
        let mut passes = self.passes.clone();
        passes.sort_by_key(|pass| pass.touch_ns);
        passes.get(passes.len() / 2).copied()
    }

    /// Shortest and longest time, nanoseconds.
    pub fn spread_ns(&self) -> Option<(u64, u64)> {
        let times = self.passes.iter().map(|pass| pass.touch_ns);
        Some((times.clone().min()?, times.max()?))
    }
}

/// Fewer pages than these are not worth a batch.
const SMALLEST_BATCH: u64 = 4096;

/// Pages that can be measured at once with so much memory. The copies after a fork, and the pages in which
/// malloc keeps its headers, take as much again; page tables and the table of addresses take the rest.
fn batch_of(case: Case, available: Bytes) -> u64 {
    let page = rustix::param::page_size() as u64;
    let pages_each = match case {
        Case::Memalign | Case::MemalignAgain | Case::AfterFork => 2,
        _ => 1,
    };
    available.get() / (page * pages_each + 64)
}

/// Measures `cases`, each `passes` times, and tells `found` of each as soon as it is there. What does not fit
/// into the machine's free memory, or into `most`, at once is measured in batches, whose pages are given
/// back in between.
///
/// # Errors
/// When memory cannot be had, not even for a small batch.
pub fn measure(
    pages: u64,
    passes: u32,
    most: Option<Bytes>,
    cases: &[Case],
    mut found: impl FnMut(Measurement),
) -> Result<(), Error> {
    let small = SmallPages::only();
    for &case in cases {
        let mut capacity = Capacity::ours()?;
        capacity.available = most.map_or(capacity.available, |most| most.min(capacity.available));
        let batch = batch_of(case, capacity.available);
        if batch < SMALLEST_BATCH.min(pages) {
            return Err(Error::TooLarge(format!(
                "{} of memory can be had, which is too little to measure {} pages at once; free some, raise \
                 --memory, or measure fewer (--pages)",
                capacity.available,
                SMALLEST_BATCH.min(pages)
            )));
        }
        found(measured(case, pages, passes, batch.min(pages), &capacity)?);
    }
    drop(small);
    Ok(())
}

fn measured(
    case: Case,
    pages: u64,
    passes: u32,
    batch: u64,
    capacity: &Capacity,
) -> Result<Measurement, Error> {
    let mut measurement = Measurement {
        case,
        pages,
        passes: Vec::new(),
        remark: None,
    };
    for _ in 0..passes {
        match pass(case, pages, batch, capacity)? {
            Ok((pass, touched)) => {
                measurement.pages = touched;
                measurement.passes.push(pass);
            }
            Err(Refused(reason)) => {
                measurement.remark = Some(reason);
                break;
            }
        }
    }
    if batch < measurement.pages && measurement.remark.is_none() {
        measurement.remark = Some(format!(
            "in {} batches of at most {batch} pages, because {} of memory can be had at once",
            measurement.pages.div_ceil(batch.max(1)),
            capacity.available
        ));
    }
    if case == Case::Huge
        && measurement
            .median()
            .is_some_and(|pass| pass.expected >= measurement.pages)
    {
        measurement.remark = Some(
            "the kernel gave no huge pages (transparent_hugepage is never, or none are free)"
                .into(),
        );
    }
    Ok(measurement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_million_pages_of_s3_fit_into_eight_gib_in_two_batches() {
        // What a machine of 8 GiB can give: MemAvailable of an idle one, less the others' share.
        let available = Bytes::from_mib(7400);
        let batches = |case| 1_048_576_u64.div_ceil(batch_of(case, available));
        let table = [
            (Case::Memalign, 2),
            (Case::AfterFork, 2),
            (Case::Mapping, 1),
            (Case::Locked, 1),
        ];
        for (case, expected) in table {
            assert_eq!(batches(case), expected, "{case:?}");
        }
    }

    #[test]
    fn batches_add_up_to_the_pages_asked_for_and_counts_stay_exact() {
        let capacity = Capacity::ours().unwrap();
        let small = SmallPages::only();
        // Not malloc's: in a thread of its own (a test's) it gives nothing back in between.
        for case in [Case::Mapping, Case::MappingAgain, Case::AfterFork] {
            let found = measured(case, 1000, 1, 300, &capacity).unwrap();
            assert!(found.is_right(), "{found:?}");
            assert_eq!(found.pages, 1000);
            let expected = if case == Case::MappingAgain { 0 } else { 1000 };
            assert_eq!(found.median().unwrap().faults.total(), expected);
            assert!(found.remark.unwrap().starts_with("in 4 batches"));
        }
        drop(small);
    }
}
