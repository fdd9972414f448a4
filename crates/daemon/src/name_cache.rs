// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What names stood for when they could last be looked up, and what stands while a directory is down.
//! Asks nobody: what came of asking is handed in.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use bursar_host::{Lookup, Members, User};
use bursar_model::{Gid, Uid};
use bursar_policy::NameError;
use serde::{Deserialize, Serialize};

use crate::kept_file::KeptFile;

/// Names listed in a group that no user has are said so far.
const NAMES_SAID: usize = 3;

/// What names stood for.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct NameCache {
    #[serde(default)]
    users: BTreeMap<String, u32>,
    #[serde(default)]
    groups: BTreeMap<String, (u32, Vec<u32>)>,
    /// Of what was stored last.
    #[serde(skip)]
    stored: Option<u64>,
}

/// What a name stands for from now on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Settled<T> {
    pub(crate) answer: Result<T, NameError>,
    /// What an administrator should know of it, one line each.
    pub(crate) remarks: Vec<String>,
}

impl<T> From<Result<T, NameError>> for Settled<T> {
    fn from(answer: Result<T, NameError>) -> Self {
        Self {
            answer,
            remarks: Vec::new(),
        }
    }
}

impl NameCache {
    /// What a file says; nothing where it says nothing.
    pub(crate) fn load(path: &Path) -> Self {
        let Ok(text) = fs::read_to_string(path) else {
            return Self::default();
        };
        if text.trim_ascii().is_empty() {
            // What we write has the names of its tables.
            tracing::warn!(path = %path.display(), "is empty: while the directory is down nothing is known of names");
        }
        toml::from_str(&text).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "cannot be understood: while the directory is down nothing is known of names");
            Self::default()
        })
    }

    /// Has it stored, where it is something else than last time.
    pub(crate) fn store(&mut self, file: &KeptFile) -> Result<(), toml::ser::Error> {
        let text = toml::to_string(&*self)?;
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let hash = Some(hasher.finish());
        if self.stored != hash {
            file.write(text);
            self.stored = hash;
        }
        Ok(())
    }

    /// Whom a user's name stood for.
    pub(crate) fn uid_of(&self, name: &str) -> Option<Uid> {
        self.users.get(name).copied().map(Uid::new)
    }

    /// The name that stood for this user.
    pub(crate) fn name_of(&self, uid: Uid) -> Option<&str> {
        let mut users = self.users.iter();
        let found = users.find(|(_, it)| **it == uid.get());
        found.map(|(name, _)| name.as_str())
    }

    /// Whom a user's name stands for.
    pub(crate) fn user(&mut self, name: &str, found: Lookup<User>) -> Settled<Uid> {
        match found {
            Lookup::Found(user) => {
                self.users.insert(name.to_owned(), user.uid.get());
                Ok(user.uid).into()
            }
            Lookup::Absent => {
                self.users.remove(name);
                Err(NameError::Unknown).into()
            }
            Lookup::Unavailable(errno) => match self.users.get(name) {
                Some(&uid) => {
                    tracing::warn!(name, %errno, uid, "the directory is down; the uid known from before stands");
                    Settled {
                        answer: Ok(Uid::new(uid)),
                        remarks: vec![format!(
                            "the directory does not answer ({errno}): the uid known from before, {uid}, stands"
                        )],
                    }
                }
                None => Err(NameError::Unreachable(errno.to_string())).into(),
            },
        }
    }

    /// Whom a group's name stands for. Where some of its members could not be looked up, those known
    /// from before belong to it as well: a directory that is down takes no limit from anybody.
    pub(crate) fn group(&mut self, name: &str, found: Lookup<Members>) -> Settled<(Gid, Vec<Uid>)> {
        let members = match found {
            Lookup::Found(members) => members,
            Lookup::Absent => {
                self.groups.remove(name);
                return Err(NameError::Unknown).into();
            }
            Lookup::Unavailable(errno) => {
                let Some((gid, uids)) = self.groups.get(name) else {
                    return Err(NameError::Unreachable(errno.to_string())).into();
                };
                tracing::warn!(name, %errno, "the directory is down; the members known from before stand");
                return Settled {
                    answer: Ok((Gid::new(*gid), uids.iter().copied().map(Uid::new).collect())),
                    remarks: vec![format!(
                        "the directory does not answer ({errno}): the members known from before stand"
                    )],
                };
            }
        };
        let mut remarks = remarks_on(&members);
        let gid = members.gid;
        let mut uids = members.uids;
        match members.incomplete {
            None => {
                let numbers = uids.iter().map(|uid| uid.get()).collect();
                self.groups.insert(name.to_owned(), (gid.get(), numbers));
            }
            Some(errno) => remarks.push(match self.groups.get(name) {
                Some((_, before)) => {
                    tracing::warn!(name, %errno, "the directory did not answer for all members; those known from before stand as well");
                    uids.extend(before.iter().copied().map(Uid::new));
                    format!(
                        "the directory does not answer for all members ({errno}): those known from before \
                         stand as well"
                    )
                }
                None => {
                    tracing::warn!(name, %errno, "the directory did not answer for all members; the others have no limit of this group");
                    format!(
                        "the directory does not answer for all members ({errno}): the limit concerns those \
                         found; asked again every few minutes"
                    )
                }
            }),
        }
        Settled {
            answer: Ok((gid, uids.into_iter().collect())),
            remarks,
        }
    }
}

