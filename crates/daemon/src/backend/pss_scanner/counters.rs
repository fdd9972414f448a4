// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the PSS scanner says of its work to whoever asks for the status: numbers that one thread writes and
//! another reads, each by itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bursar_model::PssScanStatus;

/// Counters of PSS scans since the daemon started.
#[derive(Debug, Default)]
pub(in crate::backend) struct ScanCounters {
    made: AtomicU64,
    failed: AtomicU64,
    last_ns: AtomicU64,
    longest_ns: AtomicU64,
    spent_ns: AtomicU64,
    accounts: AtomicU64,
    watching: AtomicBool,
}

impl ScanCounters {
    pub(super) fn count(&self, cost: Duration, is_whole: bool) {
        let cost = u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX);
        let counter = if is_whole { &self.made } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        self.last_ns.store(cost, Ordering::Relaxed);
        self.longest_ns.fetch_max(cost, Ordering::Relaxed);
        self.spent_ns.fetch_add(cost, Ordering::Relaxed);
    }

    pub(super) fn note_accounts(&self, count: usize) {
        self.accounts.store(count as u64, Ordering::Relaxed);
    }

    pub(super) fn note_watching(&self, on: bool) {
        self.watching.store(on, Ordering::Relaxed);
    }

    /// As of now.
    pub(in crate::backend) fn read(&self) -> PssScanStatus {
        let number = |it: &AtomicU64| it.load(Ordering::Relaxed);
        PssScanStatus {
            made: number(&self.made),
            failed: number(&self.failed),
            last_ns: number(&self.last_ns),
            longest_ns: number(&self.longest_ns),
            spent_ns: number(&self.spent_ns),
            accounts: number(&self.accounts),
            watching: self.watching.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_and_failed_pss_scans_are_counted_apart_and_the_longest_is_kept() {
        let counters = ScanCounters::default();
        counters.count(Duration::from_nanos(70), true);
        counters.count(Duration::from_nanos(30), false);
        counters.note_accounts(2);
        counters.note_watching(true);
        let expected = PssScanStatus {
            made: 1,
            failed: 1,
            last_ns: 30,
            longest_ns: 70,
            spent_ns: 100,
            accounts: 2,
            watching: true,
        };
        assert_eq!(counters.read(), expected);
    }
}
