// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What names stood for when they could last be looked up, and what stands while a directory is down.
//! Asks nobody itself: what came of asking is handed in, and a way to ask for a number.
//!
//! "Nobody has this name" is no proof that a user is gone. SSSD's module says so while its socket is away, and so do a
//! module that an upgrade has removed, and an /etc/passwd that is half written. To believe it takes a limit from its user
//! and kills by `default`. So a name that was known goes on standing for its number, until
//!
//! - the number answers to another name: it is somebody else's now, or the user was renamed;
//! - nobody has had the number for a week, and no process and no file of it is there (`Accounts::forget_absent`);
//! - an administrator takes the entry away: what no entry names is not kept.
//!
//! The same holds for a group, whose members stand, and for each of its members. A local user who was removed (userdel) is
//! treated alike: processes that live on keep their limit, and without any there is nothing to limit. What
//! nsswitch.conf says at that moment proves nothing, for it may be what is broken.

mod absences;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::SystemTime;

use bursar_host::{Group, Lookup, Members, User};
use bursar_model::{Gid, Uid, abridged};
use bursar_policy::NameError;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use self::absences::Absences;
pub(crate) use self::absences::LONGEST as LONGEST_ABSENCE;
use crate::kept_file::KeptFile;

/// Names listed in a group that no user has are said so far.
const NAMES_SAID: usize = 3;

/// What names stood for.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct NameCache {
    /// The moment as of which limits were put in force with these: those that end may have ended since.
    as_of: Option<String>,
    #[serde(default)]
    users: BTreeMap<String, u32>,
    #[serde(default)]
    groups: BTreeMap<String, (u32, Vec<u32>)>,
    #[serde(default)]
    absent: Absences,
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
    /// Those of its numbers that nobody has at the moment.
    pub(crate) nobodys: BTreeSet<Uid>,
}

/// Who has a number now. `None`: there was no time to ask for it.
pub(crate) type Owner = Option<Lookup<User>>;

