// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes of `limits.toml` that leave alone what the administrator wrote around them.
//!
//! A comment at the end of an entry's line, or directly above it, belongs to the entry: it stays when
//! the limit changes and goes when the limit is cleared. All other comments stay.

use std::collections::BTreeMap;

use bursar_model::{BoundsSpec, Mode, Reason, Resource, RowBounds, SizeSpec, Until, Who};
use jiff::Timestamp;
use toml_edit::{DocumentMut, InlineTable, Item, Table, TableLike, Value};

use crate::contradiction::contradiction;
use crate::entry::{Entries, TEMPORARY};
use crate::finding::Wrong;
use crate::limits::{BOUNDS, LimitsFile, MODE, REASON, TABLE, UNTIL, entries_of};
use crate::removal::{remove_entry, spelling_of};
use crate::source::Source;
use crate::value::size;
use crate::{ConfigError, Limit, MAX_FILE};

const HEADER: &str = "\
# Who may hold how much memory. Written by `bursar limit`; after a change by hand:
# systemctl reload bursard. `bursar check` says what is wrong with it.
";

/// What entries say, wherever they stand.
fn meaning(entries: &Entries) -> Entries {
    let mut all = entries.clone();
    for limit in all.lasting.values_mut().chain(all.temporary.values_mut()) {
        limit.line = 0;
    }
    all
}

/// What an entry says while it lasts, besides what the one without an end says.
#[derive(Debug, Clone, Copy)]
pub struct Temporary<'a> {
    /// Its end.
    pub until: Until,
    /// The bounds on memory, if they are others.
    pub memory: Option<BoundsSpec>,
    /// The bounds of beancounters that are others; an unlimited one is said as well.
    pub rows: &'a BTreeMap<Resource, RowBounds>,
    /// Whether it is enforced, if that is another.
    pub mode: Option<Mode>,
    /// Why the entry is as it is, in the words of who writes it.
    pub reason: Option<&'a Reason>,
}

