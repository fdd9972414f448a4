// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that the program was granted and may not have touched yet: where it lies, and how many of its
//! pages are not resident at most.
//!
//! Blocks up to a page are resident when they are granted and not in here. Of larger ones only ends are.
//! Touching them at once would make a sparse program hold all that it asked for; so they are remembered
//! until a look finds them resident, and stay reserved as long.

use crate::ranges::{PAGE, Range};
use crate::usage::absent;

/// Places remembered. Beyond them the nearest two become one.
const ROOM: usize = 512;

/// Granted memory that may not be resident.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) range: Range,
    /// Pages that are not resident, at most.
    pub(crate) pages: usize,
    /// The block that is this mapping; 0: a part of a heap, or several.
    pub(crate) block: usize,
    /// What was paid for the mapping since `epoch`, bytes.
    pub(crate) cost: usize,
    pub(crate) epoch: u32,
}

/// All of it, by address. Valid when zero.
#[derive(Debug)]
pub(crate) struct Untouched {
    count: usize,
    places: [Place; ROOM],
    /// Σ of their pages.
    pages: usize,
    /// Places inserted since the last look.
    fresh: usize,
}

impl Untouched {
    pub(crate) const fn pages(&self) -> usize {
        self.pages
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.pages.saturating_mul(PAGE)
    }

    /// Bytes that a look has to look at.
    pub(crate) fn extent(&self) -> usize {
        let extents = self.iter().map(|place| place.range.end - place.range.first);
        extents.fold(0, usize::saturating_add)
    }

    pub(crate) fn clear(&mut self) {
        (self.count, self.pages, self.fresh) = (0, 0, 0);
    }

    fn iter(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().take(self.count)
    }

    /// Where the first place at or behind an address is.
    fn position(&self, address: usize) -> usize {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let first = self
                .places
                .get(middle)
                .map_or(usize::MAX, |it| it.range.first);
            if first < address {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Remembers a place.
    pub(crate) fn insert(&mut self, place: Place) {
        if place.range.first >= place.range.end {
            return;
        }
        let at = self.position(place.range.first);
        if place.block == 0 && self.joins_neighbour(at, place) {
            return;
        }
        if self.count == ROOM {
            if self.fresh >= ROOM / 4 {
                self.look();
            } else {
                self.join_nearest();
            }
            return self.insert(place);
        }
        let mut index = self.count;
        while index > at {
            if let Some(before) = self.places.get(index - 1).copied()
                && let Some(own) = self.places.get_mut(index)
            {
                *own = before;
            }
            index -= 1;
        }
        if let Some(own) = self.places.get_mut(at) {
            *own = place;
            self.count += 1;
            self.fresh += 1;
            self.pages += place.pages;
        }
    }

    /// Heaps grow block by block: their places touch each other. Those that overlap are the same pages.
    fn joins_neighbour(&mut self, at: usize, place: Place) -> bool {
        for index in [at.wrapping_sub(1), at] {
            if let Some(own) = self.places.get_mut(index).filter(|_| index < self.count)
                && own.block == 0
                && own.range.gap_to(place.range) <= 2 * PAGE
            {
                let joint = own.range.join(place.range);
                let pages = (own.pages + place.pages).min(joint.pages());
                self.pages = self.pages - own.pages + pages;
                (own.range, own.pages) = (joint, pages);
                return true;
            }
        }
        false
    }

    fn join_nearest(&mut self) {
        let mut nearest = (usize::MAX, 0);
        let mut before: Option<Range> = None;
        for (index, place) in self.iter().enumerate() {
            if let Some(gap) = before.map(|it| it.gap_to(place.range))
                && gap < nearest.0
            {
                nearest = (gap, index);
            }
            before = Some(place.range);
        }
        if let (at @ 1.., Some(gone)) = (nearest.1, self.remove_at(nearest.1.max(1)))
            && let Some(own) = self.places.get_mut(at - 1)
        {
            own.range = own.range.join(gone.range);
            own.pages += gone.pages;
            (own.block, own.cost) = (0, 0);
            self.pages += gone.pages;
        }
    }

    fn remove_at(&mut self, at: usize) -> Option<Place> {
        let gone = self.places.get(at).copied().filter(|_| at < self.count)?;
        for index in at + 1..self.count {
            if let Some(next) = self.places.get(index).copied()
                && let Some(own) = self.places.get_mut(index - 1)
            {
                *own = next;
            }
        }
        self.count -= 1;
        self.pages -= gone.pages;
        Some(gone)
    }

    /// Forgets the mapping that is this block.
    pub(crate) fn remove(&mut self, block: usize) -> Option<Place> {
        let from = self.position(block);
        // A block's first whole page lies a page behind it at most.
        let found = self
            .places
            .iter()
            .enumerate()
            .take(self.count)
            .skip(from)
            .take_while(|(_, it)| it.range.first <= block.saturating_add(PAGE))
            .find(|(_, it)| it.block == block);
        let (at, _) = found?;
        self.remove_at(at)
    }

    /// Looks what is resident by now, and forgets it.
    pub(crate) fn look(&mut self) {
        let mut kept = 0;
        self.pages = 0;
        for index in 0..self.count {
            let Some(mut place) = self.places.get(index).copied() else {
                break;
            };
            let found = absent(place.range);
            if found.pages == 0 {
                continue;
            }
            place.pages = found.pages;
            // A mapping stays as long as it is, to be found by its block.
            if place.block == 0 {
                place.range = Range {
                    first: found.first,
                    end: found.end,
                };
            }
            if let Some(own) = self.places.get_mut(kept) {
                *own = place;
                kept += 1;
                self.pages += place.pages;
            }
        }
        self.count = kept;
        self.fresh = 0;
    }
}
