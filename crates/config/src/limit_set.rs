// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All limits as written: `limits.toml` and the drop-ins beside it, `limits.toml.d/*.toml`.
//!
//! Files are read in the order of their names, `limits.toml` first. The last one that has an entry for a
//! WHO wins, and the entries before it count for nothing. Commands change `limits.toml` only.
//!
//! An entry with an end is a layer over the one without: while it lasts, what it says holds. Of several the last
//! one wins, too; who is past counts for nothing. So nothing has to be put back afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use bursar_model::{BoundsSpec, Mode, Reason, Resource, RowBounds, Until, Who};
use jiff::Timestamp;

use crate::drop_ins::{collect, directory_of, read_drop_ins};
use crate::limits::LimitsFile;
use crate::source::Source;
use crate::{ConfigError, Limit, Temporary};

/// Where an entry stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The file.
    pub path: Arc<Path>,
    /// The line in it, from 1.
    pub line: usize,
}

/// What was in force before files are read again. What it came from has to be there still: whoever takes
/// a file or a directory away has not said that its limits shall not hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Before {
    /// Limits of `limits.toml`.
    pub file: bool,
    /// Limits of drop-ins.
    pub drop_ins: bool,
    /// Limits of which nobody knows where they stood.
    pub unknown: bool,
}

/// All limits as written.
#[derive(Debug, Clone)]
pub struct Limits {
    pub(crate) file: LimitsFile,
    /// Their entries and texts, in the order in which they were read.
    pub(crate) drop_ins: Arc<[LimitsFile]>,
    /// As of when.
    now: Timestamp,
    /// What holds.
    entries: BTreeMap<Who, Limit>,
    /// What holds without those that end.
    lasting: BTreeMap<Who, Limit>,
    /// Those that end and have not.
    temporary: BTreeMap<Who, Limit>,
    /// What does not, because a later file has an entry for the same WHO.
    overridden: BTreeMap<Who, Vec<Origin>>,
}

impl Limits {
    /// No limits yet, for a file at `path` that does not exist yet.
    pub fn new(path: &Path) -> Self {
        Self::of(LimitsFile::new(path), Arc::default())
    }

    /// The limits in the file at `path` and its drop-ins; `None` when there are neither.
    ///
    /// # Errors
    /// As [`Limits::load_after`].
    pub fn load(path: &Path) -> Result<Option<Self>, ConfigError> {
        let limits = Self::load_after(path, Before::default())?;
        Ok((!limits.is_absent()).then_some(limits))
    }

    /// The same, where limits are in force already.
    ///
    /// # Errors
    /// [`ConfigError::Unreadable`]; [`ConfigError::Invalid`] with all that is wrong in all files;
    /// [`ConfigError::Missing`] where a file or the directory is gone that limits in force came from. In each
    /// case the limits that were in force before should stay.
    pub fn load_after(path: &Path, before: Before) -> Result<Self, ConfigError> {
        let mut errors = Vec::new();
        let file = Source::read(path).and_then(|it| it.map(|it| LimitsFile::read(&it)).transpose());
        let file = collect(file, &mut errors)?.flatten();
        let found = collect(read_drop_ins(path, &mut errors), &mut errors)?.flatten();
        if !errors.is_empty() {
            return Err(ConfigError::Invalid(errors));
        }
        if found.is_none() && before.drop_ins {
            return Err(ConfigError::Missing {
                path: directory_of(path),
                kind: "directory",
            });
        }
        let drop_ins = found.unwrap_or_default();
        let are_elsewhere = drop_ins.iter().any(|it| !it.entries.is_empty());
        if file.is_none() && (before.file || before.unknown && !are_elsewhere) {
            return Err(ConfigError::Missing {
                path: path.to_owned(),
                kind: "file",
            });
        }
        let file = file.unwrap_or_else(|| LimitsFile::new(path));
        Ok(Self::of(file, drop_ins.into()))
    }

