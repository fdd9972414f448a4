// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that a scan has chosen, until they are gone.

use std::time::Duration;

use bursar_host::Pidfd;
use bursar_model::Nanos;

use crate::fact::Victim;

/// A victim that is there so long after its signal counts again, and may be chosen again: nothing that went wrong once
/// takes a process out of its limit for life.
const LONGEST: Duration = Duration::from_secs(30);

/// A process chosen by us and not gone yet.
#[derive(Debug)]
pub(super) struct PendingVictim {
    pub(super) pidfd: Pidfd,
    pub(super) victim: Victim,
    pub(super) at: Nanos,
}

impl PendingVictim {
    /// Nothing was sent to it.
    pub(super) const fn is_forgone(&self) -> bool {
        self.victim.level.is_observed
    }

    /// It was sent its signal too long ago for being on its way out.
    pub(super) fn has_lapsed(&self, now: Nanos) -> bool {
        !self.is_forgone() && is_long_ago(self.at, now)
    }

    pub(super) fn is_there(&self) -> bool {
        !self.pidfd.has_ended().unwrap_or(true)
    }
}

fn is_long_ago(at: Nanos, now: Nanos) -> bool {
    Duration::from_nanos(now.get().saturating_sub(at.get())) > LONGEST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_there_half_a_minute_after_its_signal_counts_again() {
        let at = Nanos::new(5_000_000_000);
        let after = |ms: u64| Nanos::new(at.get() + ms * 1_000_000);
        assert!(!is_long_ago(at, after(30_000)));
        assert!(is_long_ago(at, after(30_001)));
        // Looked at before it was written down.
        assert!(!is_long_ago(at, Nanos::new(at.get() - 1)));
    }
}
