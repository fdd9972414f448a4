// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Users' names for what is shown and told, asked for by a thread of its own: a directory may take a
//! time-out for each name, and the loop has kills and notices to attend to. Until there is an answer a
//! user goes by his number. Not for limits: what names in them stand for is looked up when they change
//! (`limit_table/lookups.rs`), and here only watched for another answer.

mod owners;
mod rounds;
mod watched;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use bursar_host::{Lookup, User, Users, Waker};
use bursar_model::Uid;
use rustix::io::Errno;

use owners::Owners;
use rounds::{Rounds, WATCH};
pub(crate) use watched::{LastAnswer, Watched};

/// Names remembered, and questions that may wait.
const REMEMBERED: usize = 4096;
/// An answer is good for so long; then it is shown until there is another.
const FRESH: Duration = Duration::from_secs(600);
/// A source that did not answer, or that knows nobody, is asked again after this: a directory that is down says either.
const REST: Duration = Duration::from_secs(60);
/// The loop waits so long for names never heard of, in all, within [`SPAN`]: most sources are files, or
/// as fast, and a kill is better told by name.
const TIMEOUT: Duration = Duration::from_millis(100);
const SPAN: Duration = Duration::from_secs(10);
/// Root asks for a name that no limit has, and waits himself.
const ROOTS_TIMEOUT: Duration = Duration::from_secs(1);
/// What one round of them may take of sources that do not answer: other questions wait meanwhile.
const WATCH_TIMEOUT: Duration = Duration::from_secs(5);
/// And of sources that are slow, for members of large groups.
const WATCH_SPARE_TIME: Duration = Duration::from_secs(15);

/// A user's name, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Name {
    Is(String),
    /// Nobody has the number.
    Nobodys,
    NotYet,
}

/// Who knows names.
trait Source: Send + 'static {
    fn name_of(&mut self, uid: Uid) -> Lookup<User>;
    fn user(&mut self, name: &str) -> Lookup<User>;
    /// Who is in a group.
    fn group(&mut self, name: &str) -> LastAnswer;
    /// What follows is asked anew.
    fn begin(&mut self);
}

impl Source for Users {
    fn name_of(&mut self, uid: Uid) -> Lookup<User> {
        self.by_uid(uid)
    }

    fn user(&mut self, name: &str) -> Lookup<User> {
        self.by_name(name)
    }

    fn group(&mut self, name: &str) -> LastAnswer {
        LastAnswer::of_group(&self.members(name))
    }

    fn begin(&mut self) {
        self.forget();
    }
}

#[derive(Debug)]
enum Question {
    Name(Uid),
    User(String),
    /// Instead of those before.
    Watch(Vec<Watched>),
    /// What is watched and these users' names have changed, perhaps.
    Review(Vec<Uid>),
}

#[derive(Debug)]
enum Answer {
    Name(Uid, Lookup<User>, SystemTime),
    User(String, Lookup<User>),
}

#[derive(Debug)]
struct Known {
    name: Name,
    is_asked: bool,
    ask_again: Instant,
}

/// What is known, and the way to the thread that asks.
#[derive(Debug)]
pub(crate) struct Names {
    known: HashMap<Uid, Known>,
    questions: SyncSender<Question>,
    answers: Receiver<Answer>,
    /// Set when a watched name has an answer.
    waker: Waker,
    waited: Duration,
    waited_since: Instant,
    owners: Owners,
}

impl Names {
    /// Starts the thread. Nobody waits for its end: it may be waiting for a directory.
    pub(crate) fn start() -> Result<Self> {
        let users = Users::new(REMEMBERED)
            .with_timeout(WATCH_TIMEOUT)
            .with_spare_time(WATCH_SPARE_TIME);
        Self::of(users, WATCH)
    }