impl LimitsFile {
    /// Sets the memory bounds of `who`. The file changes only with [`Self::store`].
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] when the bounds contradict each other on every machine or the file
    /// would become larger than [`MAX_FILE`]; [`ConfigError::Uneditable`]. Nothing has changed then.
    pub(crate) fn set(&mut self, who: &Who, memory: BoundsSpec) -> Result<(), ConfigError> {
        if self
            .get(who)
            .is_some_and(|limit| limit.memory == Some(memory))
        {
            return Ok(());
        }
        if let Some(wrong) = contradiction(&memory) {
            let key = format!("{TABLE}.{who}");
            return Err(ConfigError::Invalid(vec![wrong.at(&self.path, None, &key)]));
        }
        self.edit(TABLE, who, |limit| limit.memory = Some(memory))
    }

    /// Sets beancounters of `who`; others of his stay, and those that become unlimited go. The file
    /// changes only with [`Self::store`].
    ///
    /// # Errors
    /// As [`Self::set`]; [`ConfigError::Invalid`] also when that leaves nothing that is limited.
    pub(crate) fn set_rows(
        &mut self,
        who: &Who,
        rows: &BTreeMap<Resource, RowBounds>,
    ) -> Result<(), ConfigError> {
        let old = self.get(who);
        let memory = old.and_then(|limit| limit.memory);
        let mut all = old.map(|limit| limit.rows.clone()).unwrap_or_default();
        all.extend(rows.iter().map(|(resource, bounds)| (*resource, *bounds)));
        all.retain(|_, bounds| !bounds.is_unlimited());
        if all.is_empty() && memory.is_none() {
            if old.is_some() {
                return self.clear(who).map(drop);
            }
            let wrong = Wrong::new("limits nothing", "give it a bound");
            let key = format!("{TABLE}.{who}");
            return Err(ConfigError::Invalid(vec![wrong.at(&self.path, None, &key)]));
        }
        self.edit(TABLE, who, |limit| limit.rows = all)
    }

    /// Says whether an entry is enforced. Without an entry nothing changes. The file changes only with
    /// [`Self::store`].
    ///
    /// # Errors
    /// As [`Self::set_reason`].
    pub(crate) fn set_mode(&mut self, who: &Who, mode: Mode) -> Result<(), ConfigError> {
        match self.get(who) {
            Some(limit) if limit.mode != Some(mode) => {
                self.edit(TABLE, who, |limit| limit.mode = Some(mode))
            }
            _ => Ok(()),
        }
    }

    /// Says why an entry is what it is, or no more why. Without an entry nothing changes. The file changes only
    /// with [`Self::store`].
    ///
    /// # Errors
    /// [`ConfigError::Uneditable`]; [`ConfigError::Invalid`] when the file would become larger than [`MAX_FILE`].
    pub(crate) fn set_reason(
        &mut self,
        who: &Who,
        reason: Option<&Reason>,
    ) -> Result<(), ConfigError> {
        match self.get(who) {
            Some(limit) if limit.reason.as_ref() != reason => {
                self.edit(TABLE, who, |limit| limit.reason = reason.cloned())
            }
            _ => Ok(()),
        }
    }

    /// Gives `who` an entry that ends, or changes the one that has not ended `now`: what is not named of it stays. The
    /// file changes only with [`Self::store`].
    ///
    /// # Errors
    /// As [`Self::set`].
    pub(crate) fn set_temporary(
        &mut self,
        who: &Who,
        temporary: &Temporary<'_>,
        now: Timestamp,
    ) -> Result<(), ConfigError> {
        let key = format!("{TEMPORARY}.{who}");
        if let Some(wrong) = temporary.memory.as_ref().and_then(contradiction) {
            return Err(ConfigError::Invalid(vec![wrong.at(&self.path, None, &key)]));
        }
        let before = self.entries.temporary.get(who);
        if before
            .and_then(|it| it.until)
            .is_some_and(|it| it.is_past(now))
        {
            self.take_out(TEMPORARY, who)?;
        }
        self.edit(TEMPORARY, who, |limit| {
            limit.memory = temporary.memory.or(limit.memory);
            limit.rows.extend(temporary.rows);
            limit.mode = temporary.mode.or(limit.mode);
            limit.reason = temporary.reason.cloned();
            limit.until = Some(temporary.until);
        })
    }

    fn edit(
        &mut self,
        name: &str,
        who: &Who,
        change: impl FnOnce(&mut Limit),
    ) -> Result<(), ConfigError> {
        let mut expected = meaning(&self.entries);
        let of_table = expected.of_mut(name);
        let limit = of_table.entry(who.clone()).or_insert_with(|| Limit {
            who: who.clone(),
            memory: None,
            rows: BTreeMap::new(),
            mode: None,
            kill: None,
            granted: None,
            reason: None,
            until: None,
            path: self.path.as_path().into(),
            line: 0,
        });
        change(limit);
        let limit = limit.clone();
        let mut document = self.document.clone();
        let table = limits_table(&mut document, name).ok_or_else(|| self.uneditable(who))?;
        match spelling_of(table, who) {
            Some(key) => {
                let entry = table.get_mut(&key).ok_or_else(|| self.uneditable(who))?;
                if let Some(memory) = &limit.memory {
                    change_entry(entry, memory);
                }
                change_rows(entry, &limit.rows);
                change_words(entry, &limit);
            }
            None => {
                let mut entry = Item::Value(Value::InlineTable(new_entry(limit.memory.as_ref())));
                change_rows(&mut entry, &limit.rows);
                change_words(&mut entry, &limit);
                if let Some(inline) = entry.as_inline_table_mut() {
                    space_out(inline);
                }
                table.insert(&who.to_string(), entry);
            }
        }
        self.adopt(&document, &expected, who)
    }

    /// Takes the limit of exactly this WHO away; false when there was none. The file changes only with
    /// [`Self::store`].
    ///
    /// # Errors
    /// [`ConfigError::Uneditable`]. Nothing has changed then.
    pub(crate) fn clear(&mut self, who: &Who) -> Result<bool, ConfigError> {
        self.take_out(TABLE, who)
    }

    /// The same of an entry that ends, whether or not it has.
    ///
    /// # Errors
    /// As [`Self::clear`].
    pub(crate) fn clear_temporary(&mut self, who: &Who) -> Result<bool, ConfigError> {
        self.take_out(TEMPORARY, who)
    }

    fn take_out(&mut self, name: &str, who: &Who) -> Result<bool, ConfigError> {
        let mut expected = meaning(&self.entries);
        if expected.of_mut(name).remove(who).is_none() {
            return Ok(false);
        }
        let mut document = self.document.clone();
        remove_entry(&mut document, name, who).ok_or_else(|| self.uneditable(who))?;
        self.adopt(&document, &expected, who)?;
        Ok(true)
    }

    /// Takes an edited document if it says what it should: a limit must not get lost because somebody
    /// formatted the file in a way nobody thought of here.
    fn adopt(
        &mut self,
        document: &DocumentMut,
        expected: &Entries,
        who: &Who,
    ) -> Result<(), ConfigError> {
        let source = Source::new(&self.path, self.text_of(document));
        if u64::try_from(source.text().len()).unwrap_or(u64::MAX) > MAX_FILE {
            let message = format!("would become larger than {} MiB", MAX_FILE >> 20);
            let wrong = Wrong::new(message, "limit groups or default instead of single users");
            return Err(ConfigError::Invalid(vec![wrong.at(&self.path, None, "")]));
        }
        let document = source.document().map_err(|_| self.uneditable(who))?;
        let entries = entries_of(&source, &document).map_err(|_| self.uneditable(who))?;
        if meaning(&entries) != *expected {
            return Err(self.uneditable(who));
        }
        self.document = document.into_mut();
        self.entries = entries;
        Ok(())
    }

    fn uneditable(&self, who: &Who) -> ConfigError {
        ConfigError::Uneditable {
            path: self.path.clone(),
            who: who.clone(),
        }
    }
}

