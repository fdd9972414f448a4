// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sequences of moves: of any kind, and of one kind each.

use crate::moves::Move;

/// Words of a seed (xorshift64*).
fn words(seed: u64) -> impl FnMut() -> u32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }
}

/// A sequence of moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script(pub Vec<Move>);

impl Script {
    /// The sequence of a seed.
    pub fn of(seed: u64, length: usize) -> Self {
        let mut next = words(seed);
        Self((0..length).map(|_| Move::of(next())).collect())
    }

    /// A process of three eighths to fifteen sixteenths of the limit forks children in bursts of 16. None of them
    /// writes, and each ends before the next burst.
    pub fn of_short_children(seed: u64) -> Self {
        let mut next = words(seed);
        let mut moves = vec![Move::Grow(0, 20 + (next() % 37) as u8)];
        for _ in 0..4 {
            let (mut to_fork, mut living) = (16, 0_u8);
            while to_fork > 0 || living > 0 {
                // The parent is the first of the living.
                match next() % 16 {
                    0 => moves.push(Move::Wait(1)),
                    1..=5 if living > 0 => {
                        moves.push(Move::Exit(1 + (next() % u32::from(living)) as u8, false));
                        living -= 1;
                    }
                    _ if to_fork > 0 => {
                        moves.push(Move::Fork(0));
                        (to_fork, living) = (to_fork - 1, living + 1);
                    }
                    _ => {}
                }
            }
            moves.push(Move::Wait((next() % 30) as u8));
        }
        Self(moves)
    }

    /// A process of three to five eighths of the limit has one child to sixteen all along. Each has a little of its own
    /// and ends soon: no more than a quarter of the limit is there beside the parent at any time.
    pub fn of_short_growers(seed: u64) -> Self {
        let mut next = words(seed);
        let mut moves = vec![
            Move::Dear((next() % 12) as u8),
            Move::Grow(0, 20 + (next() % 17) as u8),
        ];
        let (mut living, mut is_rising) = (0_u8, true);
        for _ in 0..160 {
            is_rising = living < 2 || (is_rising && living < 16);
            // The parent is the first of the living.
            match next() % 16 {
                0 => moves.push(Move::Wait(1 + (next() % 3) as u8)),
                it if living > 1 && is_rising == (it < 4) => {
                    moves.push(Move::Exit(1 + (next() % u32::from(living)) as u8, false));
                    living -= 1;
                }
                _ if living < 16 => {
                    living += 1;
                    moves.extend([Move::Fork(0), Move::Grow(living, 1)]);
                }
                _ => {}
            }
        }
        moves.extend((0..living).map(|_| Move::Exit(1, false)));
        Self(moves)
    }

    /// Processes that grow, hand their pages on by forks, and leave, some of them slowly; and PSS scans that cannot look
    /// at each of them.
    pub fn of_leavers(seed: u64, length: usize) -> Self {
        let mut next = words(seed);
        let mut make = || {
            let [what, a, b, _] = next().to_le_bytes();
            match what % 20 {
                0..=4 => Move::Grow(a, b % 24 + 1),
                5..=7 => Move::Fork(a),
                8..=11 => Move::Exit(a, false),
                12 => Move::Copy(a, b % 12 + 1),
                13 => Move::Unmap(a, b % 8 + 1),
                14 => Move::Spawn,
                15 => Move::Hide(a),
                16 => Move::Stall,
                17 => Move::GoOn,
                18 => Move::Dear(a % 60),
                _ => Move::Wait(a % 20 + 1),
            }
        };
        Self((0..length).map(|_| make()).collect())
    }
}
