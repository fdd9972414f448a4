// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /proc/buddyinfo: free blocks of each zone by order.

use super::MAX_ZONES;
use super::zone::{ZoneKind, zone_lines};
use crate::Malformed;
use crate::bytes::{number, words};

/// Orders a kernel can have: 11 on x86, 14 on arm64 with 64 KiB pages (NR_PAGE_ORDERS).
pub const MAX_ORDERS: usize = 16;

/// Free blocks of one zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeBlocks {
    /// The NUMA node.
    pub node: u16,
    /// Which of its zones.
    pub kind: ZoneKind,
    orders: u8,
    blocks: [u64; MAX_ORDERS],
}

/// All zones, as the file lists them: only those that have memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuddyInfo {
    zones: Vec<FreeBlocks>,
}

impl FreeBlocks {
    /// Free blocks of each order, smallest first; a block of order n has 2^n pages.
    pub fn blocks(&self) -> &[u64] {
        self.blocks.get(..usize::from(self.orders)).unwrap_or(&[])
    }

    /// Free pages in blocks of at least this order.
    pub fn pages_from(&self, order: usize) -> u64 {
        let blocks = self.blocks().iter().enumerate().skip(order);
        blocks
            .map(|(order, count)| count.saturating_mul(1 << order))
            .fold(0, u64::saturating_add)
    }
}

impl BuddyInfo {
    /// The zones, in the file's order.
    pub fn zones(&self) -> &[FreeBlocks] {
        &self.zones
    }

    /// Reads the content of the file in place of what was there.
    ///
    /// # Errors
    /// When it has no zones, or a line that is none.
    pub fn read(&mut self, text: &[u8]) -> Result<(), Malformed> {
        self.zones.clear();
        for line in zone_lines(text) {
            let (node, kind, counts) = line?;
            let mut zone = FreeBlocks {
                node,
                kind,
                orders: 0,
                blocks: [0; MAX_ORDERS],
            };
            for word in words(counts) {
                let count =
                    number(word).ok_or_else(|| Malformed::new("a count of blocks is no number"))?;
                let room = zone
                    .blocks
                    .get_mut(usize::from(zone.orders))
                    .ok_or_else(|| Malformed::new("more than 16 orders"))?;
                *room = count;
                zone.orders = zone.orders.saturating_add(1);
            }
            if zone.orders == 0 {
                return Err(Malformed::new("a zone without counts"));
            }
            if self.zones.len() >= MAX_ZONES {
                return Err(Malformed::new("more zones than a machine can have"));
            }
            self.zones.push(zone);
        }
        if self.zones.is_empty() {
            return Err(Malformed::new("no zone"));
        }
        Ok(())
    }
}
