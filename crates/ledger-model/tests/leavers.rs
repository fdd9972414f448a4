// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who leaves takes what it grew off its account's growth: what that saves, and what it must not make possible.

use bursar_ledger_model::drafts::{
    DyingAsBefore, Late, Proposed, ProposedAfter, ProposedDyingAsBefore, Relay, SeenOrNot,
    SinkFirst, Unseen,
};
use bursar_ledger_model::{Current, Findings, Move, Rules, Script};

const LENGTH: usize = 40;
/// Sequences in an ordinary run; `LEAVERS=200000` plays more.
const SEQUENCES: u64 = 10_000;
/// Sequences of short children.
const BURSTS: u64 = 2_000;

fn sequences() -> u64 {
    let told = std::env::var("LEAVERS").ok();
    told.and_then(|it| it.parse().ok()).unwrap_or(SEQUENCES)
}

/// By so much more is held than limit and growth under these rules, where nothing more is under those without them.
fn gain<Without: Rules, With: Rules>(script: &Script) -> i64 {
    let (without, with) = (
        Findings::of::<Without>(script),
        Findings::of::<With>(script),
    );
    with.untold - without.untold
}

fn first_gain<Without: Rules, With: Rules>(mut seeds: std::ops::Range<u64>) -> Option<(u64, i64)> {
    seeds.find_map(|seed| {
        let gained = gain::<Without, With>(&Script::of_leavers(seed, LENGTH));
        (gained > 0).then_some((seed, gained))
    })
}

/// Each process grows, hands its pages to the next one by a fork, and leaves.
fn relay() -> Script {
    let mut moves = vec![Move::Dear(59), Move::Grow(0, 30), Move::Fork(0)];
    for _ in 0..12 {
        moves.extend([Move::Grow(1, 6), Move::Fork(1), Move::Exit(1, false)]);
    }
    Script(moves)
}

#[test]
fn growth_is_handed_on_by_forks_where_nobody_asks_for_them() {
    let most = |it: Findings| it.most;
    let without = most(Findings::of::<Current>(&relay()));
    assert!(most(Findings::of::<Relay>(&relay())) >= without + 8);
    assert_eq!(most(Findings::of::<Proposed>(&relay())), without);
    assert!(first_gain::<Current, Relay>(0..2_000).is_some());
}

/// A victim of 31 MiB loses its processor after the sum has sunk by it. The account comes within its limit, which sets
/// its growth back, and grows again; then the victim goes on.
#[test]
fn what_was_grown_before_is_taken_off_after_growth_was_set_back_where_nobody_asks() {
    let script = Script(vec![
        Move::Spawn,
        Move::Exit(0, false),
        Move::Grow(0, 23),
        Move::Grow(0, 7),
        Move::Fork(0),
        Move::Grow(1, 22),
        Move::Fork(0),
        Move::Stall,
        Move::Grow(2, 17),
        Move::Grow(1, 17),
        Move::GoOn,
    ]);
    assert!(gain::<SinkFirst, Late>(&script) > 0);
    assert_eq!(gain::<SinkFirst, ProposedAfter>(&script), 0);
    assert_eq!(gain::<Current, Proposed>(&script), 0);
    assert!(first_gain::<SinkFirst, Late>(0..4_000).is_some());
}

/// One that a scan met and the next could not look at.
#[test]
fn the_level_is_below_the_truth_where_who_could_not_be_looked_at_leaves_with_too_little() {
    let script = Script(vec![
        Move::Grow(0, 10),
        Move::Fork(0),
        Move::Grow(0, 20),
        Move::Fork(0),
        Move::Grow(1, 10),
        Move::Hide(0),
        Move::Fork(1),
        Move::Grow(2, 24),
    ]);
    let below = |it: Findings| it.below;
    assert!(below(Findings::of::<Unseen>(&script)) > 10);
    assert!(below(Findings::of::<Current>(&script)) <= 1);
}

/// One of two that share 50 MiB is dying when the other is looked at, which seems to have half of them.
#[test]
fn the_level_is_below_the_truth_where_of_the_dying_too_little_is_taken_off() {
    let script = Script(vec![
        Move::Grow(0, 19),
        Move::Grow(0, 7),
        Move::Grow(0, 20),
        Move::Spawn,
        Move::Spawn,
        Move::Fork(0),
        Move::Grow(2, 20),
    ]);
    assert!(Findings::of::<DyingAsBefore>(&script).below > 10);
    assert!(Findings::of::<Current>(&script).below <= 1);
}

/// Needs many sequences: what such a process grew is taken for its own, and others have it.
#[test]
fn who_could_not_be_looked_at_takes_nothing_off_growth() {
    let script = Script::of_leavers(11_674, LENGTH);
    assert!(gain::<Unseen, SeenOrNot>(&script) > 0);
    assert_eq!(gain::<Current, Proposed>(&script), 0);
}

#[test]
fn no_sequence_of_leavers_gets_further_than_without_the_rule() {
    let found = (0..sequences()).find_map(|seed| {
        let script = Script::of_leavers(seed, LENGTH);
        let with = Findings::of::<Proposed>(&script);
        let is_worse = with.untold > 0 && with.untold > Findings::of::<Current>(&script).untold;
        (with.breach.is_some() || is_worse).then_some((seed, with.breach, with.untold))
    });
    assert_eq!(found, None);
}

/// The rule needs that the dying are reckoned with in full: a level below the truth sets growth back too soon, and what
/// leavers leave there makes up for it.
#[test]
fn where_of_the_dying_too_little_is_taken_off_the_rule_gets_further() {
    let script = Script::of_leavers(19_152, LENGTH);
    assert!(gain::<DyingAsBefore, ProposedDyingAsBefore>(&script) > 0);
    assert_eq!(gain::<Current, Proposed>(&script), 0);
}

/// Among all moves of the other adversary, too.
#[test]
fn no_other_sequence_gets_round_the_proposed_rules() {
    let found = (0..sequences()).find_map(|seed| {
        let breach = Findings::of::<Proposed>(&Script::of(seed, LENGTH)).breach?;
        Some((seed, breach))
    });
    assert_eq!(found, None);
}

/// What each has of its own goes with it. Today's rules let it stand: then growth ends the wait.
#[test]
fn short_children_that_grow_a_little_live() {
    let lost = |kills: fn(&Script) -> u32| {
        let scripts = (0..BURSTS).map(Script::of_short_growers);
        scripts.filter(|it| kills(it) > 0).count()
    };
    assert!(lost(|it| Findings::of::<Current>(it).kills) > 1_000);
    assert_eq!(lost(|it| Findings::of::<Proposed>(it).kills), 0);
}

#[test]
fn short_children_that_do_not_grow_live_still() {
    let kills = |seed| Findings::of::<Proposed>(&Script::of_short_children(seed)).kills;
    assert_eq!((0..BURSTS).filter(|&seed| kills(seed) > 0).count(), 0);
}
