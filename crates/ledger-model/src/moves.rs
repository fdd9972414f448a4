// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The moves that an adversary may make.

/// What the adversary does next. Numbers choose among what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// A process faults in chunks.
    Grow(u8, u8),
    /// It forks.
    Fork(u8),
    /// It writes to chunks that it shares.
    Copy(u8, u8),
    /// It unmaps.
    Unmap(u8, u8),
    /// It ends, starved or not.
    Exit(u8, bool),
    /// Another one keeps its memory from now on.
    Keep(u8, u8),
    /// Whoever keeps lets go.
    Release(u8),
    /// One writes into memory that has no owner, as much as it gets.
    WriteOrphan(u8, u8),
    /// A new memfd, or chunks written to one.
    WriteFile(u8, u8),
    /// A descriptor is given to another process.
    Pass(u8, u8),
    /// A fresh process begins.
    Spawn,
    /// Its own PSS scans and its helpers' take so many times 10 ms.
    Dear(u8),
    /// The next PSS scan cannot look at it.
    Hide(u8),
    /// Who leaves next loses its processor in the middle of that, …
    Stall,
    /// … until now.
    GoOn,
    /// Time goes by: so many times 10 ms.
    Wait(u8),
}

impl Move {
    /// Any word is a move, but for those of of_leavers().
    pub fn of(word: u32) -> Self {
        let [what, a, b, _] = word.to_le_bytes();
        match what % 18 {
            0 | 1 => Self::Grow(a, b % 24 + 1),
            2 => Self::Fork(a),
            3 => Self::Copy(a, b % 24 + 1),
            4 => Self::Unmap(a, b % 8 + 1),
            5 | 6 => Self::Exit(a, b & 1 == 1),
            7 | 8 => Self::Keep(a, b),
            9 => Self::Release(a),
            10 | 11 => Self::WriteOrphan(a, b % 48 + 1),
            12 | 13 => Self::WriteFile(a, b % 48 + 1),
            14 => Self::Pass(a, b),
            15 => Self::Spawn,
            16 => Self::Dear(a % 60),
            _ => Self::Wait(a % 40 + 1),
        }
    }
}
