// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Coarser samples out of finer ones, when an interval has ended. Made of what the files say each time, so there is
//! nothing to lose in a crash: what has no `Complete` behind it is made again.

use std::collections::{BTreeMap, BTreeSet};

use crate::store::{Entry, Store};
use crate::tier::Tier;

impl Store {
    /// Finds intervals that ended without others being made of them.
    pub(crate) fn find_pending(&mut self) {
        for coarse in [Tier::Quarter, Tier::Day] {
            let Some(finer) = coarse.finer() else {
                continue;
            };
            let mut complete: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
            for start in self.directory.starts(finer) {
                // All intervals of a finer file are in one coarser file.
                let file = coarse.file_of(start);
                let done = complete
                    .entry(file)
                    .or_insert_with(|| self.contents((coarse, file)).complete);
                let intervals =
                    (0..).map(|it| start.saturating_add(coarse.span().saturating_mul(it)));
                let intervals =
                    intervals.take_while(|it| *it < start.saturating_add(finer.file_span()));
                let missing: Vec<u64> = intervals.filter(|it| !done.contains(it)).collect();
                self.pending
                    .extend(missing.into_iter().map(|it| (coarse, it)));
            }
        }
    }

    /// Makes what is pending of all intervals but those that now lies in. Finer ones first: days are made of quarters.
    pub fn consolidate(&mut self, now: u64) {
        let due: Vec<(Tier, u64)> = {
            let ended = self
                .pending
                .iter()
                .filter(|(tier, start)| tier.start_of(now) != *start);
            ended.copied().collect()
        };
        for (tier, start) in due {
            self.pending.remove(&(tier, start));
            self.make(tier, start, now);
        }
        // What was made may have been the last of a day.
        let is_due = |(tier, start): &(Tier, u64)| tier.start_of(now) != *start;
        let days: Vec<(Tier, u64)> = self.pending.iter().copied().filter(is_due).collect();
        for (tier, start) in days {
            self.pending.remove(&(tier, start));
            self.make(tier, start, now);
        }
    }

    fn make(&mut self, tier: Tier, start: u64, now: u64) {
        let Some(finer) = tier.finer() else {
            return;
        };
        let contents = self.contents((finer, finer.file_of(start)));
        let mut made: BTreeMap<(u64, String), Entry> = BTreeMap::new();
        for owned in contents
            .samples
            .iter()
            .filter(|it| tier.start_of(it.sample.start) == start)
        {
            let name = contents.name_of(owned);
            let key = (owned.id.get(), name.to_owned());
            made.entry(key)
                .and_modify(|entry| entry.sample.merge(&owned.sample))
                .or_insert_with(|| {
                    let mut sample = owned.sample;
                    sample.start = start;
                    Entry {
                        id: owned.id,
                        name: name.to_owned(),
                        sample,
                    }
                });
        }
        if made.is_empty() {
            return;
        }
        let made: Vec<Entry> = made.into_values().collect();
        self.append(tier, &made, &[start], now);
    }
}
