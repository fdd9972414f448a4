// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Users and groups by name and number, remembered until told otherwise.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

use bursar_model::{Gid, Uid};
use rustix::io::Errno;

use crate::nss::{
    Group, Lookup, User, each_user, group_by_gid, group_by_name, user_by_name, user_by_uid,
};

/// More members than this are left out and said, see [`Members::is_cut_off`].
const MAX_MEMBERS: usize = 65_536;

/// Members of a group that are asked for one by one; of more, those first that a list of all users has.
const MAX_ASKED: usize = 64;
/// Spare time where nothing else is said.
const SPARE_TIME: Duration = Duration::from_millis(300);

/// Asks the C library's sources of names (nsswitch.conf) and remembers the answers; also that nobody
/// has a name, but never that a source did not answer.
///
/// A source may take its time (a directory server's timeout): not for the thread that must not wait.
#[derive(Debug)]
pub struct Users {
    by_name: HashMap<String, Option<User>>,
    by_uid: HashMap<Uid, Option<User>>,
    capacity: usize,
    dropped: u64,
    waiting: Waiting,
    spare_time: Duration,
    spare_time_spent: Duration,
}

/// How long sources that did not answer have been waited for.
#[derive(Debug, Default)]
struct Waiting {
    timeout: Option<Duration>,
    spent: Duration,
    given_up: Option<Errno>,
}

/// Who belongs to a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// The group.
    pub gid: Gid,
    /// Those listed in it and those whose primary group it is.
    pub uids: BTreeSet<Uid>,
    /// Names listed in it that no user has.
    pub unknown: Vec<String>,
    /// A source of names did not answer while they were gathered: there may be more.
    pub incomplete: Option<Errno>,
    /// There are more than 65,536; the others are left out.
    pub is_cut_off: bool,
}

impl Users {
    /// Remembers at most `capacity` answers by name and as many by number; then it starts over.
    pub fn new(capacity: usize) -> Self {
        Self {
            by_name: HashMap::new(),
            by_uid: HashMap::new(),
            capacity,
            dropped: 0,
            waiting: Waiting::default(),
            spare_time: SPARE_TIME,
            spare_time_spent: Duration::ZERO,
        }
    }

