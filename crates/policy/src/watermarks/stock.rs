// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bursar's own model: the gap between the marks as a safety stock.
//!
//! kswapd wakes when free memory falls below the low mark and needs a moment until it gives anything
//! back; whoever asks meanwhile lives on the gap between low and min, and stalls when that is used up.
//! So the gap has to cover the largest demand within any span of time, less what kswapd gives back in
//! it: `max over w of peak(w) − supply × (w − reaction)`. Demand is
//! seen while memory still is plentiful: that is the forecast. Stalls, where they happen all the same,
//! teach a floor that is forgotten slowly.
//!
//! kswapd fills up to the high mark, two gaps above min, and then sleeps until free memory has fallen by
//! one: it keeps one and a half gaps on average to have one in stock, and knows nothing of what is yet to
//! come. Where somebody else can free memory at our word ([`Stock::set_prefrees`]) the stock is held by
//! that hand, and the gap only has to wake kswapd in time. What is held is then what may *still* come: a
//! burst that has begun can only go on to what bursts ever came to ([`Demand::ahead`]), and what it took
//! need not be made free a second time before it is given back.

use super::bounds::{ScaleBounds, gap_of_node, highest_that_can_be_met, scale_for_gap};
use super::change::Change;
use super::demand::{Curve, Demand, Supply, WINDOWS_MS};
use super::line::Window;
use super::margin::{gap_of_margin, kept_at};
use super::sample::{Counters, Sample};
use super::verdict::{Forecast, Reason, Verdict};

/// No verdict before so many samples.
const ENOUGH_SAMPLES: u32 = 8;
/// Nodes that are watched; those after are left to the kernel.
const MAX_NODES: usize = 64;
/// From kswapd's wake-up to its first pages, seconds, while nothing is known of it: it has to be
/// scheduled, on processors that may be busy.
const REACTION: f64 = 0.15;
/// The same where it cannot be measured, once the gap has stood its trials.
const UNMEASURED_REACTION: f64 = 0.1;
/// Slower than that is prepared for, by this factor.
const SLOWER: f64 = 4.0;
/// Of the best rate seen, what is relied on: the best one is reached with clean file pages only.
const RELIED_ON: f64 = 0.5;
/// The same, once the gap has stood its trials.
const TRUSTED: f64 = 0.6;
/// Runs of kswapd without a stall until supply and reaction are trusted as measured.
const TRIALS: f64 = 20.0;
/// Gaps in a stock that is held by prefreeing: kswapd fills up to two of them, so it wakes when a third of
/// the stock is left, and leaves another third to the hand that knows what is yet to come.
const HELD_GAPS: f64 = 3.0;
/// Act when the low mark may be reached within this, seconds.
const HORIZON: f64 = 10.0;
/// Look closely when it may be reached within this, seconds.
const CLOSE: f64 = 60.0;
/// kswapd at work, or a stall, counts as activity for so long.
const ACTIVE_NS: u64 = 60_000_000_000;
/// Samples come quickly for so long after it.
const CLOSE_NS: u64 = 10_000_000_000;
/// A lower value is written this often, and then at most this much lower, percent.
const LOWER_EVERY_NS: u64 = 5_000_000_000;
const LOWER_PERCENT: u32 = 15;
/// The longest window of [`WINDOWS_MS`], seconds.
const LONGEST: f64 = 3.2;
/// A huge page has two to this many pages, where a page has 4 KiB.
const HUGE_ORDER: usize = 9;
/// What was given out in so many seconds may have been out all at once.
const QUICKLY: f64 = 0.15;
/// Who fills huge pages has them in an instant, and two who do so seldom do it in the same one: what came
/// at once so far is no bound for what may. Where pieces have to be put together, want is dear.
const TOGETHER: f64 = 1.5;
/// Looks that are further apart are not of those that come quickly, seconds.
const QUICK: f64 = 0.5;
/// A stall raises the floor at most this often.
const LEARN_EVERY_NS: u64 = 500_000_000;
/// By how much a stall raises it.
const LEARN: f64 = 1.25;
/// What is left of the trust after a stall; the floor does the rest.
const DOUBT: f64 = 0.75;
/// What is left of the floor after a minute without a stall.
const FORGET_A_MINUTE: f64 = 0.9;
/// The line through demand is drawn this often: it costs as much as reading a file, and nothing is
/// decided on it.
const TREND_EVERY_NS: u64 = 1_000_000_000;
/// Less is not worth asking for, pages.
const LEAST_RECLAIM: u64 = 256;
/// The last seconds in which stalls are counted, and in how many there must be one for an overload.
const OVERLOAD_SECONDS: u32 = 15;
const OVERLOAD_STALLED: u32 = 8;

