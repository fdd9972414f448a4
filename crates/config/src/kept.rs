// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A copy of the limits that are in force, for a start with files that are wrong or would kill at once.
//!
//! Limits without drop-ins are kept as the text of their file. With drop-ins the copy has all files, as
//! `[[file]]` tables with their `path` and `text`.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, value};

use crate::limits::LimitsFile;
use crate::source::Source;
use crate::store::write_atomically;
use crate::{ConfigError, Limits};

/// Its name in the state directory ([`Limits::kept`]).
pub const LAST_GOOD: &str = "last-good-limits.toml";
/// The tables of a copy with drop-ins.
const FILE: &str = "file";
const PATH: &str = "path";
const TEXT: &str = "text";

impl Limits {
    /// Writes them to `copy` as well, for [`Limits::kept`]: what the files said when they were read or last
    /// written. Limits that were never in a file are not kept, unless others were before. Where that fails no older
    /// copy is left, which a start would go by.
    ///
    /// # Errors
    /// [`ConfigError::Unwritable`].
    pub fn keep(&self, copy: &Path) -> Result<(), ConfigError> {
        let text = match (&self.file.on_disk, self.drop_ins.is_empty()) {
            (Some(text), true) => text.clone(),
            (None, true) if !copy.exists() => return Ok(()),
            _ => self.bundle(),
        };
        write_atomically(copy, text.as_bytes()).inspect_err(|_| {
            // A full disk lets it be removed.
            let _ = fs::remove_file(copy);
        })
    }

    /// All files with their paths: what [`Limits::keep`] writes changes exactly when this does.
    pub fn bundle(&self) -> String {
        let mut files = ArrayOfTables::new();
        for file in std::iter::once(&self.file).chain(self.drop_ins.iter()) {
            let Some(text) = &file.on_disk else {
                continue;
            };
            let mut table = Table::new();
            table.insert(PATH, value(file.path.to_string_lossy().into_owned()));
            table.insert(TEXT, value(text.as_str()));
            files.push(table);
        }
        let mut document = DocumentMut::new();
        document.insert(FILE, Item::ArrayOfTables(files));
        document.to_string()
    }

    /// The limits that were last kept in `copy`, as if they stood in the file at `path` and its drop-ins; `None`
    /// where nothing is kept, or it cannot be read either.
    pub fn kept(copy: &Path, path: &Path) -> Option<Self> {
        let source = Source::read(copy).ok()??;
        let document = source.document().ok()?;
        let Some(files) = document.get(FILE) else {
            // No copy of a bundle without files.
            return Self::parse(source.text(), path).ok();
        };
        let mut main = LimitsFile::new(path);
        let mut drop_ins = Vec::new();
        for table in files.as_array_of_tables()? {
            let of = Path::new(table.get(PATH)?.as_str()?);
            let text = table.get(TEXT)?.as_str()?.to_owned();
            let file = LimitsFile::read(&Source::new(of, text)).ok()?;
            if of == path {
                main = file;
            } else {
                drop_ins.push(file);
            }
        }
        Some(Self::of(main, Arc::from(drop_ins)))
    }
}
