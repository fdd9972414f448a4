// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A handful of address ranges, merged where they touch and, when there are too many, where they are
//! nearest to each other: cheap enough for every malloc of more than a page.

/// Bytes of a page. Where pages are larger, ranges are whole ones all the same and counts are too high.
pub(crate) const PAGE: usize = 4096;

/// Addresses of whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: usize,
    pub(crate) end: usize,
}

impl Range {
    pub(crate) const fn pages(self) -> usize {
        self.end.saturating_sub(self.first) / PAGE
    }

    /// Without a branch: which one it is, nobody can foretell.
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
/// Blocks one after the other in a heap leave out the pages that they share.
const NEAR: usize = 2 * PAGE;

/// At most [`ROOM`] ranges. Behind them are empty ones, at 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ranges {
    count: usize,
    ranges: [Range; ROOM],
}

impl Ranges {
    pub(crate) const NONE: Self = Self {
        count: 0,
        ranges: [Range { first: 0, end: 0 }; ROOM],
    };

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
        // Most blocks lie where others lay.
        let any = |found, own: &Range| found | own.contains(range);
        if !self.ranges.iter().fold(false, any) {
            self.join(range);
        }
    }

    #[inline(never)]
    fn join(&mut self, range: Range) {
        let mut nearest: Option<(usize, usize)> = None;
        for (at, own) in self.ranges.iter_mut().take(self.count).enumerate() {
            let gap = own.gap_to(range);
            if gap <= NEAR {
                *own = own.join(range);
                return;
            }
            if nearest.is_none_or(|(least, _)| gap < least) {
                nearest = Some((gap, at));
            }
        }
        if let Some(place) = self.ranges.get_mut(self.count) {
            *place = range;
            self.count += 1;
        } else if let Some(own) = nearest.and_then(|(_, at)| self.ranges.get_mut(at)) {
            *own = own.join(range);
        }
    }
}