impl<T> From<Result<T, NameError>> for Settled<T> {
    fn from(answer: Result<T, NameError>) -> Self {
        Self {
            answer,
            remarks: Vec::new(),
            nobodys: BTreeSet::new(),
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

    /// As of when limits were last put in force; `None` where an older bursard did so.
    pub(crate) fn as_of(&self) -> Option<Timestamp> {
        self.as_of.as_deref()?.parse().ok()
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

    /// Whom a user's name stands for. `self` is what was known, `next` what is known from now on, if the plan that is being
    /// worked out is put in force. A change that is only tried, or refused, changes nothing.
    pub(crate) fn user(
        &self,
        name: &str,
        found: Lookup<User>,
        next: &mut Self,
        mut owner_of: impl FnMut(Uid) -> Owner,
    ) -> Settled<Uid> {
        let before = self.users.get(name).copied().map(Uid::new);
        let (uid, errno) = match (found, before) {
            (Lookup::Found(user), _) => {
                next.users.insert(name.to_owned(), user.uid.get());
                return Ok(user.uid).into();
            }
            (Lookup::Absent, None) => return Err(NameError::Unknown).into(),
            (Lookup::Unavailable(errno), None) => {
                return Err(NameError::Unreachable(errno.to_string())).into();
            }
            (Lookup::Absent, Some(uid)) => (uid, None),
            (Lookup::Unavailable(errno), Some(uid)) => (uid, Some(errno)),
        };
        if let Some(errno) = errno {
            tracing::warn!(name, %errno, %uid, "the directory is down; the uid known from before stands");
            self.keep(name, uid, next);
            return Settled {
                remarks: vec![format!(
                    "the directory does not answer ({errno}): the uid known from before, {uid}, stands"
                )],
                ..Ok(uid).into()
            };
        }
        match owner_of(uid) {
            Some(Lookup::Found(owner)) if owner.name != name => {
                tracing::warn!(name, %uid, owner = owner.name, "the name is gone and its uid has become another user's: the limit applies to nobody");
                Err(NameError::Unknown).into()
            }
            Some(Lookup::Found(_)) => {
                next.users.insert(name.to_owned(), uid.get());
                Ok(uid).into()
            }
            Some(Lookup::Absent | Lookup::Unavailable(_)) | None => {
                let since = next.absent.note_user(uid, &self.absent);
                next.users.insert(name.to_owned(), uid.get());
                Settled {
                    answer: Ok(uid),
                    remarks: vec![format!(
                        "unknown to the directory since {since}: the limit holds for the uid known from before, {uid}; if \
                         the user is gone for good, clear it"
                    )],
                    nobodys: BTreeSet::from([uid]),
                }
            }
        }
    }

    fn keep_group(&self, name: &str, next: &mut Self) -> Option<&(u32, Vec<u32>)> {
        let known = self.groups.get(name)?;
        next.groups.insert(name.to_owned(), known.clone());
        next.absent.keep_users(&known.1, &self.absent);
        next.absent.keep_group(name, &self.absent);
        Some(known)
    }

    /// Keeps what a user's name stood for.
    pub(crate) fn keep(&self, name: &str, uid: Uid, next: &mut Self) {
        next.users.entry(name.to_owned()).or_insert(uid.get());
        next.absent.keep_users(&[uid.get()], &self.absent);
    }

    /// Whom a group's name stands for. Where some of its members could not be looked up, or nobody has their numbers, those
    /// known from before belong to it as well: a directory that is down takes no limit from anybody.
    pub(crate) fn group(
        &self,
        name: &str,
        found: Lookup<Members>,
        next: &mut Self,
        group_of: impl FnOnce(Gid) -> Lookup<Group>,
        owner_of: impl FnMut(Uid) -> Owner,
    ) -> Settled<(Gid, Vec<Uid>)> {
        let members = match found {
            Lookup::Found(members) => members,
            Lookup::Absent => return self.absent_group(name, next, group_of),
            Lookup::Unavailable(errno) => {
                if !self.groups.contains_key(name) {
                    return Err(NameError::Unreachable(errno.to_string())).into();
                }
                tracing::warn!(name, %errno, "the directory is down; the members known from before stand");
                let remark = format!(
                    "the directory does not answer ({errno}): the members known from before stand"
                );
                return self.kept_group(name, remark, next);
            }
        };
        let mut remarks = remarks_on(&members);
        let gid = members.gid;
        let mut uids = members.uids;
        let mut nobodys = BTreeSet::new();
        match members.incomplete {
            None => {
                nobodys = self.members_left(name, gid, &members.unknown, &mut uids, next, owner_of);
                remarks.extend(remark_on_nobodys(&nobodys));
                let numbers = uids.iter().map(|uid| uid.get()).collect();
                next.groups.insert(name.to_owned(), (gid.get(), numbers));
            }
            Some(errno) => remarks.push(match self.groups.get(name) {
                Some(known @ (_, before)) => {
                    tracing::warn!(name, %errno, "the directory did not answer for all members; those known from before stand as well");
                    uids.extend(before.iter().copied().map(Uid::new));
                    next.groups.insert(name.to_owned(), known.clone());
                    next.absent.keep_users(before, &self.absent);
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
            nobodys,
        }
    }

    /// A group that nobody knows any more, or that goes by another name.
    fn absent_group(
        &self,
        name: &str,
        next: &mut Self,
        group_of: impl FnOnce(Gid) -> Lookup<Group>,
    ) -> Settled<(Gid, Vec<Uid>)> {
        let Some((gid, _)) = self.groups.get(name) else {
            return Err(NameError::Unknown).into();
        };
        match group_of(Gid::new(*gid)) {
            Lookup::Found(other) if other.name != name => {
                tracing::warn!(
                    name,
                    gid,
                    other = other.name,
                    "nobody knows the group any more, and its number is another one's: the limit holds for nobody"
                );
                Err(NameError::Unknown).into()
            }
            _ => {
                let since = next.absent.note_group(name, *gid, &self.absent);
                let remark = format!(
                    "unknown to the directory since {since}: the members known from before stand; if the group is gone for \
                     good, clear the limit"
                );
                self.kept_group(name, remark, next)
            }
        }
    }

    /// A group as it was known.
    fn kept_group(&self, name: &str, remark: String, next: &mut Self) -> Settled<(Gid, Vec<Uid>)> {
        let group = self.last_group(name, next);
        Settled {
            remarks: group.is_some().then_some(remark).into_iter().collect(),
            ..group.ok_or(NameError::Unknown).into()
        }
    }

    /// Whom a user's name stood for, without a look at who has it now.
    pub(crate) fn last_user(&self, name: &str, next: &mut Self) -> Option<Uid> {
        let uid = self.uid_of(name)?;
        self.keep(name, uid, next);
        Some(uid)
    }

    /// The same of a group's.
    pub(crate) fn last_group(&self, name: &str, next: &mut Self) -> Option<(Gid, Vec<Uid>)> {
        let (gid, members) = self.keep_group(name, next)?;
        let members = members.iter().copied().map(Uid::new).collect();
        Some((Gid::new(*gid), members))
    }

    /// Adds former members that may not have left: those whose number nobody has (returned), those that there was no time to
    /// ask for, and those with this primary group, which a directory that is down does not list. `listed`: names that the
    /// group has, and that nobody answers to.
    fn members_left(
        &self,
        name: &str,
        gid: Gid,
        listed: &[String],
        uids: &mut BTreeSet<Uid>,
        next: &mut Self,
        mut owner_of: impl FnMut(Uid) -> Owner,
    ) -> BTreeSet<Uid> {
        let mut nobodys = BTreeSet::new();
        let before = self.groups.get(name).into_iter().flat_map(|it| &it.1);
        let mut before: Vec<Uid> = before.copied().map(Uid::new).collect();
        // Those first that are not known to be nobody's: there may be no time for all.
        before.sort_by_key(|uid| self.absent.has_user(*uid));
        for uid in before {
            if uids.contains(&uid) {
                continue;
            }
            match owner_of(uid) {
                Some(Lookup::Found(owner)) if owner.gid != gid && !listed.contains(&owner.name) => {
                    continue;
                }
                Some(Lookup::Found(_)) => {}
                Some(Lookup::Unavailable(_)) | None => {
                    next.absent.keep_users(&[uid.get()], &self.absent);
                }
                Some(Lookup::Absent) => {
                    next.absent.note_user(uid, &self.absent);
                    nobodys.insert(uid);
                }
            }
            uids.insert(uid);
        }
        nobodys
    }

    /// Numbers that nobody has had for long.
    pub(crate) fn long_absent(&self, now: SystemTime) -> BTreeSet<Uid> {
        self.absent.too_long(now)
    }

    /// No name stands for these numbers any more.
    pub(crate) fn forget(&mut self, uids: &BTreeSet<Uid>) {
        let is_kept = |uid: &u32| !uids.contains(&Uid::new(*uid));
        self.users.retain(|_, uid| is_kept(uid));
        for (_, members) in self.groups.values_mut() {
            members.retain(is_kept);
        }
        self.absent.forget_users(uids);
    }

    /// What a plan has come to that is in force from now on, with limits as of this moment.
    pub(crate) fn replace(&mut self, next: Self, as_of: Timestamp) {
        *self = Self {
            as_of: Some(as_of.to_string()),
            stored: self.stored,
            ..next
        };
    }
}

/// Who belongs to a group although nobody has the number.
fn remark_on_nobodys(nobodys: &BTreeSet<Uid>) -> Option<String> {
    abridged(nobodys, NAMES_SAID).map(|uids| {
        format!("uids of members that the directory does not know any more keep the limit: {uids}")
    })
}

/// Who is left out of a group although he may be meant.
fn remarks_on(members: &Members) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(names) = abridged(&members.unknown, NAMES_SAID) {
        remarks.push(format!("the group lists names that no user has: {names}"));
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
    use std::time::Duration;

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

    fn user(name: &str, uid: u32, gid: u32) -> User {
        User {
            name: name.to_owned(),
            uid: Uid::new(uid),
            gid: Gid::new(gid),
        }
    }

    /// One plan in force: whom a user's name stands for, with who has the number.
    fn user_of(known: &mut NameCache, found: Lookup<User>, owner: Lookup<User>) -> Settled<Uid> {
        let mut next = NameCache::default();
        let settled = known.user("bob", found, &mut next, |_| Some(owner.clone()));
        known.replace(next, Timestamp::UNIX_EPOCH);
        settled
    }

    /// The same of the group "film", with the users that there are.
    fn group_of(
        known: &mut NameCache,
        found: Lookup<Members>,
        group: Lookup<Group>,
        users: &[User],
    ) -> Settled<(Gid, Vec<Uid>)> {
        let mut next = NameCache::default();
        let owner_of = |uid| {
            let owner = users.iter().find(|it| it.uid == uid).cloned();
            Some(owner.map_or(Lookup::Absent, Lookup::Found))
        };
        let settled = known.group("film", found, &mut next, |_| group, owner_of);
        known.replace(next, Timestamp::UNIX_EPOCH);
        settled
    }

    fn uids(settled: &Settled<(Gid, Vec<Uid>)>) -> Vec<u32> {
        let (gid, uids) = settled.answer.as_ref().unwrap();
        assert_eq!(gid.get(), 500);
        uids.iter().map(|uid| uid.get()).collect()
    }

    #[test]
    fn members_that_cannot_be_looked_up_keep_the_groups_limit() {
        let mut known = NameCache::default();
        let users = [user("a", 1001, 100), user("b", 1002, 100)];
        let mut film = |found| group_of(&mut known, found, Lookup::Absent, &users);
        film(members(&[1001, 1002], None));
        // 1002 is in the directory, which is down; 1003 has come, and is known here.
        for _ in 0..2 {
            let down = film(members(&[1001, 1003], Some(Errno::IO)));
            assert_eq!(uids(&down), [1001, 1002, 1003]);
            assert!(down.remarks[0].contains("known from before"), "{down:?}");
        }
        // Up again, and he has left: who is a member is what the directory says.
        let up = film(members(&[1001], None));
        assert_eq!((uids(&up).as_slice(), up.remarks.len()), (&[1001][..], 0));
    }

    #[test]
    fn members_never_known_are_left_out_and_it_is_said() {
        let mut known = NameCache::default();
        let found = members(&[1001], Some(Errno::IO));
        let down = group_of(&mut known, found, Lookup::Absent, &[]);
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
        let mut known = NameCache::default();
        let settled = group_of(&mut known, Lookup::Found(some), Lookup::Absent, &[]);
        assert_eq!(
            settled.remarks,
            [
                "the group lists names that no user has: a, b, c and 1 more",
                "the group has more members than are looked at: the limit concerns 1 of them",
            ]
        );
    }

    #[test]
    fn members_whose_numbers_nobody_has_stay_until_somebody_has_them() {
        let mut known = NameCache::default();
        let all = [
            user("a", 1001, 100),
            user("b", 1002, 100),
            user("c", 1003, 500),
        ];
        let found = || members(&[1001, 1002, 1003], None);
        group_of(&mut known, found(), Lookup::Absent, &all);
        // SSSD is away: nobody is known, and nobody is listed. Then one after the other is there again.
        for (users, nobodys) in [(0, 3), (1, 2), (3, 0)] {
            let listed: Vec<u32> = (1001..1001 + users).collect();
            let some = &all[..users as usize];
            let down = group_of(&mut known, members(&listed, None), Lookup::Absent, some);
            assert_eq!(uids(&down), [1001, 1002, 1003]);
            assert_eq!(down.nobodys.len(), nobodys);
            assert_eq!(down.remarks.len(), usize::from(nobodys > 0), "{down:?}");
            let absent = (1001..=1003).filter(|uid| known.absent.has_user(Uid::new(*uid)));
            assert_eq!(absent.count(), nobodys);
        }
        // Whose primary group it is stays though nobody is listed; who has a number otherwise has left.
        let left = group_of(&mut known, members(&[], None), Lookup::Absent, &all);
        assert_eq!(uids(&left), [1003]);
        // The number is another user's now.
        let others = [user("d", 1003, 100)];
        let left = group_of(&mut known, members(&[], None), Lookup::Absent, &others);
        assert_eq!(uids(&left), [0_u32; 0]);
    }

    #[test]
    fn a_group_that_nobody_knows_stands_until_its_number_is_another_ones() {
        let group = |name: &str| {
            Lookup::Found(Group {
                name: name.to_owned(),
                gid: Gid::new(500),
                members: Vec::new(),
            })
        };
        let mut known = NameCache::default();
        let never = group_of(&mut known, Lookup::Absent, Lookup::Absent, &[]);
        assert_eq!(never.answer, Err(NameError::Unknown));
        group_of(&mut known, members(&[1001], None), Lookup::Absent, &[]);
        let first = group_of(&mut known, Lookup::Absent, Lookup::Absent, &[]);
        assert_eq!(uids(&first), [1001]);
        assert!(first.remarks[0].contains("unknown to the directory since"));
        let again = group_of(&mut known, Lookup::Absent, Lookup::Absent, &[]);
        assert_eq!(again, first, "since then");
        let renamed = group_of(&mut known, Lookup::Absent, group("movies"), &[]);
        assert_eq!(renamed.answer, Err(NameError::Unknown));
        assert!(known.groups.is_empty());
    }

    #[test]
    fn a_name_whose_directory_is_down_stands_for_whom_it_stood() {
        let mut known = NameCache::default();
        let down = || Lookup::Unavailable(Errno::IO);
        let unreachable = user_of(&mut known, down(), down()).answer.unwrap_err();
        assert!(matches!(unreachable, NameError::Unreachable(_)));
        let bob = || Lookup::Found(user("bob", 1002, 100));
        user_of(&mut known, bob(), bob());
        for _ in 0..2 {
            let stands = user_of(&mut known, down(), down());
            assert_eq!(stands.answer, Ok(Uid::new(1002)));
        }
    }

    #[test]
    fn a_name_that_nobody_has_stands_until_its_number_is_another_users() {
        let mut known = NameCache::default();
        let nobody = || Lookup::Absent;
        // One that never was.
        let never = user_of(&mut known, nobody(), nobody());
        assert_eq!(never.answer, Err(NameError::Unknown));
        let bob = || Lookup::Found(user("bob", 1002, 100));
        user_of(&mut known, bob(), bob());
        let gone = user_of(&mut known, nobody(), nobody());
        assert_eq!(gone.answer, Ok(Uid::new(1002)));
        assert_eq!(gone.nobodys, BTreeSet::from([Uid::new(1002)]));
        assert!(gone.remarks[0].contains("known from before, 1002"));
        // Since then, over a restart too; a source that cannot be asked changes nothing.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("names.toml");
        fs::write(&file, toml::to_string(&known).unwrap()).unwrap();
        let mut known = NameCache::load(&file);
        let down = Lookup::Unavailable(Errno::IO);
        assert_eq!(user_of(&mut known, nobody(), down), gone);
        // He is there again.
        let back = user_of(&mut known, bob(), bob());
        assert_eq!((back.remarks.len(), back.nobodys.len()), (0, 0));
        assert!(!known.absent.has_user(Uid::new(1002)));
        // userdel and useradd, or another name: the number is somebody else's, and stays so when it is nobody's again.
        let other = Lookup::Found(user("zoe", 1002, 100));
        for owner in [other, Lookup::Absent] {
            let gone = user_of(&mut known, nobody(), owner);
            assert_eq!(gone.answer, Err(NameError::Unknown));
        }
    }

    #[test]
    fn what_is_only_tried_changes_nothing_and_what_no_entry_names_is_not_kept() {
        let mut known = NameCache::default();
        let bob = || Lookup::Found(user("bob", 1002, 100));
        user_of(&mut known, bob(), bob());
        let mut tried = NameCache::default();
        let other = Lookup::Found(user("bob", 1009, 100));
        known.user("bob", other, &mut tried, |_| None);
        assert_eq!(known.uid_of("bob"), Some(Uid::new(1002)));
        known.replace(NameCache::default(), Timestamp::UNIX_EPOCH);
        let cleared = user_of(&mut known, Lookup::Absent, Lookup::Absent);
        assert_eq!(cleared.answer, Err(NameError::Unknown));
    }

    #[test]
    fn who_has_been_gone_for_long_is_forgotten() {
        let mut known: NameCache = toml::from_str(
            "[users]\nbob = 1002\n[groups]\nfilm = [500, [1002]]\n[absent.users]\n1002 = \"2026-11-01T00:00:00Z\"\n",
        )
        .unwrap();
        let long = known.long_absent(SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000));
        assert_eq!(long, BTreeSet::from([Uid::new(1002)]));
        known.forget(&long);
        assert!(known.users.is_empty() && known.long_absent(SystemTime::now()).is_empty());
        assert_eq!(known.groups["film"], (500, Vec::new()));
    }
}
