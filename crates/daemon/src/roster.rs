// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limits as written, the names in them as looked up, and the accounts that follow.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bursar_config::{ConfigError, Limits};
use bursar_host::{Lookup, Users};
use bursar_model::{AccountId, AccountKind, Bytes, Gid, KillManner, Uid, Who};
use bursar_policy::{Directory, Entry, Plan, plan};

use crate::last_known::{LastKnown, Settled};

/// Names looked up at once are bounded by the limits file; names of uids in events by this.
const REMEMBERED_NAMES: usize = 4096;

/// A directory that does not answer is waited for so long while the limits are worked out, and by one
/// time-out of its own more.
const PATIENCE: Duration = Duration::from_secs(5);

/// The limits and what they mean here.
#[derive(Debug)]
pub(crate) struct Roster {
    limits: Limits,
    plan: Plan,
    users: Users,
    ram: Bytes,
    last_known: LastKnown,
    last_known_path: PathBuf,
}

impl Roster {
    /// Reads the limits at `path`. No file is no limits, and an error where `are_in_force`: others hold
    /// already, and whoever takes a file away has not said that they shall not. What names stood for is
    /// kept in `state`.
    pub(crate) fn load(
        path: &Path,
        state: &Path,
        ram: Bytes,
        are_in_force: bool,
    ) -> Result<Self, ConfigError> {
        let limits = limits_at(path, are_in_force)?;
        let last_known_path = state.join("names.toml");
        let last_known = LastKnown::load(&last_known_path);
        let users = Users::new(REMEMBERED_NAMES).with_patience(PATIENCE);
        let mut roster = Self {
            limits: Limits::new(path),
            plan: Plan::default(),
            users,
            ram,
            last_known,
            last_known_path,
        };
        let plan = roster.plan_with(&limits);
        roster.adopt(limits, plan);
        Ok(roster)
    }

