// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many of something each user has, by each socket apart.

use std::collections::BTreeMap;

use super::bounds::CountedAs;
use super::requester::Socket;

/// Who has none is not in it.
#[derive(Debug, Default)]
pub(super) struct ConnectionCount(BTreeMap<CountedAs, usize>);

impl ConnectionCount {
    pub(super) fn add(&mut self, who: CountedAs) {
        let count = self.0.entry(who).or_default();
        *count = count.saturating_add(1);
    }

    pub(super) fn take(&mut self, who: CountedAs) {
        if let Some(count) = self.0.get_mut(&who) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.0.remove(&who);
            }
        }
    }

    pub(super) fn of(&self, who: CountedAs) -> usize {
        self.0.get(&who).copied().unwrap_or(0)
    }

    /// Everybody's by one socket.
    pub(super) fn sum(&self, socket: Socket) -> usize {
        let its = self.0.iter().filter(|(who, _)| who.socket == socket);
        its.map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use bursar_model::Uid;

    #[test]
    fn each_user_has_his_own_and_who_has_none_is_forgotten() {
        let by = |socket, uid| CountedAs {
            socket,
            uid: Uid::new(uid),
        };
        let (alice, bob) = (by(Socket::Requests, 60001), by(Socket::Requests, 60002));
        let hears = by(Socket::Events, 60001);
        let mut connections = ConnectionCount::default();
        connections.add(alice);
        connections.add(alice);
        connections.add(bob);
        connections.add(hears);
        assert_eq!(
            (
                connections.of(alice),
                connections.of(bob),
                connections.sum(Socket::Requests)
            ),
            (2, 1, 3)
        );
        assert_eq!(connections.sum(Socket::Events), 1);
        connections.take(bob);
        connections.take(bob);
        assert_eq!(
            (
                connections.of(bob),
                connections.of(hears),
                connections.0.len()
            ),
            (0, 1, 2)
        );
    }
}
