// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose subordinate uids are: reads subuid(5), has the names in it looked up, and says what an
//! administrator should know. What follows from ranges that overlap is policy's to say.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use bursar_host::{FileWatch, Lookup, SubuidLine, SubuidOwner, User, Users, subuids};
use bursar_kernel::SubordinateTable;
use bursar_model::{Uid, abridged, printable};
use bursar_policy::{NameError, Subordinate, Subordinates};

use crate::name_cache::NameCache;

/// Names, or ranges, that are said one by one.
const MOST_SAID: usize = 3;
/// Of a name, characters.
const NAME_SHOWN: usize = 40;

/// The file, and whether it has changed.
#[derive(Debug)]
pub(crate) struct SubuidFile {
    path: PathBuf,
    watch: Option<FileWatch>,
    /// As it was last read: thousands of names are not asked for again with each change of a limit.
    known: Option<Known>,
}

/// What it says, with names looked up.
#[derive(Debug, Default)]
struct Known {
    given: Vec<Subordinate>,
    names: Names,
    remarks: Vec<String>,
}

/// What it means here.
#[derive(Debug, Default)]
pub(crate) struct Meaning {
    pub(crate) subordinates: Subordinates,
    pub(crate) remarks: Vec<String>,
    /// Names that a directory did not answer for.
    pub(crate) unreachable: Vec<String>,
}

impl SubuidFile {
    pub(crate) fn at(path: PathBuf) -> Self {
        let watch = FileWatch::new(&path);
        let watch = watch.inspect_err(|error| {
            tracing::info!(%error, "changes of subordinate uids are seen at a reload only");
        });
        Self {
            path,
            watch: watch.ok(),
            known: None,
        }
    }

    /// Readable when it may have changed.
    pub(crate) fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn take_news(&self) -> bool {
        self.watch.as_ref().is_some_and(FileWatch::take_news)
    }

    /// Reads it, and asks for the names in it, when it is wanted next.
    pub(crate) fn forget(&mut self) {
        self.known = None;
    }

    /// What it means. Who is among `own`, or is a user that the sources of names list, is nobody's
    /// subordinate, whoever was given his uid.
    pub(crate) fn read(
        &mut self,
        users: &mut Users,
        name_cache: &NameCache,
        next: &mut NameCache,
        own: &BTreeSet<Uid>,
    ) -> Meaning {
        let path = &self.path;
        let known = self
            .known
            .get_or_insert_with(|| Known::read(path, users, name_cache, next));
        // Those too that were looked up for a plan that was never put in force.
        for (name, uid) in &known.names.known {
            if let Some(uid) = uid {
                name_cache.keep(name, *uid, next);
            }
        }
        let own = known.names.own.union(own).copied().collect();
        let most = SubordinateTable::MOST;
        let found = Subordinates::new(&known.given, &own, most);
        let said = known.names.remarks().chain(known.names.remarks_on(&found));
        let said = said.chain(known.users_given_away(&own));
        let said = said.map(|text| format!("{}: {text}", path.display()));
        Meaning {
            remarks: known.remarks.iter().cloned().chain(said).collect(),
            subordinates: found,
            unreachable: known.names.unreachable.clone(),
        }
    }
}

impl Known {
    fn read(path: &Path, users: &mut Users, name_cache: &NameCache, next: &mut NameCache) -> Self {
        let written = subuids(path);
        let mut names = match written.lines.is_empty() {
            true => Names::default(),
            false => Names::listed(&written.lines, users),
        };
        let given = written.lines.iter().filter_map(|line| {
            let subuid_owner = names.subuid_owner(&line.subuid_owner, users, name_cache, next)?;
            Subordinate::new(line.first, line.count, subuid_owner)
        });
        let given = given.collect();
        names.listed = BTreeMap::new();
        Self {
            given,
            names,
            remarks: written.remarks,
        }
    }
}

