// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S5 section 3.2: its tables word by word, what must hold after any sequence, and how long it takes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bursar_policy::{Fractions, Frame, Mapped, NoShare, PageOwner, WHOLE_PAGE};
use proptest::prelude::*;

fn frame(number: u64) -> Frame {
    Frame::new(number).unwrap()
}

fn bc(number: u32) -> PageOwner {
    PageOwner::new(number).unwrap()
}

/// The shares of bc_1 … bc_4 as the denominators that S5 prints; 0: none.
fn denominators(fractions: &Fractions) -> [u64; 4] {
    [1, 2, 3, 4].map(|number| {
        let share = fractions.share_of(frame(7), bc(number));
        share.map_or(0, |parts| WHOLE_PAGE / parts)
    })
}

#[test]
fn a_page_mapped_by_four_in_turn_is_split_as_in_s5s_table() {
    let table = [
        (1, [1, 0, 0, 0]),
        (2, [2, 2, 0, 0]),
        (3, [2, 4, 4, 0]),
        (4, [4, 4, 4, 4]),
    ];
    let mut fractions = Fractions::new(100);
    for (who, expected) in table {
        fractions.map(frame(7), bc(who)).unwrap();
        assert_eq!(denominators(&fractions), expected, "after bc_{who}");
    }
}

#[test]
fn unmapping_gives_a_share_back_to_one_or_two_as_in_s5s_examples() {
    let mut fractions = Fractions::new(100);
    for who in 1..=4 {
        fractions.map(frame(7), bc(who)).unwrap();
    }
    // {1/4, 1/4, 1/4, 1/4} -> {1/2, 1/4, 1/4}: bc_4's went to bc_3 alone
    assert!(fractions.unmap(frame(7), bc(4)));
    assert_eq!(denominators(&fractions), [4, 4, 2, 0]);
    let in_ring: Vec<u64> = fractions
        .sharers(frame(7))
        .iter()
        .map(|(_, parts)| WHOLE_PAGE / parts)
        .collect();
    assert_eq!(in_ring, [2, 4, 4]);
    // {1/2, 1/4, 1/4} -> {1/2, 1/2}: bc_3's half went to two
    assert!(fractions.unmap(frame(7), bc(3)));
    assert_eq!(denominators(&fractions), [2, 2, 0, 0]);
}

#[test]
fn exact_thirds_of_a_page_are_a_whole_page_together() {
    let mut fractions = Fractions::new(100);
    for who in 1..=3 {
        fractions.map(frame(7), bc(who)).unwrap();
    }
    let exact = fractions.exact();
    assert_eq!(exact.values().sum::<u64>(), WHOLE_PAGE);
    let third = WHOLE_PAGE / 3;
    assert!(exact.values().all(|it| (third..=third + 1).contains(it)));
}

#[test]
fn a_table_that_is_full_refuses_and_changes_nothing() {
    let mut fractions = Fractions::new(2);
    assert_eq!(fractions.map(frame(1), bc(1)), Ok(Mapped::Alone));
    assert_eq!(fractions.map(frame(1), bc(2)), Ok(Mapped::Shared));
    assert_eq!(fractions.map(frame(1), bc(1)), Ok(Mapped::Already));
    assert_eq!(fractions.map(frame(2), bc(1)), Err(NoShare::Full(2)));
    assert_eq!(fractions.held(bc(1)), WHOLE_PAGE / 2);
    assert!(fractions.unmap(frame(1), bc(1)));
    assert_eq!(fractions.map(frame(2), bc(1)), Ok(Mapped::Alone));
}

#[test]
fn what_a_round_did_not_see_is_forgotten() {
    let mut fractions = Fractions::new(100);
    for (page, who) in [(1, 1), (1, 2), (2, 1)] {
        fractions.see(frame(page), bc(who), 1).unwrap();
    }
    fractions.see(frame(1), bc(2), 2).unwrap();
    fractions.forget_unseen(2);
    assert_eq!(
        (fractions.held(bc(1)), fractions.held(bc(2))),
        (0, WHOLE_PAGE)
    );
    assert_eq!((fractions.pages(), fractions.shares()), (1, 1));
}