    fn of(mut source: impl Source, first: Duration) -> Result<Self> {
        let waker = Waker::new().context("make an eventfd")?;
        let (questions, asked) = sync_channel(REMEMBERED);
        // Bounded by the questions: each is asked once until it is answered.
        let (outbox, answers) = channel();
        let waker_of_thread = waker.clone();
        let work = move || work(&asked, &outbox, &waker_of_thread, &mut source, first);
        bursar_host::thread::spawn("names", work)
            .context("start the thread that asks for names")?;
        Ok(Self {
            known: HashMap::new(),
            questions,
            answers,
            waker,
            waited: Duration::ZERO,
            waited_since: Instant::now(),
            owners: Owners::default(),
        })
    }

    /// Since when a number has been its user's is kept in `file`.
    pub(crate) fn keep_owners(&mut self, file: &Path) {
        self.owners = Owners::load(file.to_owned());
    }

    /// From when on what happened to this user's number happened to him; `None`: always.
    pub(crate) fn owner_since(&mut self, uid: Uid) -> Option<&str> {
        self.of_user(uid);
        self.owners.since(uid)
    }

    /// Whether a user with another number is, or was, called so.
    pub(crate) fn is_anothers(&self, name: &str, uid: Uid) -> bool {
        self.owners.is_anothers(name, uid)
    }

    /// Files of users or groups have changed: has everything asked for again.
    pub(crate) fn review(&mut self) {
        self.collect();
        self.refresh();
        let uids = self.owners.uids().take(REMEMBERED).collect();
        if self.questions.try_send(Question::Review(uids)).is_err() {
            tracing::warn!("too many names are asked for: users and groups are read again later");
        }
    }

    /// A user's name.
    pub(crate) fn of_user(&mut self, uid: Uid) -> Name {
        self.collect();
        if !self.is_fresh(uid) {
            self.ask(uid);
            let is_there = |names: &Self| names.known.get(&uid).is_none_or(|it| !it.is_asked);
            if self.name(uid) == Name::NotYet && !is_there(self) {
                let left = self.time_left();
                let begun = Instant::now();
                self.wait(left, |_| {}, is_there);
                self.waited = self.waited.saturating_add(begun.elapsed());
            }
        }
        self.name(uid)
    }

    /// Has it asked for before anybody wants it.
    pub(crate) fn expect(&mut self, uid: Uid) {
        if !self.is_fresh(uid) {
            self.ask(uid);
        }
    }

    /// Whether there is nothing to ask about who has a uid, or it is asked already.
    pub(crate) fn is_expected(&self, uid: Uid) -> bool {
        let known = self.known.get(&uid);
        known.is_some_and(|it| it.is_asked) || self.is_fresh(uid)
    }

    /// Whether a uid is a user's, or was, as far as it was asked for.
    pub(crate) fn is_user(&self, uid: Uid) -> bool {
        self.owners.has(uid)
    }

    /// All of whom that is known by now.
    pub(crate) fn users(&mut self) -> impl Iterator<Item = Uid> {
        self.collect();
        self.owners.uids()
    }

    /// The user with a name; for root, who waits for it.
    pub(crate) fn user(&mut self, name: &str) -> Lookup<Uid> {
        self.collect();
        let is_it = |known: &Known| matches!(&known.name, Name::Is(it) if it == name);
        if let Some((&uid, _)) = self.known.iter().find(|(_, known)| is_it(known)) {
            return Lookup::Found(uid);
        }
        let not_yet = Lookup::Unavailable(Errno::TIMEDOUT);
        let question = Question::User(name.to_owned());
        if self.questions.try_send(question).is_err() {
            return not_yet;
        }
        let found = std::cell::RefCell::new(None);
        let hear = |answer: &Answer| {
            if let Answer::User(of, lookup) = answer
                && of == name
            {
                *found.borrow_mut() = Some(lookup.clone());
            }
        };
        self.wait(ROOTS_TIMEOUT, hear, |_| found.borrow().is_some());
        let found = found.into_inner();
        found.map_or(not_yet, |lookup| lookup.map(|user| user.uid))
    }

    /// What is known is shown until there is another answer, which is asked for at the next occasion.
    pub(crate) fn refresh(&mut self) {
        let now = Instant::now();
        self.known
            .values_mut()
            .for_each(|known| known.ask_again = now);
    }

