// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How fine samples are, and for how long they are kept.

/// How long the interval of a sample is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// A minute; kept for a day.
    Minute,
    /// A quarter-hour; kept for a month.
    Quarter,
    /// A day, by UTC; kept for two years.
    Day,
}

const DAY: u64 = 86_400;

impl Tier {
    /// Finest first.
    pub const ALL: [Self; 3] = [Self::Minute, Self::Quarter, Self::Day];

    /// Of an interval, seconds.
    pub const fn span(self) -> u64 {
        match self {
            Self::Minute => 60,
            Self::Quarter => 900,
            Self::Day => DAY,
        }
    }

    /// Of the intervals of one file, seconds.
    pub(crate) const fn file_span(self) -> u64 {
        match self {
            Self::Minute => 3_600,
            Self::Quarter => DAY,
            Self::Day => 32 * DAY,
        }
    }

    /// Files kept. One is being filled, so what the others have is kept for the time that is promised.
    pub(crate) const fn files(self) -> usize {
        match self {
            Self::Minute => 25,
            Self::Quarter => 31,
            Self::Day => 24,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Minute => "minutes",
            Self::Quarter => "quarters",
            Self::Day => "days",
        }
    }

    /// What this one is made of.
    pub(crate) const fn finer(self) -> Option<Self> {
        match self {
            Self::Minute => None,
            Self::Quarter => Some(Self::Minute),
            Self::Day => Some(Self::Quarter),
        }
    }

    /// What is made of this one.
    pub(crate) const fn coarser(self) -> Option<Self> {
        match self {
            Self::Minute => Some(Self::Quarter),
            Self::Quarter => Some(Self::Day),
            Self::Day => None,
        }
    }

    /// The beginning of the interval that a moment lies in.
    pub const fn start_of(self, moment: u64) -> u64 {
        moment - moment % self.span()
    }

    /// The beginning of the file that a moment lies in.
    pub(crate) const fn file_of(self, moment: u64) -> u64 {
        moment - moment % self.file_span()
    }

    /// The finest that is kept for as long as that.
    pub fn reaching_back(seconds: u64) -> Self {
        match seconds {
            0..=DAY => Self::Minute,
            86_401..=2_592_000 => Self::Quarter,
            _ => Self::Day,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_of_minutes_a_month_of_quarters_and_two_years_of_days_are_kept() {
        let kept = |tier: Tier| (tier.files() as u64 - 1) * tier.file_span();
        assert!(kept(Tier::Minute) >= DAY);
        assert!(kept(Tier::Quarter) >= 30 * DAY);
        assert!(kept(Tier::Day) >= 730 * DAY);
        for tier in Tier::ALL {
            assert!(kept(tier) >= 1);
            assert_eq!(tier.file_span() % tier.span(), 0);
            // A coarser interval is made of one file.
            let coarser = tier.coarser().map_or(tier.file_span(), Tier::span);
            assert_eq!(tier.file_span() % coarser, 0);
            assert_eq!(tier.coarser().and_then(Tier::finer).unwrap_or(tier), tier);
        }
    }

    #[test]
    fn the_finest_that_reaches_back_is_taken() {
        for (days, tier) in [
            (1, Tier::Minute),
            (7, Tier::Quarter),
            (30, Tier::Quarter),
            (31, Tier::Day),
        ] {
            assert_eq!(Tier::reaching_back(days * DAY), tier);
        }
    }
}
