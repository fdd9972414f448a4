// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many of something each user has.

use std::collections::BTreeMap;

use bursar_model::Uid;

/// Who has none is not in it.
#[derive(Debug, Default)]
pub(super) struct ConnectionCount(BTreeMap<Uid, usize>);

impl ConnectionCount {
    pub(super) fn add(&mut self, uid: Uid) {
        let count = self.0.entry(uid).or_default();
        *count = count.saturating_add(1);
    }

    pub(super) fn take(&mut self, uid: Uid) {
        if let Some(count) = self.0.get_mut(&uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.0.remove(&uid);
            }
        }
    }

    pub(super) fn of(&self, uid: Uid) -> usize {
        self.0.get(&uid).copied().unwrap_or(0)
    }

    /// Everybody's.
    pub(super) fn sum(&self) -> usize {
        self.0.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_his_own_and_who_has_none_is_forgotten() {
        let (alice, bob) = (Uid::new(60001), Uid::new(60002));
        let mut connections = ConnectionCount::default();
        connections.add(alice);
        connections.add(alice);
        connections.add(bob);
        assert_eq!(
            (
                connections.of(alice),
                connections.of(bob),
                connections.sum()
            ),
            (2, 1, 3)
        );
        connections.take(bob);
        connections.take(bob);
        assert_eq!(
            (connections.of(bob), connections.sum(), connections.0.len()),
            (0, 2, 1)
        );
    }
}
