// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an account remembers and crosses, where no kernel half keeps it: the trace and poll
//! triggers.

use bursar_model::{Bounds, Bytes};

/// The notice is given again once held has fallen this far below it: a sixteenth.
const REARM: u64 = 16;

/// An account's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccountCounters {
    /// Held now.
    pub held: Bytes,
    /// The most ever held.
    pub maxheld: Bytes,
    /// Breaches answered.
    pub failcnt: u64,
    /// Processes killed.
    pub kills: u64,
    /// Notices given.
    pub notices: u64,
    noticed: bool,
}

/// What a new reading means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crossing {
    /// Nothing to do.
    None,
    /// The user is to be told.
    Notice,
    /// Somebody is to die.
    Limit,
}

impl AccountCounters {
    /// Takes a new reading.
    pub fn read(&mut self, held: Bytes, bounds: &Bounds) -> Crossing {
        self.held = held;
        self.maxheld = self.maxheld.max(held);
        if bounds.limit().is_some_and(|limit| held > limit) {
            return Crossing::Limit;
        }
        match bounds.notice() {
            Some(notice) if held >= notice && !self.noticed => {
                self.noticed = true;
                if !bounds.is_observed() {
                    self.notices = self.notices.saturating_add(1);
                }
                Crossing::Notice
            }
            Some(notice) if held < notice.saturating_sub(notice.scaled(1, REARM)) => {
                self.noticed = false;
                Crossing::None
            }
            _ => Crossing::None,
        }
    }

    /// A victim was killed, unless it is only observed that it would have been.
    pub fn count_kill(&mut self, bounds: &Bounds) {
        if !bounds.is_observed() {
            self.kills = self.kills.saturating_add(1);
        }
        self.count_breach(bounds);
    }

    /// A breach was answered, by a kill or in vain.
    pub fn count_breach(&mut self, bounds: &Bounds) {
        if !bounds.is_observed() {
            self.failcnt = self.failcnt.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_given_once_until_held_has_fallen_well_below() {
        let mib = Bytes::from_mib;
        let bounds = Bounds::new(Some(mib(160)), None, Some(mib(200))).unwrap();
        let mut counters = AccountCounters::default();
        let mut told = |held| counters.read(mib(held), &bounds);
        assert_eq!(told(159), Crossing::None);
        assert_eq!(told(160), Crossing::Notice);
        assert_eq!(told(190), Crossing::None);
        assert_eq!(told(151), Crossing::None);
        assert_eq!(told(165), Crossing::None, "not far enough below");
        assert_eq!(told(149), Crossing::None);
        assert_eq!(told(160), Crossing::Notice);
        assert_eq!(told(201), Crossing::Limit);
        assert_eq!((counters.maxheld, counters.notices), (mib(201), 2));
    }
}
