// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What waits to be told: of each account and topic the newest message and how many it stands for, again at growing
//! intervals. So its size is bounded by the number of accounts, not by the number of kills.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bursar_host::{MAX_NOTIFICATION, UserTerminals};
use bursar_model::{AccountId, Pid, Uid};

use crate::entered::Entered;
use crate::message::{Message, Topic};

/// Users of an account who are told at a time; more would be a broadcast.
pub(super) const MOST_NOTIFIED: usize = 64;

/// Who may be told of an account.
#[derive(Debug, Default)]
pub(crate) struct Recipients {
    /// Whose programs pay into it.
    pub(crate) payers: BTreeSet<Uid>,
    /// Users whose programs pay into it only where they have entered it.
    pub(crate) granted: BTreeSet<Uid>,
    pub(crate) entered: Option<Entered>,
}

/// Topics of an account that are told apart; whatever comes beyond is one more.
const MOST_TOPICS: usize = 8;
/// Before the second message of a topic; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// And at most. So long refusals are not told again in any case: programs go on after them.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What waits and what was told just now, by account and topic.
#[derive(Debug, Default)]
pub(super) struct PendingMessages(BTreeMap<AccountId, BTreeMap<Topic, PendingTopic>>);

/// A topic.
#[derive(Debug, Default)]
struct PendingTopic {
    waits: Option<Pending>,
    /// When it was told last, and how long nothing is told of it since then.
    last: Option<(Instant, Duration)>,
}

/// What is to be told of one account.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) recipients: Recipients,
    /// The text for recipients whose own processes are not concerned.
    newest: String,
    /// The newest about a process of theirs: it is not lost among others'.
    own: BTreeMap<Uid, String>,
    /// Messages that this one stands for, itself included.
    count: u64,
    /// Whether the topic was told just before.
    is_again: bool,
}

impl PendingTopic {
    fn due(&self) -> Option<Instant> {
        self.last.and_then(|(at, pause)| at.checked_add(pause))
    }

    /// Nothing has happened for long.
    fn is_over(&self, now: Instant) -> bool {
        let quiet = self.due().and_then(|due| due.checked_add(LONGEST_PAUSE));
        self.waits.is_none() && quiet.is_none_or(|quiet| quiet <= now)
    }
}

impl PendingMessages {
    /// When the next one may be told; `None` where none waits.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let topics = self.0.values().flat_map(BTreeMap::values);
        let waiting = topics.filter(|it| it.waits.is_some());
        waiting.map(|it| it.due().unwrap_or(now)).min()
    }

    /// Returns whether its owner reads it as his own; there is no room for any number of owners.
    pub(super) fn add(&mut self, message: Message, recipients: Recipients) -> bool {
        let topics = self.0.entry(message.account).or_default();
        let has_room = topics.len() < MOST_TOPICS || topics.contains_key(&message.topic);
        let topic = if has_room {
            message.topic
        } else {
            Topic::Other
        };
        let told = topics.entry(topic).or_default();
        let is_again = told.last.is_some();
        let pending = told.waits.get_or_insert_with(|| Pending {
            recipients: Recipients::default(),
            newest: String::new(),
            own: BTreeMap::new(),
            count: 0,
            is_again,
        });
        pending.recipients = recipients;
        pending.newest = message.to_others;
        pending.count = pending.count.saturating_add(1);
        let Some(owner) = message.owner else {
            return true;
        };
        let has_room = pending.own.len() < MOST_NOTIFIED || pending.own.contains_key(&owner);
        if has_room {
            pending.own.insert(owner, message.to_owner);
        }
        has_room
    }

    /// What may be told now.
    pub(super) fn take(&mut self, now: Instant) -> Vec<(AccountId, Pending)> {
        let mut taken = Vec::new();
        for (&account, topics) in &mut self.0 {
            for (topic, told) in topics.iter_mut() {
                if told.due().is_some_and(|due| due > now) {
                    continue;
                }
                let Some(pending) = told.waits.take() else {
                    continue;
                };
                let pause = match (topic, told.last) {
                    (Topic::Refused, _) => LONGEST_PAUSE,
                    (_, None) => FIRST_PAUSE,
                    (_, Some((_, before))) => before.saturating_mul(2).min(LONGEST_PAUSE),
                };
                told.last = Some((now, pause));
                taken.push((account, pending));
            }
            topics.retain(|_, told| !told.is_over(now));
        }
        self.0.retain(|_, topics| !topics.is_empty());
        taken
    }

    /// Forgets all; how many messages that were.
    pub(super) fn discard(&mut self) -> u64 {
        let all = std::mem::take(&mut self.0);
        let topics = all.into_values().flat_map(BTreeMap::into_values);
        topics
            .filter_map(|it| it.waits)
            .fold(0, |sum, it| sum.saturating_add(it.count))
    }
}

