// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S4's rule, done right: a line of least squares through the last eight samples of free memory, per
//! node and order; kswapd's rate and compaction's beside it; act when memory runs out sooner than
//! reclaim catches up.
//!
//! What memoptimizer gets wrong is right here: a
//! monotonic clock in nanoseconds, rates that are not truncated, a reclaim verdict that is not thrown
//! away by the compaction test, marks of the right node. The steps up and down are memoptimizer's.

use bursar_model::Nanos;

use super::bounds::{ScaleBounds, highest_that_can_be_met};
use super::change::Change;
use super::line::Window;
use super::sample::{Counters, ORDERS, Sample};
use super::verdict::{Forecast, Reason, Verdict};

/// Samples in the window (S4 "memoptimizer daemon").
const WINDOW: usize = 8;
/// Between two samples. The peer waits 15 to 60 s; a second is what its arithmetic would have stood.
const EVERY_NS: u64 = 1_000_000_000;
/// Reclaim may take this many times as long to catch up as memory takes to run out.
const CATCH_UP_FACTOR: f64 = 3.0;
/// The order of a huge page on x86, and on arm64 with pages of 4 KiB.
const HUGE: usize = 9;
/// Nodes that are watched; those after are left to the kernel.
const MAX_NODES: usize = 64;

#[derive(Debug, Clone)]
struct Node {
    id: u16,
    free: Window,
    /// Free pages in blocks of at least an order.
    usable: [Window; ORDERS],
    /// What the last sample had of both, pages.
    last: Option<(u64, [u64; ORDERS])>,
    /// Compacted last in this round.
    compacted: Option<u64>,
}

/// The rule's memory.
#[derive(Debug, Clone)]
pub struct Trend {
    bounds: ScaleBounds,
    nodes: Vec<Node>,
    last: Option<(u64, Counters)>,
    /// What kswapd took back a second, when it last took anything.
    reclaim_rate: f64,
    /// Of each order: what came together into blocks of at least this order a second, when anything last did.
    compaction_rates: [f64; ORDERS],
    round: u64,
}

impl Trend {
    /// The rule, moving the factor within `bounds`.
    pub const fn new(bounds: ScaleBounds) -> Self {
        Self {
            bounds,
            nodes: Vec::new(),
            last: None,
            reclaim_rate: 0.0,
            compaction_rates: [0.0; ORDERS],
            round: 0,
        }
    }

    /// Other bounds from now on; what was learned stays.
    pub fn rebound(&mut self, bounds: ScaleBounds) {
        self.bounds = bounds;
    }

    /// Looks at a sample; those that come before a second is over are left out.
    pub fn look(&mut self, sample: &Sample) -> Verdict {
        let mut forecast = Forecast::begun(sample);
        let mut seconds = None;
        if let Some((at, counters)) = self.last {
            if sample.at.get().saturating_sub(at) < EVERY_NS {
                return Verdict::leave(Reason::Enough, forecast);
            }
            if let Some(change) = Change::between((at, &counters), sample) {
                forecast.stalls = change.stalls();
                seconds = Some(change.seconds);
                if change.steal_kswapd > 0 {
                    self.reclaim_rate = change.steal_kswapd as f64 / change.seconds;
                }
            }
        }
        self.last = Some((sample.at.get(), sample.counters));
        self.round = self.round.saturating_add(1);
        let merged = self.record(sample);
        for (rate, pages) in self.compaction_rates.iter_mut().zip(merged) {
            if let Some(seconds) = seconds.filter(|_| pages > 0) {
                *rate = pages as f64 / seconds;
            }
        }
        self.decide(sample, forecast)
    }

    /// Returns for each order how many pages came together into blocks of at least this order.
    fn record(&mut self, sample: &Sample) -> [u64; ORDERS] {
        let mut merged = [0_u64; ORDERS];
        for id in sample.nodes() {
            let known = self.nodes.iter().position(|node| node.id == id);
            let index = match known {
                Some(index) => index,
                None if self.nodes.len() < MAX_NODES => {
                    self.nodes.push(Node {
                        id,
                        free: Window::new(WINDOW),
                        usable: [Window::new(WINDOW); ORDERS],
                        last: None,
                        compacted: None,
                    });
                    self.nodes.len().saturating_sub(1)
                }
                None => continue,
            };
            let Some(node) = self.nodes.get_mut(index) else {
                continue;
            };
            let at: Nanos = sample.at;
            let free = sample.sum_of_node(id, |zone| zone.free);
            let pages =
                std::array::from_fn(|order| sample.sum_of_node(id, |zone| zone.pages_from(order)));
            node.free.push(at, free as f64);
            for (usable, &now) in node.usable.iter_mut().zip(&pages).skip(1) {
                usable.push(at, now as f64);
            }
            if let Some((free_before, before)) = node.last.replace((free, pages)) {
                // What was freed may be whole blocks; what is beyond it has been moved together.
                let freed = free.saturating_sub(free_before);
                for ((sum, now), before) in merged.iter_mut().zip(pages).zip(before) {
                    let more = now.saturating_sub(before).saturating_sub(freed);
                    *sum = sum.saturating_add(more);
                }
            }
        }
        merged
    }

