// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limits as written and the accounts that follow. What the names in them stand for is looked up in
//! `limit_table/lookups.rs`.

mod lookups;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bursar_config::{Before, ConfigError, LAST_GOOD, Limit, Limits};
use bursar_host::Lookup;
use bursar_model::{AccountId, AccountKind, Bytes, KillManner, Mode, Uid, Who};
use bursar_policy::{Entry, NameError, Plan, plan};

use self::lookups::{Answers, Lookups};
use crate::account_files::AccountFiles;
use crate::names::{Name, Names};
use crate::payers::Coverage;
use crate::subordinates::SubuidFile;

/// What entries are understood by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Basis {
    /// What percentages are of.
    pub(crate) ram: Bytes,
    /// Whether entries are enforced that do not say so.
    pub(crate) mode: Mode,
    /// A dry run observes all of them, whatever they say.
    pub(crate) is_dry_run: bool,
}

/// The limits and what they mean here.
#[derive(Debug)]
pub(crate) struct LimitTable {
    limits: Limits,
    plan: Plan,
    lookups: Lookups,
    names: Names,
    basis: Basis,
    coverage: Coverage,
    files: AccountFiles,
    /// The limits in force, for a start with a file that is wrong or would kill at once.
    copy: PathBuf,
    /// What is kept there.
    kept: Option<String>,
    /// The files say something else than the limits, which were in force before this start.
    is_outdated: bool,
    /// What was in force before this start, until somebody asks.
    before: Option<Limits>,
    /// The clock and the directory have not been asked since this start.
    is_as_before: bool,
}

impl LimitTable {
    /// Reads the limits at `path` and its drop-ins. Where they are wrong or gone those hold that were last in force, and
    /// the reason is returned. Where those are in force still they hold in any case ([`Self::is_outdated`]). No file is no limits, and an error where `are_in_force`: others hold already, and whoever takes a file
    /// away has not said that they shall not. What names stood for is kept in `state`.
    ///
    /// Where they are in force what the files say holds as of the moment, and with the names, that limits were last put
    /// in force with: what has changed by itself since ([`Self::is_as_before`]) may not hold without a warning.
    pub(crate) fn load(
        path: &Path,
        state: &Path,
        basis: Basis,
        coverage: Coverage,
        are_in_force: bool,
        mut names: Names,
        subuid: SubuidFile,
    ) -> Result<(Self, Option<ConfigError>), ConfigError> {
        names.keep_owners(&state.join("owners.toml"));
        let copy = state.join(LAST_GOOD);
        let in_force = Limits::kept(&copy, path);
        let kept = in_force.clone().filter(|it| !it.is_empty());
        let before = Before {
            unknown: are_in_force && kept.is_none(),
            ..kept.as_ref().map(Limits::before).unwrap_or_default()
        };
        let in_force_still = in_force.as_ref().filter(|_| are_in_force);
        let mut is_outdated = false;
        let (limits, unread) = match (limits_at(path, before), kept) {
            (Ok(written), _) => {
                let other = in_force_still.filter(|it| it.bundle() != written.bundle());
                is_outdated = other.is_some();
                (other.cloned().unwrap_or(written), None)
            }
            (Err(error), Some(limits)) => (limits, Some(error)),
            (Err(error), None) => return Err(error),
        };
        let lookups = Lookups::load(state.join("names.toml"), subuid);
        let as_of = lookups.cache().as_of();
        let as_before =
            |limits: Limits| as_of.map_or_else(|| limits.clone(), |at| limits.as_of(at));
        let mut limit_table = Self {
            limits: Limits::new(path),
            plan: Plan::default(),
            lookups,
            names,
            basis,
            coverage,
            files: AccountFiles::watch(),
            copy,
            kept: None,
            is_outdated: false,
            before: in_force.map(as_before),
            is_as_before: false,
        };
        let is_as_before = are_in_force && as_of.is_some();
        let (limits, answers) = match is_as_before {
            true => (as_before(limits), Answers::Last),
            false => (limits, Answers::Fresh),
        };
        let plan = limit_table.plan_by(&limits, answers);
        limit_table.adopt(limits, plan);
        limit_table.is_as_before = is_as_before;
        limit_table.is_outdated = is_outdated;
        Ok((limit_table, unread))
    }

    /// Keeps the limits in force for a start with a file that is wrong.
    pub(crate) fn keep(&mut self) {
        let text = self.limits.bundle();
        if self.kept.as_ref() == Some(&text) {
            return;
        }
        match self.limits.keep(&self.copy) {
            Ok(()) => self.kept = Some(text),
            Err(error) => {
                self.kept = None;
                tracing::warn!(
                    "the limits in force could not be kept: a start goes by the files, whatever they say then: {error}"
                );
            }
        }
    }

