// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Up to which kill a user has been told at his logins: one small file a user, in the state directory, written only
//! when there was something to be told. By its number: by its time a clock that was ahead would silence later ones.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bursar_host::make_directory;
use bursar_model::{Event, Uid};

use crate::history::STATE;

/// An event's time and number are shorter.
const LONGEST: u64 = 64;

/// Up to which event a user was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Briefed {
    time: String,
    /// None: the event had none, or was told of by a bursard that wrote down times alone.
    number: Option<u64>,
}

impl Briefed {
    /// Up to the newest of events, in whatever order.
    pub(crate) fn up_to(events: &[Event]) -> Option<Self> {
        Some(Self {
            time: events.last()?.time.clone(),
            number: events.iter().filter_map(|it| it.number).max(),
        })
    }

    /// Whether an event came later.
    pub(crate) fn is_before(&self, event: &Event) -> bool {
        match (self.number, event.number) {
            (Some(number), Some(its)) => its > number,
            // RFC 3339 in UTC with a fixed number of digits sorts as text.
            _ => event.time > self.time,
        }
    }

    /// Whether nothing can be before it that will be told: the clock was ahead, or the numbers of events, of which `last`
    /// was given last, have begun anew.
    pub(crate) fn is_to_come(&self, now: &str, last: u64) -> bool {
        match self.number {
            Some(number) => number > last,
            None => self.time.as_str() > now,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Briefings(PathBuf);

impl Briefings {
    pub(crate) fn new(state: &Path) -> Self {
        Self(state.join("briefed"))
    }

    /// Up to where this user was told; before the first time: nothing.
    pub(crate) fn last(&self, uid: Uid) -> Option<Briefed> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(self.path(uid));
        let mut text = String::new();
        file.ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
        let text = text.trim_end();
        let (time, number) = match text.split_once(' ') {
            Some((time, number)) => (time, number.parse().ok()),
            None => (text, None),
        };
        Some(Briefed {
            time: time.to_owned(),
            number,
        })
    }

    /// He was told of what happened until then.
    pub(crate) fn told(&self, uid: Uid, briefed: &Briefed) -> io::Result<()> {
        make_directory(&self.0, STATE)?;
        // Half a line after a crash would be less than the event: he is told once more.
        let new = self.path(uid).with_extension("new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&new)?;
        // A bursard that knows times alone reads as far as it needs.
        match briefed.number {
            Some(number) => writeln!(file, "{} {number}", briefed.time)?,
            None => writeln!(file, "{}", briefed.time)?,
        }
        fs::rename(new, self.path(uid))
    }

    fn path(&self, uid: Uid) -> PathBuf {
        self.0.join(uid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::EventKind;

    use super::*;

    #[test]
    fn each_user_is_remembered_by_himself_and_over_a_restart() {
        let state = tempfile::tempdir().unwrap();
        let briefings = || Briefings::new(state.path());
        let (alice, bob) = (Uid::new(60_001), Uid::new(60_002));
        assert_eq!(briefings().last(alice), None);
        let briefed = |time: &str, number| Briefed {
            time: time.to_owned(),
            number,
        };
        let first = briefed("2026-11-21T05:00:00.000000Z", None);
        let second = briefed("2026-11-22T05:00:00.000000Z", Some(7));
        briefings().told(alice, &first).unwrap();
        briefings().told(alice, &second).unwrap();
        briefings().told(bob, &first).unwrap();
        assert_eq!(briefings().last(alice), Some(second));
        assert_eq!(briefings().last(bob), Some(first));
    }

    #[test]
    fn a_clock_that_was_ahead_silences_nothing() {
        let kill = |number, time: &str| Event {
            number,
            time: time.to_owned(),
            ..Event::new(EventKind::Kill)
        };
        let ahead = kill(Some(1), "2099-01-01T00:00:00.000000Z");
        let later = kill(Some(2), "2026-11-21T05:00:00.000000Z");
        let briefed = Briefed::up_to(std::slice::from_ref(&ahead)).unwrap();
        assert!(briefed.is_before(&later) && !briefed.is_before(&ahead));
        let both = [later.clone(), ahead];
        assert!(!Briefed::up_to(&both).unwrap().is_before(&later));
        let now = "2026-11-21T06:00:00.000000Z";
        assert!(!briefed.is_to_come(now, 2) && briefed.is_to_come(now, 0));
        // Of a version that wrote down times.
        let ahead = Briefed::up_to(&[kill(None, "2099-01-01T00:00:00.000000Z")]).unwrap();
        assert!(ahead.is_to_come(now, 2) && !ahead.is_before(&later));
        assert_eq!(Briefed::up_to(&[]), None);
    }
}
