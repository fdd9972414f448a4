// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All accounts over a time, in figures.

use std::collections::{BTreeMap, HashMap};

use bursar_model::{AccountId, AccountUsage, Bytes, UsagePart, UsageSample, UsageSummary};

use crate::query::{Owner, Wanted};
use crate::store::{Entry, Store};

/// Parts of the time are this long, or as long as an interval is, seconds.
const PART: u64 = 3_600;

/// An account while it is summed up.
#[derive(Debug)]
struct Sums {
    name: String,
    usage: AccountUsage,
    /// When the limit is from.
    limit_at: u64,
    observed_ms: u64,
    byte_ms: u128,
}

#[derive(Debug, Default)]
struct PartSums {
    byte_ms: u128,
    notices: u64,
    refusals: u64,
    kills: u64,
}

fn divided(sum: u128, by: u64) -> Bytes {
    let mean = sum.checked_div(u128::from(by)).unwrap_or_default();
    Bytes::new(u64::try_from(mean).unwrap_or(u64::MAX))
}

impl Sums {
    fn new(owner: &Owner) -> Self {
        Self {
            name: owner.name.to_owned(),
            usage: AccountUsage {
                account: owner.name.to_owned(),
                uid: owner.id.uid(),
                ..AccountUsage::default()
            },
            limit_at: 0,
            observed_ms: 0,
            byte_ms: 0,
        }
    }

    fn add(&mut self, sample: &UsageSample) {
        let usage = &mut self.usage;
        if sample.start >= self.limit_at {
            self.limit_at = sample.start;
            usage.limit = sample.limit;
        }
        if sample.max > usage.max {
            usage.max = sample.max;
            usage.max_at = sample.start;
        }
        usage.notices = usage.notices.saturating_add(sample.notices.into());
        usage.refusals = usage.refusals.saturating_add(sample.refusals.into());
        usage.kills = usage.kills.saturating_add(sample.kills.into());
        self.observed_ms = self.observed_ms.saturating_add(sample.observed_ms.into());
        self.byte_ms = self.byte_ms.saturating_add(byte_ms(sample));
    }

    fn finish(mut self) -> AccountUsage {
        self.usage.mean = divided(self.byte_ms, self.observed_ms);
        self.usage.held_seconds = self.observed_ms / 1000;
        self.usage
    }
}

fn byte_ms(sample: &UsageSample) -> u128 {
    u128::from(sample.mean.get()).saturating_mul(sample.observed_ms.into())
}

impl Store {
    /// What all who are wanted held and met. `current`: what was observed and is in no file yet.
    pub fn summary(&mut self, wanted: &Wanted, current: &[Entry], now: u64) -> UsageSummary {
        let part_seconds = wanted.tier.span().max(PART);
        let mut accounts: HashMap<AccountId, Vec<Sums>> = HashMap::new();
        let mut parts: BTreeMap<u64, PartSums> = BTreeMap::new();
        self.visit(wanted, current, now, &mut |owner, sample| {
            let named = accounts.entry(owner.id).or_default();
            let place = named.iter().position(|it| it.name == owner.name);
            let place = place.unwrap_or_else(|| {
                named.push(Sums::new(owner));
                named.len().saturating_sub(1)
            });
            if let Some(sums) = named.get_mut(place) {
                sums.add(sample);
            }
            let start = sample.start - sample.start % part_seconds;
            let part = parts.entry(start).or_default();
            part.byte_ms = part.byte_ms.saturating_add(byte_ms(sample));
            part.notices = part.notices.saturating_add(sample.notices.into());
            part.refusals = part.refusals.saturating_add(sample.refusals.into());
            part.kills = part.kills.saturating_add(sample.kills.into());
        });
        let mut accounts: Vec<AccountUsage> =
            accounts.into_values().flatten().map(Sums::finish).collect();
        accounts.sort_by(|one, other| (&one.account, one.uid).cmp(&(&other.account, other.uid)));
        // Of the one that now lies in only so much has passed.
        let length_ms = |start: u64| {
            now.saturating_sub(start)
                .clamp(60, part_seconds)
                .saturating_mul(1000)
        };
        let parts = parts.into_iter().map(|(start, sums)| UsagePart {
            start,
            mean: divided(sums.byte_ms, length_ms(start)),
            notices: sums.notices,
            refusals: sums.refusals,
            kills: sums.kills,
        });
        UsageSummary {
            from: wanted.from,
            until: now,
            part_seconds,
            accounts,
            parts: parts.collect(),
        }
    }
}