    /// Whether the files say something else than what was in force before this start and is still.
    pub(crate) const fn is_outdated(&self) -> bool {
        self.is_outdated
    }

    /// What the files say is in force.
    pub(crate) const fn note_read(&mut self) {
        self.is_outdated = false;
    }

    /// The limits as they are written now, and what they mean; those before stay until they are adopted.
    pub(crate) fn read_again(&mut self) -> Result<(Limits, Plan), ConfigError> {
        let limits = limits_at(self.limits.path(), self.limits.before())?;
        self.lookups.forget_subuid();
        let plan = self.plan_with(&limits);
        self.names.refresh();
        Ok((limits, plan))
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether limits that end have not ended, and names stand for the same, since the last bursard: what has changed
    /// since is to be looked up, and holds as any change that nobody set.
    pub(crate) const fn is_as_before(&self) -> bool {
        self.is_as_before
    }

    /// What is to be known of the limits, by a plan that is not in force.
    pub(crate) fn remark_as(&mut self, plan: &Plan) {
        self.plan.remarks.clone_from(&plan.remarks);
        self.plan.notes.clone_from(&plan.notes);
    }

    /// What was in force before this start, as far as it was kept.
    pub(crate) fn take_before(&mut self) -> Option<Limits> {
        self.before.take()
    }

    pub(crate) fn ram(&self) -> Bytes {
        self.basis.ram
    }

    /// The accounts as they would be with other limits. Names are asked for anew each time: a user may
    /// have come, or another have his name; those in the file of subordinate uids only when that is read. This
    /// is the one place where the loop waits for a directory, and [`Lookups`] bounds that.
    pub(crate) fn plan_with(&mut self, limits: &Limits) -> Plan {
        self.plan_by(limits, Answers::Fresh)
    }

    fn plan_by(&mut self, limits: &Limits, answers: Answers) -> Plan {
        self.lookups.begin();
        let entries: Vec<Entry> = limits
            .iter()
            .map(|limit| Entry {
                who: limit.who.clone(),
                memory: limit.memory,
                granted: limit.granted.clone(),
                rows: limit.rows.clone(),
                mode: self.mode_of(limit),
            })
            .collect();
        let (directory, remarks) = self.lookups.look_up(&entries, answers);
        let mut plan = plan(&entries, &directory, self.basis.ram, &self.coverage);
        plan.remarks.extend(remarks);
        self.lookups
            .read_subordinates(&mut plan, self.names.users());
        plan
    }

    /// The accounts as they are with names looked up anew, in the file of subordinate uids too.
    pub(crate) fn plan_anew(&mut self, limits: &Limits) -> Plan {
        self.lookups.forget_subuid();
        self.plan_with(limits)
    }

    /// Numbers of limits that nobody has had for long.
    pub(crate) fn long_absent(&self) -> BTreeSet<Uid> {
        self.lookups.cache().long_absent(SystemTime::now())
    }

    /// No name in the limits stands for these any more, from the next look-up on.
    pub(crate) fn forget_absent(&mut self, uids: &BTreeSet<Uid>) {
        self.lookups.forget_absent(uids);
    }

    /// Whose subordinate uids are.
    pub(crate) const fn subuid(&self) -> &SubuidFile {
        self.lookups.subuid()
    }

    /// These are the limits from now on.
    pub(crate) fn adopt(&mut self, limits: Limits, plan: Plan) {
        self.limits = limits;
        self.plan = plan;
        // Those too that are written with a name: whose it was is to be known when another one has it.
        let users = self.plan.accounts.keys().filter_map(|id| id.uid());
        users.for_each(|uid| self.names.expect(uid));
        self.watch_names();
        self.lookups.adopt(self.limits.now());
        self.is_as_before = false;
    }

    /// Has names asked for again, until one has another answer.
    pub(crate) fn watch_names(&mut self) {
        self.names.watch(self.lookups.take_watched());
    }

    /// Who is a user, and who is in which group, may have changed.
    pub(crate) fn review_names(&mut self) {
        self.lookups.forget_namesakes();
        self.names.review();
    }

    /// Where that is written on this machine.
    pub(crate) const fn files(&self) -> &AccountFiles {
        &self.files
    }

    /// What the account is called will be wanted soon.
    pub(crate) fn expect_name(&mut self, id: AccountId) {
        let is_named = || {
            let planned = self.plan.accounts.get(&id);
            planned.is_some_and(|it| matches!(it.who, Who::User(_)))
        };
        if let Some(uid) = id.uid().filter(|_| !is_named()) {
            self.names.expect(uid);
        }
    }

    /// Users with a uid that is taken for a subordinate one: their names were not known when that was last read.
    pub(crate) fn users_among_subordinates(&mut self) -> BTreeSet<Uid> {
        let subordinates = &self.plan.subordinates;
        let are_taken = |uid: &Uid| subordinates.payer_of(*uid).is_some();
        self.names.users().filter(are_taken).collect()
    }

    /// Whether such a uid is a user's has to be asked yet.
    pub(crate) fn is_in_doubt(&self, uid: Uid) -> bool {
        let is_subordinate = self.plan.subordinates.payer_of(uid).is_some();
        is_subordinate && !self.names.is_user(uid) && !self.names.is_expected(uid)
    }

    /// Asks whether a uid is a user's; waits for the answer as long as a moment's names are waited for.
    pub(crate) fn ask_for_user(&mut self, uid: Uid) {
        self.names.of_user(uid);
    }

    /// The same, and waits for nothing.
    pub(crate) fn expect_user(&mut self, uid: Uid) {
        self.names.expect(uid);
    }

    /// From when on what happened to this user's number happened to him; `None`: always.
    pub(crate) fn owner_since(&mut self, uid: Uid) -> Option<String> {
        self.names.owner_since(uid).map(str::to_owned)
    }

    /// Whether a user with another number is, or was, called so.
    pub(crate) fn is_anothers(&self, name: &str, uid: Uid) -> bool {
        self.names.is_anothers(name, uid)
    }

    /// Readable when one has another answer.
    pub(crate) const fn names(&self) -> &Names {
        &self.names
    }

    /// Later limits were written down and cannot be put in force: the file says again what it said.
    pub(crate) fn write_over(&mut self, later: &Limits) -> Result<(), ConfigError> {
        self.limits.store_over(later)
    }

    /// What an account is called and where its limit comes from: by the name that its limit is written
    /// with, whatever the directory says today.
    pub(crate) fn name_of(&mut self, id: AccountId) -> (String, AccountKind) {
        let planned = self.plan.accounts.get(&id);
        let kind = planned.map_or(AccountKind::Default, |it| it.kind);
        let name = match planned.map(|it| &it.who) {
            Some(who @ Who::Shared(_)) => who.to_string(),
            Some(Who::User(name)) => name.clone(),
            _ => match id.uid() {
                Some(uid) => self.user_name(uid),
                None => format!("={}", id.number()),
            },
        };
        (name, kind)
    }

    /// The users who may enter a shared account, besides root. `None`: there is no such account.
    pub(crate) fn granted(&self, who: &Who) -> Option<BTreeSet<Uid>> {
        self.limits.get(who)?;
        Some(self.plan.granted.get(who).cloned().unwrap_or_default())
    }

    /// Whether an entry is enforced.
    pub(crate) fn mode_of(&self, limit: &Limit) -> Mode {
        match self.basis.is_dry_run {
            true => Mode::Observe,
            false => limit.mode.unwrap_or(self.basis.mode),
        }
    }

    /// Whether the largest process of an account is to be asked before it is killed.
    pub(crate) fn manner_of(&self, id: AccountId) -> KillManner {
        let planned = self.plan.accounts.get(&id);
        let own = planned.map_or(&Who::Default, |it| &it.who);
        let memory_of = planned.map_or(&Who::Default, |it| &it.memory_of);
        let said = |who: &Who| self.limits.get(who)?.kill;
        said(own).or_else(|| said(memory_of)).unwrap_or_default()
    }

    /// The number of a user whose limit is written with his name.
    pub(crate) fn uid_in_plan(&self, name: &str) -> Option<Uid> {
        let who = Who::User(name.to_owned());
        self.plan.accounts_of(&who).find_map(AccountId::uid)
    }

    /// A user's number, for root, who waits for it.
    pub(crate) fn uid_of(&mut self, name: &str) -> Result<Uid, NameError> {
        if let Some(uid) = self.uid_in_plan(name) {
            return Ok(uid);
        }
        match self.names.user(name) {
            Lookup::Found(uid) => Ok(uid),
            Lookup::Absent => Err(NameError::Unknown),
            Lookup::Unavailable(errno) => {
                let before = self.lookups.cache().uid_of(name);
                before.ok_or_else(|| NameError::Unreachable(errno.to_string()))
            }
        }
    }

    /// A user's name, or his number when he has none or nobody answers.
    pub(crate) fn user_name(&mut self, uid: Uid) -> String {
        match self.names.of_user(uid) {
            Name::Is(name) => name,
            Name::Nobodys => uid.to_string(),
            Name::NotYet => {
                let before = self.lookups.cache().name_of(uid).map(str::to_owned);
                before.unwrap_or_else(|| uid.to_string())
            }
        }
    }
}

/// No file is no limits where none are in force: so a fresh installation begins.
fn limits_at(path: &Path, before: Before) -> Result<Limits, ConfigError> {
    let limits = Limits::load_after(path, before)?;
    if limits.files().next().is_none() {
        tracing::warn!(path = %path.display(), "there is no file of limits: nobody has a limit");
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use bursar_model::BoundsSpec;

    use super::*;

    const BASIS: Basis = Basis {
        ram: Bytes::from_mib(1000),
        mode: Mode::Enforce,
        is_dry_run: false,
    };

    fn coverage() -> Coverage {
        Coverage {
            uid_min: Uid::new(1000),
            exempt: Vec::new(),
        }
    }

    /// A limit table of the limits in `text`, or of no file.
    fn limit_table(folder: &Path, text: Option<&str>) -> LimitTable {
        let path = folder.join("limits.toml");
        if let Some(text) = text {
            fs::write(&path, text).unwrap();
        }
        let subuid = SubuidFile::at(folder.join("subuid"));
        let names = Names::start().unwrap();
        LimitTable::load(&path, folder, BASIS, coverage(), false, names, subuid)
            .unwrap()
            .0
    }

    #[test]
    fn an_account_goes_by_the_name_its_limit_is_written_with() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("names.toml"), "[users]\ncarol = 60998\n").unwrap();
        let limits = "[limits]\nroot = { memory = \"1G\" }\n60997 = { memory = \"1G\" }\ncarol = { memory = \"1G\" }\n";
        let mut limit_table = limit_table(folder.path(), Some(limits));
        let id = AccountId::of(Uid::new(0));
        // Whoever has the number, and whether or not anybody answers.
        limit_table.plan.accounts.get_mut(&id).unwrap().who = "toor".parse().unwrap();
        assert_eq!(limit_table.name_of(id).0, "toor");
        assert_eq!(limit_table.uid_of("toor"), Ok(Uid::new(0)));
        let nobodys = AccountId::of(Uid::new(60997));
        assert_eq!(limit_table.name_of(nobodys).0, "60997");
        assert_eq!(
            limit_table.lookups.cache().name_of(Uid::new(60998)),
            Some("carol")
        );
        // Nobody has her name at this start: that she is gone is not proved by it, and what is only tried changes nothing.
        let carols = AccountId::of(Uid::new(60998));
        assert!(limit_table.plan.accounts.contains_key(&carols));
        let none = Limits::new(&folder.path().join("limits.toml"));
        let plan = limit_table.plan_with(&none);
        assert!(plan.accounts.is_empty());
        let limits = limit_table.limits().clone();
        assert!(
            limit_table
                .plan_with(&limits)
                .accounts
                .contains_key(&carols)
        );
        // Who clears her limit has it forgotten.
        let plan = limit_table.plan_with(&none);
        limit_table.adopt(none, plan);
        let plan = limit_table.plan_with(&limits);
        assert!(!plan.accounts.contains_key(&carols));
    }

