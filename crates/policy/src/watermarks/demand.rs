// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much memory is asked for, and how suddenly: the largest rise of net demand within windows of
//! 0.1 to 3.2 s, remembered for two minutes.
//!
//! Not free memory itself: kswapd holds that between its marks, so its slope says little once it
//! works. Net demand is what free memory would have lost without reclaim:
//! `free before − free now + pages taken back`.

/// Lengths of the windows, milliseconds.
pub const WINDOWS_MS: [u64; 6] = [100, 200, 400, 800, 1600, 3200];
/// The most within each window, pages.
pub(super) type Curve = [f64; WINDOWS_MS.len()];
/// Samples that are kept: 3.2 s at ten a second, and as many again for faster ones.
const KEPT: usize = 64;
/// Largest rises are remembered in so many blocks …
const BLOCKS: usize = 12;
/// … of this length, together two minutes.
const BLOCK_NS: u64 = 10_000_000_000;

/// The largest of what was added in the last two minutes; it is forgotten when something is added.
#[derive(Debug, Clone)]
struct Largest {
    blocks: [f64; BLOCKS],
    block: u64,
}

impl Largest {
    const fn new() -> Self {
        Self {
            blocks: [0.0; BLOCKS],
            block: 0,
        }
    }

    fn add(&mut self, at_ns: u64, value: f64) {
        let block = at_ns / BLOCK_NS;
        let passed = block.saturating_sub(self.block).min(BLOCKS as u64);
        for back in 0..passed {
            *self.room(block.saturating_sub(back)) = 0.0;
        }
        self.block = block;
        let room = self.room(block);
        *room = room.max(value);
    }

    fn room(&mut self, block: u64) -> &mut f64 {
        &mut self.blocks[(block % BLOCKS as u64) as usize]
    }

    fn get(&self) -> f64 {
        self.blocks.iter().copied().fold(0.0, f64::max)
    }
}