    /// These names are asked for now and then, instead of those before, until one has another answer.
    pub(crate) fn watch(&self, watched: Vec<Watched>) {
        if self.questions.try_send(Question::Watch(watched)).is_err() {
            tracing::warn!(
                "too many names are asked for: those of limits will not be asked for again"
            );
        }
    }

    /// Whether a watched name has got another answer since the last call.
    pub(crate) fn take_news(&self) -> bool {
        self.waker.clear()
    }

    fn name(&self, uid: Uid) -> Name {
        self.known
            .get(&uid)
            .map_or(Name::NotYet, |known| known.name.clone())
    }

    fn is_fresh(&self, uid: Uid) -> bool {
        self.known
            .get(&uid)
            .is_some_and(|known| !known.is_asked && Instant::now() < known.ask_again)
    }

    fn ask(&mut self, uid: Uid) {
        if self.known.get(&uid).is_some_and(|known| known.is_asked) {
            return;
        }
        if self.known.len() >= REMEMBERED && !self.known.contains_key(&uid) {
            self.known.retain(|_, known| known.is_asked);
        }
        let has_room = self.known.len() < REMEMBERED || self.known.contains_key(&uid);
        if !has_room || self.questions.try_send(Question::Name(uid)).is_err() {
            return;
        }
        let known = self.known.entry(uid).or_insert(Known {
            name: Name::NotYet,
            is_asked: true,
            ask_again: Instant::now(),
        });
        known.is_asked = true;
    }

    fn collect(&mut self) {
        while let Ok(answer) = self.answers.try_recv() {
            self.take(answer);
        }
    }

    /// Takes answers until it is enough, or time is over; each is shown to `hear`.
    fn wait(
        &mut self,
        timeout: Duration,
        hear: impl Fn(&Answer),
        is_enough: impl Fn(&Self) -> bool,
    ) {
        let begun = Instant::now();
        while !is_enough(self) {
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return;
            }
            let Ok(answer) = self.answers.recv_timeout(left) else {
                return;
            };
            hear(&answer);
            self.take(answer);
        }
    }

    fn time_left(&mut self) -> Duration {
        if self.waited_since.elapsed() > SPAN {
            self.waited = Duration::ZERO;
            self.waited_since = Instant::now();
        }
        TIMEOUT.saturating_sub(self.waited)
    }

    fn take(&mut self, answer: Answer) {
        let Answer::Name(uid, lookup, at) = answer else {
            return;
        };
        match &lookup {
            Lookup::Found(user) => self.owners.note(uid, Some(&user.name), at),
            Lookup::Absent => self.owners.note(uid, None, at),
            Lookup::Unavailable(_) => {}
        }
        let (name, good_for) = match lookup {
            Lookup::Found(user) => (Some(Name::Is(user.name)), FRESH),
            // SSSD says so while it restarts.
            Lookup::Absent => match self.owners.away(uid, at) {
                Some(name) => (Some(Name::Is(name.to_owned())), REST),
                None => (Some(Name::Nobodys), REST),
            },
            // A name once heard is kept: it is the same account.
            Lookup::Unavailable(_) => (None, REST),
        };
        let Some(known) = self.known.get_mut(&uid) else {
            return;
        };
        known.is_asked = false;
        known.ask_again = Instant::now() + good_for;
        if let Some(name) = name {
            known.name = name;
        }
    }
}

