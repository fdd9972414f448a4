// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar.toml` and its drop-ins, read one after the other into one [`Config`].

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use toml_edit::TableLike;

use crate::drop_ins::drop_ins;
use crate::finding::{Finding, Wrong};
use crate::schema::{is_table, key, keys};
use crate::source::{Source, span_of};
use crate::spelling::nearest;
use crate::value::kind_of_item;
use crate::{Config, ConfigError};

/// Where the configuration is when nobody says otherwise.
pub const DEFAULT_CONFIG: &str = "/etc/bursar/bursar.toml";

/// A configuration and where it comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// What is configured.
    pub config: Config,
    /// What was ignored in it, one line each: unknown keys and tables.
    pub remarks: Vec<String>,
    /// The files it was read from, in order; empty when everything is default.
    pub files: Vec<PathBuf>,
}

/// Where each key was last given, to blame it later.
type Positions = BTreeMap<String, (PathBuf, Option<usize>)>;

impl Config {
    /// Reads `path`, then `<path>.d/*.toml` in the order of their names; a later file wins key by key.
    /// Without `path`, [`DEFAULT_CONFIG`], which need not exist. Hidden drop-ins are passed over.
    ///
    /// # Errors
    /// [`ConfigError::Unreadable`] for a file that cannot be read, or does not exist although it was
    /// named; [`ConfigError::Invalid`] with all that is wrong in all files.
    pub fn load(path: Option<&Path>) -> Result<Loaded, ConfigError> {
        let main = path.unwrap_or(Path::new(DEFAULT_CONFIG));
        let mut sources = Vec::new();
        match Source::read(main)? {
            Some(source) => sources.push(source),
            None if path.is_none() => {}
            None => {
                return Err(ConfigError::Unreadable {
                    path: main.to_owned(),
                    action: "read it",
                    source: io::ErrorKind::NotFound.into(),
                    remedy: "name a file that exists, or leave --config out",
                });
            }
        }
        for drop_in in drop_ins(main)?.unwrap_or_default() {
            sources.extend(Source::read(&drop_in)?);
        }
        merge(&sources)
    }

    /// Reads `text` as if it stood in a file at `path`.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with all that is wrong.
    pub fn parse(text: &str, path: &Path) -> Result<Loaded, ConfigError> {
        merge(&[Source::new(path, text.to_owned())])
    }
}

fn merge(sources: &[Source]) -> Result<Loaded, ConfigError> {
    let mut reading = Reading::default();
    for source in sources {
        match source.document() {
            Ok(document) => reading.table(source, document.as_table(), ""),
            Err(finding) => reading.errors.push(finding),
        }
        reading.loaded.files.push(source.path().to_owned());
    }
    reading.finish()
}

/// What has been read so far.
#[derive(Default)]
struct Reading {
    loaded: Loaded,
    places: Positions,
    errors: Vec<Finding>,
}

impl Reading {
    /// Takes all keys of `table`, which is called `name`.
    fn table(&mut self, source: &Source, table: &dyn TableLike, name: &str) {
        for (written, item) in table.iter() {
            let span = table
                .key(written)
                .and_then(toml_edit::Key::span)
                .or_else(|| span_of(item));
            let line = source.line_of(span);
            let dotted = if name.is_empty() {
                written.to_owned()
            } else {
                format!("{name}.{written}")
            };
            if let Some(key) = key(&dotted) {
                let read = match item.as_value() {
                    Some(value) => (key.set)(&mut self.loaded.config, value),
                    None => Err(Wrong::new(
                        format!("is {}, not a value", kind_of_item(item)),
                        format!("write {} = {}", key.name, key.default),
                    )),
                };
                match read {
                    Ok(()) => {
                        self.places.insert(dotted, (source.path().to_owned(), line));
                    }
                    Err(wrong) => self.errors.push(wrong.at(source.path(), line, &dotted)),
                }
            } else if is_table(&dotted) {
                match item.as_table_like() {
                    Some(inner) => self.table(source, inner, &dotted),
                    None => {
                        let message = format!("is {}, not a table", kind_of_item(item));
                        let wrong = Wrong::new(message, format!("write its keys under [{dotted}]"));
                        self.errors.push(wrong.at(source.path(), line, &dotted));
                    }
                }
            } else {
                let remark = unknown(&dotted, written).remark_at(source.path(), line, &dotted);
                self.loaded.remarks.push(remark.to_string());
            }
        }
    }

    /// Where the last of the keys that triggers are set by stands.
    fn last_place_of_triggers(&self) -> (PathBuf, Option<usize>) {
        let file_of = |path: &PathBuf| self.loaded.files.iter().position(|file| file == path);
        let last = ["triggers.event", "triggers.timer", "triggers.notifier"]
            .iter()
            .filter_map(|&name| self.places.get(name))
            .max_by_key(|(path, line)| (file_of(path), *line));
        last.cloned().unwrap_or_default()
    }

    /// What no single key can know.
    fn finish(mut self) -> Result<Loaded, ConfigError> {
        let triggers = self.loaded.config.triggers;
        if !triggers.is_any() {
            let wrong = Wrong::new(
                "event, timer and notifier are all false: no limit would hold",
                "set one of them to true",
            );
            let (path, line) = self.last_place_of_triggers();
            self.errors.push(wrong.at(&path, line, "triggers"));
        } else if !triggers.holds_alone() {
            let wrong = Wrong::new(
                "event and timer are false: limits hold only while bursard runs",
                "set one of them to true if they are to hold without it",
            );
            let (path, line) = self.last_place_of_triggers();
            let remark = wrong.remark_at(&path, line, "triggers");
            self.loaded.remarks.push(remark.to_string());
        }
        if self.errors.is_empty() {
            Ok(self.loaded)
        } else {
            Err(ConfigError::Invalid(self.errors))
        }
    }
}

/// A key or table that nobody knows. Ignored, so that an older bursard reads a newer file; said, so
/// that a slip is seen.
fn unknown(dotted: &str, written: &str) -> Wrong {
    let names: Vec<String> = keys().map(crate::schema::Key::dotted).collect();
    let tables = keys()
        .map(|key| key.table)
        .filter(|table| !table.is_empty());
    let same_name = keys()
        .find(|key| key.name == written)
        .map(crate::schema::Key::dotted);
    let close = nearest(dotted, names.iter().map(String::as_str).chain(tables)).map(str::to_owned);
    let remedy = match same_name.or(close) {
        Some(meant) => format!("did you mean {meant}?"),
        None => "remove it, or see docs/reference/configuration.md for what there is".to_owned(),
    };
    Wrong::new("is unknown and ignored", remedy)
}
