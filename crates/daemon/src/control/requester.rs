// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who asks over a connection.

use bursar_model::{AccountId, Pid, Uid};

/// Names a connection for as long as it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientId(u64);

/// By which socket somebody came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Socket {
    /// Everybody's, or root's.
    Requests,
    /// That of those who hear all events, and nothing else.
    Events,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Requester {
    pub(crate) client: ClientId,
    pub(crate) uid: Uid,
    /// Who connected; who inherited the connection is not told apart.
    pub(crate) pid: Pid,
    /// Who pays: the owner of the user namespace that it is in, else itself; or the account that it has entered.
    pub(crate) payer: AccountId,
    /// As whom it is counted (listener.rs).
    pub(crate) counts_as: Uid,
    pub(crate) socket: Socket,
}

impl Requester {
    /// Whether it may see events of everybody.
    pub(crate) const fn hears_all(&self) -> bool {
        self.uid.get() == 0 || matches!(self.socket, Socket::Events)
    }
}

impl ClientId {
    pub(super) const fn to_token(self) -> u64 {
        self.0
    }

    pub(super) const fn from_token(token: u64) -> Self {
        Self(token)
    }

    #[cfg(test)]
    pub(crate) const fn first() -> Self {
        Self(3)
    }
}
