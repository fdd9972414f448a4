// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A TOML file as text, and which byte of it stands on which line.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use toml_edit::{Document, Item};

use crate::finding::{Finding, Wrong};
use crate::{ConfigError, Severity};

/// A larger file is refused unread, bytes: some 50,000 limits.
pub const MAX_FILE: u64 = 4 << 20;

/// A TOML file as text.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    text: String,
    /// Where each line begins; the first entry is 0.
    line_starts: Vec<usize>,
}

impl Source {
    /// `text`, as if it stood in a file at `path`.
    pub fn new(path: &Path, text: String) -> Self {
        let ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
        let line_starts = std::iter::once(0)
            .chain(ends.map(|(at, _)| at.saturating_add(1)))
            .collect();
        Self {
            path: path.to_owned(),
            text,
            line_starts,
        }
    }

    /// The file at `path`; `None` when there is none.
    ///
    /// # Errors
    /// When it cannot be read, is no regular file, too large or no UTF-8.
    pub fn read(path: &Path) -> Result<Option<Self>, ConfigError> {
        Self::read_as(path, path)
    }

    /// The same of the file at `place`, which is called `path`: the way there may have links.
    pub(crate) fn read_as(place: &Path, path: &Path) -> Result<Option<Self>, ConfigError> {
        let Some(bytes) = read_bounded(place, path)? else {
            return Ok(None);
        };
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(Self::new(path, text))),
            Err(error) => {
                let valid = error.utf8_error().valid_up_to();
                let before = error.as_bytes().get(..valid).unwrap_or_default();
                let line = before
                    .iter()
                    .filter(|&&byte| byte == b'\n')
                    .count()
                    .saturating_add(1);
                let wrong = Wrong::new("is no UTF-8 text", "write the file again in UTF-8");
                Err(ConfigError::Invalid(vec![wrong.at(path, Some(line), "")]))
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The line, from 1, on which the byte `at` stands.
    pub(crate) fn line_at(&self, at: usize) -> usize {
        self.line_starts
            .partition_point(|&start| start <= at)
            .max(1)
    }

    /// The line on which `span` begins.
    pub fn line_of(&self, span: Option<Range<usize>>) -> Option<usize> {
        span.map(|span| self.line_at(span.start))
    }

    /// The text as TOML.
    ///
    /// # Errors
    /// With the line at which it is none.
    pub fn document(&self) -> Result<Document<String>, Finding> {
        Document::parse(self.text.clone()).map_err(|error| {
            let line = self.line_of(error.span());
            let reason = error
                .message()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ");
            match (reason.as_str(), error.span()) {
                ("duplicate key", Some(span)) => self.duplicate(span),
                _ => {
                    let wrong = Wrong::new(format!("is no TOML: {reason}"), "mend that line");
                    wrong.at(&self.path, line, "")
                }
            }
        })
    }

    /// The parser stops at the second of two equal keys and does not say where the first one is. What
    /// stands before the second is TOML by itself, so look there.
    fn duplicate(&self, second: Range<usize>) -> Finding {
        let line = self.line_at(second.start);
        let spelled = self.text.get(second.clone()).unwrap_or_default();
        let name = toml_edit::Key::parse(spelled)
            .ok()
            .and_then(|keys| keys.into_iter().next_back());
        let name = name.map_or_else(|| spelled.to_owned(), |key| key.get().to_owned());
        let start = line
            .checked_sub(1)
            .and_then(|index| self.line_starts.get(index));
        let before = start
            .and_then(|&start| self.text.get(..start))
            .unwrap_or_default();
        let first = Document::parse(before).ok().and_then(|document| {
            let root = document.as_table();
            let tables = root.iter().filter_map(|(_, item)| item.as_table_like());
            let mut keys = tables
                .filter_map(|table| table.key(&name))
                .chain(root.key(&name));
            keys.next().and_then(|key| self.line_of(key.span()))
        });
        let message = match first {
            Some(first) => format!("stands in line {first} already"),
            None => "stands there already".to_owned(),
        };
        Wrong::new(message, "remove one of the two").at(&self.path, Some(line), &name)
    }
}

/// The text of the file at `path`, as it is read for a configuration; `None` when there is none.
///
/// # Errors
/// As [`Source::read`].
pub fn read_text(path: &Path) -> Result<Option<String>, ConfigError> {
    Ok(Source::read(path)?.map(|source| source.text))
}

/// The bytes of a regular file. A FIFO would block us, a device could do anything, and a huge file
/// would have to fit into the daemon.
fn read_bounded(place: &Path, path: &Path) -> Result<Option<Vec<u8>>, ConfigError> {
    let unreadable = |source: io::Error| ConfigError::Unreadable {
        path: path.to_owned(),
        action: "read it",
        source,
        remedy: "see to its permissions or restore it",
    };
    let refused = |message: String, remedy: &str| {
        ConfigError::Invalid(vec![Finding {
            severity: Severity::Error,
            path: path.to_owned(),
            line: None,
            key: String::new(),
            message,
            remedy: remedy.to_owned(),
        }])
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match rustix::fs::open(place, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(unreadable(errno.into())),
    };
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(refused(
            "is not a regular file".to_owned(),
            "put a regular file there",
        ));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_FILE {
        let message = format!("is larger than {} MiB", MAX_FILE >> 20);
        return Err(refused(
            message,
            "is it the right file? remove what is too much",
        ));
    }
    Ok(Some(bytes))
}

/// Where an item begins: its own span, or for a table that is only implied (`[a.b]` implies `a`) that
/// of the first thing in it.
pub fn span_of(item: &Item) -> Option<Range<usize>> {
    item.span().or_else(|| {
        let table = item.as_table_like()?;
        table.iter().find_map(|(_, inner)| span_of(inner))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_on_their_lines() {
        let source = Source::new(Path::new("/x"), "a\nbc\n\nd".to_owned());
        for (at, line) in [(0, 1), (1, 1), (2, 2), (4, 2), (5, 3), (6, 4), (99, 4)] {
            assert_eq!(source.line_at(at), line, "byte {at}");
        }
    }

    #[test]
    fn a_key_given_twice_is_named_with_both_lines() {
        let text = "[limits]\n1000 = { memory = \"1G\" }\n\"1000\" = { memory = \"2G\" }\n";
        let finding = Source::new(Path::new("/l"), text.to_owned())
            .document()
            .unwrap_err();
        assert_eq!(
            finding.to_string(),
            "/l:3: 1000: stands in line 2 already; remove one of the two"
        );
    }

    #[test]
    fn a_table_given_twice_is_named_with_both_lines() {
        let text = "[limits.a]\nmemory = \"1G\"\n[limits.a]\nmemory = \"2G\"\n";
        let finding = Source::new(Path::new("/l"), text.to_owned())
            .document()
            .unwrap_err();
        assert_eq!(
            finding.to_string(),
            "/l:3: a: stands in line 1 already; remove one of the two"
        );
    }

    #[test]
    fn what_is_no_file_is_refused_without_waiting_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [
            &fifo,
            &directory.path().to_owned(),
            &PathBuf::from("/dev/zero"),
        ] {
            let error = Source::read(path).unwrap_err().to_string();
            assert!(
                error.ends_with(": is not a regular file; put a regular file there"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_that_is_too_large_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(MAX_FILE).unwrap();
        assert!(Source::read(file.path()).unwrap().is_some());
        file.as_file().set_len(MAX_FILE + 1).unwrap();
        let error = Source::read(file.path()).unwrap_err().to_string();
        assert!(error.contains("is larger than 4 MiB; "), "{error}");
    }
}
