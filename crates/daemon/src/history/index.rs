// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where in the files events lie, by their numbers: a block of the files, and which numbers are in it. Who reads on
//! through all events reads each block about once, and not all of the files for each page.

use std::collections::VecDeque;

use bursar_model::Event;

/// A block is closed when it is this long, bytes.
const BLOCK: u64 = 64 << 10;

/// Part of one of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    /// Which file, and where it begins and ends there.
    pub(super) file: Which,
    pub(super) start: u64,
    pub(super) end: u64,
    /// The least and the highest number in it. Events that waited to be written come later than their numbers.
    pub(super) least: u64,
    pub(super) most: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Previous,
    Current,
}

/// All blocks, in the order in which they were written.
#[derive(Debug, Default)]
pub(super) struct Index(VecDeque<Block>);

impl Index {
    /// An event lies there. Those of older versions have no number.
    pub(super) fn note(&mut self, file: Which, start: u64, length: u64, event: &Event) {
        let Some(number) = event.number else { return };
        let end = start.saturating_add(length);
        match self.0.back_mut() {
            Some(last) if last.file == file && end.saturating_sub(last.start) <= BLOCK => {
                last.end = end;
                last.least = last.least.min(number);
                last.most = last.most.max(number);
            }
            _ => self.0.push_back(Block {
                file,
                start,
                end,
                least: number,
                most: number,
            }),
        }
    }

    /// The current file is the previous one now.
    pub(super) fn rotate(&mut self) {
        self.0.retain(|block| block.file == Which::Current);
        for block in &mut self.0 {
            block.file = Which::Previous;
        }
    }

    /// The current file is not there any more.
    pub(super) fn forget_current(&mut self) {
        self.0.retain(|block| block.file == Which::Previous);
    }

    /// The blocks that may have events after a number, those with the least numbers first.
    pub(super) fn after(&self, number: u64) -> Vec<Block> {
        let its = self.0.iter().filter(|block| block.most > number);
        let mut found: Vec<Block> = its.copied().collect();
        found.sort_by_key(|block| block.least);
        found
    }
}
