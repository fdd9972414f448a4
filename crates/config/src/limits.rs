// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `limits.toml`: who may hold how much.
//!
//! ```toml
//! force = true                                     # a reload of this file holds also where it kills at once
//!
//! [limits]
//! alice = { memory = "512M" }                      # a limit, with the default notice and barrier
//! "@students" = { memory = { limit = "2G", notice = "80%", barrier = "95%" } }
//! "=render" = { memory = "32G" }
//! default = { memory = "25%" }
//! carol = { memory = "4G", kill = "graceful" }     # over the notice her largest process gets SIGTERM
//! "=batch" = { memory = "64G", granted = ["alice", "@staff"] }   # who may enter it: bursar run --account
//! dave = { memory = "4G", numproc = "200:220", numfile = 4096 }  # beancounters: "BARRIER:LIMIT"
//! erin = { memory = "8G", reason = "thesis" }     # why, for whoever asks
//! frank = { memory = "8G", mode = "observe" }      # events tell what enforcing would do, and nothing is done
//!
//! [temporary]                                      # over the entry of the same WHO while it lasts
//! alice = { memory = "2G", until = "2026-12-01T09:00:00+01:00" }
//! ```
//!
//! Unlike in `bursar.toml` a key that nobody knows is an error: a slip must not take a limit away.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bursar_model::{BoundsSpec, KillManner, Resource, RowBounds, RowBoundsError, Who, WhoError};
use toml_edit::{Document, DocumentMut, Item, TableLike, Value};

use crate::ConfigError;
use crate::contradiction::contradiction;
use crate::entry::{Entries, Limit, TEMPORARY};
use crate::finding::{Finding, Wrong};
use crate::source::{Source, span_of};
use crate::spelling::nearest;
use crate::value::{MODES, boolean, kind_of_item, reason, size, until, word};

/// The table of entries that hold until they are changed.
pub(crate) const TABLE: &str = "limits";
/// The key that is no resource.
const KILL: &str = "kill";
/// Its words.
const KILLS: [(&str, KillManner); 2] = [
    ("at_once", KillManner::AtOnce),
    ("graceful", KillManner::Graceful),
];
/// The same: whether it is enforced.
pub(crate) const MODE: &str = "mode";
/// The same: who may enter a shared account.
const GRANTED: &str = "granted";
/// The same: why.
pub(crate) const REASON: &str = "reason";
/// The same: the end.
pub(crate) const UNTIL: &str = "until";
/// The key before the tables.
const FORCE: &str = "force";
/// The keys of a row's long form.
pub(crate) const BOUNDS: [&str; 3] = ["limit", "notice", "barrier"];

/// All limits of one file, and the file's text with the administrator's comments.
#[derive(Debug, Clone)]
pub(crate) struct LimitsFile {
    pub(crate) path: PathBuf,
    pub(crate) document: DocumentMut,
    pub(crate) entries: Entries,
    /// What the file said when it was read or last written; absent when it was not there.
    pub(crate) on_disk: Option<String>,
}

impl LimitsFile {
    /// No limits yet, for a file at `path` that does not exist yet.
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            document: DocumentMut::new(),
            entries: Entries::default(),
            on_disk: None,
        }
    }

    /// The one for exactly this WHO.
    pub(crate) fn get(&self, who: &Who) -> Option<&Limit> {
        self.entries.lasting.get(who)
    }

    /// The file's text, as [`Self::store`] writes it.
    pub(crate) fn to_text(&self) -> String {
        self.text_of(&self.document)
    }

    /// The text of an edited document, with the line ends that the file has: toml_edit writes LF.
    pub(crate) fn text_of(&self, document: &DocumentMut) -> String {
        let text = document.to_string();
        let mut lines = self.on_disk.iter().flat_map(|it| it.split_inclusive('\n'));
        let has_crlf = lines.next().is_some_and(|line| line.ends_with("\r\n"))
            && lines.all(|line| line.ends_with("\r\n") || !line.ends_with('\n'));
        match has_crlf {
            true => text.replace("\r\n", "\n").replace('\n', "\r\n"),
            false => text,
        }
    }

    /// What `source` says.
    pub(crate) fn read(source: &Source) -> Result<Self, ConfigError> {
        let document = source
            .document()
            .map_err(|finding| ConfigError::Invalid(vec![finding]))?;
        let entries = entries_of(source, &document)?;
        Ok(Self {
            path: source.path().to_owned(),
            document: document.into_mut(),
            entries,
            on_disk: Some(source.text().to_owned()),
        })
    }
}

