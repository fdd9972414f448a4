// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much memory is asked for, and how suddenly: the largest rise of net demand within windows of
//! 0.1 to 3.2 s, remembered for two minutes.
//!
//! Not free memory itself: kswapd holds that between its marks, so its slope says little once it
//! works (research/watermarks.md B18). Net demand is what free memory would have lost without reclaim:
//! `free before − free now + pages taken back`.

/// Lengths of the windows, milliseconds.
pub const WINDOWS_MS: [u64; 6] = [100, 200, 400, 800, 1600, 3200];
/// Samples that are kept: 3.2 s at ten a second, and as many again for faster ones.
const KEPT: usize = 64;
/// Largest rises are remembered in so many blocks …
const BLOCKS: usize = 12;
/// … of this length, together two minutes.
const BLOCK_NS: u64 = 10_000_000_000;

/// Net demand of one node.
#[derive(Debug, Clone)]
pub struct Demand {
    /// Time and net demand so far, pages.
    course: [(u64, f64); KEPT],
    next: usize,
    count: usize,
    total: f64,
    recent: [f64; WINDOWS_MS.len()],
    peaks: [[f64; BLOCKS]; WINDOWS_MS.len()],
    block: u64,
}

impl Demand {
    /// Nothing has been asked for yet.
    pub const fn new() -> Self {
        Self {
            course: [(0, 0.0); KEPT],
            next: 0,
            count: 0,
            total: 0.0,
            recent: [0.0; WINDOWS_MS.len()],
            peaks: [[0.0; BLOCKS]; WINDOWS_MS.len()],
            block: 0,
        }
    }

    /// Adds what was asked for, less what was given back by itself, since the last sample, pages.
    pub fn add(&mut self, at_ns: u64, net: f64) {
        self.turn_to(at_ns / BLOCK_NS);
        self.total += net;
        for (index, window) in WINDOWS_MS.iter().enumerate() {
            let rise = self.rise_within(at_ns, window.saturating_mul(1_000_000));
            if let Some(recent) = self.recent.get_mut(index) {
                *recent = rise;
            }
            let slot = (self.block % BLOCKS as u64) as usize;
            if let Some(peak) = self.peaks.get_mut(index).and_then(|it| it.get_mut(slot)) {
                *peak = peak.max(rise);
            }
        }
        if let Some(room) = self.course.get_mut(self.next) {
            *room = (at_ns, self.total);
        }
        self.next = (self.next + 1) % KEPT;
        self.count = self.count.saturating_add(1).min(KEPT);
    }

    /// Empties the blocks that have passed.
    fn turn_to(&mut self, block: u64) {
        let passed = block.saturating_sub(self.block).min(BLOCKS as u64);
        for back in 0..passed {
            let slot = (block.saturating_sub(back) % BLOCKS as u64) as usize;
            for peaks in &mut self.peaks {
                if let Some(peak) = peaks.get_mut(slot) {
                    *peak = 0.0;
                }
            }
        }
        self.block = block;
    }

    /// The largest rise that ends now and began at most `window` ago. A sample that is a third late
    /// still counts; where samples are further apart the last one does, for all may have been asked
    /// for in its last moment.
    fn rise_within(&self, at_ns: u64, window_ns: u64) -> f64 {
        let reach = window_ns.saturating_add(window_ns / 3);
        let mut least = f64::INFINITY;
        for back in 1..=self.count {
            let index = (self.next + KEPT - back) % KEPT;
            let Some(&(then, total)) = self.course.get(index) else {
                break;
            };
            if back > 1 && at_ns.saturating_sub(then) > reach {
                break;
            }
            least = least.min(total);
        }
        if least.is_finite() {
            (self.total - least).max(0.0)
        } else {
            0.0
        }
    }

    /// The largest rise of the last two minutes within each window.
    pub fn peaks(&self) -> [f64; WINDOWS_MS.len()] {
        let mut peaks = [0.0; WINDOWS_MS.len()];
        for (peak, blocks) in peaks.iter_mut().zip(&self.peaks) {
            *peak = blocks.iter().copied().fold(0.0, f64::max);
        }
        peaks
    }

    /// The rise within each window that ends now.
    pub const fn recent(&self) -> &[f64; WINDOWS_MS.len()] {
        &self.recent
    }

    /// All that was asked for so far; only differences mean something.
    pub const fn total(&self) -> f64 {
        self.total
    }
}

impl Default for Demand {
    fn default() -> Self {
        Self::new()
    }
}

/// What kswapd can take back while it works: the largest rate of a sample in the last two minutes.
/// Remembered across quiet spells, for it is a property of the machine.
#[derive(Debug, Clone, Default)]
pub struct Supply {
    blocks: [f64; BLOCKS],
    block: u64,
    remembered: f64,
}

impl Supply {
    /// kswapd has not been seen yet.
    pub const fn nothing_seen() -> Self {
        Self {
            blocks: [0.0; BLOCKS],
            block: 0,
            remembered: 0.0,
        }
    }

    /// Adds what was taken back in `seconds`.
    pub fn add(&mut self, at_ns: u64, pages: u64, seconds: f64) {
        // A shorter sample says how the counters of CPUs are flushed, not how fast kswapd is.
        if pages == 0 || seconds < 0.05 {
            return;
        }
        let block = at_ns / BLOCK_NS;
        let passed = block.saturating_sub(self.block).min(BLOCKS as u64);
        for back in 0..passed {
            let slot = (block.saturating_sub(back) % BLOCKS as u64) as usize;
            if let Some(rate) = self.blocks.get_mut(slot) {
                *rate = 0.0;
            }
        }
        self.block = block;
        let slot = (block % BLOCKS as u64) as usize;
        if let Some(rate) = self.blocks.get_mut(slot) {
            *rate = rate.max(pages as f64 / seconds);
        }
        self.remembered = self.blocks.iter().copied().fold(0.0, f64::max);
    }

    /// Pages a second; 0 until kswapd was seen working.
    pub const fn rate(&self) -> f64 {
        self.remembered
    }
}
