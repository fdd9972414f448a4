// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is recorded of an account, as a number.

use bursar_model::{AccountId, Bytes};

use crate::fact::Level;

/// What an account has met, for what is kept over time (usage.rs): as many as there are events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UsageEvent {
    pub(crate) account: AccountId,
    pub(crate) held: Bytes,
    pub(crate) what: UsageEventKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UsageEventKind {
    Notice,
    /// So many requests.
    Refusals(u64),
    Kill,
}

impl UsageEvent {
    pub(super) const fn new(level: &Level, what: UsageEventKind) -> Self {
        Self {
            account: level.account,
            held: level.held,
            what,
        }
    }
}
