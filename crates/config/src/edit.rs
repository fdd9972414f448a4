// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes of `limits.toml` that leave alone what the administrator wrote around them.
//!
//! A comment at the end of an entry's line, or directly above it, belongs to the entry: it stays when
//! the limit changes and goes when the limit is cleared. All other comments stay.

use std::collections::BTreeMap;

use bursar_model::{BoundsSpec, Reason, Resource, RowBounds, SizeSpec, Who};
use toml_edit::{Decor, DocumentMut, InlineTable, Item, Key, RawString, Table, TableLike, Value};

use crate::contradiction::contradiction;
use crate::finding::Wrong;
use crate::limits::{BOUNDS, LimitsFile, REASON, TABLE, entries_of};
use crate::source::Source;
use crate::value::size;
use crate::{ConfigError, Limit, MAX_FILE};

const HEADER: &str = "\
# Who may hold how much memory. Written by `bursar limit`; after a change by hand:
# systemctl reload bursard. `bursar check` says what is wrong with it.
";

/// What entries say, wherever they stand.
fn meaning(entries: &BTreeMap<Who, Limit>) -> BTreeMap<Who, Limit> {
    let mut all = entries.clone();
    for limit in all.values_mut() {
        limit.line = 0;
    }
    all
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
        self.edit(who, |limit| limit.memory = Some(memory))
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
        self.edit(who, |limit| limit.rows = all)
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
                self.edit(who, |limit| limit.reason = reason.cloned())
            }
            _ => Ok(()),
        }
    }

    fn edit(&mut self, who: &Who, change: impl FnOnce(&mut Limit)) -> Result<(), ConfigError> {
        let mut expected = meaning(&self.entries);
        let limit = expected.entry(who.clone()).or_insert_with(|| Limit {
            who: who.clone(),
            memory: None,
            rows: BTreeMap::new(),
            kill: None,
            granted: None,
            reason: None,
            path: self.path.as_path().into(),
            line: 0,
        });
        change(limit);
        let limit = limit.clone();
        let mut document = self.document.clone();
        let table = limits_table(&mut document).ok_or_else(|| self.uneditable(who))?;
        match spelling_of(table, who) {
            Some(key) => {
                let entry = table.get_mut(&key).ok_or_else(|| self.uneditable(who))?;
                if let Some(memory) = &limit.memory {
                    change_entry(entry, memory);
                }
                change_rows(entry, &limit.rows);
                change_reason(entry, limit.reason.as_ref());
            }
            None => {
                let mut entry = Item::Value(Value::InlineTable(new_entry(limit.memory.as_ref())));
                change_rows(&mut entry, &limit.rows);
                change_reason(&mut entry, limit.reason.as_ref());
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
        if self.get(who).is_none() {
            return Ok(false);
        }
        let mut document = self.document.clone();
        remove_entry(&mut document, who).ok_or_else(|| self.uneditable(who))?;
        let mut expected = meaning(&self.entries);
        expected.remove(who);
        self.adopt(&document, &expected, who)?;
        Ok(true)
    }

    /// Takes an edited document if it says what it should: a limit must not get lost because somebody
    /// formatted the file in a way nobody thought of here.
    fn adopt(
        &mut self,
        document: &DocumentMut,
        expected: &BTreeMap<Who, Limit>,
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

/// The table of limits, made when there is none.
fn limits_table(document: &mut DocumentMut) -> Option<&mut dyn TableLike> {
    if !document.contains_key(TABLE) {
        let mut table = Table::new();
        if document
            .trailing()
            .as_str()
            .unwrap_or_default()
            .trim()
            .is_empty()
        {
            table.decor_mut().set_prefix(HEADER);
        }
        document.insert(TABLE, Item::Table(table));
    }
    document.get_mut(TABLE)?.as_table_like_mut()
}

/// How `who` is spelled in the file: `1000` may stand there as `01000`.
fn spelling_of(table: &dyn TableLike, who: &Who) -> Option<String> {
    let mut keys = table.iter().map(|(key, _)| key);
    keys.find(|key| key.parse::<Who>().as_ref() == Ok(who))
        .map(str::to_owned)
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
    let Some(table) = entry.as_table_like_mut() else {
        return;
    };
    let before = table.len();
    for resource in Resource::BEANCOUNTERS {
        let name = resource.name();
        match (table.get_mut(name), rows.get(&resource)) {
            (Some(item), Some(bounds)) => {
                let text = match item.as_value() {
                    Some(Value::String(text)) => text.value().clone(),
                    Some(value) => value.to_string().trim().to_owned(),
                    None => String::new(),
                };
                if RowBounds::parse(resource, &text) != Ok(*bounds) {
                    replace(item, Value::from(bounds.to_string()));
                }
            }
            (None, Some(bounds)) => {
                table.insert(name, Item::Value(Value::from(bounds.to_string())));
            }
            (Some(_), None) => {
                table.remove(name);
            }
            (None, None) => {}
        }
    }
    let came_or_went = table.len() != before;
    if let Some(inline) = entry.as_inline_table_mut()
        && came_or_went
    {
        space_out(inline);
    }
}

/// Why, as it is to be said.
fn change_reason(entry: &mut Item, reason: Option<&Reason>) {
    let Some(table) = entry.as_table_like_mut() else {
        return;
    };
    let before = table.len();
    match (table.get_mut(REASON), reason) {
        (Some(item), Some(reason)) => {
            if item.as_str().map(str::trim) != Some(reason.as_str()) {
                replace(item, Value::from(reason.as_str()));
            }
        }
        (None, Some(reason)) => {
            table.insert(REASON, Item::Value(Value::from(reason.as_str())));
        }
        (Some(_), None) => {
            table.remove(REASON);
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

/// Removes the entry and what belongs to it; `None` when it is not there.
fn remove_entry(document: &mut DocumentMut, who: &Who) -> Option<()> {
    let table = document.get_mut(TABLE)?.as_table_like_mut()?;
    let spelled = spelling_of(table, who)?;
    let (key, item) = table.get_key_value(&spelled)?;
    let kept = detached(&prefix_of(key, item));
    let successor = successor(table, &spelled, header(item));
    table.remove(&spelled);
    match successor.and_then(|name| table.get_key_value_mut(&name)) {
        Some((mut key, item)) => {
            let decor = match first_header(item) {
                Some(table) => table.decor_mut(),
                None => key.leaf_decor_mut(),
            };
            let prefix = join(&kept, decor.prefix());
            decor.set_prefix(prefix);
        }
        None => {
            let trailing = join(&kept, Some(document.trailing()));
            document.set_trailing(trailing);
        }
    }
    Some(())
}

/// What an entry leaves behind, before what follows it. Empty lines are not worth doubling.
fn join(kept: &str, next: Option<&RawString>) -> String {
    let next = next.and_then(RawString::as_str).unwrap_or_default();
    let is_spaced = next.is_empty() || next.trim_start_matches([' ', '\t', '\r']).starts_with('\n');
    if !kept.contains('#') && is_spaced {
        next.to_owned()
    } else {
        format!("{kept}{next}")
    }
}

/// Which neighbour follows in the text when `removed`, whose header is at `position`, is gone. Values
/// come before tables, tables in the order of their headers.
fn successor(table: &dyn TableLike, removed: &str, position: Option<isize>) -> Option<String> {
    if position.is_none() {
        let after = table.iter().skip_while(|(key, _)| *key != removed).skip(1);
        let mut values = after.filter(|(_, item)| item.is_value());
        if let Some((key, _)) = values.next() {
            return Some(key.to_owned());
        }
    }
    let tables = table
        .iter()
        .filter_map(|(key, item)| Some((header(item)?, key)));
    let later = tables.filter(|&(at, key)| key != removed && position.is_none_or(|mine| at > mine));
    later.min().map(|(_, key)| key.to_owned())
}

/// Where the first header of an entry stands among the file's headers: its own, or for an entry that
/// is only implied (`[limits.alice.memory]`) that of its row. `None` for an entry without header.
fn header(item: &Item) -> Option<isize> {
    let table = item.as_table().filter(|table| !table.is_dotted())?;
    table
        .position()
        .or_else(|| table.iter().filter_map(|(_, inner)| header(inner)).min())
}

/// The table that this first header begins.
fn first_header(item: &mut Item) -> Option<&mut Table> {
    let first = header(item)?;
    let table = item.as_table_mut()?;
    if table.position() == Some(first) {
        return Some(table);
    }
    let mut inner = table.iter_mut().map(|(_, inner)| inner);
    inner
        .find(|inner| header(inner) == Some(first))
        .and_then(first_header)
}

/// The text between the entry before and this one.
fn prefix_of(key: &Key, item: &Item) -> String {
    let decor: &Decor = match item {
        // `[limits.alice.memory]` or `alice.memory = …`: the text stands before what is inside.
        Item::Table(table) if table.is_dotted() || table.position().is_none() => {
            let mut inner = table
                .iter()
                .filter_map(|(name, item)| Some((table.key(name)?, item)));
            return inner
                .next()
                .map(|(key, item)| prefix_of(key, item))
                .unwrap_or_default();
        }
        Item::Table(table) => table.decor(),
        _ => key.leaf_decor(),
    };
    decor
        .prefix()
        .and_then(RawString::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// What of a prefix does not belong to the entry: everything up to the last empty line.
fn detached(prefix: &str) -> String {
    let lines: Vec<&str> = prefix.split_inclusive('\n').collect();
    let end = lines
        .iter()
        .rposition(|line| line.trim().is_empty() && line.ends_with('\n'));
    lines
        .into_iter()
        .take(end.map_or(0, |at| at.saturating_add(1)))
        .collect()
}
