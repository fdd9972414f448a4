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
    /// Who was found since the plan in force was made. It is made anew for each of them once; whether that has to wait,
    /// or is tried again, is for others to say.
    found: BTreeSet<Uid>,
}

impl SubuidUsers {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            timer: Timer::polled().context("make a timer")?,
            asked: Uid::new(0),
            found: BTreeSet::new(),
        })
    }

    /// Looks for users in these from now on, which are in force.
    pub(super) fn look_among(&mut self, subordinates: &Subordinates) -> Result<()> {
        let every = match subordinates.is_empty() {
            true => Duration::ZERO,
            false => EVERY,
        };
        self.found.clear();
        self.timer.set(every, every).context("set a timer")
    }

    /// Asks for some of those who were `met`. Whether somebody turns out to be a user.
    pub(super) fn look(&mut self, met: &BTreeSet<Uid>, table: &mut LimitTable) -> Result<bool> {
        self.timer.take_expiry().context("read a timer")?;
        let users = table.users_among_subordinates();
        let is_news = !users.is_subset(&self.found);
        self.found = users;
        let in_doubt = met.iter().filter(|uid| table.is_in_doubt(**uid));
        for uid in some_after(&in_doubt.copied().collect(), self.asked) {
            table.expect_user(uid);
            self.asked = uid;
        }
        Ok(is_news)
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
