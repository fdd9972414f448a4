// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From looks at accounts to what they held in a minute. Pure.

use std::collections::BTreeMap;

use bursar_model::{AccountId, Bytes, Nanos, UsageSample};
use bursar_usage::Tier;

use super::{EVERY, milliseconds};
use crate::backend::Reading;
use crate::recorder::{UsageEvent, UsageEventKind};

/// An account in the minute under way.
#[derive(Debug, Default)]
struct Sum {
    observed_ms: u64,
    byte_ms: u128,
    max: Bytes,
    limit: Option<Bytes>,
    notices: u64,
    refusals: u64,
    kills: u64,
}

#[derive(Debug, Default)]
pub(super) struct Sampler {
    /// Where the minute under way begins.
    minute: Option<u64>,
    sums: BTreeMap<AccountId, Sum>,
    /// The most ever held as of the last look; `None` before the first one: that was an earlier bursard's to note.
    before: Option<BTreeMap<AccountId, Bytes>>,
    /// The last look; `None`: nobody held anything until now.
    looked: Option<Nanos>,
}

impl Sampler {
    /// Takes a look in. Returns the samples of the minute before, if that has ended.
    pub(super) fn observe(
        &mut self,
        readings: &[Reading],
        at: Nanos,
        wall: u64,
    ) -> Vec<(AccountId, UsageSample)> {
        let minute = Tier::Minute.start_of(wall);
        let ended = match self.minute {
            Some(before) if before != minute => self.take(),
            _ => Vec::new(),
        };
        self.minute = Some(minute);
        // Who looks late (a machine that slept, a loop that was busy) knows nothing of what was in between.
        let most = u64::try_from(EVERY.as_millis())
            .unwrap_or(0)
            .saturating_mul(2);
        let span = self
            .looked
            .map(|it| Nanos::new(at.get().saturating_sub(it.get())));
        let span_ms = span.map_or(1, |it| milliseconds(it).min(most));
        self.looked = Some(at);
        let before = self.before.take();
        let start = |reading: &Reading| match &before {
            None => reading.maxheld,
            Some(known) => known.get(&reading.id).copied().unwrap_or_default(),
        };
        for reading in readings {
            let has_risen = reading.maxheld > start(reading);
            let peak = if has_risen {
                reading.maxheld
            } else {
                reading.held
            };
            self.add(reading, peak, span_ms);
        }
        // Made anew: with most accounts the same it takes less than to change it, and who is closed is not in it.
        let most_held = readings.iter().map(|it| (it.id, it.maxheld));
        self.before = Some(most_held.collect());
        ended
    }

    fn add(&mut self, reading: &Reading, peak: Bytes, span_ms: u64) {
        if peak == Bytes::ZERO && !self.sums.contains_key(&reading.id) {
            return;
        }
        let sum = self.sums.entry(reading.id).or_default();
        sum.observed_ms = sum.observed_ms.saturating_add(span_ms);
        let byte_ms = u128::from(reading.held.get()).saturating_mul(span_ms.into());
        sum.byte_ms = sum.byte_ms.saturating_add(byte_ms);
        sum.max = sum.max.max(peak);
        sum.limit = reading.bounds.limit();
    }

    /// An account has met something between two looks.
    pub(super) fn note(&mut self, event: &UsageEvent) {
        let sum = self.sums.entry(event.account).or_default();
        sum.max = sum.max.max(event.held);
        let (count, more) = match event.what {
            UsageEventKind::Notice => (&mut sum.notices, 1),
            UsageEventKind::Refusals(more) => (&mut sum.refusals, more),
            UsageEventKind::Kill => (&mut sum.kills, 1),
        };
        *count = count.saturating_add(more);
    }

    /// Nobody holds anything: the samples of the minute under way.
    pub(super) fn fall_asleep(&mut self) -> Vec<(AccountId, UsageSample)> {
        let rest = self.take();
        self.minute = None;
        self.looked = None;
        rest
    }

    fn take(&mut self) -> Vec<(AccountId, UsageSample)> {
        let samples = self.current();
        if self.minute.is_some() {
            self.sums.clear();
        }
        samples
    }

