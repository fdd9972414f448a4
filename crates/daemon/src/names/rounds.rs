// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When watched names, and users whose files have changed, are asked for again, and the asking itself. Not which are
//! watched, nor what follows from another answer.

use std::time::{Duration, Instant, SystemTime};

use bursar_model::Uid;

use super::{Answer, Source, Watched};

/// Names in limits are asked for again after so long: who sets a limit before he makes the user is about to
/// make him. Then after twice as long each time, up to …
pub(super) const WATCH: Duration = Duration::from_secs(2);
pub(super) const LONGEST_WATCH: Duration = Duration::from_secs(300);
/// When files of users or groups have changed, names are asked for after so long, as useradd changes several files:
/// who has just left a group may grow at once, …
const SETTLE: Duration = Duration::from_millis(20);
/// … and after so many times as long as it took the last time: a user changes one of the files himself (chfn).
const REST_SHARE: u32 = 20;

/// What is asked for again, and when.
pub(super) struct Rounds {
    watched: Vec<Watched>,
    /// Users whose names may have changed.
    users: Vec<Uid>,
    first: Duration,
    pause: Duration,
    /// Until when changes are not looked at after the last round.
    rests_until: Option<Instant>,
    next: Instant,
    is_near: bool,
}

impl Rounds {
    pub(super) fn new(first: Duration) -> Self {
        Self {
            watched: Vec::new(),
            users: Vec::new(),
            first,
            pause: first,
            rests_until: None,
            next: Instant::now(),
            is_near: false,
        }
    }

    /// `None`: nothing is to be asked for.
    pub(super) fn wait(&self) -> Option<Duration> {
        let is_needed = !self.watched.is_empty() || !self.users.is_empty();
        is_needed.then(|| self.next.saturating_duration_since(Instant::now()))
    }

    pub(super) fn watch(&mut self, watched: Vec<Watched>) {
        self.watched = watched;
        self.pause = self.first;
        if !self.is_near {
            self.next = Instant::now() + self.pause;
        }
    }

    pub(super) fn review(&mut self, users: Vec<Uid>) {
        self.users = users;
        self.pause = self.first;
        // Changes that follow one another do not put it off.
        if !std::mem::replace(&mut self.is_near, true) {
            let settled = Instant::now() + SETTLE.min(self.first);
            self.next = self
                .rests_until
                .map_or(settled, |rested| rested.max(settled));
        }
    }

    /// Asks for all; whether one of those watched has another answer.
    pub(super) fn run(&mut self, source: &mut impl Source, mut tell: impl FnMut(Answer)) -> bool {
        let begun = Instant::now();
        for uid in std::mem::take(&mut self.users) {
            tell(Answer::Name(uid, source.name_of(uid), SystemTime::now()));
        }
        let is_news = self.watched.iter().any(|it| it.has_news(source));
        if is_news {
            // What follows from it is another list.
            self.watched.clear();
        }
        let now = Instant::now();
        self.is_near = false;
        self.rests_until = Some(now + (now - begun) * REST_SHARE);
        self.pause = self.pause.saturating_mul(2).min(LONGEST_WATCH);
        self.next = now + self.pause;
        is_news
    }
}