#[derive(Debug, Clone)]
struct Node {
    id: u16,
    free: u64,
    demand: Demand,
}

/// The most within `seconds`, by a straight line between the windows on both sides of it; in the shortest
/// one it may come all at once.
fn within(asked: &Curve, seconds: f64) -> f64 {
    let windows = WINDOWS_MS.map(|window| window as f64 / 1e3);
    let points = windows.iter().zip(asked);
    let mut sides = points.clone().zip(points.skip(1));
    let between = sides.find(|((_, _), (end, _))| seconds < **end);
    match between {
        Some(((start, less), (end, more))) if seconds > *start => {
            less + (more - less) * (seconds - start) / (end - start)
        }
        Some(((_, less), _)) => *less,
        None => asked.last().copied().unwrap_or(0.0),
    }
}

/// A twentieth more is not worth a write.
const fn is_worth_raising(current: u32, wanted: u32) -> bool {
    wanted > current.saturating_add(current / 20)
}

/// The model's memory.
#[derive(Debug, Clone)]
pub struct Stock {
    bounds: ScaleBounds,
    nodes: Vec<Node>,
    supply: Supply,
    /// Net demand of all nodes, ten samples a second at most, for the robust line.
    course: Window,
    /// Its slope, pages a second, and when it was drawn.
    trend: f64,
    trend_at: u64,
    last: Option<(u64, Counters)>,
    samples: u32,
    /// The stock that was too small, and a little more, pages of the largest node; 0 when none was.
    floor: f64,
    floor_at: u64,
    /// What was wanted last, pages of the node that wanted most.
    wanted: f64,
    /// 0 to 1: how far supply and reaction are believed.
    trust: f64,
    lowered_at: u64,
    active_at: Option<u64>,
    /// Whether memory is freed at our word.
    prefrees: bool,
    /// What is to be free whatever is asked for, pages of all nodes: S2's margin.
    margin: u64,
    /// Between two looks while they come quickly, seconds, a moving mean: on a busy machine they are late.
    pause: f64,
    /// One bit a second: whether somebody stalled.
    stalled_seconds: u32,
    second: u64,
}

impl Stock {
    /// The model, moving the factor within `bounds`.
    pub const fn new(bounds: ScaleBounds) -> Self {
        Self {
            bounds,
            nodes: Vec::new(),
            supply: Supply::nothing_seen(),
            course: Window::new(20),
            trend: 0.0,
            trend_at: 0,
            last: None,
            samples: 0,
            floor: 0.0,
            floor_at: 0,
            wanted: 0.0,
            trust: 0.0,
            lowered_at: 0,
            active_at: None,
            prefrees: false,
            margin: 0,
            pause: 0.0,
            stalled_seconds: 0,
            second: 0,
        }
    }

    /// Whether what is wanted free is freed at once, beside what kswapd does.
    pub fn set_prefrees(&mut self, prefrees: bool) {
        self.prefrees = prefrees;
    }

    /// From now on so many pages stay free, storm or not: what others may take while a killed process's memory comes
    /// back (S2).
    pub fn set_margin(&mut self, pages: u64) {
        self.margin = pages;
    }

    /// The stock in gaps: with prefreeing kswapd is the second hand, not the only one.
    const fn gaps(&self) -> f64 {
        if self.prefrees { HELD_GAPS } else { 1.0 }
    }

    /// Other bounds from now on; what was learned stays.
    pub fn rebound(&mut self, bounds: ScaleBounds) {
        self.bounds = bounds;
    }

