// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How fast killed processes' memory comes back, summed up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Bytes, Nanos};

/// Upper bounds of the histogram of reap latency, milliseconds; one more bucket has none.
pub const REAP_BUCKETS_MS: [u64; 13] =
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000];
/// Reaping of less than this tells nothing about speed.
const MEASURABLE: Bytes = Bytes::from_mib(16);
/// What one CPU can take at most, bytes a second: a page of 4 KiB in 1 us, some 2.5 times as fast as
/// measured (2,570 ns a fault on 6.18).
const FAULT_RATE: u64 = 4096 * 1_000_000;

/// How many reaps took at most so long, and longer than the bucket before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReapBucket {
    /// The bound; absent for the last bucket, which has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most_ns: Option<Nanos>,
    /// Reaps in this bucket.
    pub count: u64,
}

/// How fast killed processes' memory came back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReapStatus {
    /// Victims whose memory is back.
    pub reaped: u64,
    /// Memory that came back.
    pub freed: Bytes,
    /// The slowest, of those large enough to measure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowest_bytes_per_second: Option<Bytes>,
    /// The longest wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest: Option<Nanos>,
    /// Victims whose memory did not come back while it was waited for: shared with a living process,
    /// stuck in the kernel.
    #[serde(default)]
    pub unreaped: u64,
    /// How it came back: `process_mrelease`, `exit`, `raised_exit`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub methods: BTreeMap<String, u64>,
    /// From the signal to the memory being back; empty before the first reap.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<ReapBucket>,
    /// How the reapers compete for a CPU: `real_time`, `nice`, `ordinary`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    /// Threads of bursard's that wait for the memory of a process that keeps its lock, and that others have replaced.
    #[serde(default, skip_serializing_if = "is_none")]
    pub threads_away: u64,
    /// The same, those that have come back included.
    #[serde(default, skip_serializing_if = "is_none")]
    pub threads_lost: u64,
    /// How often nobody asked for a process's memory because of that.
    #[serde(default, skip_serializing_if = "is_none")]
    pub left_alone: u64,
    /// Victims that were only watched, because the reapers were behind.
    #[serde(default, skip_serializing_if = "is_none")]
    pub turned_away: u64,
    /// Victims whose end is not told, because too many were awaited at once.
    #[serde(default, skip_serializing_if = "is_none")]
    pub untold: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_none(count: &u64) -> bool {
    *count == 0
}

impl ReapStatus {
    /// Counts one victim whose memory is back. Returns its rate where it is worth measuring.
    pub fn count(&mut self, freed: Bytes, took: Nanos, method: &str) -> Option<Bytes> {
        self.reaped = self.reaped.saturating_add(1);
        self.freed = self.freed.saturating_add(freed);
        self.longest = self.longest.max(Some(took));
        let of_method = self.methods.entry(method.to_owned()).or_default();
        *of_method = of_method.saturating_add(1);
        if self.latency.is_empty() {
            let bounds = REAP_BUCKETS_MS
                .iter()
                .map(|ms| Some(Nanos::new(ms * 1_000_000)));
            let buckets = bounds.chain([None]);
            self.latency = buckets
                .map(|at_most_ns| ReapBucket {
                    at_most_ns,
                    count: 0,
                })
                .collect();
        }
        let fits = |it: &&mut ReapBucket| it.at_most_ns.is_none_or(|bound| took <= bound);
        if let Some(bucket) = self.latency.iter_mut().find(fits) {
            bucket.count = bucket.count.saturating_add(1);
        }
        if freed < MEASURABLE {
            return None;
        }
        let rate = freed.scaled(1_000_000_000, took.get().max(1));
        self.slowest_bytes_per_second = Some(
            self.slowest_bytes_per_second
                .map_or(rate, |it| it.min(rate)),
        );
        Some(rate)
    }

    /// How fast so many CPUs together can take memory at most, bytes a second.
    pub const fn fastest_growth(cpus: u64) -> Bytes {
        Bytes::new(FAULT_RATE.saturating_mul(cpus))
    }

    /// The most that one victim may give back: the largest limit there is, or what was ever held without one.
    pub fn largest_victim(
        limits_and_maxheld: impl Iterator<Item = (Option<Bytes>, Bytes)>,
        ram: Bytes,
    ) -> Bytes {
        let most = limits_and_maxheld.map(|(limit, maxheld)| limit.unwrap_or(maxheld));
        most.max().unwrap_or_default().min(ram)
    }

    /// S2: the free memory that should be kept so that nobody runs out while a victim of `victim` bytes
    /// is being reaped at the slowest rate seen, with others taking memory at `growth` bytes a second
    /// meanwhile. `None` before anything was measured.
    pub fn margin(&self, victim: Bytes, growth: Bytes) -> Option<Bytes> {
        let rate = self.slowest_bytes_per_second?.get().max(1);
        let wait = victim.scaled(1_000_000_000, rate);
        Some(growth.scaled(wait.get(), 1_000_000_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_lasts_for_the_slowest_reap_of_the_largest_victim() {
        let mib = Bytes::from_mib;
        let victim = |ram| {
            let accounts = [(Some(mib(64)), mib(500)), (None, mib(96))];
            ReapStatus::largest_victim(accounts.into_iter(), ram)
        };
        assert_eq!(victim(mib(1024)), mib(96));
        assert_eq!(victim(mib(80)), mib(80));
        let none = ReapStatus::largest_victim([].into_iter(), mib(80));
        assert_eq!(none, Bytes::ZERO);

        let mut status = ReapStatus::default();
        assert_eq!(status.margin(mib(96), mib(1000)), None);
        // 32 MiB in 100 ms, so 96 MiB in 300 ms.
        status.count(mib(32), Nanos::new(100_000_000), "exit");
        assert_eq!(status.margin(mib(96), mib(1000)), Some(mib(300)));
    }

    #[test]
    fn each_reap_is_in_one_bucket() {
        let mut status = ReapStatus::default();
        let mib = Bytes::from_mib;
        for (ms, size) in [(1, 1), (3, 64), (30, 512), (60_000, 1024)] {
            status.count(mib(size), Nanos::new(ms * 1_000_000), "exit");
        }
        let counts: Vec<u64> = status.latency.iter().map(|it| it.count).collect();
        assert_eq!(counts, [1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!((status.reaped, status.methods["exit"]), (4, 4));
        assert_eq!(
            status.slowest_bytes_per_second,
            Some(mib(1024).scaled(1, 60))
        );
    }

    #[test]
    fn the_margin_is_what_others_take_while_the_slowest_reap_lasts() {
        let mut status = ReapStatus::default();
        assert_eq!(
            status.margin(Bytes::from_mib(512), Bytes::from_mib(1000)),
            None
        );
        status.count(Bytes::from_mib(500), Nanos::new(1_000_000_000), "exit");
        let margin = status.margin(Bytes::from_mib(1000), Bytes::from_mib(300));
        assert_eq!(margin, Some(Bytes::from_mib(600)));
    }
}