impl Pending {
    /// Whoever could be told.
    pub(super) fn users(&self) -> impl Iterator<Item = Uid> {
        let Recipients {
            payers, granted, ..
        } = &self.recipients;
        self.own.keys().chain(payers).chain(granted).copied()
    }

    /// Those who are told, the owners of processes it is about first, and how many more sit at terminals. Of those
    /// who may enter the account whoever has.
    pub(super) fn readers(
        &self,
        by_user: &BTreeMap<Uid, UserTerminals>,
        is_inside: impl Fn(Pid) -> bool,
    ) -> (Vec<Uid>, u64) {
        let sits = |uid: &Uid| by_user.get(uid).is_some_and(|it| !it.terminals.is_empty());
        let has_entered = |uid: &Uid| {
            let its = by_user.get(uid).map(|it| it.processes.as_slice());
            its.unwrap_or_default().iter().any(|&pid| is_inside(pid))
        };
        let Recipients {
            payers, granted, ..
        } = &self.recipients;
        let is_told = |uid: &&Uid| self.own.contains_key(uid) || payers.contains(uid);
        let entered = granted
            .iter()
            .filter(|uid| !is_told(uid) && sits(uid) && has_entered(uid));
        let others = payers.iter().filter(|uid| !self.own.contains_key(uid));
        let mut readers: Vec<Uid> = self
            .own
            .keys()
            .chain(others)
            .filter(|uid| sits(uid))
            .chain(entered)
            .copied()
            .collect();
        let beyond = readers.len().saturating_sub(MOST_NOTIFIED);
        readers.truncate(MOST_NOTIFIED);
        (readers, u64::try_from(beyond).unwrap_or(u64::MAX))
    }

    /// What a user reads.
    pub(super) fn text_for(&self, uid: Uid) -> String {
        let text = self.own.get(&uid).unwrap_or(&self.newest);
        let more = match (self.is_again, self.count) {
            (false, ..2) => return text.clone(),
            (false, count) => format!("; {count} times"),
            (true, ..2) => "; again".to_owned(),
            (true, count) => format!("; again, {count} times"),
        };
        // It is not the number that is cut off.
        let room = MAX_NOTIFICATION.saturating_sub(more.len());
        text.chars().take(room).chain(more.chars()).collect()
    }
}

#[cfg(test)]
mod tests {
    use bursar_host::Device;

    use super::*;

    const RENDER: AccountId = AccountId::of_name(1);

    fn uid(number: u32) -> Uid {
        Uid::new(number)
    }

    fn killed(account: AccountId, owner: Option<u32>, number: u64) -> Message {
        Message {
            account,
            topic: Topic::Notice,
            owner: owner.map(uid),
            to_owner: format!("yours {number}"),
            to_others: format!("somebody's {number}"),
        }
    }

    fn recipients(payers: &[u32], granted: &[u32]) -> Recipients {
        Recipients {
            payers: payers.iter().copied().map(uid).collect(),
            granted: granted.iter().copied().map(uid).collect(),
            entered: None,
        }
    }

    fn user_terminals(pid: u32) -> UserTerminals {
        UserTerminals {
            processes: vec![Pid::new(pid)],
            terminals: [Device::new(136, pid)].into(),
        }
    }

    fn only(pending: &mut PendingMessages) -> Pending {
        let mut all = pending.take(Instant::now());
        assert_eq!(all.len(), 1);
        all.pop().unwrap().1
    }

    #[test]
    fn a_storm_of_kills_is_one_message_that_says_how_many_and_crowds_nobody_out() {
        let (storm, calm) = (AccountId::of(uid(60_801)), AccountId::of(uid(60_802)));
        let mut pending = PendingMessages::default();
        for number in 0..1876 {
            pending.add(
                killed(storm, Some(60_801), number),
                recipients(&[60_801], &[]),
            );
        }
        pending.add(killed(calm, None, 1), recipients(&[60_802], &[]));

        let told: BTreeMap<_, _> = pending.take(Instant::now()).into_iter().collect();

        assert_eq!(told.len(), 2);
        assert_eq!(told[&storm].text_for(uid(60_801)), "yours 1875; 1876 times");
        assert_eq!(told[&calm].text_for(uid(60_802)), "somebody's 1");
        assert!(pending.due(Instant::now()).is_none());
    }

    #[test]
    fn a_topic_is_told_again_at_growing_intervals_and_others_at_once() {
        let (account, begun) = (AccountId::of(uid(1)), Instant::now());
        let mut pending = PendingMessages::default();
        let mut told = Vec::new();
        // A program that is started again four times a second, for five minutes.
        for quarter in 0..1200_u32 {
            let now = begun + Duration::from_millis(250) * quarter;
            let mut message = killed(account, Some(1), u64::from(quarter));
            message.topic = Topic::Kill("eat".to_owned());
            pending.add(message, recipients(&[1], &[]));
            told.extend(
                pending
                    .take(now)
                    .into_iter()
                    .map(|(_, it)| it.text_for(uid(1))),
            );
        }
        assert_eq!(told.len(), 10, "{told:?}");
        assert_eq!(
            told[..3],
            [
                "yours 0",
                "yours 4; again, 4 times",
                "yours 12; again, 8 times"
            ]
        );
        let now = begun + Duration::from_secs(301);
        pending.add(killed(account, Some(1), 9), recipients(&[1], &[]));
        assert_eq!(pending.take(now).len(), 1, "another topic waits for none");
        // After a quiet time it is told at once.
        let now = begun + Duration::from_secs(600);
        assert_eq!(pending.take(now).len(), 1);
        let now = now + Duration::from_secs(200);
        assert!(pending.take(now).is_empty() && pending.0.is_empty());
    }

