// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that the program was granted and may not have touched yet: where it lies, and how many of its
//! pages are not resident at most.
//!
//! Blocks up to a page are resident when they are granted and not in here. Of larger ones only ends are.
//! Touching them at once would make a sparse program hold all that it asked for; so they are remembered
//! until a look finds them resident, and stay reserved as long.

use bursar_reserve::now_ns;

use crate::ranges::{NEAR_PAGES, Range, page};
use crate::usage::{AT_ONCE, absent};

/// Places remembered. Beyond them those that are near each other become one.
const ROOM: usize = 512;
/// A look that takes no time worth speaking of; others wait for so many times what the last one took.
const CHEAP_LOOK: usize = 16 << 20;
const LOOK_PART: u64 = 32;
/// What a look at a page takes (mincore(2); 15 ns were measured), for the time before the first one.
const LOOK_NS: usize = 16;

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

/// The mappings that may have untouched pages, by address. Valid when zero.
#[derive(Debug)]
pub(crate) struct Untouched {
    count: usize,
    places: [Place; ROOM],
    /// Σ of their pages.
    pages: usize,
    /// Places inserted since the last look.
    fresh: usize,
    look_again_at: u64,
}

impl Untouched {
    pub(crate) const fn pages(&self) -> usize {
        self.pages
    }

    pub(crate) fn bytes(&self) -> usize {
        self.pages.saturating_mul(page())
    }

    /// Bytes that a look has to look at.
    fn extent(&self) -> usize {
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
            // A program that keeps what it does not touch would have all of it looked at again and again.
            if self.fresh >= ROOM / 4 {
                self.look_if(false);
            }
            if self.count == ROOM {
                self.make_room();
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
                && own.range.gap_to(place.range) <= NEAR_PAGES * page()
            {
                let joint = own.range.join(place.range);
                let pages = (own.pages + place.pages).min(joint.pages());
                self.pages = self.pages - own.pages + pages;
                (own.range, own.pages) = (joint, pages);
                self.absorb_behind(index);
                return true;
            }
        }
        false
    }

    /// A place has grown: those behind it that it touches now go into it.
    fn absorb_behind(&mut self, index: usize) {
        while let Some(next) = self.places.get(index + 1).copied()
            && index + 1 < self.count
            && next.block == 0
            && let Some(own) = self.places.get_mut(index)
            && own.range.gap_to(next.range) <= NEAR_PAGES * page()
        {
            let joint = own.range.join(next.range);
            let pages = (own.pages + next.pages).min(joint.pages());
            self.pages = self.pages - own.pages + pages;
            (own.range, own.pages) = (joint, pages);
            self.remove_at(index + 1);
        }
    }

    /// Joins what lies one after the other, all at once; if nothing does, the nearest two.
    fn make_room(&mut self) {
        if self.join_within(NEAR_PAGES * page()) == 0 {
            let gaps = self.iter().zip(self.iter().skip(1));
            let nearest = gaps.map(|(one, next)| one.range.gap_to(next.range)).min();
            self.join_within(nearest.unwrap_or(usize::MAX));
        }
    }

    /// Joins places with such a gap between them at most. How many went.
    fn join_within(&mut self, gap: usize) -> usize {
        let mut kept = 0usize;
        for index in 0..self.count {
            let Some(place) = self.places.get(index).copied() else {
                break;
            };
            let last = kept.checked_sub(1).and_then(|at| self.places.get_mut(at));
            if let Some(last) = last
                && last.range.gap_to(place.range) <= gap
            {
                last.range = last.range.join(place.range);
                last.pages += place.pages;
                (last.block, last.cost) = (0, 0);
            } else if let Some(own) = self.places.get_mut(kept) {
                *own = place;
                kept += 1;
            }
        }
        let gone = self.count - kept;
        self.count = kept;
        gone
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

    /// Forgets the mapping that is this block and has these pages, before it goes. What was paid for it is
    /// not known any more where it was joined with others.
    pub(crate) fn remove(&mut self, block: usize, pages: Range) -> Option<Place> {
        let from = self.position(block);
        // A block's first whole page lies a page behind it at most.
        let found = self
            .places
            .iter()
            .enumerate()
            .take(self.count)
            .skip(from)
            .take_while(|(_, it)| it.range.first <= block.saturating_add(page()))
            .find(|(_, it)| it.block == block);
        match found {
            Some((at, _)) => self.remove_at(at),
            None => self.take_out(block, pages),
        }
    }

    /// Of a place that was joined, the part that goes: as many pages as are not resident there.
    fn take_out(&mut self, block: usize, pages: Range) -> Option<Place> {
        // A large one is left to the next look.
        if pages.pages() > AT_ONCE {
            return None;
        }
        let at = self
            .position(pages.first.saturating_add(1))
            .checked_sub(1)?;
        let own = self.places.get_mut(at).filter(|own| own.block == 0)?;
        let part = Range {
            first: pages.first,
            end: pages.end.min(own.range.end),
        };
        if part.first >= part.end {
            return None;
        }
        let gone = absent(part).pages.min(own.pages);
        own.pages -= gone;
        // Blocks are freed in the order in which they lie, or backwards. Between them are their headers.
        let (before, behind) = (
            Range {
                first: own.range.first,
                end: part.first,
            },
            Range {
                first: part.end,
                end: own.range.end,
            },
        );
        if before.pages() <= NEAR_PAGES && absent(before).pages == 0 {
            own.range.first = part.end;
        } else if behind.pages() <= NEAR_PAGES && absent(behind).pages == 0 {
            own.range.end = part.first;
        }
        let is_over = own.pages == 0 || own.range.first >= own.range.end;
        self.pages -= gone;
        if is_over {
            self.remove_at(at);
        }
        Some(Place {
            range: part,
            pages: gone,
            block,
            cost: 0,
            epoch: 0,
        })
    }

    /// Whether a look waits for its time.
    pub(crate) fn is_dear(&self) -> bool {
        self.extent() > CHEAP_LOOK
    }

    /// Looks, where that does not cost more than it is worth, or is needed.
    pub(crate) fn look_if(&mut self, is_needed: bool) {
        let extent = self.extent();
        let began = now_ns();
        if self.look_again_at == 0 && extent > CHEAP_LOOK {
            let estimate = (extent / page()).saturating_mul(LOOK_NS);
            let estimate = u64::try_from(estimate).unwrap_or(u64::MAX);
            self.look_again_at = began.saturating_add(estimate.saturating_mul(LOOK_PART));
        }
        if extent == 0 || !(is_needed || extent <= CHEAP_LOOK || began >= self.look_again_at) {
            return;
        }
        self.look();
        let now = now_ns();
        self.look_again_at = now.saturating_add((now - began).saturating_mul(LOOK_PART));
    }

    /// Looks what is resident by now, and forgets it.
    fn look(&mut self) {
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
