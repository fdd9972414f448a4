// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One table of the file: its keys are asked for one by one, and those that nobody asked for are errors.

use std::collections::BTreeMap;

use bursar_config::Finding;
use bursar_config::reading::{Source, Wrong, kind_of_item, nearest, span_of};
use toml_edit::{Item, Table as TomlTable, TableLike, Value};

/// A table, and what is wrong in it.
pub(super) struct Table<'a> {
    source: &'a Source,
    table: &'a dyn TableLike,
    /// Its name with a dot, for messages; empty at the top.
    prefix: String,
    /// Where it begins.
    line: Option<usize>,
    known: Vec<&'static str>,
    findings: Vec<Finding>,
}

impl<'a> Table<'a> {
    pub(super) fn new(
        source: &'a Source,
        table: &'a dyn TableLike,
        name: &str,
        at: Option<usize>,
    ) -> Self {
        Self {
            source,
            table,
            prefix: match name {
                "" => String::new(),
                name => format!("{name}."),
            },
            line: at,
            known: Vec::new(),
            findings: Vec::new(),
        }
    }

    pub(super) const fn source(&self) -> &'a Source {
        self.source
    }

    pub(super) fn item(&mut self, key: &'static str) -> Option<&'a Item> {
        self.known.push(key);
        self.table.get(key)
    }

    /// The line of a key, or of the table where it has none such.
    pub(super) fn line_of(&self, key: &str) -> Option<usize> {
        let span = self.table.key(key).and_then(toml_edit::Key::span);
        let span = span.or_else(|| self.table.get(key).and_then(span_of));
        self.source.line_of(span).or(self.line)
    }

    /// What a key says; `None`: it is not there, or wrong, which is noted.
    pub(super) fn get<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&Value) -> Result<T, Wrong>,
    ) -> Option<T> {
        let item = self.item(key)?;
        let read = match item.as_value() {
            Some(value) => read(value),
            None => Err(Wrong::new(
                format!("is {}, not a value", kind_of_item(item)),
                format!("write {key} = …"),
            )),
        };
        read.map_err(|wrong| self.blame(key, wrong)).ok()
    }

    /// The same of one that must be there.
    pub(super) fn need<T>(
        &mut self,
        key: &'static str,
        remedy: &str,
        read: impl FnOnce(&Value) -> Result<T, Wrong>,
    ) -> Option<T> {
        if self.table.get(key).is_none() {
            self.known.push(key);
            self.blame(key, Wrong::new("is missing", remedy));
            return None;
        }
        self.get(key, read)
    }

    pub(super) fn blame(&mut self, key: &str, wrong: Wrong) {
        let (path, name) = (self.source.path(), format!("{}{key}", self.prefix));
        let finding = wrong.at(path, self.line_of(key), &name);
        self.findings.push(finding);
    }

    /// All keys, for a table whose keys are names.
    pub(super) fn names(&self) -> BTreeMap<String, &'a Item> {
        let all = self.table.iter();
        all.map(|(name, item)| (name.to_owned(), item)).collect()
    }

    /// What is wrong; keys that nobody asked for, too.
    pub(super) fn finish(mut self) -> Vec<Finding> {
        let unknown: Vec<String> = self
            .table
            .iter()
            .map(|(key, _)| key.to_owned())
            .filter(|key| !self.known.contains(&key.as_str()))
            .collect();
        for key in unknown {
            let remedy = match nearest(&key, self.known.iter().copied()) {
                Some(close) => format!("did you mean {close:?}?"),
                None => format!("keys here are {}", self.known.join(", ")),
            };
            self.blame(&key, Wrong::new("is not a key here", remedy));
        }
        self.findings
    }

    /// The same, without asking for more than was asked for.
    pub(super) fn into_findings(self) -> Vec<Finding> {
        self.findings
    }
}

/// A table of the whole file.
pub(super) const fn whole(table: &TomlTable) -> &dyn TableLike {
    table
}

/// An array of strings, from `least` on.
pub(super) fn strings(value: &Value, least: usize, remedy: &str) -> Result<Vec<String>, Wrong> {
    let array = value
        .as_array()
        .ok_or_else(|| Wrong::new("is not an array", remedy))?;
    let strings: Option<Vec<String>> = array
        .iter()
        .map(|it| it.as_str().map(str::to_owned))
        .collect();
    let strings = strings.ok_or_else(|| Wrong::new("has something else than strings", remedy))?;
    if strings.len() < least || strings.iter().any(|it| it.is_empty() || it.contains('\0')) {
        return Err(Wrong::new(
            "has too little in it, or an empty string",
            remedy,
        ));
    }
    Ok(strings)
}