    #[test]
    fn a_file_that_has_gone_takes_no_limit_away() {
        let folder = tempfile::tempdir().unwrap();
        let mut limit_table = limit_table(
            folder.path(),
            Some("[limits]\n60001 = { memory = \"64M\" }\n"),
        );
        let path = limit_table.limits().path().to_owned();
        fs::remove_file(&path).unwrap();
        let error = limit_table.read_again().unwrap_err();
        assert!(matches!(error, ConfigError::Missing { .. }), "{error}");
        assert!(error.to_string().contains("leave an empty file"), "{error}");
        assert_eq!(limit_table.limits().len(), 1);
        // A link to nowhere is no better; an empty file is somebody's word.
        std::os::unix::fs::symlink("nowhere", &path).unwrap();
        assert!(limit_table.read_again().is_err());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(limit_table.read_again().unwrap().0.is_empty());
    }

    #[test]
    fn a_file_that_is_wrong_at_the_start_takes_no_limit_away() {
        let folder = tempfile::tempdir().unwrap();
        let good = "[limits]\n60001 = { memory = \"64M\" } # hers\n";
        limit_table(folder.path(), Some(good)).keep();
        let path = folder.path().join("limits.toml");
        let load = || {
            let (names, subuid) = (
                Names::start().unwrap(),
                SubuidFile::at(path.with_file_name("subuid")),
            );
            LimitTable::load(
                &path,
                folder.path(),
                BASIS,
                coverage(),
                false,
                names,
                subuid,
            )
        };
        for text in [Some("[limits]\n60001 = { memo"), None] {
            match text {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let (mut table, unread) = load().unwrap();
            assert!(
                unread.unwrap().to_string().contains("limits.toml"),
                "{text:?}"
            );
            assert_eq!(table.limits().len(), 1);
            table.keep();
            // Nothing is written over what the administrator has half written.
            let mut limits = table.limits().clone();
            limits
                .set(
                    &"60002".parse().unwrap(),
                    BoundsSpec::of_limit("1G".parse().unwrap()),
                )
                .unwrap();
            assert!(limits.store(&path).is_err() || text.is_none());
        }
        fs::write(&path, "").unwrap();
        let (mut table, unread) = load().unwrap();
        assert!(unread.is_none() && table.limits().is_empty());
        table.keep();
        fs::remove_file(&path).unwrap();
        assert!(
            load().unwrap().1.is_none(),
            "an empty file was an administrator's word"
        );
    }

    #[test]
    fn a_start_goes_on_with_what_was_in_force_until_that_is_looked_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits.toml");
        let limits = "[limits]\nroot = { memory = \"1G\" }\n60001 = { memory = \"64M\" }\n[temporary]\n\
             60001 = { memory = \"256M\", until = \"2020-01-02T00:00:00Z\" }\n";
        fs::write(&path, limits).unwrap();
        let names = "as_of = \"2020-01-01T00:00:00Z\"\n[users]\nroot = 60998\n";
        fs::write(folder.path().join("names.toml"), names).unwrap();
        let load = |are_in_force| {
            LimitTable::load(
                &path,
                folder.path(),
                BASIS,
                coverage(),
                are_in_force,
                Names::start().unwrap(),
                SubuidFile::at(folder.path().join("subuid")),
            )
            .unwrap()
            .0
        };
        let memory = |table: &LimitTable| {
            let limit = table.limits().get(&"60001".parse().unwrap()).unwrap();
            limit.memory.unwrap().limit.to_string()
        };
        let roots = |table: &LimitTable| table.uid_in_plan("root").map(Uid::get);
        let mut table = load(true);
        assert!(table.is_as_before());
        assert_eq!(
            (memory(&table), roots(&table)),
            ("256M".into(), Some(60998))
        );
        let now = table.limits().as_of(jiff::Timestamp::now());
        let plan = table.plan_with(&now);
        table.adopt(now, plan);
        assert!(!table.is_as_before());
        assert_eq!((memory(&table), roots(&table)), ("64M".into(), Some(0)));
        // What the files say by now is read as at a reload.
        table.keep();
        drop(table);
        let raised = limits.replace("64M", "96M");
        fs::write(&path, &raised).unwrap();
        let table = load(true);
        assert!(table.is_outdated());
        assert_eq!(memory(&table), "64M");
        drop(table);
        fs::write(&path, limits).unwrap();
        assert!(!load(true).is_outdated());
        fs::write(folder.path().join("names.toml"), names).unwrap();
        let table = load(false);
        assert!(!table.is_as_before());
        assert_eq!((memory(&table), roots(&table)), ("64M".into(), Some(0)));
    }

    #[test]
    fn without_limits_in_force_no_file_is_no_limits() {
        let folder = tempfile::tempdir().unwrap();
        let mut limit_table = limit_table(folder.path(), None);
        assert!(limit_table.read_again().unwrap().0.is_empty());
        let path = folder.path().join("limits.toml");
        let error = LimitTable::load(
            &path,
            folder.path(),
            BASIS,
            coverage(),
            true,
            Names::start().unwrap(),
            SubuidFile::at(folder.path().join("subuid")),
        )
        .unwrap_err();
        assert!(matches!(error, ConfigError::Missing { .. }), "{error}");
    }

    #[test]
    fn the_last_limit_cleared_leaves_an_empty_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut limit_table = limit_table(
            folder.path(),
            Some("[limits]\n60001 = { memory = \"64M\" }\n"),
        );
        let mut limits = limit_table.limits().clone();
        assert!(limits.clear(&"60001".parse().unwrap()).unwrap());
        let path = limits.path().to_owned();
        limits.store(&path).unwrap();
        assert!(path.exists());
        assert!(limit_table.read_again().unwrap().0.is_empty());
    }
}
