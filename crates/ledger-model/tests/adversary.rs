// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The adversary against the rules of today, and against those of before, which it must find wanting.

use bursar_ledger_model::{Breach, Current, Findings, Former, Move, Rules, Script};

/// Sequences in an ordinary run; all machines play the same ones.
const SEQUENCES: u64 = 1_000_000;
const LENGTH: usize = 40;
/// Sequences of bursts of short children.
const BURSTS: u64 = 2_000;

fn first_breach<R: Rules>(
    seeds: std::ops::Range<u64>,
    is_wanted: impl Fn(Breach) -> bool,
) -> Option<(u64, Breach)> {
    seeds.into_iter().find_map(|seed| {
        let breach = Findings::of::<R>(&Script::of(seed, LENGTH)).breach?;
        is_wanted(breach).then_some((seed, breach))
    })
}

#[test]
fn no_sequence_of_moves_gets_round_todays_rules() {
    let threads = std::thread::available_parallelism().map_or(1, |it| it.get() as u64);
    let share = SEQUENCES / threads;
    let found = std::thread::scope(|scope| {
        let begun: Vec<_> = (0..threads)
            .map(|it| {
                scope.spawn(move || first_breach::<Current>(it * share..(it + 1) * share, |_| true))
            })
            .collect();
        begun.into_iter().find_map(|it| it.join().unwrap())
    });
    if let Some((seed, breach)) = found {
        let moves = Script::of(seed, LENGTH).shrunk::<Current>();
        panic!("seed {seed}: {breach:?} by {:?}", moves.0);
    }
}

/// Sequences that once got round a rule of a draft.
#[test]
fn sequences_that_got_round_a_rule_once_do_not_any_more() {
    const SEEDS: &[u64] = &[2107, 6956, 377_922, 586_150];
    for &seed in SEEDS {
        let breach = Findings::of::<Current>(&Script::of(seed, LENGTH)).breach;
        assert_eq!(breach, None, "seed {seed}");
    }
}

#[test]
fn the_former_rules_are_got_round_by_memory_that_nobody_owns() {
    let script = Script(vec![
        Move::Spawn,
        Move::Keep(0, 1),
        Move::Exit(1, false),
        Move::Wait(5),
        Move::WriteOrphan(0, 48),
        Move::WriteOrphan(0, 48),
        Move::WriteOrphan(0, 48),
        Move::Wait(40),
        Move::Wait(40),
        Move::Wait(40),
        Move::Wait(40),
        Move::Wait(40),
        Move::Wait(40),
    ]);
    let breach = Findings::of::<Former>(&script).breach;
    assert!(matches!(breach, Some(Breach::TooLong(..))), "{breach:?}");
    assert_eq!(Findings::of::<Current>(&script).breach, None);
}

#[test]
fn the_former_rules_are_got_round_by_a_memfd_that_many_keep() {
    let mut moves = vec![Move::WriteFile(0, 40)];
    for _ in 0..10 {
        moves.push(Move::Fork(0));
    }
    for _ in 0..20 {
        moves.extend([Move::WriteFile(0, 48), Move::Fork(0), Move::Wait(20)]);
    }
    let script = Script(moves);
    let breach = Findings::of::<Former>(&script).breach;
    assert!(matches!(breach, Some(Breach::TooLong(..))), "{breach:?}");
    assert_eq!(Findings::of::<Current>(&script).breach, None);
}

#[test]
fn the_former_rules_are_got_round_by_the_dying_who_give_back_a_little() {
    let mut moves = Vec::new();
    for _ in 0..5 {
        moves.extend([
            Move::Spawn,
            Move::Grow(1, 48),
            Move::Exit(1, true),
            Move::Wait(1),
        ]);
    }
    moves.extend([Move::Wait(40); 8]);
    let script = Script(moves);
    let breach = Findings::of::<Former>(&script).breach;
    assert!(matches!(breach, Some(Breach::TooLong(..))), "{breach:?}");
    assert_eq!(Findings::of::<Current>(&script).breach, None);
}

#[test]
fn under_the_former_rules_an_innocent_dies_of_others_dear_scans() {
    let mut moves = vec![Move::Dear(50)];
    moves.extend([Move::Wait(40); 12]);
    let script = Script(moves);
    assert_eq!(
        Findings::of::<Former>(&script).breach,
        Some(Breach::Innocent)
    );
    assert_eq!(Findings::of::<Current>(&script).breach, None);
}

/// A large process within its limit forks short children, none of which writes: that costs nobody's life.
#[test]
fn short_children_of_a_large_process_live() {
    let kills = |seed| Findings::of::<Current>(&Script::of_short_children(seed)).kills;
    let costly: Vec<u64> = (0..BURSTS).filter(|&seed| kills(seed) > 0).collect();
    assert!(
        costly.is_empty(),
        "{} of {BURSTS} cost a life: seeds {:?} ...",
        costly.len(),
        &costly[..costly.len().min(8)]
    );
}

/// Without hints: it plays until it has found each kind.
#[test]
fn the_adversary_finds_the_former_rules_wanting_by_itself() {
    let too_long = first_breach::<Former>(0..20_000, |it| matches!(it, Breach::TooLong(..)));
    let innocent = first_breach::<Former>(0..20_000, |it| it == Breach::Innocent);
    assert!(
        too_long.is_some() && innocent.is_some(),
        "{too_long:?} {innocent:?}"
    );
}