    /// The limits in `text`, as if it stood in a file at `path` that has no drop-ins.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with all that is wrong.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let file = LimitsFile::read(&Source::new(path, text.to_owned()))?;
        Ok(Self::of(file, Arc::default()))
    }

    /// Puts files together.
    pub(crate) fn of(file: LimitsFile, drop_ins: Arc<[LimitsFile]>) -> Self {
        Self::at(file, drop_ins, Timestamp::now())
    }

    /// The same, as of a moment.
    fn at(file: LimitsFile, drop_ins: Arc<[LimitsFile]>, now: Timestamp) -> Self {
        let mut limits = Self {
            file,
            drop_ins,
            now,
            entries: BTreeMap::new(),
            lasting: BTreeMap::new(),
            temporary: BTreeMap::new(),
            overridden: BTreeMap::new(),
        };
        limits.merge();
        limits
    }

    fn merge(&mut self) {
        self.lasting.clone_from(&self.file.entries.lasting);
        self.overridden.clear();
        for (who, limit) in self.drop_ins.iter().flat_map(|it| &it.entries.lasting) {
            if let Some(old) = self.lasting.insert(who.clone(), limit.clone()) {
                let origin = Origin {
                    path: old.path,
                    line: old.line,
                };
                self.overridden.entry(who.clone()).or_default().push(origin);
            }
        }
        let now = self.now;
        let all = self.all_temporary().filter(|it| !has_ended(it, now));
        self.temporary = all.map(|it| (it.who.clone(), it.clone())).collect();
        self.entries.clone_from(&self.lasting);
        for (who, limit) in &self.temporary {
            let both = limit.over(self.lasting.get(who));
            self.entries.insert(who.clone(), both);
        }
    }

    fn all_temporary(&self) -> impl Iterator<Item = &Limit> {
        let files = std::iter::once(&self.file).chain(self.drop_ins.iter());
        files.flat_map(|it| it.entries.temporary.values())
    }

    /// The same files at another moment.
    pub fn as_of(&self, now: Timestamp) -> Self {
        Self::at(self.file.clone(), Arc::clone(&self.drop_ins), now)
    }

    /// As of when this is what holds.
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// When the first of those that end does so.
    pub fn nearest_end(&self) -> Option<Until> {
        self.temporary.values().filter_map(|it| it.until).min()
    }

    /// The entry for exactly this WHO that has no end.
    pub fn lasting(&self, who: &Who) -> Option<&Limit> {
        self.lasting.get(who)
    }

    /// The one that has, and has not come to it.
    pub fn temporary(&self, who: &Who) -> Option<&Limit> {
        self.temporary.get(who)
    }

    /// Those that have come to their end.
    pub fn ended(&self) -> impl Iterator<Item = &Limit> {
        let now = self.now;
        self.all_temporary().filter(move |it| has_ended(it, now))
    }

    /// The file that commands change.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// All files that there are, in the order in which they were read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let file = self.file.on_disk.is_some().then_some(&self.file);
        file.into_iter()
            .chain(self.drop_ins.iter())
            .map(|it| it.path.as_path())
    }

    /// All that hold, uids first, then users, groups and shared accounts by name, `default` last.
    pub fn iter(&self) -> impl Iterator<Item = &Limit> {
        self.entries.values()
    }

    /// Those that hold again when one that ends has done so.
    pub fn covered(&self) -> impl Iterator<Item = &Limit> {
        self.temporary
            .keys()
            .filter_map(|who| self.lasting.get(who))
    }

    /// The one for exactly this WHO that holds.
    pub fn get(&self, who: &Who) -> Option<&Limit> {
        self.entries.get(who)
    }

    /// Entries for this WHO that do not hold, in the order in which they were read.
    pub fn overridden(&self, who: &Who) -> &[Origin] {
        self.overridden.get(who).map_or(&[], Vec::as_slice)
    }

    /// Whether what the entry for this WHO says is to hold at a reload also where that kills at once: its file says
    /// `force = true`. Without an entry: whether `limits.toml` does, or any drop-in, for one of them has taken it away.
    pub fn is_forced(&self, who: &Who) -> bool {
        let mut files = std::iter::once(&self.file).chain(self.drop_ins.iter());
        match self.get(who) {
            Some(limit) => files.any(|it| it.path == *limit.path && it.entries.is_forced),
            None => files.any(|it| it.entries.is_forced),
        }
    }

    /// How many hold.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none holds.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What is to be known of these limits when they are read again.
    pub fn before(&self) -> Before {
        Before {
            file: !self.file.entries.is_empty(),
            drop_ins: self.drop_ins.iter().any(|it| !it.entries.is_empty()),
            unknown: false,
        }
    }

    /// Whether there is no file at all.
    fn is_absent(&self) -> bool {
        self.files().next().is_none()
    }

    /// The text of `limits.toml`, as [`Self::store`] writes it.
    pub fn to_text(&self) -> String {
        self.file.to_text()
    }

    /// Sets the memory bounds of `who` in `limits.toml`. The file changes only with [`Limits::store`].
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] when the bounds contradict each other on every machine or the file
    /// would become larger than [`MAX_FILE`]; [`ConfigError::Overridden`] where a drop-in has an entry for
    /// `who`; [`ConfigError::Uneditable`]. Nothing has changed then.
    pub fn set(&mut self, who: &Who, memory: BoundsSpec) -> Result<(), ConfigError> {
        self.edit(who, |file| file.set(who, memory))
    }

    /// Sets beancounters of `who`; others of his stay, and those that become unlimited go. The file
    /// changes only with [`Limits::store`].
    ///
    /// # Errors
    /// As [`Limits::set`]; [`ConfigError::Invalid`] also when that leaves nothing that is limited.
    pub fn set_rows(
        &mut self,
        who: &Who,
        rows: &BTreeMap<Resource, RowBounds>,
    ) -> Result<(), ConfigError> {
        self.edit(who, |file| file.set_rows(who, rows))
    }

    /// Says whether the entry of `who` is enforced. The file changes only with [`Limits::store`].
    ///
    /// # Errors
    /// As [`Limits::set`].
    pub fn set_mode(&mut self, who: &Who, mode: Mode) -> Result<(), ConfigError> {
        self.edit(who, |file| file.set_mode(who, mode))
    }

    /// Says why the entry of `who` is what it is, or no more why. The file changes only with [`Limits::store`].
    ///
    /// # Errors
    /// As [`Limits::set`].
    pub fn set_reason(&mut self, who: &Who, reason: Option<&Reason>) -> Result<(), ConfigError> {
        self.edit(who, |file| file.set_reason(who, reason))
    }

    /// Gives `who` an entry in `limits.toml` that ends, or changes it. The file changes only with [`Limits::store`].
    ///
    /// # Errors
    /// As [`Limits::set`]; [`ConfigError::Overridden`] where a drop-in has such an entry.
    pub fn set_temporary(
        &mut self,
        who: &Who,
        temporary: &Temporary<'_>,
    ) -> Result<(), ConfigError> {
        let now = self.now;
        self.edit_temporary(who, |file| file.set_temporary(who, temporary, now))
    }

    /// Takes the entry of `who` in `limits.toml` away that ends; false when there was none. The file changes only
    /// with [`Limits::store`].
    ///
    /// # Errors
    /// As [`Limits::clear`].
    pub fn clear_temporary(&mut self, who: &Who) -> Result<bool, ConfigError> {
        self.edit_temporary(who, |file| file.clear_temporary(who))
    }

    /// These with `limits.toml` saying what `text` says; errors name the file `name`. The file changes only
    /// with [`Limits::store`].
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with all that is wrong; [`ConfigError::Overridden`] where a drop-in has another
    /// entry for somebody whose entry would change.
    pub fn with_text(&self, text: &str, name: &Path) -> Result<Self, ConfigError> {
        LimitsFile::read(&Source::new(name, text.to_owned()))?;
        let mut file = LimitsFile::read(&Source::new(self.path(), text.to_owned()))?;
        // What it was read from is still what is to be found there.
        file.on_disk.clone_from(&self.file.on_disk);
        let new = Self::at(file, Arc::clone(&self.drop_ins), self.now);
        let in_vain = self
            .written_changes(&new)
            .into_iter()
            .find_map(|(who, old, wanted)| {
                let is_temporary = wanted.or(old)?.until.is_some();
                let winner = self.winner(&who, is_temporary)?;
                let is_alike = wanted.is_some_and(|it| it.says_as(winner));
                (!is_alike).then(|| overridden(winner))
            });
        in_vain.map_or(Ok(new), Err)
    }

    /// The entries of `limits.toml` that say something else in `new`: whose, what before, what then.
    pub fn written_changes<'a>(
        &'a self,
        new: &'a Self,
    ) -> Vec<(Who, Option<&'a Limit>, Option<&'a Limit>)> {
        let (old, new) = (&self.file.entries, &new.file.entries);
        let mut all = differences(&old.lasting, &new.lasting);
        all.extend(differences(&old.temporary, &new.temporary));
        all
    }

    /// The entries in force that say something else than in `before`: what there was, and what there is.
    pub fn changes_since<'a>(
        &'a self,
        before: &'a Self,
    ) -> Vec<(Who, Option<&'a Limit>, Option<&'a Limit>)> {
        differences(&before.entries, &self.entries)
    }

    /// The entry of a drop-in that wins over `limits.toml`.
    fn winner(&self, who: &Who, is_temporary: bool) -> Option<&Limit> {
        let winner = match is_temporary {
            true => self.temporary.get(who),
            false => self.lasting.get(who),
        };
        winner.filter(|it| *it.path != *self.path())
    }

    /// Takes the limit of exactly this WHO away, with one that ends; false when there was neither. The file changes
    /// only with [`Limits::store`].
    ///
    /// # Errors
    /// [`ConfigError::Overridden`], [`ConfigError::Uneditable`]. Nothing has changed then.
    pub fn clear(&mut self, who: &Who) -> Result<bool, ConfigError> {
        self.edit(
            who,
            |file| Ok(file.clear(who)? | file.clear_temporary(who)?),
        )
    }

    /// A change of an entry that a drop-in has as well would change nothing.
    fn edit<T>(
        &mut self,
        who: &Who,
        change: impl FnOnce(&mut LimitsFile) -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        if let Some(winner) = self.winner(who, false) {
            return Err(overridden(winner));
        }
        self.change(change)
    }

    /// The same of one that ends.
    fn edit_temporary<T>(
        &mut self,
        who: &Who,
        change: impl FnOnce(&mut LimitsFile) -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        if let Some(winner) = self.winner(who, true) {
            return Err(overridden(winner));
        }
        self.change(change)
    }

    fn change<T>(
        &mut self,
        change: impl FnOnce(&mut LimitsFile) -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        let mut file = self.file.clone();
        let done = change(&mut file)?;
        self.file = file;
        self.merge();
        Ok(done)
    }

    /// Writes `limits.toml` to `path`, for everybody to read and its owner to write; a mode that is
    /// stricter stays. What it was read from is compared first: edits that nobody has read yet are
    /// not overwritten. Where it fails these limits still say what was set: change a clone, and keep it
    /// when it is stored.
    ///
    /// # Errors
    /// [`ConfigError::Changed`]; [`ConfigError::Unwritable`], [`ConfigError::Unreadable`]. The file is
    /// as it was before, except that after a failure to flush the directory it may already be the new
    /// one.
    pub fn store(&mut self, path: &Path) -> Result<(), ConfigError> {
        self.file.store(path)
    }

    /// Writes these limits over `later` ones, which were stored and cannot be put in force. Where there
    /// was no file there is an empty one.
    ///
    /// # Errors
    /// As [`Limits::store`].
    pub fn store_over(&mut self, later: &Self) -> Result<(), ConfigError> {
        self.file.store_over(&later.file)
    }
}

/// The entries that say something else then, and those that come or go.
fn differences<'a>(
    before: &'a BTreeMap<Who, Limit>,
    then: &'a BTreeMap<Who, Limit>,
) -> Vec<(Who, Option<&'a Limit>, Option<&'a Limit>)> {
    let all: BTreeSet<&Who> = before.keys().chain(then.keys()).collect();
    let pairs = all
        .into_iter()
        .map(|who| (who.clone(), before.get(who), then.get(who)));
    let differ = |(_, old, new): &(Who, Option<&Limit>, Option<&Limit>)| match (old, new) {
        (Some(old), Some(new)) => !old.says_as(new),
        _ => true,
    };
    pairs.filter(differ).collect()
}

fn has_ended(limit: &Limit, now: Timestamp) -> bool {
    limit.until.is_some_and(|it| it.is_past(now))
}

fn overridden(winner: &Limit) -> ConfigError {
    ConfigError::Overridden {
        path: winner.path.to_path_buf(),
        line: winner.line,
        who: winner.who.clone(),
    }
}