/// Everything that `document` limits.
pub(crate) fn entries_of(
    source: &Source,
    document: &Document<String>,
) -> Result<Entries, ConfigError> {
    let mut reading = Reading {
        source,
        path: Arc::from(source.path()),
        entries: Entries::default(),
        errors: Vec::new(),
    };
    for (key, item) in document.iter() {
        match item.as_table_like() {
            Some(table) if key == TABLE || key == TEMPORARY => reading.limits(key, table),
            _ if key == TABLE || key == TEMPORARY => {
                let message = format!("is {}, not a table", kind_of_item(item));
                let wrong = Wrong::new(message, format!("write [{key}]"));
                reading.blame(document.as_table(), key, key, wrong);
            }
            _ if key == FORCE => match item.as_value().map(boolean) {
                Some(Ok(is_forced)) => reading.entries.is_forced = is_forced,
                Some(Err(wrong)) => reading.blame(document.as_table(), key, key, wrong),
                None => {
                    let wrong = Wrong::new("is a table", "write force = true before [limits]");
                    reading.blame(document.as_table(), key, key, wrong);
                }
            },
            _ => {
                let remedy = "put the line [limits] above it ([temporary] for entries with an end); only \
                              force = true stands before both";
                let wrong = Wrong::new("is unknown", remedy);
                reading.blame(document.as_table(), key, key, wrong);
            }
        }
    }
    if reading.errors.is_empty() {
        Ok(reading.entries)
    } else {
        Err(ConfigError::Invalid(reading.errors))
    }
}

/// What has been read so far.
struct Reading<'a> {
    source: &'a Source,
    path: Arc<Path>,
    entries: Entries,
    errors: Vec<Finding>,
}

