// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ten-line feedback loop: the floor that a forecast has to beat. It
//! looks once a second; somebody stalled: twice as much; nobody for a minute: a tenth less every ten
//! seconds.

use super::bounds::ScaleBounds;
use super::change::Change;
use super::sample::{Counters, Sample};
use super::verdict::{Forecast, Reason, Verdict};

const EVERY_NS: u64 = 1_000_000_000;
const FIRST_STEP: u32 = 100;
const QUIET_SECONDS: u32 = 60;
const DECAY_SECONDS: u32 = 10;

/// The loop's memory.
#[derive(Debug, Clone)]
pub struct Feedback {
    bounds: ScaleBounds,
    scale: u32,
    quiet: u32,
    last: Option<(u64, Counters)>,
}

impl Feedback {
    /// A loop that moves the factor within `bounds`.
    pub const fn new(bounds: ScaleBounds) -> Self {
        Self {
            bounds,
            scale: bounds.lowest(),
            quiet: 0,
            last: None,
        }
    }

    /// Other bounds from now on; what was learned stays.
    pub fn rebound(&mut self, bounds: ScaleBounds) {
        self.bounds = bounds;
    }

    /// Looks at a sample.
    pub fn look(&mut self, sample: &Sample) -> Verdict {
        let mut forecast = Forecast::begun(sample);
        let Some((at, counters)) = self.last else {
            self.last = Some((sample.at.get(), sample.counters));
            return Verdict::leave(Reason::TooFewSamples, forecast);
        };
        if sample.at.get().saturating_sub(at) < EVERY_NS {
            return Verdict::leave(Reason::Enough, forecast);
        }
        self.last = Some((sample.at.get(), sample.counters));
        let Some(change) = Change::between((at, &counters), sample) else {
            return Verdict::leave(Reason::TooFewSamples, forecast);
        };
        forecast.stalls = change.stalls();
        let reason = if change.alloc_stalls > 0 {
            self.quiet = 0;
            self.scale = if self.scale < FIRST_STEP {
                FIRST_STEP
            } else {
                self.scale.saturating_mul(2)
            };
            Reason::Stalled
        } else {
            self.quiet = self.quiet.saturating_add(1);
            if self.quiet >= QUIET_SECONDS {
                self.quiet = QUIET_SECONDS - DECAY_SECONDS;
                self.scale = self.scale.saturating_mul(9) / 10;
                Reason::Calm
            } else {
                Reason::Enough
            }
        };
        self.scale = self.bounds.clamp(self.scale);
        Verdict {
            scale: Some(self.scale).filter(|&scale| scale != sample.scale),
            compact: None,
            reclaim: None,
            reason,
            forecast,
        }
    }
}
