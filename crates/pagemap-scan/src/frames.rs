// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Page frames met, a bit each.

use std::collections::HashMap;

const BITS: u64 = 64;
/// Frames of one block; 16 MiB of memory.
const BLOCK: u64 = 4096;

/// A set of frame numbers. A block of 512 bytes for every 16 MiB of the machine that has any.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    blocks: HashMap<u64, Box<[u64; (BLOCK / BITS) as usize]>>,
    count: u64,
}

impl Frames {
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.count = 0;
    }

    /// Adds one; false when it was there.
    pub(crate) fn insert(&mut self, frame: u64) -> bool {
        let block = self
            .blocks
            .entry(frame / BLOCK)
            .or_insert_with(|| Box::new([0; (BLOCK / BITS) as usize]));
        let at = usize::try_from(frame % BLOCK / BITS).unwrap_or(0);
        let bit = 1 << (frame % BITS);
        let Some(word) = block.get_mut(at) else {
            return false;
        };
        let is_new = *word & bit == 0;
        *word |= bit;
        self.count += u64::from(is_new);
        is_new
    }

    pub(crate) fn contains(&self, frame: u64) -> bool {
        let at = usize::try_from(frame % BLOCK / BITS).unwrap_or(0);
        self.blocks
            .get(&(frame / BLOCK))
            .and_then(|block| block.get(at))
            .is_some_and(|word| word & (1 << (frame % BITS)) != 0)
    }

    pub(crate) fn len(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_is_there_once() {
        let mut frames = Frames::default();
        for frame in [0, 63, 64, 4095, 4096, 1 << 39] {
            assert!(!frames.contains(frame));
            assert!(frames.insert(frame));
            assert!(!frames.insert(frame));
            assert!(frames.contains(frame));
        }
        assert_eq!(frames.len(), 6);
        assert!(!frames.contains(62));
    }
}
