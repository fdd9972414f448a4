// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How fast an account grows: the slope between the oldest and the newest look of the last seconds.

use std::collections::VecDeque;
use std::time::Duration;

use bursar_model::Bytes;

/// As far back as it looks: long enough that one burst does not jump about, short enough to be now.
const WINDOW: Duration = Duration::from_secs(5);

/// The last looks at what an account held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pace {
    looks: VecDeque<(Duration, Bytes)>,
}

impl Pace {
    /// Held at a moment. Looks older than the window are forgotten, all but one.
    pub fn note(&mut self, at: Duration, held: Bytes) {
        if self.looks.back().is_some_and(|(last, _)| *last >= at) {
            return;
        }
        self.looks.push_back((at, held));
        let is_old = |look: Option<&(Duration, Bytes)>| {
            look.is_some_and(|(then, _)| at.saturating_sub(*then) > WINDOW)
        };
        // Two stay whatever the interval.
        while self.looks.len() > 2 && is_old(self.looks.front()) {
            self.looks.pop_front();
        }
    }

    /// Bytes a second, negative where it shrinks; `None` until there were two looks.
    pub fn rate(&self) -> Option<i64> {
        let ((begin, before), (end, now)) = (self.looks.front()?, self.looks.back()?);
        let nanos = i128::try_from(end.checked_sub(*begin)?.as_nanos()).ok()?;
        let grown = i128::from(now.get()) - i128::from(before.get());
        let rate = grown.saturating_mul(1_000_000_000).checked_div(nanos)?;
        Some(i64::try_from(rate).unwrap_or(if rate < 0 { i64::MIN } else { i64::MAX }))
    }

    /// How long until `limit` is reached at this rate; `None` where it does not grow, or is over.
    pub fn time_to(&self, limit: Option<Bytes>) -> Option<Duration> {
        let rate = u64::try_from(self.rate()?).ok().filter(|rate| *rate > 0)?;
        let (_, held) = self.looks.back()?;
        let room = limit?
            .get()
            .checked_sub(held.get())
            .filter(|room| *room > 0)?;
        Some(Duration::from_secs(room / rate))
    }

    /// As if nothing had been seen yet: the gap would be taken for growth.
    pub fn forget(&mut self) {
        self.looks.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(looks: &[(u64, u64)]) -> Pace {
        let mut pace = Pace::default();
        for (millis, mib) in looks {
            pace.note(Duration::from_millis(*millis), Bytes::from_mib(*mib));
        }
        pace
    }

    const MIB: i64 = 1 << 20;

    #[test]
    fn one_look_is_no_rate() {
        assert_eq!(pace(&[]).rate(), None);
        assert_eq!(pace(&[(0, 5)]).rate(), None);
        assert_eq!(pace(&[(1000, 5), (1000, 9)]).rate(), None);
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let table: [(&[(u64, u64)], i64); 4] = [
            (&[(0, 10), (2000, 30)], 10 * MIB),
            (&[(0, 30), (500, 10)], -40 * MIB),
            (&[(0, 7), (1000, 7)], 0),
            // The leap at the beginning is older than the window.
            (
                &[
                    (0, 0),
                    (1000, 900),
                    (3000, 902),
                    (5000, 904),
                    (7000, 906),
                    (8000, 907),
                ],
                MIB,
            ),
        ];
        for (looks, rate) in table {
            assert_eq!(pace(looks).rate(), Some(rate), "{looks:?}");
        }
        assert_eq!(
            pace(&[(0, 0), (60_000, 60)]).rate(),
            Some(MIB),
            "slow looks"
        );
    }

    #[test]
    fn the_time_to_the_limit_is_only_told_of_who_grows_towards_it() {
        let limit = Some(Bytes::from_mib(100));
        let seconds = |pace: Pace| pace.time_to(limit).map(|it| it.as_secs());
        assert_eq!(seconds(pace(&[(0, 10), (1000, 20)])), Some(8));
        assert_eq!(seconds(pace(&[(0, 20), (1000, 10)])), None);
        assert_eq!(seconds(pace(&[(0, 20), (1000, 20)])), None);
        assert_eq!(seconds(pace(&[(0, 90), (1000, 100)])), None);
        assert_eq!(seconds(pace(&[(0, 90), (1000, 120)])), None);
        assert_eq!(pace(&[(0, 10), (1000, 20)]).time_to(None), None);
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut pace = Pace::default();
        pace.note(Duration::ZERO, Bytes::ZERO);
        pace.note(Duration::from_nanos(1), Bytes::MAX);
        assert_eq!(pace.rate(), Some(i64::MAX));
        pace.note(Duration::from_nanos(2), Bytes::ZERO);
        assert_eq!(pace.rate(), Some(0));
    }
}