/// Net demand of one node.
#[derive(Debug, Clone)]
pub struct Demand {
    /// Time and net demand so far, pages.
    course: [(u64, f64); KEPT],
    next: usize,
    count: usize,
    total: f64,
    recent: Curve,
    peaks: [Largest; WINDOWS_MS.len()],
    /// What came and may have gone again between two looks.
    passing: Largest,
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
            peaks: [const { Largest::new() }; WINDOWS_MS.len()],
            passing: Largest::new(),
        }
    }

    /// Adds what is known to have been given out since the last sample, pages, whether or not it came back
    /// before now: free memory does not show a process that came and went between two looks.
    pub fn add_passing(&mut self, at_ns: u64, pages: f64) {
        self.passing.add(at_ns, pages);
    }

    /// The most of it between two looks of the last two minutes.
    pub(super) fn passing(&self) -> f64 {
        self.passing.get()
    }

    /// Adds what was asked for, less what was given back by itself, since the last sample, pages.
    pub fn add(&mut self, at_ns: u64, net: f64) {
        self.total += net;
        self.recent = self.rises(at_ns);
        for (peak, rise) in self.peaks.iter_mut().zip(self.recent) {
            peak.add(at_ns, rise);
        }
        if let Some(room) = self.course.get_mut(self.next) {
            *room = (at_ns, self.total);
        }
        self.next = (self.next + 1) % KEPT;
        self.count = self.count.saturating_add(1).min(KEPT);
    }

    /// The largest rise that ends now and began within each window. A sample that is a third late still
    /// counts; where samples are further apart a window has its part of what was asked for in between, and
    /// those as long as the gap have all of it.
    fn rises(&self, at_ns: u64) -> Curve {
        let mut rises = Curve::default();
        let mut windows = rises.iter_mut().zip(WINDOWS_MS).peekable();
        let mut least = f64::INFINITY;
        let rise = |least: f64| (self.total - least).max(0.0);
        let reach_ns = |window: u64| window * 1_000_000 * 4 / 3;
        for back in 1..=self.count {
            let Some(&(then, total)) = self.course.get((self.next + KEPT - back) % KEPT) else {
                break;
            };
            let age_ns = at_ns.saturating_sub(then);
            while let Some((room, window)) =
                windows.next_if(|(_, window)| age_ns > reach_ns(*window))
            {
                *room = if back == 1 {
                    rise(total) * (window * 1_000_000) as f64 / age_ns as f64
                } else {
                    rise(least)
                };
            }
            if windows.peek().is_none() {
                break;
            }
            least = least.min(total);
        }
        for (room, _) in windows {
            *room = rise(least);
        }
        rises
    }

    /// The largest rise of the last two minutes within each window.
    pub(super) fn peaks(&self) -> Curve {
        let passing = self.passing();
        self.peaks.each_ref().map(|peak| peak.get().max(passing))
    }

    /// The most that may be asked for within each window that begins now, while demand keeps to `peaks`. A
    /// burst that has begun is part of a longer window's largest rise and has used up its part of it, until
    /// it gives back (Cruz, A Calculus for Network Delay, 1991: traffic within an arrival curve, its past
    /// known).
    pub(super) fn ahead(&self, peaks: &Curve) -> Curve {
        let mut ahead = *peaks;
        // Backwards: what bounds a longer window bounds the shorter ones in it.
        let mut least = f64::INFINITY;
        for window in (0..WINDOWS_MS.len()).rev() {
            // `window` from now on and `window` before now are within the next one, twice as long.
            if let (Some(longer), Some(begun)) = (peaks.get(window + 1), self.recent.get(window)) {
                least = least.min((longer - begun).max(0.0));
            }
            if let Some(most) = ahead.get_mut(window) {
                *most = most.min(least);
            }
        }
        ahead
    }

    /// The rise within each window that ends now.
    pub(super) const fn recent(&self) -> &Curve {
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

/// What kswapd can take back while it works: the largest rate of a sample in the last two minutes. Where
/// memory is freed ahead kswapd has little to do and shows little; that hand reclaims by the same code in
/// the kernel and shows it then. Remembered across quiet spells, for it is a property of the machine.
#[derive(Debug, Clone)]
pub struct Supply {
    fastest: Largest,
}

impl Supply {
    /// kswapd has not been seen yet.
    pub const fn nothing_seen() -> Self {
        Self {
            fastest: Largest::new(),
        }
    }

    /// Adds what was taken back in `seconds`.
    pub fn add(&mut self, at_ns: u64, pages: u64, seconds: f64) {
        // A shorter sample says how the counters of CPUs are flushed, not how fast kswapd is.
        if pages > 0 && seconds >= 0.05 {
            self.add_rate(at_ns, pages as f64 / seconds);
        }
    }

    /// Adds a rate that was measured while memory was taken back, pages a second.
    pub fn add_rate(&mut self, at_ns: u64, pages_a_second: f64) {
        self.fastest.add(at_ns, pages_a_second);
    }

    /// Pages a second; 0 until kswapd was seen working.
    pub fn rate(&self) -> f64 {
        self.fastest.get()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STEP_NS: u64 = 100_000_000;

    proptest! {
        #[test]
        fn what_comes_is_never_more_than_what_was_said_may_come(
            period in prop::collection::vec(-5000_i32..5000, 40..200),
        ) {
            // Twice over all that can be asked for has been seen; the third time it is foretold.
            let nets: Vec<f64> = period.iter().cycle().take(period.len() * 4).map(|&it| f64::from(it)).collect();
            let mut demand = Demand::new();
            let mut at = 0;
            for (step, &net) in nets.iter().enumerate().take(period.len() * 3) {
                at += STEP_NS;
                demand.add(at, net);
                if step < period.len() * 2 {
                    continue;
                }
                let ahead = demand.ahead(&demand.peaks());
                for (most, window) in ahead.iter().zip(WINDOWS_MS) {
                    let (mut rise, mut largest) = (0.0, 0.0_f64);
                    for net in nets.iter().skip(step + 1).take((window / 100) as usize) {
                        rise += net;
                        largest = largest.max(rise);
                    }
                    prop_assert!(largest <= most + 1e-6, "{largest} of {most} in {window} ms");
                }
            }
        }
    }

    #[test]
    fn what_a_burst_took_need_not_be_there_again_before_it_is_given_back() {
        let mut demand = Demand::new();
        let steps = [0.0, 900.0, 0.0, 0.0, -900.0, 0.0, 0.0, 0.0];
        let nets = steps
            .iter()
            .cycle()
            .take(steps.len() * 8)
            .chain(&steps[..2]);
        for (step, net) in (1..).zip(nets) {
            demand.add(step * STEP_NS, *net);
        }
        let [at_once, soon, ..] = demand.ahead(&demand.peaks());
        assert_eq!((at_once, soon), (0.0, 0.0));
        let [at_once, ..] = demand.peaks();
        assert_eq!(at_once, 900.0);
    }

    #[test]
    fn a_long_gap_is_not_taken_for_a_sudden_burst() {
        let mut demand = Demand::new();
        demand.add(STEP_NS, 0.0);
        demand.add(STEP_NS * 5, 4000.0);
        let [at_once, soon, all, ..] = demand.peaks();
        assert_eq!((at_once, soon, all), (1000.0, 2000.0, 4000.0));
    }
}
