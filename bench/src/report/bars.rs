// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Groups of bars, as S1 draws its figures.

use super::picture::{Anchor, Pen};

/// One bar.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bar {
    pub(crate) value: f64,
    /// Ends of its whisker.
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// How values become heights.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Axis {
    /// From 0 to so much.
    Linear { top: f64, step: f64 },
    /// Powers of ten; what is not above `floor` stands on the ground.
    Log { floor: f64, top: f64 },
}

/// The whole chart.
#[derive(Debug)]
pub(crate) struct Bars {
    pub(crate) title: String,
    pub(crate) unit: String,
    pub(crate) groups: Vec<String>,
    pub(crate) series: Vec<String>,
    /// By group, by series.
    pub(crate) bars: Vec<Vec<Option<Bar>>>,
    pub(crate) axis: Axis,
    /// A line across, with its name.
    pub(crate) reference: Option<(f64, &'static str)>,
}

const LEFT: f64 = 74.0;
const RIGHT: f64 = 84.0;
const TOP: f64 = 74.0;
const PLOT: f64 = 300.0;
const BOTTOM: f64 = 46.0;

impl Axis {
    /// 0 on the ground, 1 at the top.
    fn share(self, value: f64) -> f64 {
        let share = match self {
            Self::Linear { top, .. } => value / top,
            Self::Log { floor, top } => (value.max(floor) / floor).log10() / (top / floor).log10(),
        };
        share.clamp(0.0, 1.0)
    }

    fn ticks(self) -> Vec<f64> {
        match self {
            Self::Linear { top, step } => {
                let count = (top / step).round() as usize;
                (0..=count).map(|index| index as f64 * step).collect()
            }
            Self::Log { floor, top } => {
                let count = (top / floor).log10().round() as i32;
                (0..=count)
                    .map(|power| floor * 10_f64.powi(power))
                    .collect()
            }
        }
    }
}

fn number(value: f64) -> String {
    if value != 0.0 && value.abs() < 0.095 {
        format!("{value:.2}")
    } else if value.abs() < 10.0 && value.fract() != 0.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

impl Bars {
    pub(crate) fn draw(&self) -> String {
        let wide = 15.0;
        let group_width = wide * self.series.len() as f64 + 26.0;
        let plot_width = (group_width * self.groups.len() as f64).max(420.0);
        let group_width = plot_width / self.groups.len().max(1) as f64;
        let (width, height) = (LEFT + plot_width + RIGHT, TOP + PLOT + BOTTOM);
        let mut pen = Pen::new(width, height);
        let ground = TOP + PLOT;
        let at = |value: f64| ground - PLOT * self.axis.share(value);
        pen.text((width / 2.0, 22.0), 15.0, Anchor::Middle, &self.title);
        self.legend(&mut pen, width);
        pen.upright((18.0, TOP + PLOT / 2.0), 12.0, &self.unit);
        for tick in self.axis.ticks() {
            pen.line((LEFT, at(tick)), (LEFT + plot_width, at(tick)), 0.3, "2 3");
            pen.text(
                (LEFT - 6.0, at(tick) + 4.0),
                11.0,
                Anchor::End,
                &number(tick),
            );
        }
        for (index, (group, bars)) in self.groups.iter().zip(&self.bars).enumerate() {
            let left = LEFT + group_width * index as f64;
            pen.text(
                (left + group_width / 2.0, ground + 18.0),
                11.0,
                Anchor::Middle,
                group,
            );
            let bars_left = left + (group_width - wide * self.series.len() as f64) / 2.0;
            for (fill, bar) in bars.iter().enumerate() {
                let x = bars_left + wide * fill as f64;
                match bar {
                    Some(bar) => self.bar(&mut pen, (x, ground), wide - 2.0, fill, *bar),
                    None => pen.text((x + 6.0, ground - 3.0), 9.0, Anchor::Middle, "–"),
                }
            }
        }
        pen.line((LEFT, TOP), (LEFT, ground), 1.0, "");
        pen.line((LEFT, ground), (LEFT + plot_width, ground), 1.0, "");
        if let Some((value, name)) = self.reference {
            pen.line(
                (LEFT, at(value)),
                (LEFT + plot_width, at(value)),
                1.2,
                "7 3",
            );
            pen.text(
                (LEFT + plot_width + 4.0, at(value) + 4.0),
                10.0,
                Anchor::Start,
                name,
            );
        }
        pen.finish(&self.title)
    }

    fn legend(&self, pen: &mut Pen, width: f64) {
        let per_row = ((width - 40.0) / 110.0).floor().max(1.0) as usize;
        for (index, name) in self.series.iter().enumerate() {
            let x = 40.0 + 110.0 * (index % per_row) as f64;
            let y = 34.0 + 16.0 * (index / per_row) as f64;
            pen.bar((x, y), 12.0, 11.0, index);
            pen.text((x + 17.0, y + 10.0), 11.0, Anchor::Start, name);
        }
    }

    fn bar(&self, pen: &mut Pen, foot: (f64, f64), wide: f64, fill: usize, bar: Bar) {
        let (x, ground) = foot;
        let at = |value: f64| ground - PLOT * self.axis.share(value);
        let height = (ground - at(bar.value)).max(1.5);
        pen.bar((x, ground - height), wide, height, fill);
        let middle = x + wide / 2.0;
        if bar.high > bar.low && at(bar.high) < ground {
            pen.line((middle, at(bar.low)), (middle, at(bar.high)), 1.0, "");
            for end in [bar.low, bar.high] {
                pen.line((middle - 3.0, at(end)), (middle + 3.0, at(end)), 1.0, "");
            }
        }
        let is_cut = matches!(self.axis, Axis::Linear { top, .. } if bar.value > top);
        if is_cut {
            pen.text((middle, TOP - 3.0), 9.0, Anchor::Middle, &number(bar.value));
        }
    }
}
