// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /proc/zoneinfo: watermarks, sizes, and the pages that CPUs keep for themselves.
//!
//! Layouts differ: `boost` is there since 5.18 or so, `promo` since 6.1, `cma` in some; a zone
//! without memory ends after `protection:` and has no pagesets — a reader that waits for them takes
//! the next node's lines for this zone's. So a zone ends where the next
//! `Node` begins, and nowhere else.

use super::MAX_ZONES;
use super::zone::{ZoneKind, header};
use crate::Malformed;
use crate::bytes::{number, words};

/// The levels of free pages at which the kernel acts, without a boost, pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks {
    /// Below it an allocation reclaims by itself: it stalls.
    pub min: u64,
    /// Below it kswapd is woken.
    pub low: u64,
    /// Above it kswapd sleeps again.
    pub high: u64,
}

/// One zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zone {
    /// The NUMA node.
    pub node: u16,
    /// Which of its zones.
    pub kind: ZoneKind,
    /// Free pages, those that CPUs keep for themselves not counted.
    pub free: u64,
    /// What the kernel has added to the marks for a while after a fragmentation event, pages
    /// (1c30844d2dfe). 0 where the kernel does not say.
    pub boost: u64,
    /// As the file shows them: with the boost.
    boosted: Marks,
    /// Pages the zone has, holes aside.
    pub present: u64,
    /// Pages that the page allocator was given; a balloon takes them away again.
    pub managed: u64,
    /// Free pages that CPUs keep for themselves.
    pub per_cpu: u64,
}

/// What the file says of a node as a whole, pages; 0 where it does not say (before 4.8).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// The NUMA node.
    pub node: u16,
    /// File pages not used lately.
    pub inactive_file: u64,
    /// File pages used lately.
    pub active_file: u64,
    /// Anonymous pages not used lately.
    pub inactive_anon: u64,
    /// Anonymous pages used lately.
    pub active_anon: u64,
    /// Kernel objects that can be given back.
    pub slab_reclaimable: u64,
}

/// All zones and nodes, in the file's order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ZoneInfo {
    zones: Vec<Zone>,
    nodes: Vec<NodeStats>,
}

impl Zone {
    const fn new(node: u16, kind: ZoneKind) -> Self {
        Self {
            node,
            kind,
            free: 0,
            boost: 0,
            boosted: Marks {
                min: 0,
                low: 0,
                high: 0,
            },
            present: 0,
            managed: 0,
            per_cpu: 0,
        }
    }

    /// The marks without the boost, which comes and goes by itself: min includes it since the kernel
    /// has it (mm/page_alloc.c `wmark_pages()`).
    pub const fn marks(&self) -> Marks {
        Marks {
            min: self.boosted.min.saturating_sub(self.boost),
            low: self.boosted.low.saturating_sub(self.boost),
            high: self.boosted.high.saturating_sub(self.boost),
        }
    }

    /// Whether it has memory that can be given out. An empty Movable zone shows marks of 32 pages.
    pub const fn is_populated(&self) -> bool {
        self.managed > 0
    }
}

/// Where in a zone's lines we are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    NodeStats,
    Pages,
    ZoneStats,
    PageSets,
}

impl ZoneInfo {
    /// The zones, those without memory included.
    pub fn zones(&self) -> &[Zone] {
        &self.zones
    }

    /// The nodes.
    pub fn nodes(&self) -> &[NodeStats] {
        &self.nodes
    }

    /// Reads the content of the file in place of what was there.
    ///
    /// # Errors
    /// When it has no zones, none that has memory, or values that are no numbers.
    pub fn read(&mut self, text: &[u8]) -> Result<(), Malformed> {
        self.zones.clear();
        self.nodes.clear();
        let mut part = Part::NodeStats;
        let mut has_free = true;
        for line in text.split(|&byte| byte == b'\n') {
            if let Some((node, kind, _)) = header(line)? {
                if self.zones.len() >= MAX_ZONES {
                    return Err(Malformed::new("more zones than a machine can have"));
                }
                if !has_free {
                    return Err(Malformed::new("a zone without its free pages"));
                }
                self.zones.push(Zone::new(node, kind));
                if self.nodes.last().is_none_or(|last| last.node != node) {
                    self.nodes.push(NodeStats {
                        node,
                        ..NodeStats::default()
                    });
                }
                part = Part::Pages;
                has_free = false;
                continue;
            }
            let mut parts = words(line);
            let Some(key) = parts.next() else { continue };
            let (Some(zone), Some(node)) = (self.zones.last_mut(), self.nodes.last_mut()) else {
                return Err(Malformed::new("the file does not begin with a zone"));
            };
            let value = parts.next();
            let pages = || {
                value
                    .and_then(number::<u64>)
                    .ok_or_else(|| Malformed::new(format!("{} is no number", show(key))))
            };
            match key {
                b"per-node" => part = Part::NodeStats,
                b"pages" => {
                    part = Part::Pages;
                    let free = parts.next().and_then(number::<u64>);
                    zone.free = free.ok_or_else(|| Malformed::new("free is no number"))?;
                    has_free = true;
                }
                b"protection:" => part = Part::ZoneStats,
                b"pagesets" => part = Part::PageSets,
                b"boost" if part == Part::Pages => zone.boost = pages()?,
                b"min" if part == Part::Pages => zone.boosted.min = pages()?,
                b"low" if part == Part::Pages => zone.boosted.low = pages()?,
                b"high" if part == Part::Pages => zone.boosted.high = pages()?,
                b"present" if part == Part::Pages => zone.present = pages()?,
                b"managed" if part == Part::Pages => zone.managed = pages()?,
                b"count:" if part == Part::PageSets => {
                    zone.per_cpu = zone.per_cpu.saturating_add(pages()?);
                }
                b"nr_inactive_file" if part == Part::NodeStats => node.inactive_file = pages()?,
                b"nr_active_file" if part == Part::NodeStats => node.active_file = pages()?,
                b"nr_inactive_anon" if part == Part::NodeStats => node.inactive_anon = pages()?,
                b"nr_active_anon" if part == Part::NodeStats => node.active_anon = pages()?,
                b"nr_slab_reclaimable" if part == Part::NodeStats => {
                    node.slab_reclaimable = pages()?;
                }
                _ => {}
            }
        }
        if self.zones.is_empty() {
            return Err(Malformed::new("no zone"));
        }
        if !has_free {
            return Err(Malformed::new("it ends in the middle of a zone"));
        }
        if !self.zones.iter().any(Zone::is_populated) {
            return Err(Malformed::new("no zone says how much memory it has"));
        }
        Ok(())
    }
}

/// A key for a message; keys are the kernel's, but the file may be anything.
fn show(key: &[u8]) -> String {
    let key = key.get(..key.len().min(40)).unwrap_or_default();
    key.escape_ascii().to_string()
}
