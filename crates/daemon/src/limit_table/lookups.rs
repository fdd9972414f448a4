// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What names in limits stand for: asked for when limits are worked out, remembered from when they were last put in
//! force. Not the names that are shown (`names.rs`).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use bursar_host::Users;
use bursar_model::{Gid, Uid, Who};
use bursar_policy::{Directory, Entry, Plan};
use jiff::Timestamp;

use crate::kept_file::KeptFile;
use crate::name_cache::{NameCache, Settled};
use crate::names::{LastAnswer, Watched};
use crate::subordinates::SubuidFile;

/// Names looked up for one set of limits and remembered meanwhile.
const REMEMBERED_NAMES: usize = 4096;

/// A directory that does not answer is waited for so long while the limits are worked out, and by one
/// time-out of its own more.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What comes of it when what names stood for cannot be written down.
const NOT_KEPT: &str = "names may be unknown while the directory is down";

/// Who says what names stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answers {
    /// The directory, now.
    Fresh,
    /// It did when limits were last put in force. Names that were not asked for then are asked for now.
    Last,
}

/// Who is asked, and what was answered.
#[derive(Debug)]
pub(super) struct Lookups {
    users: Users,
    /// Names in the limits last worked out, and what they stood for.
    watched: Vec<Watched>,
    /// Users whose names are numbers in the limits, as far as asked since files of users last changed.
    namesakes: BTreeMap<Uid, Option<Uid>>,
    cache: NameCache,
    cache_file: KeptFile,
    /// What the plan last worked out has found. It replaces `cache` when that plan is adopted, so a change that is
    /// only tried changes nothing.
    looked_up: NameCache,
    subuid: SubuidFile,
}

impl Lookups {
    /// With what names stood for, as kept in the file at `path`.
    pub(super) fn load(path: PathBuf, subuid: SubuidFile) -> Self {
        let cache = NameCache::load(&path);
        Self {
            users: Users::new(REMEMBERED_NAMES).with_timeout(TIMEOUT),
            watched: Vec::new(),
            namesakes: BTreeMap::new(),
            cache,
            cache_file: KeptFile::start("name-cache", path, NOT_KEPT),
            looked_up: NameCache::default(),
            subuid,
        }
    }

    /// What names stood for when limits were last put in force.
    pub(super) const fn cache(&self) -> &NameCache {
        &self.cache
    }

    /// Whose subordinate uids are.
    pub(super) const fn subuid(&self) -> &SubuidFile {
        &self.subuid
    }

    /// Another set of limits is worked out: nothing that was answered before counts.
    pub(super) fn begin(&mut self) {
        self.users.forget();
        self.watched.clear();
        self.looked_up = NameCache::default();
    }

    /// What names stand for, and what is to be known about each.
    pub(super) fn look_up(
        &mut self,
        entries: &[Entry],
        answers: Answers,
    ) -> (Directory, Vec<(Who, String)>) {
        let mut directory = Directory::default();
        let mut all = Vec::new();
        for entry in entries {
            let granted = entry.granted.iter().flatten();
            for who in std::iter::once(&entry.who).chain(granted) {
                if answers == Answers::Last && self.recall(who, &mut directory) {
                    continue;
                }
                let remarks = self.look_up_one(who, &mut directory);
                all.extend(remarks.into_iter().map(|text| (entry.who.clone(), text)));
            }
        }
        (directory, all)
    }

    /// What this stood for, if that is known.
    fn recall(&mut self, who: &Who, directory: &mut Directory) -> bool {
        let (known, next) = (&self.cache, &mut self.looked_up);
        match who {
            Who::User(name) => {
                let uid = known.last_user(name, next);
                uid.map(|it| directory.users.insert(name.clone(), Ok(it)))
                    .is_some()
            }
            Who::Group(name) | Who::Shared(name) => {
                let group = known.last_group(name, next);
                group
                    .map(|it| directory.groups.insert(name.clone(), Ok(it)))
                    .is_some()
            }
            // Whose name this is too is only remarked on.
            Who::Uid(_) | Who::Default => true,
        }
    }

