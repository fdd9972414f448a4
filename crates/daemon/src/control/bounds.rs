// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much those who come by one socket may have. Each socket has its own: everybody may come to that of
//! requests, and however many do, they take nothing from those who hear events.

use bursar_model::Uid;

use super::requester::Socket;

/// Of one socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Connections of one user that have nothing reserved and wait for no level, and of everybody together.
    pub(super) per_user: usize,
    pub(super) everybody: usize,
    /// Bytes of answers that a user may leave unread over all his connections, and everybody together.
    pub(super) unread_per_user: usize,
    pub(super) unread: usize,
}

impl Bounds {
    /// Root is not counted.
    pub(super) const fn of(socket: Socket) -> Self {
        match socket {
            Socket::Requests => Self {
                per_user: 16,
                everybody: 4096,
                unread_per_user: 4 << 20,
                unread: 64 << 20,
            },
            // Members of one group, who are few.
            Socket::Events => Self {
                per_user: 16,
                everybody: 64,
                unread_per_user: 4 << 20,
                unread: 16 << 20,
            },
        }
    }
}

/// Who is counted together: a user by each socket apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CountedAs {
    pub(super) socket: Socket,
    pub(super) uid: Uid,
}
