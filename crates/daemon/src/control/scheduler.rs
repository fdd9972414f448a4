// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose request is next. Users come in turn, however many connections one has and however much he sends
//! over them; and of our time a user other than root gets a share, so that nobody makes us his program.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bursar_model::Uid;

use super::requester::ClientId;

/// A user may have one part in so many of a processor's time in the long run.
const PART: u32 = 10;
/// So much of our time he may have at once, when he has not asked for a while.
const BURST: Duration = Duration::from_secs(1);
/// Users that are kept in mind; who has all of his burst again can be forgotten.
const MOST_USERS: usize = 1024;

/// Who waits for an answer, and who has had how much of our time.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    /// The connections with a request, by user. No queue here is empty.
    waiting: BTreeMap<Uid, VecDeque<ClientId>>,
    /// Their users, whose turn it is first.
    order: VecDeque<Uid>,
    allowances: BTreeMap<Uid, Allowance>,
    /// Requests that had to wait until their user had time of ours again.
    pub(crate) delayed: u64,
}

/// What a user has had, less what has come back to him since.
#[derive(Debug, Clone, Copy, Default)]
struct Allowance {
    spent: Duration,
    /// On the caller's clock.
    at: Duration,
    /// His present wait is counted.
    is_told: bool,
}

impl Allowance {
    /// What he still has to his debit.
    fn spent_by(&self, now: Duration) -> Duration {
        self.spent
            .saturating_sub(now.saturating_sub(self.at) / PART)
    }

    /// How long until he may ask again; zero: now.
    fn wait(&self, now: Duration) -> Duration {
        self.spent_by(now).saturating_sub(BURST) * PART
    }
}

impl Scheduler {
    /// A connection has a request. It must not be waiting already.
    pub(crate) fn line_up(&mut self, uid: Uid, id: ClientId) {
        let own = self.waiting.entry(uid).or_default();
        if own.is_empty() {
            self.order.push_back(uid);
        }
        own.push_back(id);
    }

    /// A connection has gone.
    pub(crate) fn leave(&mut self, uid: Uid, id: ClientId) {
        if let Some(own) = self.waiting.get_mut(&uid) {
            own.retain(|&it| it != id);
            self.settle(uid);
        }
    }

    /// Whose request is to be answered now.
    pub(crate) fn next(&mut self, now: Duration) -> Option<ClientId> {
        for _ in 0..self.order.len() {
            let uid = self.order.pop_front()?;
            self.order.push_back(uid);
            let allowance = self.allowances.entry(uid).or_default();
            if !allowance.wait(now).is_zero() {
                if !std::mem::replace(&mut allowance.is_told, true) {
                    self.delayed = self.delayed.saturating_add(1);
                }
                continue;
            }
            allowance.is_told = false;
            let id = self.waiting.get_mut(&uid)?.pop_front();
            self.settle(uid);
            return id;
        }
        None
    }

    /// Who has no connection waiting has no turn.
    fn settle(&mut self, uid: Uid) {
        if self.waiting.get(&uid).is_some_and(VecDeque::is_empty) {
            self.waiting.remove(&uid);
            self.order.retain(|&it| it != uid);
        }
    }

    /// So much of our time went to a user. Root has as much as he likes.
    pub(crate) fn charge(&mut self, uid: Uid, spent: Duration, now: Duration) {
        if uid.get() == 0 {
            return;
        }
        if self.allowances.len() >= MOST_USERS {
            self.allowances.retain(|_, it| !it.spent_by(now).is_zero());
        }
        let allowance = self.allowances.entry(uid).or_default();
        allowance.spent = allowance.spent_by(now).saturating_add(spent);
        allowance.at = now;
    }

    /// How long nobody's request can be answered; `None`: nobody waits.
    pub(crate) fn timeout(&self, now: Duration) -> Option<Duration> {
        let wait = |uid: &Uid| {
            self.allowances
                .get(uid)
                .map_or(Duration::ZERO, |it| it.wait(now))
        };
        self.order.iter().map(wait).min()
    }