impl Known {
    /// Whoever was given the uid of a user can become that user.
    fn users_given_away(&self, own: &BTreeSet<Uid>) -> Option<String> {
        let all = Subordinates::new(&self.given, &BTreeSet::new(), usize::MAX);
        let given_away: Vec<&Uid> = own
            .iter()
            .filter(|uid| all.payer_of(**uid).is_some())
            .collect();
        let uids = abridged(given_away, MOST_SAID)?;
        Some(format!(
            "uids of users given to others as well, who can become these users: {uids}; give out other ranges"
        ))
    }
}

/// The names in the file, and what came of looking them up.
#[derive(Debug, Default)]
struct Names {
    /// As the sources of names list them: one pass over a file of users costs less than one for each.
    listed: BTreeMap<String, User>,
    known: BTreeMap<String, Option<Uid>>,
    shown: BTreeMap<Uid, String>,
    /// Whose uid is no subordinate one.
    own: BTreeSet<Uid>,
    unknown: Vec<String>,
    unreachable: Vec<String>,
}

impl Names {
    fn listed(lines: &[SubuidLine], users: &mut Users) -> Self {
        let anybody = Uid::new(1);
        let given: Vec<Subordinate> = lines
            .iter()
            .filter_map(|line| Subordinate::new(line.first, line.count, anybody))
            .collect();
        let given = Subordinates::new(&given, &BTreeSet::new(), usize::MAX);
        let wanted: BTreeSet<&str> = lines
            .iter()
            .filter_map(|line| match &line.subuid_owner {
                SubuidOwner::User(name) => Some(name.as_str()),
                SubuidOwner::Uid(_) => None,
            })
            .collect();
        let mut names = Self::default();
        let listed = users.each(|user| {
            if given.payer_of(user.uid).is_some() {
                names.own.insert(user.uid);
            }
            if wanted.contains(user.name.as_str()) {
                // The first is whom the sources of names would name.
                let known = names.listed.entry(user.name.clone());
                known.or_insert_with(|| user.clone());
            }
        });
        if let Lookup::Unavailable(errno) = listed {
            tracing::debug!(%errno, "users are not listed");
        }
        names
    }

    /// Whose a line is; `None` where nobody knows.
    fn subuid_owner(
        &mut self,
        subuid_owner: &SubuidOwner,
        users: &mut Users,
        name_cache: &NameCache,
        next: &mut NameCache,
    ) -> Option<Uid> {
        let name = match subuid_owner {
            SubuidOwner::Uid(uid) => return Some(*uid),
            SubuidOwner::User(name) => name,
        };
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        let found = match self.listed.get(name) {
            Some(user) => Lookup::Found(user.clone()),
            None => users.by_name(name),
        };
        let shown = printable(name.as_bytes(), NAME_SHOWN);
        let owner_of = |uid| Some(users.by_uid(uid));
        let answer = match name_cache.user(name, found, next, owner_of).answer {
            Ok(uid) => {
                self.shown.insert(uid, shown);
                Some(uid)
            }
            Err(NameError::Unknown) => {
                self.unknown.push(shown);
                None
            }
            Err(NameError::Unreachable(_)) => {
                self.unreachable.push(name.clone());
                None
            }
        };
        self.known.insert(name.clone(), answer);
        answer
    }

    fn remarks(&self) -> impl Iterator<Item = String> + use<> {
        let unknown = abridged(&self.unknown, MOST_SAID)
            .map(|names| format!("names that no user has: {names}"));
        let shown: Vec<String> = self
            .unreachable
            .iter()
            .map(|name| printable(name.as_bytes(), NAME_SHOWN))
            .collect();
        let unreachable = abridged(&shown, MOST_SAID).map(|names| {
            format!(
                "users that cannot be looked up: {names}; until they can, files of their subordinate uids \
                 count for nobody"
            )
        });
        unknown.into_iter().chain(unreachable)
    }

