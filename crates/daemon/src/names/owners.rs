// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Since when a uid has belonged to its user. History belongs to a uid, a name and the time that the two were first seen
//! together. So a user who gets the uid or the name of one who has gone is not shown what happened to that one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use bursar_host::{clock, names_in_passwd};
use bursar_model::Uid;
use serde::{Deserialize, Serialize};

use crate::kept_file::KeptFile;
use crate::name_cache::LONGEST_ABSENCE;

/// Users remembered; of one more everything is shown that is of his number.
const MOST: usize = 65_536;

/// Former names remembered of each number, the last ones. Only root gives users other names.
const MOST_FORMER: usize = 8;

/// How often they are written down at most. A group of thousands is looked up at once, and each would be a file as large
/// as all of them. What was not written down when bursard is killed is found again by the first look after that.
const STORED_EVERY: Duration = Duration::from_secs(1);

/// What comes of it when they cannot be written down.
const NOT_KEPT: &str = "after a restart somebody may see an earlier user's history";

/// Who has a number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    /// None: nobody, since he who had it has gone.
    name: Option<String>,
    /// None: as long as we know.
    since: Option<String>,
    /// Names that the number had before, the last one last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    former: Vec<String>,
    /// Since when nobody has it.
    #[serde(default)]
    absent: Option<String>,
    /// /etc/passwd had whoever had it last.
    #[serde(default)]
    is_listed: bool,
}

impl Owner {
    fn names(&self) -> impl Iterator<Item = &String> {
        self.name.iter().chain(&self.former)
    }

    /// Whether who has this name now had the number already. Who is back under the same name within [`LONGEST_ABSENCE`] is
    /// who he was: a directory that is down may say that it has no such user. Not where /etc/passwd had the user: what is
    /// no longer written there is gone.
    fn is_back(&self, name: &str, at: SystemTime) -> bool {
        let absent = self.absent.as_deref().filter(|_| !self.is_listed);
        let absent = absent.and_then(|it| clock::parse_since(it, at).ok());
        let is_short = |since| at.duration_since(since).unwrap_or_default() < LONGEST_ABSENCE;
        self.former.last().is_some_and(|it| it == name) && absent.is_some_and(is_short)
    }

    fn rename(&mut self, name: Option<&str>) {
        let former = std::mem::replace(&mut self.name, name.map(str::to_owned));
        if let Some(former) = former {
            self.former.retain(|it| *it != former);
            self.former.push(former);
        }
        let beyond = self.former.len().saturating_sub(MOST_FORMER);
        self.former.drain(..beyond);
    }
}

/// Everybody who was seen.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    file: Option<KeptFile>,
    /// By number, which is a key in TOML.
    by_uid: BTreeMap<String, Owner>,
    /// All names that they have, or had.
    names: BTreeSet<String>,
    is_changed: bool,
    /// Who was there before is not known any more.
    is_lost: bool,
    stored: Option<Instant>,
}