    fn look_up_one(&mut self, who: &Who, directory: &mut Directory) -> Vec<String> {
        let (users, next) = (&mut self.users, &mut self.looked_up);
        let (remarks, answer, nobodys) = match who {
            Who::User(name) => {
                let found = users.by_name(name);
                let last = LastAnswer::of_user(&found);
                let settled: Settled<Uid> = self
                    .cache
                    .user(name, found, next, |uid| Some(users.by_uid(uid)));
                directory.users.insert(name.clone(), settled.answer);
                (settled.remarks, last, settled.nobodys)
            }
            Who::Group(name) | Who::Shared(name) => {
                let found = users.members(name);
                let last = LastAnswer::of_group(&found);
                let users = RefCell::new(users);
                let group_of = |gid| users.borrow_mut().group_by_gid(gid);
                let owner_of = |uid| users.borrow_mut().by_uid_in_spare_time(uid);
                let settled: Settled<(Gid, Vec<Uid>)> =
                    self.cache.group(name, found, next, group_of, owner_of);
                directory.groups.insert(name.clone(), settled.answer);
                (settled.remarks, last, settled.nobodys)
            }
            // Nobody waits for that answer.
            Who::Uid(uid) => return self.namesake(*uid).into_iter().collect(),
            Who::Default => return Vec::new(),
        };
        self.watched.push(Watched {
            who: who.clone(),
            answer,
            nobodys,
        });
        remarks
    }

    /// What is to be known of a user whose name is this number.
    fn namesake(&mut self, uid: Uid) -> Option<String> {
        let users = &mut self.users;
        let asked = self.namesakes.entry(uid);
        let found = *asked.or_insert_with(|| Some(users.by_name(&uid.to_string()).found()?.uid));
        let other = found?;
        (other != uid).then(|| {
            format!(
                "is taken for the uid {uid}; the user whose name is {uid} has the uid {other}: write {other} for him"
            )
        })
    }

    /// Who has a limit of his own, or was ever known by name, pays for himself, whoever was given his uid.
    pub(super) fn read_subordinates(&mut self, plan: &mut Plan, named: impl Iterator<Item = Uid>) {
        let planned = plan.accounts.values();
        let with_limit = planned.flat_map(|it| it.payers.iter().copied());
        let own = with_limit.collect::<BTreeSet<_>>();
        let own = own.into_iter().chain(named).collect();
        let (users, next) = (&mut self.users, &mut self.looked_up);
        let meaning = self.subuid.read(users, &self.cache, next, &own);
        plan.subordinates = meaning.subordinates;
        plan.notes.extend(meaning.remarks);
        let unreachable = meaning.unreachable.into_iter().map(|name| Watched {
            who: Who::User(name),
            answer: LastAnswer::Nothing,
            nobodys: BTreeSet::new(),
        });
        self.watched.extend(unreachable);
    }

    /// The file of subordinate uids is read again.
    pub(super) fn forget_subuid(&mut self) {
        self.subuid.forget();
    }

    /// Files of users have changed.
    pub(super) fn forget_namesakes(&mut self) {
        self.namesakes.clear();
    }

    /// No name in the limits stands for these any more, from the next look-up on.
    pub(super) fn forget_absent(&mut self, uids: &BTreeSet<Uid>) {
        self.cache.forget(uids);
    }

    /// Names in the limits last worked out, to be asked for again.
    pub(super) fn take_watched(&mut self) -> Vec<Watched> {
        std::mem::take(&mut self.watched)
    }

    /// What the plan last worked out has found holds, and is kept.
    pub(super) fn adopt(&mut self, as_of: Timestamp) {
        let looked_up = std::mem::take(&mut self.looked_up);
        self.cache.replace(looked_up, as_of);
        if let Err(error) = self.cache.store(&self.cache_file) {
            tracing::warn!(%error, "names looked up could not be kept: {NOT_KEPT}");
        }
    }
}