    fn remarks_on(&self, found: &Subordinates) -> impl Iterator<Item = String> + use<> {
        let name = |uid: Uid| self.shown.get(&uid).cloned().unwrap_or(uid.to_string());
        let disputed: Vec<String> = found
            .disputed()
            .iter()
            .map(|it| {
                let (one, other) = (name(it.subuid_owners.0), name(it.subuid_owners.1));
                format!("{} to {} ({one} and {other})", it.first, it.last)
            })
            .collect();
        let disputed = abridged(&disputed, MOST_SAID).map(|ranges| {
            format!(
                "uids given to several users: {ranges}; processes that have them outside of user namespaces count \
                 as one user, and files they own in memory for nobody else"
            )
        });
        let left_out = found.left_out();
        let room = SubordinateTable::MOST;
        let left_out = (left_out > 0).then(|| {
            format!(
                "{left_out} ranges of uids are beyond the {room} that there is room for; each of these uids counts as a \
                 user of its own where `default` covers it"
            )
        });
        disputed.into_iter().chain(left_out)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(text: &str, own: &[u32]) -> Meaning {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("subuid");
        fs::write(&path, text).unwrap();
        let own = own.iter().copied().map(Uid::new).collect();
        let (name_cache, mut next) = (NameCache::default(), NameCache::default());
        SubuidFile::at(path).read(&mut Users::new(10), &name_cache, &mut next, &own)
    }

    fn subuid_owner(meaning: &Meaning, uid: u32) -> Option<u32> {
        let found = meaning.subordinates.subuid_owner_of(Uid::new(uid));
        found.map(Uid::get)
    }

    #[test]
    fn users_in_a_range_are_nobodys_subordinates() {
        // uid 1 is daemon everywhere
        let meaning = read("60511:0:100\nroot:60500:10\n", &[7]);
        assert_eq!(subuid_owner(&meaning, 0), None);
        assert_eq!(subuid_owner(&meaning, 1), None);
        assert_eq!(subuid_owner(&meaning, 7), None);
        assert_eq!(subuid_owner(&meaning, 99), Some(60_511));
        assert_eq!(subuid_owner(&meaning, 60_505), None, "root's");
        let said =
            "uids of users given to others as well, who can become these users: 1, 2, 3 and ";
        assert!(
            matches!(meaning.remarks.as_slice(), [one] if one.contains(said)),
            "{meaning:?}"
        );
    }

    #[test]
    fn what_comes_of_nothing_is_said() {
        let meaning = read("nobody-has-it:1:2\n60511:60600:20\nx\n60512:60610:5\n", &[]);
        let texts: Vec<_> = meaning
            .remarks
            .iter()
            .filter_map(|it| it.split_once("/subuid: "))
            .map(|(_, text)| text)
            .collect();
        assert_eq!(
            texts,
            [
                "left out, for they are not USER:FIRST:COUNT: lines 3",
                "names that no user has: nobody-has-it",
                "uids given to several users: 60610 to 60614 (60511 and 60512); processes that have them outside of \
                 user namespaces count as one user, and files they own in memory for nobody else",
            ]
        );
        assert_eq!(subuid_owner(&meaning, 60_609), Some(60_511));
        assert_eq!(subuid_owner(&meaning, 60_612), None);
    }

    #[test]
    fn it_is_read_again_when_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("subuid");
        let mut file = SubuidFile::at(path.clone());
        let name_cache = NameCache::default();
        let read = |file: &mut SubuidFile, own: &[u32]| {
            let own = own.iter().copied().map(Uid::new).collect();
            let mut next = NameCache::default();
            let meaning = file.read(&mut Users::new(10), &name_cache, &mut next, &own);
            subuid_owner(&meaning, 60_605)
        };
        assert_eq!(read(&mut file, &[]), None);
        fs::write(&path, "60511:60600:20\n").unwrap();
        assert!(file.take_news());
        assert_eq!(read(&mut file, &[]), None);
        file.forget();
        assert_eq!(read(&mut file, &[]), Some(60_511));
        // Who has an account is the limits' to say.
        assert_eq!(read(&mut file, &[60_605]), None);
        assert_eq!(read(&mut file, &[]), Some(60_511));
    }
}
