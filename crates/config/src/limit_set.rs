// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All limits as written: `limits.toml` and the drop-ins beside it, `limits.toml.d/*.toml`.
//!
//! Files are read in the order of their names, `limits.toml` first. The last one that has an entry for a
//! WHO wins, and the entries before it count for nothing. Commands change `limits.toml` only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use bursar_model::{BoundsSpec, Reason, Resource, RowBounds, Who};

use crate::drop_ins::{directory_of, drop_ins};
use crate::finding::Wrong;
use crate::limits::LimitsFile;
use crate::source::Source;
use crate::trust::trusted;
use crate::{ConfigError, Finding, Limit, MAX_FILE};

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
    /// What holds.
    entries: BTreeMap<Who, Limit>,
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
        let mut limits = Self {
            file,
            drop_ins,
            entries: BTreeMap::new(),
            overridden: BTreeMap::new(),
        };
        limits.merge();
        limits
    }

    fn merge(&mut self) {
        self.entries.clone_from(&self.file.entries);
        self.overridden.clear();
        for (who, limit) in self.drop_ins.iter().flat_map(|it| &it.entries) {
            if let Some(old) = self.entries.insert(who.clone(), limit.clone()) {
                let origin = Origin {
                    path: old.path,
                    line: old.line,
                };
                self.overridden.entry(who.clone()).or_default().push(origin);
            }
        }
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

    /// The one for exactly this WHO that holds.
    pub fn get(&self, who: &Who) -> Option<&Limit> {
        self.entries.get(who)
    }

    /// Entries for this WHO that do not hold, in the order in which they were read.
    pub fn overridden(&self, who: &Who) -> &[Origin] {
        self.overridden.get(who).map_or(&[], Vec::as_slice)
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

    /// Says why the entry of `who` is what it is, or no more why. The file changes only with [`Limits::store`].
    ///
    /// # Errors
    /// As [`Limits::set`].
    pub fn set_reason(&mut self, who: &Who, reason: Option<&Reason>) -> Result<(), ConfigError> {
        self.edit(who, |file| file.set_reason(who, reason))
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
        let new = Self::of(file, Arc::clone(&self.drop_ins));
        let in_vain = self
            .written_changes(&new)
            .into_iter()
            .find_map(|(who, _, wanted)| {
                let winner = self.winner(&who)?;
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
        differences(&self.file.entries, &new.file.entries)
    }

    /// The entries in force that say something else than in `before`: what there was, and what there is.
    pub fn changes_since<'a>(
        &'a self,
        before: &'a Self,
    ) -> Vec<(Who, Option<&'a Limit>, Option<&'a Limit>)> {
        differences(&before.entries, &self.entries)
    }

    /// The entry of a drop-in that wins over `limits.toml`.
    fn winner(&self, who: &Who) -> Option<&Limit> {
        self.drop_ins.iter().rev().find_map(|it| it.get(who))
    }

    /// Takes the limit of exactly this WHO away; false when there was none. The file changes only with
    /// [`Limits::store`].
    ///
    /// # Errors
    /// [`ConfigError::Overridden`], [`ConfigError::Uneditable`]. Nothing has changed then.
    pub fn clear(&mut self, who: &Who) -> Result<bool, ConfigError> {
        self.edit(who, |file| file.clear(who))
    }

    /// A change of an entry that a drop-in has as well would change nothing.
    fn edit<T>(
        &mut self,
        who: &Who,
        change: impl FnOnce(&mut LimitsFile) -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        if let Some(winner) = self.winner(who) {
            return Err(overridden(winner));
        }
        let done = change(&mut self.file)?;
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

fn overridden(winner: &Limit) -> ConfigError {
    ConfigError::Overridden {
        path: winner.path.to_path_buf(),
        line: winner.line,
        who: winner.who.clone(),
    }
}

/// What was read, if nothing is wrong with what it says; that is collected, so that all of it is said at once.
fn collect<T>(
    read: Result<T, ConfigError>,
    errors: &mut Vec<Finding>,
) -> Result<Option<T>, ConfigError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(ConfigError::Invalid(findings)) => {
            errors.extend(findings);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The drop-ins of the file at `path`; `None` where there is no directory.
fn read_drop_ins(
    path: &Path,
    errors: &mut Vec<Finding>,
) -> Result<Option<Vec<LimitsFile>>, ConfigError> {
    let directory = directory_of(path);
    if trusted(&directory)?.is_none() {
        return Ok(None);
    }
    let Some(names) = drop_ins(path)? else {
        return Ok(None);
    };
    let mut found = Vec::new();
    let mut bytes = 0_u64;
    for name in names {
        let Some(source) = collect(read_drop_in(&name), errors)?.flatten() else {
            continue;
        };
        bytes = bytes.saturating_add(u64::try_from(source.text().len()).unwrap_or(u64::MAX));
        if bytes > MAX_FILE {
            let message = format!(
                "its drop-ins are larger than {} MiB together",
                MAX_FILE >> 20
            );
            let wrong = Wrong::new(message, "limit groups or default instead of single users");
            errors.push(wrong.at(&directory, None, ""));
            return Ok(None);
        }
        found.extend(collect(LimitsFile::read(&source), errors)?);
    }
    Ok(Some(found))
}

/// One drop-in; `None` where it has been removed meanwhile.
fn read_drop_in(name: &Path) -> Result<Option<Source>, ConfigError> {
    if let Some(place) = trusted(name)?
        && let Some(source) = Source::read_as(&place, name)?
    {
        return Ok(Some(source));
    }
    if std::fs::symlink_metadata(name).is_err() {
        return Ok(None);
    }
    let wrong = Wrong::new(
        "is a symbolic link that leads nowhere",
        "remove it, or restore what it is linked to",
    );
    Err(ConfigError::Invalid(vec![wrong.at(name, None, "")]))
}
