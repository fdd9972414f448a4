// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who pays for a process that holds up a thread.

use bursar_model::Uid;

/// Whom a thread that hangs counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// This user.
    User(Uid),
    /// This account, by its number in the kernel half.
    Account(u32),
    /// All in user namespaces: a user with subordinate uids has thousands of users there.
    Namespaces,
    /// The process is gone.
    Unknown,
}