/// Who is left out of a group although he may be meant.
fn remarks_on(members: &Members) -> Vec<String> {
    let mut remarks = Vec::new();
    if !members.unknown.is_empty() {
        let names: Vec<&str> = members
            .unknown
            .iter()
            .take(NAMES_SAID)
            .map(String::as_str)
            .collect();
        let others = match members.unknown.len().saturating_sub(names.len()) {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        remarks.push(format!(
            "the group lists names that no user has: {}{others}",
            names.join(", ")
        ));
    }
    if members.is_cut_off {
        let count = members.uids.len();
        remarks.push(format!(
            "the group has more members than are looked at: the limit concerns {count} of them"
        ));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    fn members(uids: &[u32], incomplete: Option<Errno>) -> Lookup<Members> {
        Lookup::Found(Members {
            gid: Gid::new(500),
            uids: uids.iter().copied().map(Uid::new).collect(),
            unknown: Vec::new(),
            incomplete,
            is_cut_off: false,
        })
    }

    fn uids(settled: &Settled<(Gid, Vec<Uid>)>) -> Vec<u32> {
        let (gid, uids) = settled.answer.as_ref().unwrap();
        assert_eq!(gid.get(), 500);
        uids.iter().map(|uid| uid.get()).collect()
    }

    #[test]
    fn members_that_cannot_be_looked_up_keep_the_groups_limit() {
        let mut known = NameCache::default();
        known.group("film", members(&[1001, 1002], None));
        // 1002 is in the directory, which is down; 1003 has come, and is known here.
        for _ in 0..2 {
            let down = known.group("film", members(&[1001, 1003], Some(Errno::IO)));
            assert_eq!(uids(&down), [1001, 1002, 1003]);
            assert!(down.remarks[0].contains("known from before"), "{down:?}");
        }
        // Up again, and he has left: who is a member is what the directory says.
        let up = known.group("film", members(&[1001], None));
        assert_eq!((uids(&up).as_slice(), up.remarks.len()), (&[1001][..], 0));
    }

    #[test]
    fn members_never_known_are_left_out_and_it_is_said() {
        let mut known = NameCache::default();
        let down = known.group("film", members(&[1001], Some(Errno::IO)));
        assert_eq!(uids(&down), [1001]);
        assert!(down.remarks[0].contains("those found"), "{down:?}");
        // What is incomplete is not what is known from now on.
        assert!(known.groups.is_empty());
    }

    #[test]
    fn what_a_group_leaves_out_is_said() {
        let Lookup::Found(mut some) = members(&[1001], None) else {
            unreachable!()
        };
        some.unknown = ["a", "b", "c", "d"].map(str::to_owned).into();
        some.is_cut_off = true;
        let settled = NameCache::default().group("film", Lookup::Found(some));
        assert_eq!(
            settled.remarks,
            [
                "the group lists names that no user has: a, b, c and 1 more",
                "the group has more members than are looked at: the limit concerns 1 of them",
            ]
        );
    }

    #[test]
    fn a_name_whose_directory_is_down_stands_for_whom_it_stood() {
        let mut known = NameCache::default();
        let bob = User {
            name: "bob".to_owned(),
            uid: Uid::new(1002),
            gid: Gid::new(100),
        };
        let down = || Lookup::Unavailable(Errno::IO);
        let unreachable = known.user("bob", down()).answer.unwrap_err();
        assert!(matches!(unreachable, NameError::Unreachable(_)));
        known.user("bob", Lookup::Found(bob));
        let stands = known.user("bob", down());
        assert_eq!(stands.answer, Ok(Uid::new(1002)));
        let absent = known.user("bob", Lookup::Absent);
        assert_eq!(absent.answer, Err(NameError::Unknown));
        assert!(known.users.is_empty());
    }
}
