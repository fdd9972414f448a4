// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Users with a uid that somebody else was given as a subordinate one. The directory does not list them all, so they are
//! known only once their name was asked for; until then their processes count for whoever was given the uid.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_host::Timer;
use bursar_model::Uid;
use bursar_policy::Subordinates;

use crate::limit_table::LimitTable;

/// How often it is asked who they are.
const EVERY: Duration = Duration::from_secs(1);
/// Names that are asked for at once: a user can have processes with each of his 65,536 subordinate uids, and each is a
/// question to the directory.
const MOST_ASKED: usize = 8;

/// Has names asked for.
#[derive(Debug)]
pub(super) struct SubuidUsers {
    timer: Timer,
    /// The uid that was asked for last.
    asked: Uid,
}

impl SubuidUsers {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            timer: Timer::polled().context("make a timer")?,
            asked: Uid::new(0),
        })
    }

    /// Looks for users in these from now on.
    pub(super) fn look_among(&self, subordinates: &Subordinates) -> Result<()> {
        let every = match subordinates.is_empty() {
            true => Duration::ZERO,
            false => EVERY,
        };
        self.timer.set(every, every).context("set a timer")
    }

    /// Whether one of those who were `met` turns out to be a user.
    pub(super) fn look(&mut self, met: &BTreeSet<Uid>, table: &mut LimitTable) -> Result<bool> {
        self.timer.take_expiry().context("read a timer")?;
        let is_in_doubt = |uid: &&Uid| table.plan().subordinates.payer_of(**uid).is_some();
        let in_doubt: BTreeSet<Uid> = met.iter().filter(is_in_doubt).copied().collect();
        if in_doubt.iter().any(|&uid| table.is_user(uid)) {
            return Ok(true);
        }
        for uid in some_after(&in_doubt, self.asked) {
            table.expect_user(uid);
            self.asked = uid;
        }
        Ok(false)
    }
}

impl AsFd for SubuidUsers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// Those whose turn it is.
fn some_after(all: &BTreeSet<Uid>, last: Uid) -> Vec<Uid> {
    let (before, after): (Vec<Uid>, Vec<Uid>) = all.iter().partition(|uid| **uid <= last);
    after.into_iter().chain(before).take(MOST_ASKED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_has_a_turn() {
        let all: BTreeSet<Uid> = (1..=20).map(Uid::new).collect();
        let turn = |last| -> Vec<u32> {
            let some = some_after(&all, Uid::new(last)).into_iter();
            some.map(Uid::get).collect()
        };
        assert_eq!(turn(0), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(turn(16), [17, 18, 19, 20, 1, 2, 3, 4]);
        assert_eq!(turn(20)[0], 1);
        assert!(some_after(&BTreeSet::new(), Uid::new(5)).is_empty());
    }
}
