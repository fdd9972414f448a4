// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines over logarithmic axes: what grows with what.

use super::picture::{Anchor, Pen};

/// The whole chart.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) title: String,
    pub(crate) across: &'static str,
    pub(crate) up: &'static str,
    /// Name and points.
    pub(crate) series: Vec<(String, Vec<(f64, f64)>)>,
}

const LEFT: f64 = 80.0;
const TOP: f64 = 96.0;
const WIDE: f64 = 460.0;
const HIGH: f64 = 300.0;

/// The powers of ten around some values.
fn powers(values: impl Iterator<Item = f64>) -> (i32, i32) {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values.filter(|it| *it > 0.0) {
        low = low.min(value.log10());
        high = high.max(value.log10());
    }
    if low > high {
        return (0, 1);
    }
    let (low, high) = (low.floor() as i32, high.ceil() as i32);
    (low, high.max(low + 1))
}

impl Lines {
    pub(crate) fn draw(&self) -> String {
        let points = || self.series.iter().flat_map(|it| it.1.iter());
        let (left, right) = powers(points().map(|it| it.0));
        let (bottom, top) = powers(points().map(|it| it.1));
        let x =
            |value: f64| LEFT + WIDE * (value.log10() - f64::from(left)) / f64::from(right - left);
        let y = |value: f64| {
            TOP + HIGH - HIGH * (value.log10() - f64::from(bottom)) / f64::from(top - bottom)
        };
        let mut pen = Pen::new(LEFT + WIDE + 40.0, TOP + HIGH + 56.0);
        pen.text(
            ((LEFT + WIDE + 40.0) / 2.0, 22.0),
            15.0,
            Anchor::Middle,
            &self.title,
        );
        for power in left..=right {
            let at = x(10_f64.powi(power));
            pen.line((at, TOP), (at, TOP + HIGH), 0.3, "2 3");
            let label = format!("{:.0}", 10_f64.powi(power));
            pen.text((at, TOP + HIGH + 18.0), 11.0, Anchor::Middle, &label);
        }
        for power in bottom..=top {
            let at = y(10_f64.powi(power));
            pen.line((LEFT, at), (LEFT + WIDE, at), 0.3, "2 3");
            let label = if power < 0 {
                format!("{:.*}", power.unsigned_abs() as usize, 10_f64.powi(power))
            } else {
                format!("{:.0}", 10_f64.powi(power))
            };
            pen.text((LEFT - 6.0, at + 4.0), 11.0, Anchor::End, &label);
        }
        pen.line((LEFT, TOP), (LEFT, TOP + HIGH), 1.0, "");
        pen.line((LEFT, TOP + HIGH), (LEFT + WIDE, TOP + HIGH), 1.0, "");
        pen.text(
            (LEFT + WIDE / 2.0, TOP + HIGH + 40.0),
            12.0,
            Anchor::Middle,
            self.across,
        );
        pen.upright((20.0, TOP + HIGH / 2.0), 12.0, self.up);
        let dashes = ["", "8 4", "2 3", "8 3 2 3", "1 5", "12 4"];
        for (index, (name, points)) in self.series.iter().enumerate() {
            let dash = dashes[index % dashes.len()];
            for pair in points.windows(2) {
                let ends = ((x(pair[0].0), y(pair[0].1)), (x(pair[1].0), y(pair[1].1)));
                pen.line(ends.0, ends.1, 1.4, dash);
            }
            for point in points {
                pen.mark((x(point.0), y(point.1)), index);
            }
            let (row, column) = (index / 2, index % 2);
            let at = (50.0 + 280.0 * column as f64, 42.0 + 17.0 * row as f64);
            pen.line((at.0 - 14.0, at.1), (at.0 + 14.0, at.1), 1.4, dash);
            pen.mark(at, index);
            pen.text((at.0 + 20.0, at.1 + 4.0), 11.0, Anchor::Start, name);
        }
        pen.finish(&self.title)
    }
}
