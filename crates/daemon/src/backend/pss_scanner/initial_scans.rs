// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accounts that got their limit over processes that ran already: what those share nobody knows. They are looked
//! at one after the other, when nobody waits for the PSS scanner.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bursar_kernel::Slot;

/// Who is to be looked at; as many as there are accounts at most.
#[derive(Debug, Default)]
pub(super) struct InitialScans(Mutex<BTreeSet<Slot>>);

impl InitialScans {
    /// Whether there are any now.
    pub(super) fn add(&self, slots: impl IntoIterator<Item = Slot>) -> bool {
        let mut waiting = self.lock();
        waiting.extend(slots);
        !waiting.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// The next one, who is none any more.
    pub(super) fn next(&self) -> Option<Slot> {
        self.lock().pop_first()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Slot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_looked_at_once_however_often_it_is_introduced() {
        let initial_scans = InitialScans::default();
        assert!(!initial_scans.add([]) && initial_scans.is_empty());
        assert!(initial_scans.add([Slot::TEMPLATE, Slot::TEMPLATE]));
        assert!(initial_scans.add([Slot::TEMPLATE]));
        assert_eq!(initial_scans.next(), Some(Slot::TEMPLATE));
        assert_eq!(initial_scans.next(), None);
    }
}
