// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What accounts held over time. Moments are seconds since 1970.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Uid};

/// What an account held and met in one interval. Where there is none, it held nothing or nobody looked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageSample {
    /// When the interval begins.
    pub start: u64,
    /// How much of the interval was observed, milliseconds.
    pub observed_ms: u32,
    /// Held, on average of what was observed.
    pub mean: Bytes,
    /// The most held.
    pub max: Bytes,
    /// The limit at the end of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Bytes>,
    /// Times the account rose over its notice.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub notices: u32,
    /// Requests refused at the barrier.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refusals: u32,
    /// Processes killed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kills: u32,
}

impl UsageSample {
    /// Adds what was observed later in the same interval.
    pub fn merge(&mut self, later: &Self) {
        let weights = [self.observed_ms, later.observed_ms].map(u128::from);
        let means = [self.mean, later.mean].map(|it| u128::from(it.get()));
        let sum = weights[0]
            .saturating_mul(means[0])
            .saturating_add(weights[1].saturating_mul(means[1]));
        let mean = sum.checked_div(weights[0].saturating_add(weights[1]));
        if let Some(mean) = mean {
            self.mean = Bytes::new(u64::try_from(mean).unwrap_or(u64::MAX));
        }
        self.observed_ms = self.observed_ms.saturating_add(later.observed_ms);
        self.max = self.max.max(later.max);
        self.limit = later.limit;
        self.notices = self.notices.saturating_add(later.notices);
        self.refusals = self.refusals.saturating_add(later.refusals);
        self.kills = self.kills.saturating_add(later.kills);
    }

    /// Whether something was refused or killed, or anybody was told.
    pub const fn is_eventful(&self) -> bool {
        self.notices > 0 || self.refusals > 0 || self.kills > 0
    }
}

/// One account over time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageSeries {
    /// Its name, as it was called last.
    pub account: String,
    /// Its user; absent where it is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// Asked for from here on.
    pub from: u64,
    /// Now.
    pub until: u64,
    /// How long each interval is.
    pub span_seconds: u64,
    /// Oldest first.
    pub samples: Vec<UsageSample>,
}

/// What one account held and met, in all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountUsage {
    /// Its name.
    pub account: String,
    /// Its user; absent where it is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// Whether its user is root or another one below UID_MIN: no ordinary user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_system: bool,
    /// Its limit, as of the last interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Bytes>,
    /// Held on average while it was observed.
    pub mean: Bytes,
    /// The most held.
    pub max: Bytes,
    /// When that was: the beginning of the interval.
    pub max_at: u64,
    /// How long it held anything, seconds.
    pub held_seconds: u64,
    /// Times it rose over its notice.
    pub notices: u64,
    /// Requests refused.
    pub refusals: u64,
    /// Processes killed.
    pub kills: u64,
}

/// All accounts together in a part of the time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsagePart {
    /// When it begins.
    pub start: u64,
    /// Held by all, on average; what was not observed counts as nothing.
    pub mean: Bytes,
    /// Times accounts rose over their notices.
    pub notices: u64,
    /// Requests refused.
    pub refusals: u64,
    /// Processes killed.
    pub kills: u64,
}

/// All accounts over a time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageSummary {
    /// From here on.
    pub from: u64,
    /// Now.
    pub until: u64,
    /// How long each part is, seconds.
    pub part_seconds: u64,
    /// By name.
    pub accounts: Vec<AccountUsage>,
    /// Oldest first; those in which nobody held anything are absent.
    pub parts: Vec<UsagePart>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(observed_ms: u32, mean: u64, max: u64) -> UsageSample {
        UsageSample {
            observed_ms,
            mean: Bytes::new(mean),
            max: Bytes::new(max),
            ..UsageSample::default()
        }
    }

    #[test]
    fn means_are_weighed_by_how_long_was_observed() {
        let mut first = sample(10_000, 100, 300);
        first.limit = Some(Bytes::new(500));
        let mut second = sample(30_000, 200, 250);
        second.kills = 2;
        first.merge(&second);
        assert_eq!((first.mean, first.max), (Bytes::new(175), Bytes::new(300)));
        assert_eq!((first.observed_ms, first.kills), (40_000, 2));
        assert_eq!(first.limit, None, "the later limit holds");
    }

    #[test]
    fn absurd_amounts_do_not_overflow() {
        let mut most = sample(u32::MAX, u64::MAX, u64::MAX);
        most.kills = u32::MAX;
        let other = most;
        most.merge(&other);
        assert_eq!(most.mean, Bytes::MAX);
        assert_eq!((most.kills, most.observed_ms), (u32::MAX, u32::MAX));
    }
}
