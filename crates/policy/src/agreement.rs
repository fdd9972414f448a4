// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether two figures of the same thing agree, although neither was read in one moment and both may
//! move meanwhile: the ledger's and /proc's (`bursar doctor`).

use bursar_model::Bytes;

/// The least and the most that was seen of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    least: Bytes,
    most: Bytes,
}

/// What came of a comparison, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Agreement {
    /// No further apart than they may be.
    Within,
    /// Further apart, but the ledger itself moved by more than the bound meanwhile: that says nothing.
    Moving,
    /// Further apart although the ledger stood still.
    Out,
}

impl Span {
    /// Seen once.
    pub const fn new(seen: Bytes) -> Self {
        Self {
            least: seen,
            most: seen,
        }
    }

    /// Seen again.
    pub fn include(&mut self, seen: Bytes) {
        self.least = self.least.min(seen);
        self.most = self.most.max(seen);
    }

    /// The least that was seen.
    pub const fn least(&self) -> Bytes {
        self.least
    }

    /// The most that was seen.
    pub const fn most(&self) -> Bytes {
        self.most
    }

    /// By how much it moved.
    pub const fn spread(&self) -> Bytes {
        self.most.saturating_sub(self.least)
    }

    /// How far the two are apart at the least; nothing where they meet.
    pub const fn distance(&self, other: &Self) -> Bytes {
        let above = self.least.saturating_sub(other.most);
        let below = other.least.saturating_sub(self.most);
        above.saturating_add(below) // one of them is nothing
    }
}

/// Compares the ledger with /proc, which may differ by `bound`.
pub fn agreement(ledger: &Span, proc: &Span, bound: Bytes) -> Agreement {
    if ledger.distance(proc) <= bound {
        Agreement::Within
    } else if ledger.spread() > bound {
        Agreement::Moving
    } else {
        Agreement::Out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(least: u64, most: u64) -> Span {
        let mut span = Span::new(Bytes::new(least));
        span.include(Bytes::new(most));
        span
    }

    #[test]
    fn movement_excuses_only_what_moved() {
        let bound = Bytes::new(10);
        let table = [
            (span(100, 100), span(110, 110), Agreement::Within),
            (span(100, 100), span(89, 89), Agreement::Out),
            (span(100, 100), span(111, 400), Agreement::Out),
            (span(100, 150), span(120, 120), Agreement::Within),
            (span(100, 150), span(161, 161), Agreement::Moving),
            (span(100, 110), span(121, 121), Agreement::Out),
            // What is dying may be in one already and in the other not.
            (span(100, 100), span(60, 200), Agreement::Within),
        ];
        for (ledger, proc, expected) in table {
            assert_eq!(
                agreement(&ledger, &proc, bound),
                expected,
                "{ledger:?} {proc:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn distance_is_the_same_seen_from_both_sides(a: u64, b: u64, c: u64, d: u64) {
            let (one, other) = (span(a, b), span(c, d));
            prop_assert_eq!(one.distance(&other), other.distance(&one));
            let meet = one.least() <= other.most() && other.least() <= one.most();
            prop_assert_eq!(one.distance(&other) == Bytes::ZERO, meet);
        }
    }
}