impl Reading<'_> {
    fn limits(&mut self, name: &str, table: &dyn TableLike) {
        for (key, item) in table.iter() {
            let dotted = format!("{name}.{key}");
            let entry = self.entry(table, key, item, &dotted);
            match entry.and_then(|limit| in_its_table(limit, name).map_err(Some)) {
                Ok(limit) => self.add(name, table, key, limit),
                Err(None) => {}
                Err(Some(wrong)) => self.blame(table, key, &dotted, wrong),
            }
        }
    }

    /// Two spellings of the same WHO (`1000` and `01000`): TOML sees two keys.
    fn add(&mut self, name: &str, table: &dyn TableLike, key: &str, limit: Limit) {
        if let Some(first) = self.entries.of(name).get(&limit.who) {
            let message = format!("{} stands in line {} already", limit.who, first.line);
            let wrong = Wrong::new(message, "remove one of the two");
            self.blame(table, key, &format!("{name}.{key}"), wrong);
        } else {
            self.entries.of_mut(name).insert(limit.who.clone(), limit);
        }
    }

    /// One WHO. `Err(None)`: what is wrong with it has been said already.
    fn entry(
        &mut self,
        table: &dyn TableLike,
        key: &str,
        item: &Item,
        dotted: &str,
    ) -> Result<Limit, Option<Wrong>> {
        let who: Who = key.parse().map_err(no_who)?;
        let line = self.line(table, key).unwrap_or(1);
        let Some(rows) = item.as_table_like() else {
            let message = format!("is {}, not a table", kind_of_item(item));
            return Err(Some(Wrong::new(
                message,
                format!("write {key} = {{ memory = \"512M\" }}"),
            )));
        };
        let said = self.errors.len();
        let mut memory = None;
        let mut mode = None;
        let mut kill = None;
        let mut granted = None;
        let mut why = None;
        let mut end = None;
        let mut beans = BTreeMap::new();
        for (name, row) in rows.iter() {
            let dotted = format!("{dotted}.{name}");
            if name == Resource::Memory.name() {
                match self.bounds(row, &dotted) {
                    Ok(spec) => memory = Some(spec),
                    Err(Some(wrong)) => self.blame(rows, name, &dotted, wrong),
                    Err(None) => {}
                }
            } else if name == KILL {
                match one_of(row, &KILLS, "write kill = \"graceful\"") {
                    Ok(manner) => kill = Some(manner),
                    Err(wrong) => self.blame(rows, name, &dotted, wrong),
                }
            } else if name == MODE {
                match one_of(row, &MODES, "write mode = \"observe\"") {
                    Ok(said) => mode = Some(said),
                    Err(wrong) => self.blame(rows, name, &dotted, wrong),
                }
            } else if name == GRANTED {
                match grants(&who, row) {
                    Ok(list) => granted = Some(list),
                    Err(wrong) => self.blame(rows, name, &dotted, wrong),
                }
            } else if name == REASON {
                match reason(row) {
                    Ok(said) => why = Some(said),
                    Err(wrong) => self.blame(rows, name, &dotted, wrong),
                }
            } else if name == UNTIL {
                match until(row) {
                    Ok(moment) => end = Some(moment),
                    Err(wrong) => self.blame(rows, name, &dotted, wrong),
                }
            } else if let Some(resource) = Resource::beancounter(name) {
                match row_bounds(resource, row) {
                    Ok(bounds) => {
                        beans.insert(resource, bounds);
                    }
                    Err(wrong) => self.blame(rows, name, &dotted, wrong),
                }
            } else {
                let names = Resource::BEANCOUNTERS.iter().map(|it| it.name());
                let own = [Resource::Memory.name(), MODE, KILL, GRANTED, REASON, UNTIL];
                let known = names.chain(own);
                let remedy = match nearest(name, known) {
                    Some(meant) => format!("did you mean {meant}?"),
                    None => "write memory, or a beancounter (docs/explanation/beancounters.md)"
                        .to_owned(),
                };
                let wrong = Wrong::new("is not a resource", remedy);
                self.blame(rows, name, &dotted, wrong);
            }
        }
        let is_something = memory.is_some() || !beans.is_empty();
        match is_something {
            true if self.errors.len() == said => Ok(Limit {
                who,
                memory,
                rows: beans,
                mode,
                kill,
                granted,
                reason: why,
                until: end,
                path: Arc::clone(&self.path),
                line,
            }),
            _ if self.errors.len() > said => Err(None),
            _ => {
                let remedy = format!("write {key} = {{ memory = \"512M\" }} or remove it");
                Err(Some(Wrong::new("limits nothing", remedy)))
            }
        }
    }

    /// One row: `"512M"` or `{ limit = "2G", notice = "80%", barrier = "95%" }`.
    fn bounds(&mut self, row: &Item, dotted: &str) -> Result<BoundsSpec, Option<Wrong>> {
        let Some(table) = row.as_table_like() else {
            let Some(value) = row.as_value() else {
                let message = format!("is {}, not a size", kind_of_item(row));
                return Err(Some(Wrong::new(message, "write memory = \"512M\"")));
            };
            return Ok(BoundsSpec::of_limit(size(value)?));
        };
        let said = self.errors.len();
        let [mut limit, mut notice, mut barrier] = [None; 3];
        for (name, item) in table.iter() {
            let slot = match name {
                "limit" => &mut limit,
                "notice" => &mut notice,
                "barrier" => &mut barrier,
                _ => {
                    let remedy = match nearest(name, BOUNDS.into_iter()) {
                        Some(meant) => format!("did you mean {meant}?"),
                        None => "write limit, notice or barrier".to_owned(),
                    };
                    let wrong = Wrong::new("is not a bound", remedy);
                    self.blame(table, name, &format!("{dotted}.{name}"), wrong);
                    continue;
                }
            };
            match item.as_value().map(size) {
                Some(Ok(spec)) => *slot = Some(spec),
                Some(Err(wrong)) => self.blame(table, name, &format!("{dotted}.{name}"), wrong),
                None => {
                    let message = format!("is {}, not a size", kind_of_item(item));
                    let wrong = Wrong::new(message, format!("write {name} = \"512M\""));
                    self.blame(table, name, &format!("{dotted}.{name}"), wrong);
                }
            }
        }
        if self.errors.len() > said {
            return Err(None);
        }
        let Some(limit) = limit else {
            let remedy =
                "write limit = \"512M\", or limit = \"none\" for a notice or barrier alone";
            return Err(Some(Wrong::new("has no limit", remedy)));
        };
        let spec = BoundsSpec {
            limit,
            notice,
            barrier,
        };
        match contradiction(&spec) {
            Some(wrong) => Err(Some(wrong)),
            None => Ok(spec),
        }
    }

    fn line(&self, table: &dyn TableLike, key: &str) -> Option<usize> {
        let span = table.key(key).and_then(toml_edit::Key::span);
        self.source
            .line_of(span.or_else(|| table.get(key).and_then(span_of)))
    }

    fn blame(&mut self, table: &dyn TableLike, key: &str, dotted: &str, wrong: Wrong) {
        let line = self.line(table, key);
        self.errors.push(wrong.at(self.source.path(), line, dotted));
    }
}