/// The table of this name, made when there is none.
fn limits_table<'a>(document: &'a mut DocumentMut, name: &str) -> Option<&'a mut dyn TableLike> {
    if !document.contains_key(name) {
        let mut table = Table::new();
        let is_first = document.is_empty();
        let has_text = |it: &str| !it.trim().is_empty();
        if is_first && !has_text(document.trailing().as_str().unwrap_or_default()) {
            table.decor_mut().set_prefix(HEADER);
        } else if !is_first {
            table.decor_mut().set_prefix("\n");
        }
        document.insert(name, Item::Table(table));
    }
    document.get_mut(name)?.as_table_like_mut()
}

/// `{ memory = "512M" }`, or with the long form of the row; empty where nothing is said of it.
fn new_entry(memory: Option<&BoundsSpec>) -> InlineTable {
    let Some(memory) = memory else {
        return InlineTable::new();
    };
    let row = match memory {
        BoundsSpec {
            limit,
            notice: None,
            barrier: None,
        } => Value::from(limit.to_string()),
        _ => Value::InlineTable(new_row(memory)),
    };
    InlineTable::from_iter([(Resource::Memory.name(), row)])
}

fn bounds_of(memory: &BoundsSpec) -> [(&'static str, Option<SizeSpec>); 3] {
    let [limit, notice, barrier] = BOUNDS;
    [
        (limit, Some(memory.limit)),
        (notice, memory.notice),
        (barrier, memory.barrier),
    ]
}

fn new_row(memory: &BoundsSpec) -> InlineTable {
    let written = bounds_of(memory)
        .into_iter()
        .filter_map(|(name, size)| Some((name, size?)));
    written
        .map(|(name, size)| (name, size.to_string()))
        .collect()
}

/// Beancounters as they are to be; those that say it already stay as they were written.
fn change_rows(entry: &mut Item, rows: &BTreeMap<Resource, RowBounds>) {
    for resource in Resource::BEANCOUNTERS {
        let bounds = rows.get(&resource);
        let is_so = |item: &Item| {
            let text = match item.as_value() {
                Some(Value::String(text)) => text.value().clone(),
                Some(value) => value.to_string().trim().to_owned(),
                None => String::new(),
            };
            RowBounds::parse(resource, &text).ok().as_ref() == bounds
        };
        let text = bounds.map(RowBounds::to_string);
        change_word(entry, resource.name(), text.as_deref(), is_so);
    }
}

/// Whether it is enforced, its end and why, as they are to be said.
fn change_words(entry: &mut Item, limit: &Limit) {
    let is_so = |item: &Item| item.as_str() == limit.mode.map(Mode::name);
    change_word(entry, MODE, limit.mode.map(Mode::name), is_so);
    let until = limit.until.map(|it| it.to_string());
    let is_so = |item: &Item| crate::value::until(item).ok() == limit.until;
    change_word(entry, UNTIL, until.as_deref(), is_so);
    let reason = limit.reason.as_ref().map(Reason::as_str);
    let is_so = |item: &Item| item.as_str().map(str::trim) == reason;
    change_word(entry, REASON, reason, is_so);
}

/// `is_so`: it is said already, perhaps in other words.
fn change_word(entry: &mut Item, name: &str, new: Option<&str>, is_so: impl Fn(&Item) -> bool) {
    let Some(table) = entry.as_table_like_mut() else {
        return;
    };
    let before = table.len();
    match (table.get_mut(name), new) {
        (Some(item), Some(new)) => {
            if !is_so(item) {
                replace(item, Value::from(new));
            }
        }
        (None, Some(new)) => {
            table.insert(name, Item::Value(Value::from(new)));
        }
        (Some(_), None) => {
            table.remove(name);
        }
        (None, None) => {}
    }
    let came_or_went = table.len() != before;
    if let Some(inline) = entry.as_inline_table_mut()
        && came_or_went
    {
        space_out(inline);
    }
}

fn change_entry(entry: &mut Item, memory: &BoundsSpec) {
    let name = Resource::Memory.name();
    let Some(rows) = entry.as_table_like_mut() else {
        return;
    };
    if rows.get(name).is_none() {
        let inserted = match (memory.notice, memory.barrier) {
            (None, None) => Value::from(memory.limit.to_string()),
            _ => Value::InlineTable(new_row(memory)),
        };
        rows.insert(name, Item::Value(inserted));
        if let Some(inline) = entry.as_inline_table_mut() {
            space_out(inline);
        }
        return;
    }
    let Some(row) = rows.get_mut(name) else {
        return;
    };
    if let Some(table) = row.as_table_like_mut() {
        for (bound, size) in bounds_of(memory) {
            change_bound(table, bound, size);
        }
        if let Some(inline) = row.as_inline_table_mut() {
            space_out(inline);
        }
    } else if memory.notice.is_none() && memory.barrier.is_none() {
        replace(row, Value::from(memory.limit.to_string()));
    } else {
        replace(row, Value::InlineTable(new_row(memory)));
    }
}

/// Puts a value in another one's place and leaves the comments around it.
fn replace(item: &mut Item, mut new: Value) {
    if let Some(old) = item.as_value() {
        *new.decor_mut() = old.decor().clone();
    }
    *item = Item::Value(new);
}

fn change_bound(table: &mut dyn TableLike, name: &str, new: Option<SizeSpec>) {
    match (table.get_mut(name), new) {
        (Some(item), Some(new)) => {
            // `512 MB` means 512M: leave it as it was written.
            if item.as_value().and_then(|value| size(value).ok()) != Some(new) {
                replace(item, Value::from(new.to_string()));
            }
        }
        (None, Some(new)) => {
            table.insert(name, Item::Value(Value::from(new.to_string())));
        }
        (Some(_), None) => {
            table.remove(name);
        }
        (None, None) => {}
    }
}

/// `{ a = 1, b = 2 }` again after a bound came or went: the space before the brace belongs to the last
/// value. Tables with comments or line breaks inside stay as they are.
fn space_out(table: &mut InlineTable) {
    // What stands after the brace is not inside.
    let mut bare = table.clone();
    bare.decor_mut().clear();
    let text = bare.to_string();
    if text.contains(['\n', '#']) {
        return;
    }
    let count = table.len();
    for (index, (_, value)) in table.iter_mut().enumerate() {
        let last = index.saturating_add(1) == count;
        value.decor_mut().set_suffix(if last { " " } else { "" });
    }
}