    /// Looks at a sample.
    pub fn look(&mut self, sample: &Sample) -> Verdict {
        let at = sample.at.get();
        let mut forecast = Forecast::begun(sample);
        let change = self
            .last
            .and_then(|(at, counters)| Change::between((at, &counters), sample));
        let Some(change) = change else {
            self.last.get_or_insert((at, sample.counters));
            self.meet_nodes(sample);
            return Verdict::leave(Reason::TooFewSamples, forecast);
        };
        self.last = Some((at, sample.counters));
        self.samples = self.samples.saturating_add(1);
        self.observe(sample, &change);
        self.learn(sample, &change);
        forecast.stalls = change.stalls();
        forecast.supply = self.supply.rate();
        if at.saturating_sub(self.trend_at) >= TREND_EVERY_NS {
            self.trend_at = at;
            let line = self.course.repeated_median();
            self.trend = line.map_or(0.0, |line| line.slope.max(0.0));
        }
        forecast.demand = self.trend;
        if self.samples < ENOUGH_SAMPLES {
            return Verdict::leave(Reason::TooFewSamples, forecast);
        }
        self.decide(sample, forecast)
    }

    fn meet_nodes(&mut self, sample: &Sample) {
        for id in sample.nodes() {
            let is_known = self.nodes.iter().any(|node| node.id == id);
            if !is_known && self.nodes.len() < MAX_NODES {
                self.nodes.push(Node {
                    id,
                    free: sample.sum_of_node(id, |zone| zone.free),
                    demand: Demand::new(),
                });
            }
        }
    }

    fn observe(&mut self, sample: &Sample, change: &Change) {
        self.meet_nodes(sample);
        let at = sample.at.get();
        if change.seconds < QUICK {
            self.pause += (change.seconds - self.pause) / 32.0;
        }
        self.supply.add(at, change.steal_kswapd, change.seconds);
        if let Some(rate) = sample.prefree_rate {
            self.supply.add_rate(at, rate as f64);
        }
        let managed = sample.managed().max(1) as f64;
        let mut total = 0.0;
        for node in &mut self.nodes {
            let free = sample.sum_of_node(node.id, |zone| zone.free);
            let part = sample.sum_of_node(node.id, |zone| zone.managed) as f64 / managed;
            let net = node.free as f64 - free as f64 + change.steal as f64 * part;
            node.free = free;
            node.demand.add(at, net);
            let huge = change.huge_asked.saturating_mul(1 << HUGE_ORDER) as f64;
            let at_once = (QUICKLY / change.seconds).min(1.0);
            node.demand
                .add_passing(at, huge * part * at_once * TOGETHER);
            total += node.demand.total();
        }
        self.course.push(sample.at, total);
        if change.steal_kswapd > 0 || change.stalls() > 0 {
            self.active_at = Some(at);
        }
        let second = at / 1_000_000_000;
        let passed = second.saturating_sub(self.second).min(31);
        self.stalled_seconds = self.stalled_seconds.checked_shl(passed as u32).unwrap_or(0);
        self.stalled_seconds |= u32::from(change.alloc_stalls > 0);
        self.second = second;
    }

    /// A stall says that the gap was too small, whatever was computed.
    fn learn(&mut self, sample: &Sample, change: &Change) {
        let at = sample.at.get();
        let since = at.saturating_sub(self.floor_at);
        // Compaction that a small block needs is no want of room; that of huge pages is.
        let has_waited =
            change.alloc_stalls > 0 || (change.huge_asked > 0 && change.compact_stalls > 0);
        if has_waited {
            self.trust *= DOUBT;
            if (self.floor == 0.0 || since >= LEARN_EVERY_NS) && !self.is_overloaded(sample) {
                let stock = self.wanted.max(self.widest_gap(sample, sample.scale));
                let most = self.widest_gap(sample, self.highest(sample)) * self.gaps();
                self.floor = self.floor.max(stock.min(most) * LEARN);
                self.floor_at = at;
            }
            return;
        }
        self.trust = (self.trust + change.kswapd_runs as f64 / TRIALS).min(1.0);
        if self.floor > 0.0 && since >= ACTIVE_NS {
            self.floor *= FORGET_A_MINUTE;
            self.floor_at = at;
            if self.floor < self.widest_gap(sample, self.bounds.lowest()) {
                self.floor = 0.0;
            }
        }
    }

    /// The gap of the largest node at a factor, pages.
    fn widest_gap(&self, sample: &Sample, scale: u32) -> f64 {
        let gaps = self.nodes.iter();
        let widest = gaps.map(|node| gap_of_node(sample, node.id, scale)).max();
        widest.unwrap_or(0) as f64
    }

    /// Somebody stalled in most of the last seconds although there is as much room as can be had.
    fn is_overloaded(&self, sample: &Sample) -> bool {
        let recent = self.stalled_seconds & ((1 << OVERLOAD_SECONDS) - 1);
        recent.count_ones() >= OVERLOAD_STALLED
            && !is_worth_raising(sample.scale, self.highest(sample))
    }

