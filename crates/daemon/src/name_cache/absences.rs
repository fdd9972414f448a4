// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Since when names and numbers that stood for somebody have been nobody's. An absence begins with the first look-up that
//! finds nobody, and ends with one that finds somebody, or when it has lasted too long; where a directory did not answer
//! it is as it was. What stands meanwhile is for `name_cache.rs` to say.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use bursar_host::clock;
use bursar_model::Uid;
use serde::{Deserialize, Serialize};

/// A number that nobody has, and that holds nothing, is kept for so long. Longer than a directory is down over a weekend:
/// whoever logs in when it is back has the own limit at once.
pub(crate) const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// As of one look-up. Those of the next one are noted or kept from these, one by one: who is in neither is back.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Absences {
    /// By number, which is a key in TOML.
    #[serde(default)]
    users: BTreeMap<String, String>,
    #[serde(default)]
    groups: BTreeMap<String, String>,
}

impl Absences {
    /// Nobody has this number. Returns since when, to the second.
    pub(super) fn note_user(&mut self, uid: Uid, before: &Self) -> String {
        let key = uid.get().to_string();
        let since = before.users.get(&key).cloned().unwrap_or_else(|| {
            tracing::warn!(%uid, "unknown to the directory; its limit stands as it was known from before");
            clock::rfc3339(SystemTime::now())
        });
        let shown = seconds(&since);
        self.users.insert(key, since);
        shown
    }

    /// The same of a group's name, which stood for this number.
    pub(super) fn note_group(&mut self, name: &str, gid: u32, before: &Self) -> String {
        let since = before.groups.get(name).cloned().unwrap_or_else(|| {
            tracing::warn!(
                name,
                gid,
                "unknown to the directory; the members known from before stand"
            );
            clock::rfc3339(SystemTime::now())
        });
        let shown = seconds(&since);
        self.groups.insert(name.to_owned(), since);
        shown
    }

    /// Nobody could say whether these numbers are anybody's.
    pub(super) fn keep_users(&mut self, uids: &[u32], before: &Self) {
        for key in uids.iter().map(u32::to_string) {
            if let Some(since) = before.users.get(&key) {
                self.users.insert(key, since.clone());
            }
        }
    }

    /// The same of a group's name.
    pub(super) fn keep_group(&mut self, name: &str, before: &Self) {
        if let Some(since) = before.groups.get(name) {
            self.groups.insert(name.to_owned(), since.clone());
        }
    }

    pub(super) fn has_user(&self, uid: Uid) -> bool {
        self.users.contains_key(&uid.get().to_string())
    }

    /// Numbers that nobody has had for longer than is waited for.
    pub(super) fn too_long(&self, now: SystemTime) -> BTreeSet<Uid> {
        let is_long = |since: &str| {
            let since = clock::parse_since(since, now).ok();
            since.is_some_and(|it| now.duration_since(it).is_ok_and(|it| it > LONGEST))
        };
        let users = self.users.iter();
        let long = users.filter(|(_, since)| is_long(since));
        long.filter_map(|(uid, _)| uid.parse().ok().map(Uid::new))
            .collect()
    }

    pub(super) fn forget_users(&mut self, uids: &BTreeSet<Uid>) {
        for uid in uids {
            self.users.remove(&uid.get().to_string());
        }
    }
}

/// A moment to the second.
fn seconds(moment: &str) -> String {
    let whole = moment.split_once('.').map(|(whole, _)| format!("{whole}Z"));
    whole.unwrap_or_else(|| moment.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: Uid = Uid::new(1002);

    fn since(day: &str) -> Absences {
        let text = format!("[users]\n1002 = \"{day}\"\n[groups]\nfilm = \"{day}\"\n");
        toml::from_str(&text).unwrap()
    }

    #[test]
    fn an_absence_goes_on_until_somebody_is_found() {
        let before = since("2026-11-01T00:00:00.5Z");
        let mut next = Absences::default();
        assert_eq!(next.note_user(UID, &before), "2026-11-01T00:00:00Z");
        assert_eq!(
            next.note_group("film", 500, &before),
            "2026-11-01T00:00:00Z"
        );
        let mut down = Absences::default();
        down.keep_users(&[1001, 1002], &next);
        down.keep_group("film", &next);
        assert!(down.has_user(UID) && !down.has_user(Uid::new(1001)));
        assert_eq!(down.groups, next.groups);
        // Neither noted nor kept: somebody was found, and the next absence is another one.
        let mut back = Absences::default();
        assert_ne!(
            back.note_user(UID, &Absences::default()),
            "2026-11-01T00:00:00Z"
        );
    }

    #[test]
    fn what_has_lasted_for_long_can_be_forgotten() {
        let mut absences = since("2026-11-01T00:00:00Z");
        let day = |day: &str| clock::parse_since(day, SystemTime::now()).unwrap();
        assert!(absences.too_long(day("2026-11-07")).is_empty());
        let long = absences.too_long(day("2026-11-09"));
        assert_eq!(long, BTreeSet::from([UID]));
        absences.forget_users(&long);
        assert!(!absences.has_user(UID));
    }
}