/// One of a key's words.
fn one_of<T: Copy>(row: &Item, words: &[(&str, T)], remedy: &str) -> Result<T, Wrong> {
    match row.as_value() {
        Some(value) => word(value, words),
        None => Err(Wrong::new("is not a word", remedy)),
    }
}

/// An end and the table of those that have one belong together.
fn in_its_table(limit: Limit, table: &str) -> Result<Limit, Wrong> {
    match (limit.until, table == TEMPORARY) {
        (None, true) => Err(Wrong::new(
            "has no end",
            "write until = \"2026-12-01T09:00:00+01:00\", or move it to [limits]",
        )),
        (Some(_), false) => Err(Wrong::new(
            "has an end (until)",
            "write it under [temporary]: what is under [limits] holds again afterwards",
        )),
        _ => Ok(limit),
    }
}

/// Who may enter a shared account.
fn grants(whose: &Who, item: &Item) -> Result<Vec<Who>, Wrong> {
    const REMEDY: &str = "write granted = [\"alice\", \"@staff\"]";
    if !matches!(whose, Who::Shared(_)) {
        return Err(Wrong::new(
            format!("makes no sense for {whose}: nobody enters another user's account"),
            "grant a shared account (=name) instead",
        ));
    }
    let Some(list) = item.as_array() else {
        let message = format!("is {}, not a list of users and @groups", kind_of_item(item));
        return Err(Wrong::new(message, REMEDY));
    };
    list.iter()
        .map(|value| {
            let text = value
                .as_str()
                .ok_or_else(|| Wrong::new("has something else than a name in it", REMEDY))?;
            match text.parse() {
                Ok(who @ (Who::User(_) | Who::Uid(_) | Who::Group(_))) => Ok(who),
                _ => Err(Wrong::new(
                    format!("{text:?} is neither a user nor an @group"),
                    REMEDY,
                )),
            }
        })
        .collect()
}

/// `"200:220"`, `"unlimited"`, or a bare number for both.
fn row_bounds(resource: Resource, row: &Item) -> Result<RowBounds, Wrong> {
    let text = match row.as_value() {
        Some(Value::String(text)) => text.value().clone(),
        Some(Value::Integer(number)) => number.value().to_string(),
        _ => {
            let message = format!("is {}, not a pair of bounds", kind_of_item(row));
            let remedy = format!("write {} = \"200:220\"", resource.name());
            return Err(Wrong::new(message, remedy));
        }
    };
    RowBounds::parse(resource, &text).map_err(|error| no_bounds(&error))
}

/// The model's message ends with its remedy, after the last colon.
pub(crate) fn no_bounds(error: &RowBoundsError) -> Wrong {
    match error {
        RowBoundsError::Malformed(text) => Wrong::new(
            format!("{text:?} is not a valid bound"),
            "write \"BARRIER:LIMIT\", one number for both, or \"unlimited\"",
        ),
        RowBoundsError::UnitOfPieces(text) => Wrong::new(
            format!("{text:?} has a unit, but these are counted in pieces"),
            "write a bare number",
        ),
        RowBoundsError::BarrierTooHigh { barrier, limit } => Wrong::new(
            format!("the barrier ({barrier}) lies above the limit ({limit})"),
            "lower it or raise the limit",
        ),
    }
}

fn no_who(error: WhoError) -> Option<Wrong> {
    const FORMS: &str = "write a user name, a uid, @group, =name or default";
    Some(match error {
        WhoError::Empty => Wrong::new("nobody is named", FORMS),
        WhoError::Malformed(text) => Wrong::new(format!("{text:?} names nobody"), FORMS),
        WhoError::UidTooLarge(text) => Wrong::new(
            format!("{text} is not a valid uid"),
            "uids are 0 to 4294967294",
        ),
    })
}
