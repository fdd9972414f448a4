// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Samples read out again, each interval of an account once, the present ones out of finer samples.

use std::collections::BTreeMap;

use bursar_model::{AccountId, Subject, UsageSample, UsageSeries};

use crate::store::{Entry, Store};
use crate::tier::Tier;

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Of whom; `None`: of all.
    pub subject: Option<Subject>,
    /// From this moment on.
    pub from: u64,
    /// As fine as this.
    pub tier: Tier,
}

impl Wanted {
    fn is_of(&self, id: AccountId, name: &str) -> bool {
        self.subject
            .as_ref()
            .is_none_or(|it| it.is_account(id, name))
    }
}

/// Whose a sample is.
pub(crate) struct Owner<'a> {
    pub(crate) id: AccountId,
    pub(crate) name: &'a str,
}

impl Store {
    /// One account over time. `current`: what was observed and is in no file yet.
    pub fn series(&mut self, wanted: &Wanted, current: &[Entry], now: u64) -> UsageSeries {
        let mut series = UsageSeries {
            from: wanted.from,
            until: now,
            span_seconds: wanted.tier.span(),
            ..UsageSeries::default()
        };
        let mut samples: BTreeMap<u64, UsageSample> = BTreeMap::new();
        self.visit(wanted, current, now, &mut |owner, sample| {
            owner.name.clone_into(&mut series.account);
            series.uid = owner.id.uid();
            samples
                .entry(sample.start)
                .and_modify(|it| it.merge(sample))
                .or_insert(*sample);
        });
        series.samples = samples.into_values().collect();
        series
    }

    /// Hands out all samples of whom is wanted from then on, up to now, roughly oldest first.
    pub(crate) fn visit(
        &mut self,
        wanted: &Wanted,
        current: &[Entry],
        now: u64,
        hand_out: &mut dyn FnMut(&Owner, &UsageSample),
    ) {
        self.consolidate(now);
        let tier = wanted.tier;
        let Some(finer) = tier.finer() else {
            self.read(wanted, u64::MAX, now, hand_out);
            for entry in current.iter().filter(|it| it.sample.start >= wanted.from) {
                if wanted.is_of(entry.id, &entry.name) {
                    let owner = Owner {
                        id: entry.id,
                        name: &entry.name,
                    };
                    hand_out(&owner, &entry.sample);
                }
            }
            return;
        };
        // The interval that now lies in is made of finer ones.
        let present = tier.start_of(now);
        self.read(wanted, present, now, hand_out);
        let of_finer = Wanted {
            subject: wanted.subject.clone(),
            from: wanted.from.max(present),
            tier: finer,
        };
        let mut made: BTreeMap<(AccountId, String), UsageSample> = BTreeMap::new();
        self.visit(&of_finer, current, now, &mut |owner, sample| {
            let mut sample = *sample;
            sample.start = present;
            let key = (owner.id, owner.name.to_owned());
            made.entry(key)
                .and_modify(|it| it.merge(&sample))
                .or_insert(sample);
        });
        for ((id, name), sample) in &made {
            hand_out(&Owner { id: *id, name }, sample);
        }
    }

    /// What the files of the tier have from then on, before `end`, and not of the future.
    fn read(
        &mut self,
        wanted: &Wanted,
        end: u64,
        now: u64,
        hand_out: &mut dyn FnMut(&Owner, &UsageSample),
    ) {
        let tier = wanted.tier;
        for start in self.directory.starts(tier) {
            let is_before = start.saturating_add(tier.file_span()) <= wanted.from;
            if is_before || start >= end || start > now {
                continue;
            }
            let contents = self.contents((tier, start));
            for owned in &contents.samples {
                let at = owned.sample.start;
                // Of an interval that has begun before, the part that is wanted is not known.
                let is_in = at.saturating_add(tier.span()) > wanted.from && at < end && at <= now;
                let name = contents.name_of(owned);
                if is_in && wanted.is_of(owned.id, name) {
                    hand_out(&Owner { id: owned.id, name }, &owned.sample);
                }
            }
        }
    }
}