impl Owners {
    /// As they are kept in `file`. One that cannot be understood is kept aside, and as long as it lies there everybody's
    /// history begins when he is first seen.
    pub(crate) fn load(file: PathBuf) -> Self {
        let aside = file.with_extension("toml.unreadable");
        let known = |by_uid: BTreeMap<String, Owner>, is_lost, file: Option<PathBuf>| Self {
            file: file.map(|it| KeptFile::start("owners", it, NOT_KEPT)),
            names: by_uid.values().flat_map(Owner::names).cloned().collect(),
            by_uid,
            is_lost,
            ..Self::default()
        };
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return known(BTreeMap::new(), aside.exists(), Some(file));
            }
            // It may be as good as before once it can be read.
            Err(error) if error.kind() != io::ErrorKind::InvalidData => {
                tracing::error!(%error, file = %file.display(), "cannot be read: whose a number was is not known, so users are shown only what happens from now on");
                return known(BTreeMap::new(), true, None);
            }
            text => text,
        };
        match text.and_then(|text| understood(&text)) {
            Ok(mut by_uid) => {
                note_listed(&mut by_uid);
                known(by_uid, aside.exists(), Some(file))
            }
            Err(error) => {
                let is_aside = aside.exists() || fs::rename(&file, &aside).is_ok();
                tracing::error!(
                    %error, file = %file.display(), aside = %aside.display(), is_aside,
                    "cannot be understood, and is kept aside: whose a number was is not known, so users are shown only what happens after they are first seen"
                );
                known(BTreeMap::new(), true, Some(file))
            }
        }
    }

    /// A number has this name, or nobody has it, as of a moment.
    pub(super) fn note(&mut self, uid: Uid, name: Option<&str>, at: SystemTime) {
        self.note_with(uid, name, at, |name| names_in_passwd().contains(name));
    }

    fn note_with(
        &mut self,
        uid: Uid,
        name: Option<&str>,
        at: SystemTime,
        is_listed: impl Fn(&str) -> bool,
    ) {
        let key = uid.get().to_string();
        let has_room = self.by_uid.len() < MOST;
        let is_change = match self.by_uid.get_mut(&key) {
            Some(owner) if owner.name.as_deref() == name => false,
            Some(owner) => {
                // Who has gone has what was his until somebody else comes.
                if let Some(name) = name.filter(|it| !owner.is_back(it, at)) {
                    owner.since = Some(clock::rfc3339(at));
                    owner.is_listed = is_listed(name);
                }
                owner.absent = name.is_none().then(|| clock::rfc3339(at));
                owner.rename(name);
                true
            }
            None => match name.filter(|_| has_room) {
                Some(name) => {
                    let is_anothers = self.names.contains(name);
                    let owner = Owner {
                        name: Some(name.to_owned()),
                        since: (self.is_lost || is_anothers).then(|| clock::rfc3339(at)),
                        former: Vec::new(),
                        absent: None,
                        is_listed: is_listed(name),
                    };
                    self.by_uid.insert(key, owner);
                    true
                }
                None => false,
            },
        };
        if let Some(name) = name.filter(|_| is_change) {
            self.names.insert(name.to_owned());
        }
        self.is_changed |= is_change;
        let is_early = self.stored.is_some_and(|it| it.elapsed() < STORED_EVERY);
        if !is_early {
            self.store();
        }
    }

    /// From when on what happened to this number happened to who has it; `None`: always.
    pub(super) fn since(&self, uid: Uid) -> Option<&str> {
        self.by_uid.get(&uid.get().to_string())?.since.as_deref()
    }

    /// The last name of a number that nobody has, as long as who had it may be back under it.
    pub(super) fn away(&self, uid: Uid, at: SystemTime) -> Option<&str> {
        let owner = self.by_uid.get(&uid.get().to_string())?;
        let former = owner.former.last().filter(|_| owner.name.is_none());
        former
            .map(String::as_str)
            .filter(|it| owner.is_back(it, at))
    }

    /// Whether a user with another number is, or was, called so, and who has this one never was.
    pub(super) fn is_anothers(&self, name: &str, uid: Uid) -> bool {
        let own = self.by_uid.get(&uid.get().to_string());
        let is_own = own.is_some_and(|it| it.names().any(|own| own == name));
        self.names.contains(name) && !is_own
    }

    /// Whether anybody has, or had, this number.
    pub(super) fn has(&self, uid: Uid) -> bool {
        self.by_uid.contains_key(&uid.get().to_string())
    }

    pub(super) fn uids(&self) -> impl Iterator<Item = Uid> {
        self.by_uid
            .keys()
            .filter_map(|key| key.parse().ok().map(Uid::new))
    }

    /// Has what has changed written down.
    fn store(&mut self) {
        let Some(file) = self.file.as_ref().filter(|_| self.is_changed) else {
            return;
        };
        match toml::to_string(&self.by_uid) {
            Ok(text) => file.write(text),
            Err(error) => tracing::warn!(%error, "whose a number is could not be kept: {NOT_KEPT}"),
        }
        self.is_changed = false;
        self.stored = Some(Instant::now());
    }
}

/// Who was known before that was written down, or came into /etc/passwd since.
fn note_listed(by_uid: &mut BTreeMap<String, Owner>) {
    let listed = names_in_passwd();
    for owner in by_uid.values_mut() {
        let name = owner.name.as_deref();
        owner.is_listed |= name.is_some_and(|it| listed.contains(it));
    }
}

/// We write down at least one: a file that says nothing was cut off by a power failure.
fn understood(text: &str) -> io::Result<BTreeMap<String, Owner>> {
    if text.trim_ascii().is_empty() {
        return Err(io::Error::other("it is empty"));
    }
    toml::from_str(text).map_err(io::Error::other)
}

impl Drop for Owners {
    fn drop(&mut self) {
        self.store();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const UID: Uid = Uid::new(60_001);

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn history_is_the_first_ones_until_another_has_the_number() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("owners.toml");
        let mut owners = Owners::load(file.clone());
        owners.note(UID, None, at(1));
        assert!(owners.by_uid.is_empty(), "a number that nobody had");
        owners.note(UID, Some("old"), at(2));
        owners.note(UID, Some("old"), at(3));
        assert_eq!(owners.since(UID), None);
        owners.note(UID, Some("new"), at(4));
        let since = clock::rfc3339(at(4));
        assert_eq!(owners.since(UID), Some(since.as_str()));
        drop(owners);
        let owners = Owners::load(file);
        assert_eq!(owners.since(UID), Some(since.as_str()));
        assert_eq!(owners.uids().collect::<Vec<_>>(), [UID]);
    }