    /// The samples of the minute under way, as far as it was observed.
    pub(super) fn current(&self) -> Vec<(AccountId, UsageSample)> {
        let Some(start) = self.minute else {
            return Vec::new();
        };
        let few = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let sampled = self.sums.iter().map(|(id, sum)| {
            let mean = sum
                .byte_ms
                .checked_div(sum.observed_ms.into())
                .unwrap_or_default();
            let sample = UsageSample {
                start,
                observed_ms: few(sum.observed_ms),
                mean: Bytes::new(u64::try_from(mean).unwrap_or(u64::MAX)),
                max: sum.max,
                limit: sum.limit,
                notices: few(sum.notices),
                refusals: few(sum.refusals),
                kills: few(sum.kills),
            };
            (*id, sample)
        });
        sampled.collect()
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::{Bounds, Uid};

    use super::*;

    const ALICE: AccountId = AccountId::of(Uid::new(60_001));
    const MIB: u64 = 1 << 20;

    fn reading(held: u64) -> Reading {
        let bounds = Bounds::new(None, None, Some(Bytes::from_mib(64))).unwrap();
        Reading {
            is_default: false,
            held: Bytes::new(held),
            maxheld: Bytes::new(held),
            processes: 1,
            kills: 7,
            notices: 7,
            ..Reading::untouched(ALICE, bounds)
        }
    }

    fn event(held: u64, what: UsageEventKind) -> UsageEvent {
        UsageEvent {
            account: ALICE,
            held: Bytes::new(held),
            what,
        }
    }

    fn at(seconds: u64) -> Nanos {
        Nanos::new((1000 + seconds) * 1_000_000_000)
    }

    #[test]
    fn a_minute_has_the_mean_and_the_most_and_what_was_met() {
        let mut sampler = Sampler::default();
        assert!(sampler.observe(&[reading(10 * MIB)], at(0), 600).is_empty());
        sampler.observe(&[reading(20 * MIB)], at(15), 615);
        for what in [
            UsageEventKind::Notice,
            UsageEventKind::Refusals(5),
            UsageEventKind::Kill,
            UsageEventKind::Kill,
        ] {
            sampler.note(&event(63 * MIB, what));
        }
        sampler.observe(&[reading(40 * MIB)], at(30), 630);
        let ended = sampler.observe(&[reading(40 * MIB)], at(75), 675);
        assert_eq!(ended.len(), 1);
        let sample = ended[0].1;
        assert_eq!((sample.start, sample.observed_ms), (600, 30_001));
        assert_eq!(sample.mean.get() / MIB, 29);
        assert_eq!(sample.max, Bytes::new(63 * MIB));
        assert_eq!((sample.kills, sample.notices, sample.refusals), (2, 1, 5));
        assert_eq!(sample.limit, Some(Bytes::from_mib(64)));
        // A look that is late counts for no longer than two.
        assert_eq!(sampler.current()[0].1.observed_ms, 30_000);
    }

    #[test]
    fn a_peak_between_two_looks_is_known_by_the_most_ever_held() {
        let mut sampler = Sampler::default();
        let peak = |held, maxheld| Reading {
            maxheld: Bytes::new(maxheld),
            ..reading(held)
        };
        // That of before the first look was an earlier bursard's.
        sampler.observe(&[peak(0, 50 * MIB)], at(0), 600);
        assert!(sampler.current().is_empty());
        sampler.observe(&[peak(0, 60 * MIB)], at(15), 615);
        assert_eq!(sampler.current()[0].1.max, Bytes::new(60 * MIB));
        sampler.observe(&[peak(0, 60 * MIB)], at(75), 675);
        assert!(sampler.current().is_empty());
    }

    #[test]
    fn who_holds_nothing_and_meets_nothing_has_no_sample() {
        let mut sampler = Sampler::default();
        for second in [0, 15, 70] {
            assert!(
                sampler
                    .observe(&[reading(0)], at(second), 600 + second)
                    .is_empty()
            );
        }
        assert!(sampler.fall_asleep().is_empty());
    }

    #[test]
    fn what_is_met_while_nobody_looks_is_in_the_minute_of_the_next_look() {
        let mut sampler = Sampler::default();
        sampler.observe(&[], at(0), 600);
        assert!(sampler.fall_asleep().is_empty());
        sampler.note(&event(64 * MIB, UsageEventKind::Kill));
        assert!(sampler.observe(&[reading(0)], at(5_000), 5_600).is_empty());
        let rest = sampler.fall_asleep();
        assert_eq!(
            (rest[0].1.start, rest[0].1.max),
            (5_580, Bytes::new(64 * MIB))
        );
        assert_eq!((rest[0].1.observed_ms, rest[0].1.kills), (1, 1));
    }
}
