// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that get events, and who may read the events of all.

use bursar_model::{Gid, Uid};

use super::client::Client;
use super::requester::{ClientId, Socket};
use super::{Control, EVENTS, own_time};

impl Control {
    /// Lets the members of a group, or root alone, hear all events.
    pub(crate) fn let_hear_events(&self, group: Option<Gid>) {
        let listener = self.listeners.get(EVENTS);
        if let Some(Err(error)) = listener.map(|it| it.let_group_in(group)) {
            tracing::error!("only root can read the events of all: {error:#}");
        }
    }

    /// Sends an event to whoever follows and may see it.
    pub(crate) fn publish(&mut self, line: &[u8], may_see: impl Fn(Uid) -> bool) {
        let follows = |client: &Client| {
            client.is_following && (client.socket == Socket::Events || may_see(client.uid))
        };
        let told: Vec<ClientId> = self
            .clients
            .iter()
            .filter_map(|(&id, client)| follows(client).then_some(id))
            .collect();
        if told.is_empty() {
            return;
        }
        let began = own_time();
        let mut heard = Vec::new();
        for id in told {
            heard.extend(self.clients.get(&id).map(|client| client.counts_as));
            if self.clients.get_mut(&id).is_some_and(|it| it.tell(line)) {
                self.cut = self.cut.saturating_add(1);
                self.end(id);
            } else {
                self.flush(id);
            }
        }
        self.charge(&heard, began);
    }

    /// The users who follow events.
    pub(crate) fn followers(&self) -> Vec<Uid> {
        let mut users: Vec<Uid> = self
            .clients
            .values()
            .filter(|client| client.is_following && client.socket == Socket::Requests)
            .map(|client| client.uid)
            .collect();
        users.sort_unstable();
        users.dedup();
        users
    }
}