    /// Asks for nothing more, until told to forget, once sources that did not answer have taken this
    /// long: a directory server times out anew for every name.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.waiting.timeout = Some(timeout);
        self
    }

    /// Spends so long, until told to forget, on questions that can be done without for now, and on all of them together:
    /// members of large groups that the list of users does not have, [`Self::by_uid_in_spare_time`]. Else it is 300 ms.
    #[must_use]
    pub fn with_spare_time(mut self, spare_time: Duration) -> Self {
        self.spare_time = spare_time;
        self
    }

    /// The user with this name.
    pub fn by_name(&mut self, name: &str) -> Lookup<User> {
        if let Some(known) = self.by_name.get(name) {
            return known.clone().map_or(Lookup::Absent, Lookup::Found);
        }
        let answer = self.waiting.ask(|| user_by_name(name));
        self.dropped += remember(&mut self.by_name, name.to_owned(), &answer, self.capacity);
        answer
    }

    /// The user with this number.
    pub fn by_uid(&mut self, uid: Uid) -> Lookup<User> {
        if let Some(known) = self.by_uid.get(&uid) {
            return known.clone().map_or(Lookup::Absent, Lookup::Found);
        }
        let answer = self.waiting.ask(|| user_by_uid(uid));
        self.dropped += remember(&mut self.by_uid, uid, &answer, self.capacity);
        answer
    }

    /// The same; `None` when there is no spare time left.
    pub fn by_uid_in_spare_time(&mut self, uid: Uid) -> Option<Lookup<User>> {
        self.in_spare_time(|users| users.by_uid(uid))
    }

    fn in_spare_time<T>(&mut self, question: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.spare_time_spent >= self.spare_time {
            return None;
        }
        let begun = Instant::now();
        let answer = question(self);
        self.spare_time_spent = self.spare_time_spent.saturating_add(begun.elapsed());
        Some(answer)
    }

    /// The group with this name. Not remembered.
    pub fn group(&self, name: &str) -> Lookup<Group> {
        group_by_name(name)
    }

    /// The group with this number. Not remembered.
    pub fn group_by_gid(&mut self, gid: Gid) -> Lookup<Group> {
        self.waiting.ask(|| group_by_gid(gid))
    }

    /// Who belongs to the group with this name: those listed in it, and of the users that the sources
    /// of names are willing to list, those whose primary group it is. A directory server that lists
    /// nobody leaves the latter out: compare [`User::gid`] when such a user appears. Not remembered.
    pub fn members(&mut self, name: &str) -> Lookup<Members> {
        let group = match self.waiting.ask(|| group_by_name(name)) {
            Lookup::Found(group) => group,
            Lookup::Absent => return Lookup::Absent,
            Lookup::Unavailable(errno) => return Lookup::Unavailable(errno),
        };
        let mut members = Members {
            gid: group.gid,
            uids: BTreeSet::new(),
            unknown: Vec::new(),
            incomplete: None,
            is_cut_off: group.members.len() > MAX_MEMBERS,
        };
        // A file is read from its beginning for every name: of a large group those that a list of all has are not
        // asked for one by one.
        let is_large = group.members.len() > MAX_ASKED;
        let mut wanted: BTreeSet<String> = group.members.into_iter().take(MAX_MEMBERS).collect();
        if !is_large {
            self.ask_each(std::mem::take(&mut wanted), &mut members, |users, name| {
                Some(users.by_name(name))
            });
        }
        let mut found = Vec::new();
        let add = |user: &User| {
            if wanted.remove(&user.name) {
                members.uids.insert(user.uid);
                found.push(user.clone());
            }
            if user.gid == group.gid && !members.uids.contains(&user.uid) {
                if members.uids.len() >= MAX_MEMBERS {
                    members.is_cut_off = true;
                    return false;
                }
                members.uids.insert(user.uid);
            }
            true
        };
        let listed = self.waiting.ask(|| match each_user(add) {
            Ok(()) => Lookup::Found(()),
            Err(errno) => Lookup::Unavailable(errno),
        });
        if let Lookup::Unavailable(errno) = listed {
            members.incomplete = members.incomplete.or(Some(errno));
        }
        self.ask_each(wanted, &mut members, |users, name| {
            users.in_spare_time(|users| users.by_name(name))
        });
        for user in found {
            let (name, answer) = (user.name.clone(), Lookup::Found(user));
            self.dropped += remember(&mut self.by_name, name, &answer, self.capacity);
        }
        Lookup::Found(members)
    }

    /// Asks for names one by one; those for which there is no time count as not answered.
    fn ask_each(
        &mut self,
        names: BTreeSet<String>,
        members: &mut Members,
        question: impl Fn(&mut Self, &str) -> Option<Lookup<User>>,
    ) {
        for name in names {
            let Some(found) = question(self, &name) else {
                members.incomplete = members.incomplete.or(Some(Errno::TIMEDOUT));
                return;
            };
            match found {
                Lookup::Found(user) => drop(members.uids.insert(user.uid)),
                Lookup::Absent => members.unknown.push(name),
                Lookup::Unavailable(errno) => members.incomplete = Some(errno),
            }
        }
    }

    /// Shows every user that the sources of names are willing to list to `visit`: large directories often list
    /// nobody. Not remembered.
    pub fn each(&mut self, mut visit: impl FnMut(&User)) -> Lookup<()> {
        let all = |user: &User| {
            visit(user);
            true
        };
        self.waiting.ask(|| match each_user(all) {
            Ok(()) => Lookup::Found(()),
            Err(errno) => Lookup::Unavailable(errno),
        })
    }

    /// Forgets everything, so that the next question is asked anew.
    pub fn forget(&mut self) {
        self.by_name.clear();
        self.by_uid.clear();
        self.waiting.spent = Duration::ZERO;
        self.waiting.given_up = None;
        self.spare_time_spent = Duration::ZERO;
    }

    /// How many answers were forgotten because too many different ones were asked for.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl Waiting {
    fn ask<T>(&mut self, question: impl FnOnce() -> Lookup<T>) -> Lookup<T> {
        if let Some(errno) = self.given_up {
            return Lookup::Unavailable(errno);
        }
        let begun = Instant::now();
        let answer = question();
        if let Lookup::Unavailable(errno) = &answer {
            self.spent = self.spent.saturating_add(begun.elapsed());
            let is_over = self.timeout.is_some_and(|it| self.spent > it);
            self.given_up = is_over.then_some(*errno);
        }
        answer
    }
}