    /// The highest factor that may be set and can be kept.
    fn highest(&self, sample: &Sample) -> u32 {
        self.bounds.highest().min(highest_that_can_be_met(sample))
    }

    /// What has to be free, pages, for `asked` within each window: cautiously while supply and reaction
    /// are guesses, as measured once they have been tried.
    fn cover(&self, asked: &Curve, reaction_ns: Option<u64>) -> f64 {
        let measured = reaction_ns.map(|ns| (ns as f64 / 1e9 * SLOWER).min(REACTION));
        let cautious = self.uncovered(asked, REACTION, RELIED_ON);
        let trusting = self.uncovered(asked, measured.unwrap_or(UNMEASURED_REACTION), TRUSTED);
        cautious + (trusting - cautious).min(0.0) * self.trust
    }

    /// The most of it that is asked for in any span before kswapd, coming `reaction` seconds late, has
    /// made room for it.
    fn uncovered(&self, asked: &Curve, reaction: f64, relied_on: f64) -> f64 {
        let nodes = self.nodes.len().max(1) as f64;
        let supply = self.supply.rate() * relied_on / nodes;
        // What is asked for between two looks is asked for at once: nobody is sure to have run in between,
        // however soon he mostly does.
        let at_once = within(asked, self.pause);
        let spans = asked.iter().zip(WINDOWS_MS);
        spans
            .map(|(most, window)| (most, window as f64 / 1e3))
            .filter(|(_, window)| *window >= reaction)
            .map(|(most, window)| most - supply * (window - reaction))
            .fold(at_once, f64::max)
    }

    fn decide(&mut self, sample: &Sample, mut forecast: Forecast) -> Verdict {
        let at = sample.at.get();
        let is_active = self
            .active_at
            .is_some_and(|then| at.saturating_sub(then) < ACTIVE_NS);
        let mut target = self.bounds.lowest();
        let mut for_margin = 0;
        let top = self.highest(sample);
        self.wanted = 0.0;
        // Free memory that what may come from now on asks for, and whether it is more than there would be.
        let (mut held, mut is_more) = (0_u64, false);
        // Of it, what has to lie in blocks of huge pages and does not.
        let mut in_pieces = 0_u64;
        let mut soonest = f64::INFINITY;
        for node in &self.nodes {
            let untouched = gap_of_node(sample, node.id, self.bounds.lowest()) as f64;
            let peaks = node.demand.peaks();
            let seen = self.cover(&peaks, sample.reaction_ns);
            let mut stock = seen;
            // What a storm taught is for storms: a quiet machine gets its values back.
            if is_active || stock > untouched {
                stock = stock.max(self.floor);
            }
            forecast.needed = forecast.needed.saturating_add(stock as u64);
            self.wanted = self.wanted.max(stock);
            is_more |= stock > untouched;
            // A floor stands for as many times the demand that was seen.
            let times = if seen > 0.0 { stock / seen } else { 1.0 };
            let bound = peaks.map(|peak| peak * times);
            let ahead = self.cover(&node.demand.ahead(&bound), sample.reaction_ns);
            // Not even so does more lie idle than kswapd itself would hold at the bound.
            let most = gap_of_node(sample, node.id, top).saturating_mul(2);
            let min = sample.sum_of_node(node.id, |zone| zone.min);
            let ahead = (ahead as u64).min(most);
            held = held.saturating_add(min).saturating_add(ahead);
            let huge = ahead.min((node.demand.passing() * times) as u64);
            let whole = sample.sum_of_node(node.id, |zone| zone.pages_from(HUGE_ORDER));
            // More room than kswapd would make at the bound does not make blocks of pieces.
            if node.free < most.saturating_add(min) {
                in_pieces = in_pieces.saturating_add(huge.saturating_sub(whole));
            }
            if stock > untouched {
                let gap = (stock / self.gaps()) as u64;
                target = target.max(scale_for_gap(sample, node.id, gap));
            }
            let margin = gap_of_margin(sample, node.id, self.margin);
            if margin as f64 > untouched {
                for_margin = for_margin.max(scale_for_gap(sample, node.id, margin));
            }
            // The fastest that was seen, for as long as it lasts: pessimistic on purpose, for a
            // raised mark costs nothing while memory is plentiful.
            let fastest = peaks.last().map_or(0.0, |peak| peak / LONGEST);
            let above = node.free as f64 - min as f64 - stock;
            if fastest > 0.0 {
                soonest = soonest.min((above / fastest).max(0.0));
            }
        }
        forecast.soonest = Some(soonest).filter(|it| it.is_finite());
        if forecast.demand > 0.0 {
            let above = forecast.free.saturating_sub(forecast.low) as f64;
            forecast.likely = Some(above / forecast.demand);
        }
        let is_for_margin = for_margin > target;
        target = target.max(for_margin);
        let wanted = self.bounds.clamp(target.min(top));
        let current = sample.scale;
        forecast.margin = self.margin;
        forecast.margin_kept = self.margin.min(kept_at(sample, wanted));
        let mut verdict = Verdict::leave(Reason::Enough, forecast);
        if self.prefrees && is_more && is_active {
            let short = held.saturating_sub(sample.free()).max(in_pieces);
            verdict.reclaim = self.at_once(short);
        }
        if self.is_overloaded(sample) {
            verdict.reason = Reason::Overload;
            return verdict;
        }
        if is_worth_raising(current, wanted) {
            if forecast.stalls > 0 {
                verdict.reason = Reason::Stalled;
            } else if is_for_margin {
                verdict.reason = Reason::Margin;
            } else if is_active || soonest <= HORIZON {
                verdict.reason = Reason::Ahead;
            } else {
                return verdict;
            }
            verdict.scale = Some(wanted);
            self.lowered_at = at;
            return verdict;
        }
        if forecast.stalls > 0 && target > wanted {
            verdict.reason = Reason::AtBound;
            return verdict;
        }
        if current > wanted {
            return self.lower(sample, wanted, is_active, verdict);
        }
        if !is_active && target == self.bounds.lowest() {
            verdict.reason = Reason::Quiet;
        }
        if !is_active && is_for_margin {
            verdict.reason = Reason::Margin;
        }
        verdict
    }

