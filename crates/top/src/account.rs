// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One account on the screen: what bursard said last, how it grows, what happened since the start.

use std::time::Duration;

use bursar_model::{AccountStatus, Bytes, Resource, Row};

use crate::Pace;

/// An account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// As bursard said it last.
    pub status: AccountStatus,
    /// How it grows.
    pub pace: Pace,
    first: Counters,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counters {
    kills: u64,
    refused: u64,
    notices: u64,
}

impl Account {
    /// One met for the first time.
    pub(crate) fn new(at: Duration, status: AccountStatus) -> Self {
        let mut account = Self {
            first: Counters::of(&status),
            pace: Pace::default(),
            status,
        };
        account.pace.note(at, account.memory().held);
        account
    }

    /// What is said of it now.
    pub(crate) fn note(&mut self, at: Duration, status: AccountStatus) {
        self.status = status;
        self.pace.note(at, self.memory().held);
        // A kernel half loaded anew counts from 0.
        let now = Counters::of(&self.status);
        self.first = Counters {
            kills: self.first.kills.min(now.kills),
            refused: self.first.refused.min(now.refused),
            notices: self.first.notices.min(now.notices),
        };
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.status.account
    }

    /// Its memory; an account without that row holds nothing.
    pub fn memory(&self) -> Row {
        let row = self.status.resources.get(&Resource::Memory);
        row.copied().unwrap_or_default()
    }

    /// Kills since the start.
    pub fn new_kills(&self) -> u64 {
        self.status.kills.saturating_sub(self.first.kills)
    }

    /// Refusals since the start.
    pub fn new_refusals(&self) -> u64 {
        self.memory().failcnt.saturating_sub(self.first.refused)
    }

    /// Notices since the start.
    pub fn new_notices(&self) -> u64 {
        self.status.notices.saturating_sub(self.first.notices)
    }

    /// How full it is, for comparisons: those without a limit last, then by what they hold.
    pub(crate) fn fullness(&self) -> (bool, u128, Bytes) {
        let row = self.memory();
        let share = row
            .limit
            .map(|limit| (u128::from(row.held.get()) << 32) / u128::from(limit.get().max(1)));
        (share.is_some(), share.unwrap_or(0), row.held)
    }
}

impl Counters {
    fn of(status: &AccountStatus) -> Self {
        let row = status.resources.get(&Resource::Memory);
        Self {
            kills: status.kills,
            refused: row.map_or(0, |row| row.failcnt),
            notices: status.notices,
        }
    }
}
