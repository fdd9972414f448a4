// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The models there are, and one way to ask them.

use super::bounds::ScaleBounds;
use super::feedback::Feedback;
use super::sample::Sample;
use super::stock::Stock;
use super::trend::Trend;
use super::verdict::Verdict;

/// Which model decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ModelChoice {
    /// bursar's own: demand, supply and a safety stock.
    #[default]
    Bursar,
    /// S4's rule: a line through free memory.
    Trend,
    /// The ten-line feedback loop.
    Loop,
}

/// A model with what it remembers.
#[derive(Debug, Clone)]
pub enum Model {
    /// See [`ModelChoice::Bursar`].
    Bursar(Box<Stock>),
    /// See [`ModelChoice::Trend`].
    Trend(Box<Trend>),
    /// See [`ModelChoice::Loop`].
    Loop(Box<Feedback>),
}

impl ModelChoice {
    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bursar => "bursar",
            Self::Trend => "trend",
            Self::Loop => "loop",
        }
    }
}

impl Model {
    /// The model, moving the factor within `bounds`.
    pub fn new(choice: ModelChoice, bounds: ScaleBounds) -> Self {
        match choice {
            ModelChoice::Bursar => Self::Bursar(Box::new(Stock::new(bounds))),
            ModelChoice::Trend => Self::Trend(Box::new(Trend::new(bounds))),
            ModelChoice::Loop => Self::Loop(Box::new(Feedback::new(bounds))),
        }
    }

    /// Whether what the model wants freed is freed at once ([`Verdict::reclaim`]); only bursar's own
    /// makes use of it.
    pub fn set_prefrees(&mut self, prefrees: bool) {
        if let Self::Bursar(model) = self {
            model.set_prefrees(prefrees);
        }
    }

    /// So many pages stay free from now on, storm or not; only bursar's own model keeps them.
    pub fn set_margin(&mut self, pages: u64) {
        if let Self::Bursar(model) = self {
            model.set_margin(pages);
        }
    }

    /// Looks at a sample and says what should be done.
    pub fn look(&mut self, sample: &Sample) -> Verdict {
        match self {
            Self::Bursar(model) => model.look(sample),
            Self::Trend(model) => model.look(sample),
            Self::Loop(model) => model.look(sample),
        }
    }

    /// Other bounds from now on; what was learned stays.
    pub fn rebound(&mut self, bounds: ScaleBounds) {
        match self {
            Self::Bursar(model) => model.rebound(bounds),
            Self::Trend(model) => model.rebound(bounds),
            Self::Loop(model) => model.rebound(bounds),
        }
    }

    /// Whether the next samples should come quickly. S4's rule and the loop look once a second.
    pub fn is_close(&self, now_ns: u64) -> bool {
        match self {
            Self::Bursar(model) => model.is_close(now_ns),
            Self::Trend(_) | Self::Loop(_) => false,
        }
    }
}