    #[test]
    fn who_is_seen_after_the_file_was_lost_is_shown_nothing_of_before() {
        // A power failure leaves an empty one.
        for text in ["no = [such", "", "\n"] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("owners.toml");
            fs::write(&file, text).unwrap();
            let mut owners = Owners::load(file.clone());
            assert!(!file.exists() && file.with_extension("toml.unreadable").exists());
            owners.note(UID, Some("somebody"), at(5));
            assert_eq!(owners.since(UID), Some(clock::rfc3339(at(5)).as_str()));
            drop(owners);
            let other = Uid::new(60_002);
            let mut owners = Owners::load(file);
            owners.note(other, Some("somebody else"), at(6));
            assert_eq!(owners.since(other), Some(clock::rfc3339(at(6)).as_str()));
        }
    }

    #[test]
    fn thousands_of_users_are_written_down_together() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("owners.toml");
        let mut owners = Owners::load(file.clone());
        let begun = Instant::now();
        for uid in 0..4000 {
            owners.note(Uid::new(uid), Some("somebody"), at(1));
        }
        let early = fs::read_to_string(&file)
            .unwrap_or_default()
            .lines()
            .count();
        let few = begun.elapsed() < STORED_EVERY;
        assert!(!few || early < 10, "{early} lines were written meanwhile");
        drop(owners);
        assert_eq!(Owners::load(file).by_uid.len(), 4000);
    }

    /// Since when the number is bob's, who was away from the second second to another one.
    fn since_bob_was_back(is_listed: bool, name: &str, back: u64) -> Option<String> {
        let mut owners = Owners::default();
        owners.note_with(UID, Some("bob"), at(1), |_| is_listed);
        owners.note(UID, None, at(2));
        assert_eq!(owners.since(UID), None);
        let is_awaited = owners.away(UID, at(back)).is_some();
        assert_eq!(is_awaited, !is_listed && at(back) < at(2) + LONGEST_ABSENCE);
        owners.note_with(UID, Some(name), at(back), |_| is_listed);
        owners.note_with(UID, Some(name), at(back + 1), |_| is_listed);
        owners.since(UID).map(str::to_owned)
    }

    #[test]
    fn the_same_name_after_a_line_of_passwd_was_gone_is_somebody_else() {
        let since = Some(clock::rfc3339(at(3)));
        assert_eq!(since_bob_was_back(true, "bob", 3), since);
    }

    #[test]
    fn the_same_name_is_the_same_user_after_a_directory_was_down_for_less_than_a_week() {
        let week = LONGEST_ABSENCE.as_secs();
        assert_eq!(since_bob_was_back(false, "bob", 3), None);
        assert_eq!(since_bob_was_back(false, "bob", week), None);
        let since = Some(clock::rfc3339(at(week + 3)));
        assert_eq!(since_bob_was_back(false, "bob", week + 3), since);
        let since = Some(clock::rfc3339(at(3)));
        assert_eq!(since_bob_was_back(false, "ben", 3), since);
    }

    #[test]
    fn a_new_number_with_a_name_that_is_known_is_somebody_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("owners.toml");
        let mut owners = Owners::load(file.clone());
        owners.note(UID, Some("jsmith"), at(1));
        // Another one has the number by now, and jsmith has gone all the same.
        owners.note(UID, None, at(2));
        owners.note(UID, Some("bob"), at(3));
        drop(owners);
        let mut owners = Owners::load(file);
        let (next, other) = (Uid::new(60_003), Uid::new(60_004));
        owners.note(next, Some("jsmith"), at(4));
        owners.note(other, Some("alice"), at(5));
        assert_eq!(owners.since(next), Some(clock::rfc3339(at(4)).as_str()));
        assert_eq!(owners.since(other), None);
        assert!(owners.is_anothers("jsmith", other) && owners.is_anothers("bob", other));
        assert!(!owners.is_anothers("jsmith", next) && !owners.is_anothers("carol", other));
    }

    #[test]
    fn former_names_are_bounded() {
        let mut owners = Owners::default();
        for number in 0..20 {
            owners.note(UID, Some(&format!("user{number}")), at(number));
        }
        let former = &owners.by_uid.values().next().unwrap().former;
        assert_eq!(former.len(), MOST_FORMER);
        assert_eq!(former.last().map(String::as_str), Some("user18"));
    }
}