/// What must hold, recomputed from nothing but the pages' sharers.
fn check(fractions: &Fractions, expected: &BTreeMap<u64, BTreeSet<u32>>) {
    let mut held: BTreeMap<u32, u64> = BTreeMap::new();
    let mut pages = 0;
    for (&page, owners) in expected.iter().filter(|(_, owners)| !owners.is_empty()) {
        pages += 1;
        let sharers = fractions.sharers(frame(page));
        let found: BTreeSet<u32> = sharers.iter().map(|(owner, _)| owner.get()).collect();
        assert_eq!(&found, owners);
        assert_eq!(sharers.len(), owners.len());
        assert!(sharers.iter().all(|(_, parts)| parts.is_power_of_two()));
        assert_eq!(
            sharers.iter().map(|(_, parts)| parts).sum::<u64>(),
            WHOLE_PAGE
        );
        // the larger shares first, and never more than twice another
        assert!(sharers.is_sorted_by(|a, b| a.1 >= b.1));
        assert!(sharers[0].1 <= 2 * sharers[sharers.len() - 1].1);
        for (owner, parts) in sharers {
            *held.entry(owner.get()).or_default() += parts;
        }
    }
    assert_eq!(fractions.pages(), pages);
    for (owner, parts) in &held {
        assert_eq!(fractions.held(bc(*owner)), *parts);
    }
    assert_eq!(held.values().sum::<u64>(), pages as u64 * WHOLE_PAGE);
    assert_eq!(
        fractions.exact().values().sum::<u64>(),
        pages as u64 * WHOLE_PAGE
    );
}

proptest! {
    #[test]
    fn shares_are_powers_of_two_and_one_together_after_any_sequence(
        steps in prop::collection::vec((0u64..4, 0u32..24, any::<bool>()), 0..400),
    ) {
        let mut fractions = Fractions::new(1000);
        let mut expected: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
        for (page, owner, maps) in steps {
            let owners = expected.entry(page).or_default();
            if maps {
                let is_new = owners.insert(owner);
                let mapped = fractions.map(frame(page), bc(owner)).unwrap();
                prop_assert_eq!(mapped != Mapped::Already, is_new);
            } else {
                prop_assert_eq!(fractions.unmap(frame(page), bc(owner)), owners.remove(&owner));
            }
            check(&fractions, &expected);
        }
    }
}

/// xorshift: a test that always does the same.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }
}

/// A million maps and unmaps of `pages` pages by `owners` accounts; the time of one.
fn million(pages: u64, owners: u64) -> Duration {
    const STEPS: u32 = 1_000_000;
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut fractions = Fractions::new(1 << 20);
    let mut expected: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    let steps: Vec<(u64, u32, bool)> = (0..STEPS)
        .map(|_| {
            let owner = u32::try_from(dice.below(owners)).unwrap();
            (dice.below(pages), owner, dice.below(5) < 3)
        })
        .collect();
    let began = Instant::now();
    for &(page, owner, maps) in &steps {
        if maps {
            fractions.map(frame(page), bc(owner)).unwrap();
        } else {
            fractions.unmap(frame(page), bc(owner));
        }
    }
    let spent = began.elapsed();
    for (page, owner, maps) in steps {
        let sharers = expected.entry(page).or_default();
        if maps {
            sharers.insert(owner);
        } else {
            sharers.remove(&owner);
        }
    }
    check(&fractions, &expected);
    spent / STEPS
}

#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "a million steps, timed: release builds only"
)]
fn a_million_maps_and_unmaps_leave_every_page_whole_and_take_the_same_time_each() {
    let few = million(4_000, 8);
    let many = million(64, 1_000);
    println!("a step: {few:?} with 8 accounts a page, {many:?} with 1,000");
    // A step that walked the ring would take a hundred times as long there.
    assert!(
        many < 10 * few.max(Duration::from_nanos(50)),
        "{few:?} {many:?}"
    );
}
