// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who waits for a level of an account. The kernel half is told the next level up and down of each account that
//! somebody waits for, and tells once when the account is there: nobody looks in between. The backends without it look
//! at all accounts anyway, and so do we then.

use std::collections::{BTreeMap, BTreeSet};

use bursar_model::{AccountId, Bounds, Bytes, PageSize, Pages, WatchLevel};
use bursar_protocol::{ErrorKind, Reached, Refusal, Reply};

use crate::accounts::Accounts;
use crate::control::ClientId;
use crate::fact::Fact;

/// One who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LevelWatch {
    payer: AccountId,
    at: WatchLevel,
    follows: bool,
    /// Told, and the account has not fallen far enough since.
    is_told: bool,
}

impl LevelWatch {
    pub(crate) const fn new(payer: AccountId, at: WatchLevel, follows: bool) -> Self {
        Self {
            payer,
            at,
            follows,
            is_told: false,
        }
    }
}

/// What an account is watched for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Armed {
    above: Option<Bytes>,
    below: Bytes,
}

impl Armed {
    /// Whether who waits for `other` is told in time: earlier does no harm.
    fn covers(self, other: Self) -> bool {
        let is_above = match (self.above, other.above) {
            (_, None) => true,
            (Some(own), Some(other)) => own <= other,
            (None, Some(_)) => false,
        };
        is_above && self.below >= other.below
    }
}

#[derive(Debug)]
pub(crate) struct LevelWatches {
    page: PageSize,
    watches: BTreeMap<ClientId, LevelWatch>,
    /// As the kernel half was told last, and has not answered.
    armed: BTreeMap<AccountId, Armed>,
    /// Nobody holds anything, and the first page is to be told of (usage.rs).
    awaits_first: bool,
    told: Vec<(ClientId, Reply)>,
}

