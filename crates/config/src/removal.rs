// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An entry taken out of a file, with the comments that belong to it and no others.

use bursar_model::Who;
use toml_edit::{Decor, DocumentMut, Item, Key, RawString, Table, TableLike};

/// How `who` is spelled in the file: `1000` may stand there as `01000`.
pub(crate) fn spelling_of(table: &dyn TableLike, who: &Who) -> Option<String> {
    let mut keys = table.iter().map(|(key, _)| key);
    keys.find(|key| key.parse::<Who>().as_ref() == Ok(who))
        .map(str::to_owned)
}

/// Removes the entry and what belongs to it; `None` when it is not there.
pub(crate) fn remove_entry(document: &mut DocumentMut, name: &str, who: &Who) -> Option<()> {
    let table = document.get_mut(name)?.as_table_like_mut()?;
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
