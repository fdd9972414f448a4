// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the programs have booked for each mapping: a thread's whole growth for the kernel, and from
//! there moved to the mappings in which its faults began (bpf/faults.bpf.c "Counts").

use std::collections::BTreeMap;

/// Faults of one mapping. Negative while a move is half seen, and where a fault began that was not
/// served (SIGSEGV, one tried again after a signal).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Booked {
    pub(crate) minor: i64,
    pub(crate) major: i64,
}

impl Booked {
    /// Adds a CPU's part; such parts are what they are only in sum.
    pub(crate) const fn add(&mut self, minor: u64, major: u64) {
        self.minor = self.minor.wrapping_add(minor.cast_signed());
        self.major = self.major.wrapping_add(major.cast_signed());
    }

    /// What came since.
    pub(crate) const fn since(self, earlier: Self) -> Self {
        Self {
            minor: self.minor.wrapping_sub(earlier.minor),
            major: self.major.wrapping_sub(earlier.major),
        }
    }
}

/// Makes nothing negative: what a mapping lacks is taken from those of its process that have most. Sums
/// of a process stay as they are, but for one that is negative itself (a look at a moment between two
/// steps): that becomes 0.
pub(crate) fn balance(booked: &mut [Booked], process_of: impl Fn(usize) -> u32) {
    balance_one(booked, |it| &mut it.minor, &process_of);
    balance_one(booked, |it| &mut it.major, &process_of);
}

fn balance_one(
    booked: &mut [Booked],
    field: impl Fn(&mut Booked) -> &mut i64,
    process_of: impl Fn(usize) -> u32,
) {
    for index in 0..booked.len() {
        let Some(own) = booked.get_mut(index).map(&field) else {
            continue;
        };
        let mut lack = std::mem::replace(own, (*own).max(0)).min(0).unsigned_abs();
        while lack > 0 {
            let richest = booked
                .iter_mut()
                .enumerate()
                .filter(|(other, _)| process_of(*other) == process_of(index))
                .map(|(_, it)| field(it))
                .max_by_key(|count| **count)
                .filter(|count| **count > 0);
            let Some(richest) = richest else { break };
            let taken = lack.min(richest.unsigned_abs());
            *richest -= taken.cast_signed();
            lack -= taken;
        }
    }
}

/// One process' faults while they are shared out.
#[derive(Default)]
struct Share {
    unseen: i128,
    seen: i128,
    /// Of those seen, the mappings met so far, and what they were given.
    up_to: i128,
    given: i128,
}

/// Shares out minor faults that nobody saw (`is_unseen`) among the other mappings of their process, as
/// those that were seen; where none was they stay. Returns how many were shared out. After [`balance`].
pub(crate) fn spread(
    booked: &mut [Booked],
    process_of: impl Fn(usize) -> u32,
    is_unseen: impl Fn(usize) -> bool,
) -> u64 {
    let mut shares: BTreeMap<u32, Share> = BTreeMap::new();
    for (index, it) in booked.iter().enumerate() {
        let share = shares.entry(process_of(index)).or_default();
        if is_unseen(index) {
            share.unseen += i128::from(it.minor);
        } else {
            share.seen += i128::from(it.minor);
        }
    }
    shares.retain(|_, share| share.unseen > 0 && share.seen > 0);
    for (index, it) in booked.iter_mut().enumerate() {
        let Some(share) = shares.get_mut(&process_of(index)) else {
            continue;
        };
        if is_unseen(index) {
            it.minor = 0;
            continue;
        }
        // What is due up to here less what was given up to here: so the parts add up.
        share.up_to += i128::from(it.minor);
        let due = share.unseen * share.up_to / share.seen;
        it.minor += i64::try_from(due - share.given).unwrap_or(0);
        share.given = due;
    }
    let sum: i128 = shares.values().map(|share| share.unseen).sum();
    u64::try_from(sum).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_the_kernel_lacks_is_taken_from_the_mapping_with_most() {
        // 500 began, 2 of them were not served.
        let minor = |minor| Booked { minor, major: 0 };
        let mut booked = [minor(0), minor(-2), minor(20), minor(480), minor(7)];
        balance(&mut booked, |index| u32::from(index == 4));
        assert_eq!(
            booked,
            [minor(0), minor(0), minor(20), minor(478), minor(7)]
        );
    }

    #[test]
    fn what_nobody_saw_is_shared_out_as_what_was_seen() {
        let minor = |minor| Booked { minor, major: 0 };
        let is_unseen = |index| index == 1 || index == 5;
        let process_of = |index| u32::from(index >= 4);
        // The second process was never seen.
        let mut booked = [10, 1000, 90, 0, 0, 7].map(minor);
        assert_eq!(spread(&mut booked, process_of, is_unseen), 1000);
        assert_eq!(booked, [110, 0, 990, 0, 0, 7].map(minor));
    }

    proptest! {
        #[test]
        fn sharing_out_keeps_sums(counts in prop::collection::vec(0i64..i64::MAX / 64, 4..40)) {
            let mut booked: Vec<Booked> =
                counts.iter().map(|&minor| Booked { minor, major: 0 }).collect();
            let all = |booked: &[Booked]| booked.iter().map(|it| it.minor).sum::<i64>();
            let (before, first) = (all(&booked), counts[0]);
            spread(&mut booked, |_| 0, |index| index == 0);
            prop_assert_eq!(all(&booked), before);
            prop_assert!(booked[0].minor == 0 || booked[0].minor == first);
            prop_assert!(booked.iter().zip(&counts).skip(1).all(|(it, was)| it.minor >= *was));
        }

        #[test]
        fn sums_stay_and_nothing_is_negative(
            counts in prop::collection::vec((-50i64..500, -5i64..50), 1..40),
        ) {
            let mut booked: Vec<Booked> =
                counts.iter().map(|&(minor, major)| Booked { minor, major }).collect();
            let sum = |booked: &[Booked], process: usize| {
                let of = booked.iter().skip(process).step_by(3);
                of.fold((0, 0), |(minor, major), it| (minor + it.minor, major + it.major))
            };
            let before: Vec<_> = (0..3).map(|process| sum(&booked, process)).collect();
            balance(&mut booked, |index| u32::try_from(index % 3).unwrap_or(0));
            for (process, (minor, major)) in before.into_iter().enumerate() {
                prop_assert_eq!(sum(&booked, process), (minor.max(0), major.max(0)));
            }
            prop_assert!(booked.iter().all(|it| it.minor >= 0 && it.major >= 0));
        }
    }
}