    /// Whether this user's requests wait for time of ours.
    pub(crate) fn is_spent(&self, uid: Uid, now: Duration) -> bool {
        self.allowances
            .get(&uid)
            .is_some_and(|it| !it.wait(now).is_zero())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALICE: Uid = Uid::new(60001);
    const BOB: Uid = Uid::new(60002);
    const ROOT: Uid = Uid::new(0);

    fn id(number: u64) -> ClientId {
        ClientId::from_token(number)
    }

    #[test]
    fn users_come_in_turn_however_many_connections_one_has() {
        let mut scheduler = Scheduler::default();
        for number in 1..=3 {
            scheduler.line_up(ALICE, id(number));
        }
        scheduler.line_up(BOB, id(9));
        let now = Duration::ZERO;
        let served: Vec<_> = std::iter::from_fn(|| scheduler.next(now)).collect();
        assert_eq!(served, [id(1), id(9), id(2), id(3)]);
        assert_eq!(scheduler.timeout(now), None);
    }

    #[test]
    fn who_has_had_his_burst_waits_and_the_others_do_not() {
        let mut scheduler = Scheduler::default();
        let mut now = Duration::from_secs(100);
        scheduler.charge(ALICE, BURST + Duration::from_millis(10), now);
        scheduler.line_up(ALICE, id(1));
        assert_eq!(scheduler.next(now), None);
        assert_eq!(scheduler.next(now), None);
        assert_eq!(scheduler.delayed, 1);
        assert_eq!(scheduler.timeout(now), Some(Duration::from_millis(100)));
        scheduler.line_up(BOB, id(2));
        assert_eq!(scheduler.timeout(now), Some(Duration::ZERO));
        assert_eq!(scheduler.next(now), Some(id(2)));
        now += Duration::from_millis(100);
        assert_eq!(scheduler.next(now), Some(id(1)));
        assert_eq!(scheduler.delayed, 1);
    }

    #[test]
    fn root_never_waits() {
        let mut scheduler = Scheduler::default();
        scheduler.charge(ROOT, Duration::from_secs(1000), Duration::ZERO);
        scheduler.line_up(ROOT, id(1));
        assert_eq!(scheduler.next(Duration::ZERO), Some(id(1)));
    }

    #[test]
    fn who_left_has_no_turn() {
        let mut scheduler = Scheduler::default();
        scheduler.line_up(ALICE, id(1));
        scheduler.leave(ALICE, id(1));
        assert_eq!(scheduler.timeout(Duration::ZERO), None);
        assert_eq!(scheduler.next(Duration::ZERO), None);
        scheduler.line_up(ALICE, id(2));
        assert_eq!(scheduler.next(Duration::ZERO), Some(id(2)));
    }

    #[test]
    fn users_who_came_once_are_forgotten() {
        let mut scheduler = Scheduler::default();
        for number in 0..3 * MOST_USERS as u32 {
            let now = Duration::from_secs(u64::from(number));
            scheduler.charge(Uid::new(60000 + number), Duration::from_millis(1), now);
        }
        assert!(scheduler.allowances.len() <= MOST_USERS);
    }

    proptest! {
        /// Whatever requests cost, who always has one gets his share and his burst, and what the last one
        /// took beyond.
        #[test]
        fn nobody_gets_more_than_his_share(costs in prop::collection::vec(1u64..50_000, 1..400)) {
            let mut scheduler = Scheduler::default();
            let mut now = Duration::ZERO;
            let mut spent = Duration::ZERO;
            let most = Duration::from_micros(50_000);
            for cost in costs {
                scheduler.line_up(ALICE, id(1));
                now += scheduler.timeout(now).unwrap();
                prop_assert!(scheduler.next(now).is_some());
                let cost = Duration::from_micros(cost);
                now += cost;
                spent += cost;
                scheduler.charge(ALICE, cost, now);
                prop_assert!(spent <= now / PART + BURST + most, "{spent:?} of {now:?}");
            }
        }
    }
}
