// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Straight lines through samples: least squares (S4 "Method of least squares"), and Siegel's repeated
//! median, which half of the samples may lie about (A. F. Siegel, Robust regression using repeated
//! medians, Biometrika 69, 1982; Theil–Sen gives way at 29 %).
//!
//! The one place with floats: a forecast is an estimate. Time is taken relative to the
//! window's last sample, so that nanoseconds since boot do not eat the precision.

use bursar_model::Nanos;

/// The most samples a window has.
pub const MAX_WINDOW: usize = 32;

/// Values with their times, the newest last; what does not fit pushes the oldest out.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    points: [(u64, f64); MAX_WINDOW],
    first: usize,
    count: usize,
    size: usize,
}

/// A line through a window: value at its newest sample, change, and how sure that is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// Value at the newest sample.
    pub level: f64,
    /// Change a second.
    pub slope: f64,
    /// Half the width of the interval in which the slope lies, about 95 %; a second.
    pub error: f64,
}

impl Window {
    /// A window of `size` samples, 2 to [`MAX_WINDOW`].
    pub const fn new(size: usize) -> Self {
        let size = if size < 2 {
            2
        } else if size > MAX_WINDOW {
            MAX_WINDOW
        } else {
            size
        };
        Self {
            points: [(0, 0.0); MAX_WINDOW],
            first: 0,
            count: 0,
            size,
        }
    }

    /// Adds a value. One that is not later than the last, or no number, is left out.
    pub fn push(&mut self, at: Nanos, value: f64) {
        let is_later = self.newest().is_none_or(|(last, _)| at.get() > last);
        if !is_later || !value.is_finite() {
            return;
        }
        let index = self.index(self.count);
        if let Some(room) = self.points.get_mut(index) {
            *room = (at.get(), value);
        }
        if self.count == self.size {
            self.first = self.index(1);
        } else {
            self.count = self.count.saturating_add(1);
        }
    }

    const fn index(&self, nth: usize) -> usize {
        self.first.wrapping_add(nth) % self.size
    }

    /// Forgets all samples.
    pub fn clear(&mut self) {
        self.count = 0;
        self.first = 0;
    }

    /// Whether it has as many samples as it can.
    pub const fn is_full(&self) -> bool {
        self.count == self.size
    }

    fn points(&self) -> impl Iterator<Item = (u64, f64)> + Clone {
        (0..self.count).filter_map(|nth| self.points.get(self.index(nth)).copied())
    }

    fn newest(&self) -> Option<(u64, f64)> {
        let last = self.count.checked_sub(1)?;
        self.points.get(self.index(last)).copied()
    }

    /// Samples as seconds before the newest (negative) and values.
    fn relative(&self) -> impl Iterator<Item = (f64, f64)> + Clone {
        let newest = self.newest().map_or(0, |(at, _)| at);
        self.points()
            .map(move |(at, value)| (-(newest.saturating_sub(at) as f64) / 1e9, value))
    }

    /// The line with the least sum of squared distances; `None` with fewer than three samples.
    pub fn least_squares(&self) -> Option<Line> {
        if self.count < 3 {
            return None;
        }
        let n = self.count as f64;
        let (sum_x, sum_y) = self
            .relative()
            .fold((0.0, 0.0), |(sx, sy), (x, y)| (sx + x, sy + y));
        let (mean_x, mean_y) = (sum_x / n, sum_y / n);
        let (sxx, sxy) = self.relative().fold((0.0, 0.0), |(sxx, sxy), (x, y)| {
            let dx = x - mean_x;
            (sxx + dx * dx, sxy + dx * (y - mean_y))
        });
        if sxx <= 0.0 {
            return None;
        }
        let slope = sxy / sxx;
        let level = mean_y - slope * mean_x;
        let squares: f64 = self
            .relative()
            .map(|(x, y)| (y - level - slope * x).powi(2))
            .sum();
        let error = 2.0 * (squares / (n - 2.0) / sxx).sqrt();
        Some(Line {
            level,
            slope,
            error,
        })
    }

    /// The line of repeated medians: of each sample the median slope to all others, of those the
    /// median. `None` with fewer than three samples.
    pub fn repeated_median(&self) -> Option<Line> {
        if self.count < 3 {
            return None;
        }
        let mut slopes = [0.0; MAX_WINDOW];
        let mut found = 0_usize;
        for (index, (x, y)) in self.relative().enumerate() {
            let mut to_others = [0.0; MAX_WINDOW];
            let mut others = 0_usize;
            for (other, (x2, y2)) in self.relative().enumerate() {
                if other == index || x2 == x {
                    continue;
                }
                if let Some(room) = to_others.get_mut(others) {
                    *room = (y2 - y) / (x2 - x);
                    others = others.saturating_add(1);
                }
            }
            let (Some(slope), Some(room)) =
                (median(to_others.get_mut(..others)?), slopes.get_mut(found))
            else {
                continue;
            };
            *room = slope;
            found = found.saturating_add(1);
        }
        let slope = median(slopes.get_mut(..found)?)?;
        let mut rest = [0.0; MAX_WINDOW];
        let fill = |rest: &mut [f64; MAX_WINDOW], of: &dyn Fn(f64, f64) -> f64| {
            for (room, (x, y)) in rest.iter_mut().zip(self.relative()) {
                *room = of(x, y);
            }
        };
        fill(&mut rest, &|x, y| y - slope * x);
        let level = median(rest.get_mut(..self.count)?)?;
        fill(&mut rest, &|x, y| (y - level - slope * x).abs());
        // 1.4826 × MAD is the standard deviation of a normal distribution.
        let spread = 1.4826 * median(rest.get_mut(..self.count)?)?;
        let n = self.count as f64;
        let mean_x = self.relative().map(|(x, _)| x).sum::<f64>() / n;
        let sxx: f64 = self.relative().map(|(x, _)| (x - mean_x).powi(2)).sum();
        let error = if sxx > 0.0 {
            2.0 * spread / sxx.sqrt()
        } else {
            f64::INFINITY
        };
        Some(Line {
            level,
            slope,
            error,
        })
    }
}

impl Line {
    /// Seconds until the line reaches `mark` from above, with the slope itself and with its most
    /// pessimistic end; `None` where it never does.
    pub fn seconds_to(&self, mark: f64) -> Reach {
        let reach = |slope: f64| {
            let above = self.level - mark;
            if above <= 0.0 {
                Some(0.0)
            } else if slope < 0.0 {
                Some(above / -slope)
            } else {
                None
            }
        };
        Reach {
            soonest: reach(self.slope - self.error),
            likely: reach(self.slope),
            latest: reach(self.slope + self.error),
        }
    }
}

/// When a line reaches a mark, seconds from the newest sample; `None` is never.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reach {
    /// With the pessimistic end of the slope.
    pub soonest: Option<f64>,
    /// With the slope itself.
    pub likely: Option<f64>,
    /// With its optimistic end; `None` also where the interval spans infinity.
    pub latest: Option<f64>,
}

/// The middle value; of an even number the mean of the two in the middle. Sorts.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let half = values.len() / 2;
    let upper = *values.get(half)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *values.get(half.checked_sub(1)?)?;
    Some(lower + (upper - lower) / 2.0)
}
