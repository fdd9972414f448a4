// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a model says: what to do, why, and what it expects. Numbers only, so that nothing is allocated
//! where decisions are made; words come later (words.rs).

use super::sample::Sample;

/// What a model wants of the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Verdict {
    /// `vm.watermark_scale_factor` as it should be; `None`: as it is.
    pub scale: Option<u32>,
    /// A node whose memory should be compacted.
    pub compact: Option<u16>,
    /// Pages that should be freed now, beside what kswapd does.
    pub reclaim: Option<u64>,
    /// Why this and nothing else.
    pub reason: Reason,
    /// What it saw and expects.
    pub forecast: Forecast,
}

/// Why a model says what it says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reason {
    /// It has not seen enough yet.
    #[default]
    TooFewSamples,
    /// Nothing happens that needs more room than there is.
    Quiet,
    /// Things happen, and there is room enough.
    Enough,
    /// Memory is expected to run short before the kernel has made room.
    Ahead,
    /// Somebody had to wait.
    Stalled,
    /// More room would help, and there is none to be had: the bound that was configured.
    AtBound,
    /// More is asked for than kswapd can take back: no watermark helps.
    Overload,
    /// There has been more room than was needed.
    Calm,
    /// Room is kept for the time in which a killed process's memory comes back.
    Margin,
    /// Blocks of the order that is asked for run out while memory does not: it is broken up.
    Fragmented,
}

/// What a model saw and expects. Pages, pages a second, seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Forecast {
    /// Free pages, all zones.
    pub free: u64,
    /// Free pages at which kswapd wakes, all zones.
    pub low: u64,
    /// What is asked for, gross, a second.
    pub demand: f64,
    /// What kswapd takes back while it works, a second; 0 where it has not been seen working.
    pub supply: f64,
    /// What compaction moves together into blocks of `order`, else into huge pages, a second; 0 where it has not been
    /// seen, and where the model does not look at orders.
    pub compaction: f64,
    /// The largest fall that free memory should survive, pages.
    pub needed: u64,
    /// What others may take while a killed process's memory comes back (S2), pages; 0 where nothing is kept for it.
    pub margin: u64,
    /// Of it, what stays free.
    pub margin_kept: u64,
    /// Until free memory reaches the low mark, at the earliest.
    pub soonest: Option<f64>,
    /// The same, most likely.
    pub likely: Option<f64>,
    /// Stalls since the last sample.
    pub stalls: u64,
    /// The order that is running out, where one is.
    pub order: Option<u8>,
}

impl Forecast {
    /// What a sample says by itself; what is expected is still to come.
    pub(super) fn begun(sample: &Sample) -> Self {
        Self {
            free: sample.free(),
            low: sample.sum(|zone| zone.low),
            ..Self::default()
        }
    }
}

impl Verdict {
    /// To leave everything as it is.
    pub const fn leave(reason: Reason, forecast: Forecast) -> Self {
        Self {
            scale: None,
            compact: None,
            reclaim: None,
            reason,
            forecast,
        }
    }
}