    fn decide(&mut self, sample: &Sample, mut forecast: Forecast) -> Verdict {
        let mut raises = false;
        let mut lowers = true;
        let mut is_ready = false;
        let mut compact = None;
        forecast.supply = self.reclaim_rate;
        for node in &mut self.nodes {
            if !node.free.is_full() {
                continue;
            }
            let Some(line) = node.free.least_squares() else {
                continue;
            };
            is_ready = true;
            let high = sample.sum_of_node(node.id, |zone| zone.high) as f64;
            let reach = line.seconds_to(high);
            if line.slope < 0.0 {
                lowers = false;
                forecast.demand -= line.slope;
                let free = sample.sum_of_node(node.id, |zone| zone.free) as f64;
                let until = reach.likely.unwrap_or(f64::INFINITY);
                let catch_up = if self.reclaim_rate > 0.0 {
                    (free - high).max(0.0) / self.reclaim_rate
                } else {
                    f64::INFINITY
                };
                // Where kswapd has not been seen yet there is no rate to compare with: then what
                // happens within the window's own length counts.
                let is_short = if self.reclaim_rate > 0.0 {
                    until <= CATCH_UP_FACTOR * catch_up
                } else {
                    until <= WINDOW as f64
                };
                raises |= free <= high || is_short;
                forecast.soonest = earlier(forecast.soonest, reach.soonest);
                forecast.likely = earlier(forecast.likely, reach.likely);
            }
            // One node a round: another's turn is in the next.
            if compact.is_none()
                && let Some(order) = running_out(node, line.slope, &self.compaction_rates)
                && node
                    .compacted
                    .is_none_or(|last| self.round.saturating_sub(last) > WINDOW as u64)
            {
                node.compacted = Some(self.round);
                compact = Some(node.id);
                forecast.order = u8::try_from(order).ok();
            }
        }
        let order = forecast.order.map_or(HUGE, usize::from);
        forecast.compaction = self.compaction_rates.get(order).copied().unwrap_or(0.0);
        if !is_ready {
            return Verdict::leave(Reason::TooFewSamples, forecast);
        }
        let (scale, reason) = if raises {
            (self.raised(sample), Reason::Ahead)
        } else if lowers {
            (self.lowered(sample), Reason::Calm)
        } else {
            (sample.scale, Reason::Enough)
        };
        let scale = self
            .bounds
            .clamp(scale.min(highest_that_can_be_met(sample)));
        let reason = match compact {
            Some(_) if scale == sample.scale => Reason::Fragmented,
            _ => reason,
        };
        Verdict {
            scale: Some(scale).filter(|&scale| scale != sample.scale),
            compact,
            reclaim: None,
            reason,
            forecast,
        }
    }

    /// The peer's step up: half of what is not free, in ten-thousandths, rounded to tens; where that
    /// is what there is already, a tenth more.
    fn raised(&self, sample: &Sample) -> u32 {
        let not_free = 1000_u64.saturating_sub(permille_free(sample));
        let high = sample.sum(|zone| zone.high);
        let is_plenty = sample.holdings.file > high.saturating_sub(sample.free());
        let step = if sample.free() < high && is_plenty {
            not_free / 10 * 10
        } else {
            not_free / 20 * 10
        };
        let step = u32::try_from(step).unwrap_or(u32::MAX);
        if step > sample.scale {
            step
        } else {
            sample.scale.saturating_mul(11) / 10
        }
    }

    /// The peer's step down: a tenth less.
    fn lowered(&self, sample: &Sample) -> u32 {
        sample.scale.saturating_mul(9) / 10
    }
}

fn permille_free(sample: &Sample) -> u64 {
    let managed = sample.managed().max(1);
    sample.free().saturating_mul(1000) / managed
}

fn earlier(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// The highest order whose blocks run out, although memory does not, within the window's length or before compaction
/// has brought back what was lost in it (S4 "Putting it all together - Actions").
fn running_out(node: &Node, free_slope: f64, compaction_rates: &[f64; ORDERS]) -> Option<usize> {
    let orders = node.usable.iter().zip(compaction_rates).enumerate();
    for (order, (usable, &rate)) in orders.skip(1).take(HUGE).rev() {
        let Some(line) = usable.least_squares() else {
            continue;
        };
        let ends = line.seconds_to((1_u64 << order) as f64);
        let falls_by_itself = line.slope < 0.0 && line.slope < free_slope.min(0.0) * 1.5;
        let window = WINDOW as f64;
        let catch_up = if rate > 0.0 {
            -line.slope * window / rate
        } else {
            0.0
        };
        // A few pages that came together by chance are no rate to wait for.
        let horizon = (CATCH_UP_FACTOR * catch_up).clamp(window, CATCH_UP_FACTOR * window);
        if falls_by_itself && ends.likely.is_some_and(|it| it <= horizon) {
            return Some(order);
        }
    }
    None
}