/// Keeps an answer; returns how many others had to go for it. All of them: to know which is the oldest
/// costs more than asking again.
fn remember<K: Eq + Hash>(
    known: &mut HashMap<K, Option<User>>,
    key: K,
    answer: &Lookup<User>,
    capacity: usize,
) -> u64 {
    let value = match answer {
        Lookup::Found(user) => Some(user.clone()),
        Lookup::Absent => None,
        Lookup::Unavailable(_) => return 0,
    };
    let mut gone = 0;
    if known.len() >= capacity {
        gone = known.len();
        known.clear();
    }
    if capacity > 0 {
        known.insert(key, value);
    }
    u64::try_from(gone).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded_and_counted() {
        let mut users = Users::new(3);
        for uid in 60_990..60_997 {
            users.by_uid(Uid::new(uid));
        }
        assert!(users.by_uid.len() <= 3);
        assert_eq!(users.dropped(), 6);
        users.forget();
        assert!(users.by_uid.is_empty());
        let mut none = Users::new(0);
        none.by_uid(Uid::new(0));
        assert!(none.by_uid.is_empty());
    }

    #[test]
    fn who_has_waited_long_enough_asks_no_more_until_told_to_forget() {
        let mut users = Users::new(3).with_timeout(Duration::ZERO);
        let times_out = || {
            std::thread::sleep(Duration::from_millis(1));
            Lookup::<()>::Unavailable(Errno::TIMEDOUT)
        };
        assert_eq!(users.waiting.ask(|| Lookup::Found(1)), Lookup::Found(1));
        users.waiting.ask(times_out);
        let root = Uid::new(0);
        assert_eq!(users.by_uid(root), Lookup::Unavailable(Errno::TIMEDOUT));
        let members = users.members("root");
        assert_eq!(members, Lookup::Unavailable(Errno::TIMEDOUT));
        users.forget();
        assert!(matches!(users.by_uid(root), Lookup::Found(_)));
        // Without a timeout it waits.
        let mut patient = Users::new(3);
        patient.waiting.ask(times_out);
        assert!(matches!(patient.by_uid(root), Lookup::Found(_)));
    }

    #[test]
    fn spare_time_is_shared_by_all_questions_until_told_to_forget() {
        let mut users = Users::new(3).with_spare_time(Duration::from_millis(20));
        let slow = |_: &mut Users| std::thread::sleep(Duration::from_millis(5));
        let asked = (0..100).filter(|_| users.in_spare_time(slow).is_some());
        assert!((1..=4).contains(&asked.count()));
        assert_eq!(users.by_uid_in_spare_time(Uid::new(0)), None);
        users.forget();
        assert!(users.by_uid_in_spare_time(Uid::new(0)).is_some());
    }

    #[test]
    fn a_source_that_does_not_answer_is_asked_again() {
        let mut known = HashMap::new();
        remember(&mut known, 1, &Lookup::Unavailable(Errno::IO), 3);
        assert!(known.is_empty());
        remember(&mut known, 1, &Lookup::Absent, 3);
        assert_eq!(known.get(&1), Some(&None));
    }
}