    #[test]
    fn topics_of_an_account_are_bounded() {
        let mut pending = PendingMessages::default();
        for number in 0..1000 {
            let mut message = killed(RENDER, None, number);
            message.topic = Topic::Kill(number.to_string());
            pending.add(message, Recipients::default());
        }
        let all = pending.take(Instant::now());
        assert_eq!(all.len(), MOST_TOPICS + 1);
        let sum: u64 = all.iter().map(|(_, it)| it.count).sum();
        assert_eq!(sum, 1000);
    }

    #[test]
    fn the_number_of_messages_is_not_cut_off_by_a_long_one() {
        let mut pending = PendingMessages::default();
        for _ in 0..2 {
            let mut message = killed(RENDER, None, 0);
            message.to_others = "x".repeat(1000);
            pending.add(message, recipients(&[1], &[]));
        }
        let text = only(&mut pending).text_for(uid(1));
        assert_eq!(text.chars().count(), MAX_NOTIFICATION);
        assert!(text.ends_with("x; 2 times"), "{text}");
    }

    #[test]
    fn what_is_discarded_is_counted() {
        let mut pending = PendingMessages::default();
        for number in 0..3 {
            pending.add(killed(RENDER, Some(1), number), Recipients::default());
        }
        pending.add(
            killed(AccountId::of(uid(2)), None, 0),
            Recipients::default(),
        );
        assert_eq!(pending.discard(), 4);
        assert_eq!(pending.discard(), 0);
    }

    #[test]
    fn an_owner_reads_of_his_own_process_whoever_elses_is_killed_after_it() {
        let mut pending = PendingMessages::default();
        pending.add(killed(RENDER, Some(60_870), 1), Recipients::default());
        pending.add(killed(RENDER, Some(60_801), 2), Recipients::default());
        pending.add(killed(RENDER, None, 3), Recipients::default());
        let pending = only(&mut pending);
        let reads = |number| pending.text_for(uid(number));
        assert_eq!(reads(60_870), "yours 1; 3 times");
        assert_eq!(reads(60_801), "yours 2; 3 times");
        assert_eq!(reads(60_802), "somebody's 3; 3 times");
    }

    #[test]
    fn owners_beyond_the_bound_are_said_to_be() {
        let mut pending = PendingMessages::default();
        let most = u32::try_from(MOST_NOTIFIED).unwrap();
        for owner in 0..most {
            assert!(pending.add(killed(RENDER, Some(owner), 0), Recipients::default()));
        }
        assert!(!pending.add(killed(RENDER, Some(most), 1), Recipients::default()));
        assert!(pending.add(killed(RENDER, Some(0), 2), Recipients::default()));
        let text = only(&mut pending).text_for(uid(0));
        assert!(text.starts_with("yours 2"), "{text}");
    }

    #[test]
    fn the_owner_is_told_first_and_of_the_others_who_has_processes_there() {
        let granted: Vec<u32> = (60_801..=60_870).collect();
        let mut pending = PendingMessages::default();
        pending.add(
            killed(RENDER, Some(60_870), 1),
            recipients(&[60_900], &granted),
        );
        let pending = only(&mut pending);
        // All sit at terminals, two have entered the account.
        let by_user = |range: std::ops::RangeInclusive<u32>| {
            range
                .map(|number| (uid(number), user_terminals(number)))
                .collect()
        };
        let inside = |pid: Pid| [60_850, 60_870].contains(&pid.get());
        let (readers, beyond) = pending.readers(&by_user(60_801..=60_900), inside);
        assert_eq!(readers, [60_870, 60_900, 60_850].map(uid));
        assert_eq!(beyond, 0);
        // Also where nothing of his is left there.
        let (readers, _) = pending.readers(&by_user(60_801..=60_870), |_| false);
        assert_eq!(readers, [uid(60_870)]);
        let (readers, _) = pending.readers(&BTreeMap::new(), |_| true);
        assert_eq!(readers, [], "nobody sits anywhere");
        // The bound leaves out others.
        let (readers, beyond) = pending.readers(&by_user(60_801..=60_900), |_| true);
        assert_eq!((readers.len(), beyond), (MOST_NOTIFIED, 7));
        assert_eq!(readers[0], uid(60_870));
    }
}
