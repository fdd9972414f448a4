// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A handful of address ranges, merged where they touch and, when there are too many, where they are
//! nearest to each other: cheap enough for every malloc of more than a page.

#[cfg(not(target_arch = "x86_64"))]
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of the smallest page that a machine has.
pub(crate) const PAGE: usize = 4096;

/// Bytes of a page.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) const fn page() -> usize {
    PAGE
}

/// Bytes of a page: the kernel's choice.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn page() -> usize {
    static SIZE: AtomicUsize = AtomicUsize::new(0);
    match SIZE.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: no pointers.
            let size = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) });
            let size = size.unwrap_or(PAGE);
            SIZE.store(size, Ordering::Relaxed);
            size
        }
        size => size,
    }
}

/// Addresses of whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: usize,
    pub(crate) end: usize,
}

impl Range {
    pub(crate) fn pages(self) -> usize {
        self.end.saturating_sub(self.first) / page()
    }

    const fn contains(self, other: Self) -> bool {
        (self.first <= other.first) & (other.end <= self.end)
    }

    /// Bytes between them; 0 where they touch.
    pub(crate) fn gap_to(self, other: Self) -> usize {
        other
            .first
            .saturating_sub(self.end)
            .max(self.first.saturating_sub(other.end))
    }

    pub(crate) fn join(self, other: Self) -> Self {
        Self {
            first: self.first.min(other.first),
            end: self.end.max(other.end),
        }
    }
}

const ROOM: usize = 5;
/// Blocks one after the other in a heap leave out the pages that they share, or their headers'.
pub(crate) const NEAR_PAGES: usize = 2;

/// At most [`ROOM`] ranges, none of which touches another. The widest is the first; behind them are empty
/// ones, at 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ranges {
    ranges: [Range; ROOM],
    count: usize,
}

impl Ranges {
    pub(crate) const NONE: Self = Self {
        ranges: [Range { first: 0, end: 0 }; ROOM],
        count: 0,
    };

    pub(crate) fn of_one(range: Option<Range>) -> Self {
        let mut one = Self::NONE;
        one.push(range);
        one
    }

    /// The widest one.
    pub(crate) fn widest(&self) -> Option<Range> {
        self.iter().next()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range> {
        self.ranges.iter().copied().take(self.count)
    }

    /// Whether each of the others' ranges lies in one of these.
    pub(crate) fn contains(&self, others: &Self) -> bool {
        others
            .iter()
            .all(|other| self.iter().any(|own| own.contains(other)))
    }

    /// Adds a range: into the nearest one where that is near or there is no room.
    #[inline]
    pub(crate) fn add(&mut self, range: Range) {
        // Most blocks lie where others lay, and most programs have one heap.
        let [widest, ..] = &self.ranges;
        if !widest.contains(range) {
            self.add_elsewhere(range);
        }
    }

    #[inline(never)]
    fn add_elsewhere(&mut self, range: Range) {
        // Without a branch: which one it is, nobody can foretell.
        let any = |found, own: &Range| found | own.contains(range);
        if !self.ranges.iter().fold(false, any) {
            self.join(range);
        }
    }

    fn join(&mut self, range: Range) {
        let mut range = range;
        if self.count == ROOM {
            let gap_to = |own: &Range| own.gap_to(range);
            let nearest = self.iter().map(|own| gap_to(&own)).min().unwrap_or(0);
            if nearest > NEAR_PAGES * page()
                && let Some(own) = self.ranges.iter().find(|own| gap_to(own) == nearest)
            {
                range = range.join(*own);
            }
        }
        // What it touches goes into it, and what that touches.
        let mut kept = Self::NONE;
        let mut at = 0;
        while at < self.count {
            let own = self.ranges.get(at).copied();
            match own.filter(|own| own.gap_to(range) <= NEAR_PAGES * page()) {
                Some(own) if !range.contains(own) => {
                    range = range.join(own);
                    (kept, at) = (Self::NONE, 0);
                    continue;
                }
                Some(_) => {}
                None => kept.push(own),
            }
            at += 1;
        }
        kept.push(Some(range));
        *self = kept;
    }

    /// Where there is room: as the first if it is the widest.
    fn push(&mut self, range: Option<Range>) {
        let Some(mut range) = range else { return };
        let [widest, ..] = &mut self.ranges;
        if widest.pages() < range.pages() {
            std::mem::swap(widest, &mut range);
        }
        if range.pages() > 0
            && let Some(place) = self.ranges.get_mut(self.count)
        {
            *place = range;
        }
        self.count = (self.count + 1).min(ROOM);
    }
}