    /// The limits as they are written now, and what they mean; those before stay until they are adopted.
    pub(crate) fn read_again(&mut self) -> Result<(Limits, Plan), ConfigError> {
        let path = self.limits.path();
        let limits = limits_at(path, !self.limits.is_empty())?;
        let plan = self.plan_with(&limits);
        Ok((limits, plan))
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn ram(&self) -> Bytes {
        self.ram
    }

    /// The accounts as they would be with other limits. Names are asked for anew each time: a user may
    /// have come, or another have his name. This is the one place where the loop waits for a directory,
    /// and [`PATIENCE`] bounds that.
    pub(crate) fn plan_with(&mut self, limits: &Limits) -> Plan {
        self.users.forget();
        let entries: Vec<Entry> = limits
            .iter()
            .map(|limit| Entry {
                who: limit.who.clone(),
                memory: limit.memory,
                granted: limit.granted.clone(),
                rows: limit.rows.clone(),
            })
            .collect();
        let (directory, remarks) = self.look_up(&entries);
        let mut plan = plan(&entries, &directory, self.ram);
        plan.remarks.extend(remarks);
        plan
    }

    /// These are the limits from now on.
    pub(crate) fn adopt(&mut self, limits: Limits, plan: Plan) {
        self.limits = limits;
        self.plan = plan;
        if let Err(error) = self.last_known.store(&self.last_known_path) {
            tracing::warn!(path = %self.last_known_path.display(), %error, "names looked up could not be kept for when the directory is down");
        }
    }

    /// Later limits were written down and cannot be put in force: the file says again what it said.
    pub(crate) fn write_over(&mut self, later: &Limits) -> Result<(), ConfigError> {
        self.limits.store_over(later)
    }

    /// What names stand for, and what is to be known about each.
    fn look_up(&mut self, entries: &[Entry]) -> (Directory, Vec<(Who, String)>) {
        let mut directory = Directory::default();
        let mut all = Vec::new();
        for entry in entries {
            let granted = entry.granted.iter().flatten();
            for who in std::iter::once(&entry.who).chain(granted) {
                let remarks = self.look_up_one(who, &mut directory);
                all.extend(remarks.into_iter().map(|text| (entry.who.clone(), text)));
            }
        }
        (directory, all)
    }

    fn look_up_one(&mut self, who: &Who, directory: &mut Directory) -> Vec<String> {
        match who {
            Who::User(name) => {
                let Settled { answer, remarks } = self.look_up_user(name);
                directory.users.insert(name.clone(), answer);
                remarks
            }
            Who::Group(name) | Who::Shared(name) => {
                let Settled { answer, remarks } = self.look_up_group(name);
                directory.groups.insert(name.clone(), answer);
                remarks
            }
            Who::Uid(_) | Who::Default => Vec::new(),
        }
    }

    fn look_up_user(&mut self, name: &str) -> Settled<Uid> {
        let found = self.users.by_name(name);
        self.last_known.user(name, found)
    }

    fn look_up_group(&mut self, name: &str) -> Settled<(Gid, Vec<Uid>)> {
        let found = self.users.members(name);
        self.last_known.group(name, found)
    }

    /// What an account is called and where its limit comes from.
    pub(crate) fn name_of(&mut self, id: AccountId) -> (String, AccountKind) {
        match self.plan.accounts.get(&id) {
            Some(planned) if planned.kind == AccountKind::Shared => {
                (planned.who.to_string(), planned.kind)
            }
            planned => {
                let kind = planned.map_or(AccountKind::Default, |it| it.kind);
                let name = match id.uid() {
                    Some(uid) => self.user_name(uid),
                    None => format!("={}", id.get() & !AccountId::FIRST_SHARED),
                };
                (name, kind)
            }
        }
    }

    /// The users who may enter a shared account, besides root. `None`: there is no such account.
    pub(crate) fn granted(&self, who: &Who) -> Option<BTreeSet<Uid>> {
        self.limits.get(who)?;
        Some(self.plan.granted.get(who).cloned().unwrap_or_default())
    }

    /// Whether the largest process of an account is to be asked before it is killed.
    pub(crate) fn manner_of(&self, id: AccountId) -> KillManner {
        let who = self
            .plan
            .accounts
            .get(&id)
            .map_or(&Who::Default, |it| &it.who);
        self.limits
            .get(who)
            .map(|limit| limit.kill)
            .unwrap_or_default()
    }

    /// A user's number.
    pub(crate) fn uid_of(&mut self, name: &str) -> Option<Uid> {
        self.look_up_user(name).answer.ok()
    }

    /// A user's name, or his number when he has none or nobody answers.
    pub(crate) fn user_name(&mut self, uid: Uid) -> String {
        match self.users.by_uid(uid) {
            Lookup::Found(user) => user.name,
            Lookup::Absent | Lookup::Unavailable(_) => uid.to_string(),
        }
    }
}

/// No file is no limits where none are in force: so a fresh installation begins.
fn limits_at(path: &Path, are_in_force: bool) -> Result<Limits, ConfigError> {
    match Limits::load(path)? {
        Some(limits) => Ok(limits),
        None if are_in_force => Err(ConfigError::Missing {
            path: path.to_owned(),
        }),
        None => {
            tracing::warn!(path = %path.display(), "there is no file of limits: nobody has a limit");
            Ok(Limits::new(path))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const RAM: Bytes = Bytes::from_mib(1000);

    /// A roster of the limits in `text`, or of no file.
    fn roster(folder: &Path, text: Option<&str>) -> Roster {
        let path = folder.join("limits.toml");
        if let Some(text) = text {
            fs::write(&path, text).unwrap();
        }
        Roster::load(&path, folder, RAM, false).unwrap()
    }

    #[test]
    fn a_file_that_has_gone_takes_no_limit_away() {
        let folder = tempfile::tempdir().unwrap();
        let mut roster = roster(
            folder.path(),
            Some("[limits]\n60001 = { memory = \"64M\" }\n"),
        );
        let path = roster.limits().path().to_owned();
        fs::remove_file(&path).unwrap();
        let error = roster.read_again().unwrap_err();
        assert!(matches!(error, ConfigError::Missing { .. }), "{error}");
        assert!(error.to_string().contains("leave an empty file"), "{error}");
        assert_eq!(roster.limits().len(), 1);
        // A link to nowhere is no better; an empty file is somebody's word.
        std::os::unix::fs::symlink("nowhere", &path).unwrap();
        assert!(roster.read_again().is_err());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(roster.read_again().unwrap().0.is_empty());
    }

    #[test]
    fn without_limits_in_force_no_file_is_no_limits() {
        let folder = tempfile::tempdir().unwrap();
        let mut roster = roster(folder.path(), None);
        assert!(roster.read_again().unwrap().0.is_empty());
        let path = folder.path().join("limits.toml");
        let error = Roster::load(&path, folder.path(), RAM, true).unwrap_err();
        assert!(matches!(error, ConfigError::Missing { .. }), "{error}");
    }

    #[test]
    fn the_last_limit_cleared_leaves_an_empty_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut roster = roster(
            folder.path(),
            Some("[limits]\n60001 = { memory = \"64M\" }\n"),
        );
        let mut limits = roster.limits().clone();
        assert!(limits.clear(&"60001".parse().unwrap()).unwrap());
        let path = limits.path().to_owned();
        limits.store(&path).unwrap();
        assert!(path.exists());
        assert!(roster.read_again().unwrap().0.is_empty());
    }
}
