// SPDX-License-Identifier: Apache-2.0 OR MIT
//! debugfs' extfrag/unusable_index and extfrag/extfrag_index: how broken up free memory is, as the
//! kernel sees it. Read for `bursar watermarks status`; decisions use the same index computed from
//! buddyinfo, for debugfs is often not mounted.

use super::MAX_ZONES;
use super::buddyinfo::MAX_ORDERS;
use super::zone::{ZoneKind, zone_lines};
use crate::Malformed;
use crate::bytes::{number, words};

/// One zone's line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtfragZone {
    /// The NUMA node.
    pub node: u16,
    /// Which of its zones.
    pub kind: ZoneKind,
    orders: u8,
    permille: [i32; MAX_ORDERS],
}

/// Either of the two files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extfrag {
    zones: Vec<ExtfragZone>,
}

impl ExtfragZone {
    /// The index of each order in thousandths; `None` where the kernel says −1: an allocation would
    /// succeed, so there is nothing to blame.
    pub fn indices(&self) -> impl Iterator<Item = Option<u32>> {
        let known = self.permille.get(..usize::from(self.orders)).unwrap_or(&[]);
        known.iter().map(|&index| u32::try_from(index).ok())
    }
}

impl Extfrag {
    /// The zones, in the file's order.
    pub fn zones(&self) -> &[ExtfragZone] {
        &self.zones
    }

    /// Reads the content of the file in place of what was there.
    ///
    /// # Errors
    /// When a line is no zone with its indices.
    pub fn read(&mut self, text: &[u8]) -> Result<(), Malformed> {
        self.zones.clear();
        for line in zone_lines(text) {
            let (node, kind, indices) = line?;
            let mut zone = ExtfragZone {
                node,
                kind,
                orders: 0,
                permille: [0; MAX_ORDERS],
            };
            for word in words(indices) {
                let room = zone
                    .permille
                    .get_mut(usize::from(zone.orders))
                    .ok_or_else(|| Malformed::new("more than 16 orders"))?;
                *room = thousandths(word)?;
                zone.orders = zone.orders.saturating_add(1);
            }
            if self.zones.len() >= MAX_ZONES {
                return Err(Malformed::new("more zones than a machine can have"));
            }
            self.zones.push(zone);
        }
        Ok(())
    }
}

/// `0.873` as 873, `-1.000` as −1000 (mm/vmstat.c prints three digits).
fn thousandths(text: &[u8]) -> Result<i32, Malformed> {
    let malformed = || Malformed::new("an index is no number with three digits");
    let (sign, digits) = match text.strip_prefix(b"-") {
        Some(rest) => (-1, rest),
        None => (1, text),
    };
    let dot = digits
        .iter()
        .position(|&byte| byte == b'.')
        .ok_or_else(malformed)?;
    let (whole, rest) = digits.split_at(dot);
    let rest = rest.get(1..).unwrap_or_default();
    if rest.len() != 3 {
        return Err(malformed());
    }
    let whole: i32 = number(whole).filter(|&it| it >= 0).ok_or_else(malformed)?;
    let rest: i32 = number(rest).filter(|&it| it >= 0).ok_or_else(malformed)?;
    whole
        .checked_mul(1000)
        .and_then(|whole| whole.checked_add(rest))
        .map(|value| sign * value)
        .ok_or_else(malformed)
}
