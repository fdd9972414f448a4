// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long faults took: counts in buckets, four for each power of two of nanoseconds, so that a
//! figure read from it is off by less than a quarter.

use serde::Serialize;

/// Spans in buckets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    sum_ns: u64,
    max_ns: u64,
}

/// One bucket that is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// Its spans are at least this long, nanoseconds.
    pub from_ns: u64,
    /// And shorter than this.
    pub below_ns: u64,
    /// Faults in this bucket.
    pub count: u64,
}

/// The bucket of a span; faults.bpf.c has the same (`bucket_of`), and a test compares them.
pub const fn bucket_of(ns: u64) -> usize {
    if ns < 4 {
        return ns as usize;
    }
    let log = ns.ilog2();
    (log as usize) << 2 | ((ns >> (log - 2)) & 3) as usize
}

/// The shortest span of a bucket, nanoseconds.
const fn floor_of(bucket: usize) -> u64 {
    if bucket < 8 {
        return if bucket < 4 { bucket as u64 } else { 4 };
    }
    let log = (bucket >> 2) as u32;
    if log > 63 {
        return u64::MAX;
    }
    (1 << log) | (((bucket & 3) as u64) << (log - 2))
}

impl Histogram {
    /// Of these counts, in the order of [`bucket_of`].
    pub fn new(counts: Vec<u64>, sum_ns: u64, max_ns: u64) -> Self {
        Self {
            counts,
            sum_ns,
            max_ns,
        }
    }

    /// Adds one span.
    pub fn add(&mut self, ns: u64) {
        let bucket = bucket_of(ns);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket.saturating_add(1), 0);
        }
        if let Some(count) = self.counts.get_mut(bucket) {
            *count = count.saturating_add(1);
        }
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// How many spans.
    pub fn count(&self) -> u64 {
        self.counts
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Their mean, nanoseconds; `None` of nothing.
    pub fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count())
    }

    /// The longest, nanoseconds; exact.
    pub fn max_ns(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.max_ns)
    }

    /// A span that `permille` of all are not longer than, nanoseconds, up to a quarter too long.
    pub fn quantile_ns(&self, permille: u64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = (u128::from(count) * u128::from(permille))
            .div_ceil(1000)
            .max(1);
        let mut met: u128 = 0;
        for bucket in self.buckets() {
            met = met.saturating_add(u128::from(bucket.count));
            if met >= rank {
                return Some(bucket.below_ns.saturating_sub(1).min(self.max_ns));
            }
        }
        Some(self.max_ns)
    }

    /// The buckets that are not empty, shortest spans first.
    pub fn buckets(&self) -> Vec<Bucket> {
        let filled = self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0);
        filled
            .map(|(bucket, &count)| Bucket {
                from_ns: floor_of(bucket),
                below_ns: ceiling_of(bucket),
                count,
            })
            .collect()
    }
}

/// The first longer span that another bucket takes.
fn ceiling_of(bucket: usize) -> u64 {
    match bucket {
        0..=3 => bucket as u64 + 1,
        // Buckets 4 to 7 stay empty: spans below 4 have their own, and 4 itself is in bucket 8.
        4..=7 => 4,
        _ => floor_of(bucket.saturating_add(1)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_span_is_inside_its_bucket(ns in 0..u64::MAX >> 1) {
            let mut histogram = Histogram::default();
            histogram.add(ns);
            let [bucket] = histogram.buckets()[..] else { panic!() };
            prop_assert!(bucket.from_ns <= ns && ns < bucket.below_ns, "{ns} {bucket:?}");
            prop_assert!(bucket_of(ns) < 256);
            // A quarter of the power of two below it.
            prop_assert!(bucket.below_ns - bucket.from_ns <= (ns / 4).max(1));
        }

        #[test]
        fn quantiles_never_shrink(spans in prop::collection::vec(0u64..10_000_000, 1..50)) {
            let mut histogram = Histogram::default();
            for ns in &spans {
                histogram.add(*ns);
            }
            let (half, most, all) = (
                histogram.quantile_ns(500).unwrap(),
                histogram.quantile_ns(990).unwrap(),
                histogram.max_ns().unwrap(),
            );
            prop_assert!(half <= most && most <= all);
            prop_assert_eq!(all, *spans.iter().max().unwrap());
        }
    }

    #[test]
    fn nothing_has_no_figures() {
        let empty = Histogram::default();
        assert_eq!(
            (empty.mean_ns(), empty.max_ns(), empty.quantile_ns(500)),
            (None, None, None)
        );
    }
}