impl LevelWatches {
    pub(crate) const fn new(page: PageSize) -> Self {
        Self {
            page,
            watches: BTreeMap::new(),
            armed: BTreeMap::new(),
            awaits_first: false,
            told: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, client: ClientId, watch: LevelWatch, accounts: &mut Accounts) {
        self.watches.insert(client, watch);
        let id = accounts.payers.of(watch.payer).map(|(id, _)| id);
        let looked_at = id.into_iter().map(|id| (id, None)).collect();
        self.review(looked_at, &BTreeSet::new(), accounts);
    }

    /// What the kernel half watches for it stays: an event too many is looked at and forgotten.
    pub(crate) fn remove(&mut self, client: ClientId) {
        self.watches.remove(&client);
    }

    pub(crate) fn has(&self, client: ClientId) -> bool {
        self.watches.contains_key(&client)
    }

    /// Who is to be told what.
    pub(crate) fn take_told(&mut self) -> Vec<(ClientId, Reply)> {
        std::mem::take(&mut self.told)
    }

    pub(crate) fn hear(&mut self, facts: &[Fact], accounts: &mut Accounts) {
        let mut reached = BTreeMap::new();
        let mut refused = BTreeSet::new();
        for fact in facts {
            match fact {
                // What it says is what counts: asked for the same again it would say the same at once.
                Fact::WatchReached(level) => {
                    self.armed.remove(&level.account);
                    reached.insert(level.account, Some(level.held));
                }
                Fact::Refused(level, _) if !level.is_observed => {
                    reached.entry(level.account).or_default();
                    refused.insert(level.account);
                }
                _ => {}
            }
        }
        if !reached.is_empty() {
            self.forget_first(accounts);
        }
        if self.watches.is_empty() {
            return;
        }
        if accounts.backend.kernel().is_none() {
            reached = self.watched(accounts);
        }
        self.review(reached, &refused, accounts);
    }

    /// Has [`Fact::WatchReached`] told when somebody begins to hold anything, also in an account that `default` makes then.
    /// `false`: nobody can tell.
    pub(crate) fn await_first(&mut self, accounts: &Accounts) -> bool {
        let Some(kernel) = accounts.backend.kernel() else {
            return false;
        };
        if let Err(error) = kernel.watch_default(Some(self.first())) {
            tracing::warn!("the first page that is held is not told of: {error:#}");
            return false;
        }
        self.awaits_first = true;
        for reading in accounts.backend.readings() {
            let below = self
                .armed
                .get(&reading.id)
                .map_or(Bytes::ZERO, |it| it.below);
            let above = Some(self.first());
            self.arm(reading.id, Armed { above, below }, accounts);
        }
        true
    }

    /// Somebody holds something. Accounts that hold nothing yet tell it all the same: once, which does no harm.
    fn forget_first(&mut self, accounts: &Accounts) {
        if std::mem::take(&mut self.awaits_first)
            && let Some(kernel) = accounts.backend.kernel()
            && let Err(error) = kernel.watch_default(None)
        {
            tracing::warn!("accounts that `default` makes tell of their first page: {error:#}");
        }
    }

    /// The least that is anything.
    fn first(&self) -> Bytes {
        Pages::new(1).to_bytes(self.page)
    }

    /// Bounds, and who pays into what, may be others now.
    pub(crate) fn review_all(&mut self, accounts: &mut Accounts) {
        self.armed.clear();
        let gone: Vec<ClientId> = self
            .watches
            .iter()
            .filter(|(_, it)| accounts.payers.of(it.payer).is_none())
            .map(|(&client, _)| client)
            .collect();
        for client in gone {
            self.end(client, no_account());
        }
        let watched = self.watched(accounts);
        self.review(watched, &BTreeSet::new(), accounts);
    }

    /// The accounts of all who wait.
    fn watched(&self, accounts: &Accounts) -> BTreeMap<AccountId, Option<Bytes>> {
        let paid = |it: &LevelWatch| accounts.payers.of(it.payer).map(|(id, _)| (id, None));
        self.watches.values().filter_map(paid).collect()
    }

    fn end(&mut self, client: ClientId, why: Refusal) {
        self.watches.remove(&client);
        self.told.push((client, Reply::Refused(why)));
    }

    /// Tells who has waited for how these accounts stand, and has them watched for who waits still. With what they
    /// hold, where the kernel half has said so.
    fn review(
        &mut self,
        looked_at: BTreeMap<AccountId, Option<Bytes>>,
        refused: &BTreeSet<AccountId>,
        accounts: &mut Accounts,
    ) {
        if looked_at.is_empty() || self.watches.is_empty() {
            return;
        }
        let readings = accounts.backend.readings();
        for (id, said) in looked_at {
            let waiting: Vec<ClientId> = self
                .watches
                .iter()
                .filter(|(_, it)| {
                    accounts
                        .payers
                        .of(it.payer)
                        .is_some_and(|(paid, _)| paid == id)
                })
                .map(|(&client, _)| client)
                .collect();
            if waiting.is_empty() {
                continue;
            }
            let name = accounts.name_of(id);
            let reading = readings.iter().find(|it| it.id == id);
            let mut wanted = Armed::default();
            for client in waiting {
                let next = match reading {
                    Some(reading) => {
                        let held = said.unwrap_or(reading.held);
                        self.judge(client, held, &reading.bounds, refused.contains(&id), &name)
                    }
                    None => {
                        self.end(client, no_account());
                        continue;
                    }
                };
                wanted.below = wanted.below.max(next.below);
                wanted.above = wanted.above.into_iter().chain(next.above).min();
            }
            if self.awaits_first {
                wanted.above = wanted.above.into_iter().chain([self.first()]).min();
            }
            self.arm(id, wanted, accounts);
        }
    }

    /// Tells one who waits how the account stands, if that is what he waits for. Returns what he waits for next.
    fn judge(
        &mut self,
        client: ClientId,
        held: Bytes,
        bounds: &Bounds,
        is_refused: bool,
        name: &str,
    ) -> Armed {
        let Some(watch) = self.watches.get_mut(&client) else {
            return Armed::default();
        };
        let Some(bound) = watch.at.bytes(bounds) else {
            let why = missing_bound(name, watch.at);
            self.end(client, why);
            return Armed::default();
        };
        let level = self.page.pages_within(bound).to_bytes(self.page);
        let again_below = level.saturating_sub(Bytes::new(level.get() / 16));
        let is_refused = is_refused && watch.at == WatchLevel::Barrier;
        if watch.is_told && held < again_below {
            watch.is_told = false;
        }
        if !watch.is_told && (held >= level || is_refused) {
            let reached = Reached {
                account: name.to_owned(),
                at: watch.at,
                level: bound,
                held,
                limit: bounds.limit(),
                refused: is_refused,
            };
            watch.is_told = true;
            if !watch.follows {
                self.watches.remove(&client);
                self.told.push((client, Reply::Reached(Box::new(reached))));
                return Armed::default();
            }
            self.told.push((client, Reply::Reached(Box::new(reached))));
        }
        let is_told = self.watches.get(&client).is_some_and(|it| it.is_told);
        match is_told {
            true => Armed {
                above: None,
                below: again_below,
            },
            false => Armed {
                above: Some(level),
                below: Bytes::ZERO,
            },
        }
    }

    fn arm(&mut self, id: AccountId, wanted: Armed, accounts: &Accounts) {
        let is_covered = self.armed.get(&id).is_some_and(|it| it.covers(wanted));
        if wanted == Armed::default() || is_covered {
            return;
        }
        let Some(kernel) = accounts.backend.kernel() else {
            return;
        };
        match kernel.watch(id, wanted.above, wanted.below) {
            Ok(()) => {
                self.armed.insert(id, wanted);
            }
            Err(error) => tracing::warn!("who waits for a level is not told in time: {error:#}"),
        }
    }
}

pub(crate) fn no_account() -> Refusal {
    Refusal {
        kind: ErrorKind::NotFound,
        reserved: None,
        message: "no limit concerns you, so there is no level to wait for; root sets one with: bursar limit set"
            .to_owned(),
    }
}

pub(crate) fn missing_bound(account: &str, at: WatchLevel) -> Refusal {
    let bound = at.bound();
    Refusal {
        kind: ErrorKind::NotFound,
        reserved: None,
        message: format!(
            "{account} has no {bound}, so {at} is nothing to wait for; see its bounds with: bursar quota"
        ),
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::Uid;

    use super::*;

    const OWNER: AccountId = AccountId::of(Uid::new(60001));

    fn bounds() -> Bounds {
        let [notice, barrier, limit] = [80, 90, 100].map(Bytes::from_mib);
        Bounds::new(Some(notice), Some(barrier), Some(limit)).unwrap()
    }

    fn watches(at: WatchLevel, follows: bool) -> LevelWatches {
        let mut watches = LevelWatches::new(PageSize::new(4096).unwrap());
        let watch = LevelWatch::new(OWNER, at, follows);
        watches.watches.insert(ClientId::first(), watch);
        watches
    }

    /// How often it is told while the account holds these, and what is watched for in the end.
    fn told(watches: &mut LevelWatches, held: &[(u64, bool)]) -> (Vec<u64>, Armed) {
        let mut told = Vec::new();
        let mut next = Armed::default();
        for &(held, is_refused) in held {
            next = watches.judge(
                ClientId::first(),
                Bytes::from_mib(held),
                &bounds(),
                is_refused,
                "alice",
            );
            told.extend(watches.take_told().iter().map(|_| held));
        }
        (told, next)
    }

    #[test]
    fn who_waits_once_is_told_once_and_forgotten() {
        let mut once = watches(WatchLevel::Notice, false);
        let held = [
            (10, false),
            (79, false),
            (80, false),
            (10, false),
            (90, false),
        ];
        assert_eq!(told(&mut once, &held).0, [80]);
        assert!(!once.has(ClientId::first()));
    }

    #[test]
    fn who_follows_is_told_again_after_a_sixteenth_less() {
        let mut follows = watches(WatchLevel::Percent(80), true);
        let held = [(85, false), (95, false), (75, false), (85, false)];
        let (told_at, next) = told(&mut follows, &held);
        assert_eq!(told_at, [85]);
        assert_eq!((next.above, next.below), (None, Bytes::from_mib(75)));
        let (told_at, next) = told(&mut follows, &[(74, false)]);
        assert_eq!(told_at, [0_u64; 0]);
        assert_eq!(
            (next.above, next.below),
            (Some(Bytes::from_mib(80)), Bytes::ZERO)
        );
        assert_eq!(told(&mut follows, &[(81, false)]).0, [81]);
    }

    #[test]
    fn a_refusal_is_the_barrier_and_no_other_level() {
        let held = [(50, true), (50, false)];
        assert_eq!(
            told(&mut watches(WatchLevel::Barrier, false), &held).0,
            [50]
        );
        assert_eq!(
            told(&mut watches(WatchLevel::Notice, false), &held).0,
            [0_u64; 0]
        );
    }

    #[test]
    fn what_is_watched_for_covers_who_waits_for_less() {
        let armed = |above: Option<u64>, below| Armed {
            above: above.map(Bytes::new),
            below: Bytes::new(below),
        };
        assert!(armed(Some(5), 3).covers(armed(Some(6), 2)));
        assert!(armed(Some(5), 3).covers(armed(None, 0)));
        assert!(!armed(Some(5), 3).covers(armed(Some(4), 3)));
        assert!(!armed(None, 3).covers(armed(Some(4), 3)));
        assert!(!armed(Some(5), 3).covers(armed(Some(5), 4)));
    }
}