impl AsFd for Names {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

fn work(
    questions: &Receiver<Question>,
    answers: &Sender<Answer>,
    waker: &Waker,
    source: &mut impl Source,
    first: Duration,
) {
    let mut rounds = Rounds::new(first);
    loop {
        let question = match rounds.wait() {
            None => questions.recv().map_err(|_| RecvTimeoutError::Disconnected),
            // Before any question: while a directory is slow there is always one.
            Some(Duration::ZERO) => Err(RecvTimeoutError::Timeout),
            Some(wait) => questions.recv_timeout(wait),
        };
        source.begin();
        let answer = match question {
            Ok(Question::Name(uid)) => Answer::Name(uid, source.name_of(uid), SystemTime::now()),
            Ok(Question::User(name)) => {
                let found = source.user(&name);
                Answer::User(name, found)
            }
            Ok(Question::Watch(list)) => {
                rounds.watch(list);
                continue;
            }
            Ok(Question::Review(users)) => {
                rounds.review(users);
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {
                let tell = |answer| drop(answers.send(answer));
                if rounds.run(source, tell) {
                    waker.wake();
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if answers.send(answer).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use bursar_model::Gid;

    use super::rounds::LONGEST_WATCH;
    use super::*;
    use crate::name_cache::LONGEST_ABSENCE;

    /// A directory that knows alice, 1001; each question waits for its gate, and `is_down` says that
    /// there is no answer.
    #[derive(Clone, Default)]
    struct Slow {
        gate: Arc<Mutex<()>>,
        is_down: Arc<Mutex<bool>>,
        asked: Arc<AtomicU32>,
    }

    impl Slow {
        fn answer(&self, is_alice: bool) -> Lookup<User> {
            let _open = self.gate.lock().unwrap();
            self.asked.fetch_add(1, Ordering::Relaxed);
            match (*self.is_down.lock().unwrap(), is_alice) {
                (true, _) => Lookup::Unavailable(Errno::TIMEDOUT),
                (false, false) => Lookup::Absent,
                (false, true) => Lookup::Found(User {
                    name: "alice".to_owned(),
                    uid: ALICE,
                    gid: Gid::new(100),
                }),
            }
        }
    }

    impl Source for Slow {
        fn name_of(&mut self, uid: Uid) -> Lookup<User> {
            self.answer(uid == ALICE)
        }

        fn user(&mut self, name: &str) -> Lookup<User> {
            self.answer(name == "alice")
        }

        fn group(&mut self, name: &str) -> LastAnswer {
            LastAnswer::of_user(&self.answer(name == "alice"))
        }

        fn begin(&mut self) {}
    }

    const ALICE: Uid = Uid::new(1001);

    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn alice() -> Name {
        Name::Is("alice".to_owned())
    }

    #[test]
    fn two_hundred_names_of_a_directory_that_hangs_cost_the_loop_its_timeout_once() {
        let source = Slow::default();
        let mut names = Names::of(source.clone(), LONGEST_WATCH).unwrap();
        let begun = Instant::now();
        let shut = source.gate.lock().unwrap();
        for uid in 1001..1201 {
            assert_eq!(names.of_user(Uid::new(uid)), Name::NotYet);
        }
        let took = begun.elapsed();
        // Two hundred waits would be twenty seconds.
        assert!(took < Duration::from_secs(8), "{took:?}");
        drop(shut);
        until("the answers", || names.of_user(ALICE) == alice());
        until("the last of them", || {
            names.of_user(Uid::new(1200)) == Name::Nobodys
        });
        assert_eq!(source.asked.load(Ordering::Relaxed), 200);
    }

    #[test]
    fn no_answer_is_remembered_for_a_while_and_takes_no_name_away() {
        let source = Slow::default();
        let mut names = Names::of(source.clone(), LONGEST_WATCH).unwrap();
        until("her name", || names.of_user(ALICE) == alice());
        *source.is_down.lock().unwrap() = true;
        names.refresh();
        let other = Uid::new(1002);
        until("the questions", || {
            names.of_user(ALICE);
            names.of_user(other);
            source.asked.load(Ordering::Relaxed) == 3
        });
        until("the answers", || {
            names.collect();
            names.known.values().all(|known| !known.is_asked)
        });
        for _ in 0..10 {
            assert_eq!(names.of_user(ALICE), alice());
            assert_eq!(names.of_user(other), Name::NotYet);
        }
        assert_eq!(source.asked.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_directory_that_says_that_nobody_has_the_number_takes_no_name_away_for_a_week() {
        let source = Slow::default();
        let mut names = Names::of(source.clone(), LONGEST_WATCH).unwrap();
        until("her name", || names.of_user(ALICE) == alice());
        let hear = |names: &mut Names, at| {
            names.take(Answer::Name(ALICE, Lookup::Absent, at));
            names.name(ALICE)
        };
        let now = SystemTime::now();
        assert_eq!(hear(&mut names, now), alice());
        assert_eq!(hear(&mut names, now + LONGEST_ABSENCE / 2), alice());
        assert_eq!(hear(&mut names, now + LONGEST_ABSENCE), Name::Nobodys);
    }

    #[test]
    fn a_user_who_is_asked_for_by_name_is_never_remembered_as_absent() {
        let source = Slow::default();
        let mut names = Names::of(source.clone(), LONGEST_WATCH).unwrap();
        assert_eq!(names.user("alice"), Lookup::Found(ALICE));
        for count in 2..4 {
            assert_eq!(names.user("zoe"), Lookup::Absent);
            assert_eq!(source.asked.load(Ordering::Relaxed), count);
        }
        let _shut = source.gate.lock().unwrap();
        let late = names.user("zoe");
        assert_eq!(late, Lookup::Unavailable(Errno::TIMEDOUT));
    }

    #[test]
    fn after_a_change_of_files_watched_names_and_owners_are_asked_for_again() {
        let source = Slow::default();
        let mut names = Names::of(source.clone(), Duration::from_secs(200)).unwrap();
        until("her name", || names.of_user(ALICE) == alice());
        assert_eq!(names.owner_since(ALICE), None);
        let answer = LastAnswer::Is(1);
        let who = "alice".parse().unwrap();
        let nobodys = BTreeSet::new();
        names.watch(vec![Watched {
            who,
            answer,
            nobodys,
        }]);
        let asked = source.asked.load(Ordering::Relaxed);
        // The back-off does not put it off; and many changes are one.
        for _ in 0..20 {
            names.review();
        }
        until("news", || names.take_news());
        assert_eq!(source.asked.load(Ordering::Relaxed), asked + 2);
        // Another one had the number meanwhile.
        names.owners.note(ALICE, Some("bob"), SystemTime::now());
        names.review();
        until("the next alice", || names.owner_since(ALICE).is_some());
    }

    #[test]
    fn a_watched_name_that_gets_an_answer_is_news_once() {
        let source = Slow::default();
        *source.is_down.lock().unwrap() = true;
        let names = Names::of(source.clone(), Duration::from_millis(5)).unwrap();
        let watched = |who: &str, answer| Watched {
            who: who.parse().unwrap(),
            answer,
            nobodys: BTreeSet::new(),
        };
        names.watch(vec![
            watched("zoe", LastAnswer::Nobody),
            watched("alice", LastAnswer::Nobody),
        ]);
        until("some rounds", || source.asked.load(Ordering::Relaxed) > 6);
        assert!(!names.take_news());
        *source.is_down.lock().unwrap() = false;
        until("alice", || names.take_news());
        assert!(!names.take_news());
        // That nobody has a name is an answer where there was none.
        names.watch(vec![watched("@zoe", LastAnswer::Nothing)]);
        until("the group", || names.take_news());
        // Who was in a group and is not any more; and that is so still.
        let asked = source.asked.load(Ordering::Relaxed);
        names.watch(vec![watched("@zoe", LastAnswer::Nobody)]);
        until("rounds", || {
            source.asked.load(Ordering::Relaxed) > asked + 3
        });
        assert!(!names.take_news());
        names.watch(vec![watched("@zoe", LastAnswer::Is(1))]);
        until("the members", || names.take_news());
        // A number that nobody had is somebody's.
        let mut gone = watched("zoe", LastAnswer::Nobody);
        gone.nobodys.insert(Uid::new(1002));
        names.watch(vec![gone.clone()]);
        let asked = source.asked.load(Ordering::Relaxed);
        until("rounds", || {
            source.asked.load(Ordering::Relaxed) > asked + 3
        });
        assert!(!names.take_news());
        gone.nobodys.insert(ALICE);
        names.watch(vec![gone]);
        until("the number", || names.take_news());
    }
}