    /// Of what is missing, what kswapd gives in a tenth of a second at most.
    fn at_once(&self, short: u64) -> Option<u64> {
        let most = (self.supply.rate() / 10.0) as u64;
        Some(short.min(most.max(LEAST_RECLAIM))).filter(|&short| short >= LEAST_RECLAIM)
    }

    /// Down by steps while there is work, at once when all is quiet.
    fn lower(
        &mut self,
        sample: &Sample,
        wanted: u32,
        is_active: bool,
        mut verdict: Verdict,
    ) -> Verdict {
        let at = sample.at.get();
        if at.saturating_sub(self.lowered_at) < LOWER_EVERY_NS {
            return verdict;
        }
        let current = sample.scale;
        let is_over = !is_active && wanted == self.bounds.lowest();
        let next = if is_over {
            wanted
        } else {
            wanted.max(current.saturating_mul(100 - LOWER_PERCENT) / 100)
        };
        // A twentieth less is not worth a write either, except for the last one.
        let is_worth_it = next.saturating_add(current / 20) <= current;
        if is_worth_it || is_over {
            self.lowered_at = at;
            verdict.scale = Some(next);
            verdict.reason = Reason::Calm;
        }
        verdict
    }

    /// Whether the next samples should come quickly: the low mark may be near, or kswapd works.
    pub fn is_close(&self, now_ns: u64) -> bool {
        let is_at_work = self
            .active_at
            .is_some_and(|then| now_ns.saturating_sub(then) < CLOSE_NS);
        let recently = self.nodes.iter().any(|node| {
            let rise = node.demand.recent().last().copied().unwrap_or(0.0);
            let rate = rise / LONGEST;
            rate > 0.0 && (node.free as f64) / rate < CLOSE
        });
        is_at_work || recently
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_between_two_looks_lies_between_the_windows_on_both_sides() {
        let asked = [100.0, 160.0, 200.0, 200.0, 200.0, 300.0];
        let table = [
            (0.0, 100.0),
            (0.1, 100.0),
            (0.15, 130.0),
            (0.2, 160.0),
            (0.3, 180.0),
            (9.0, 300.0),
        ];
        for (seconds, most) in table {
            let found = within(&asked, seconds);
            assert!((found - most).abs() < 1e-9, "{seconds}: {found}");
        }
    }
}
