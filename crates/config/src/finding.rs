// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One thing that is wrong or worth knowing about a file, and where.

use std::fmt;
use std::path::{Path, PathBuf};

use bursar_model::printable;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing; the file is used.
    Remark,
    /// The file is not used; what was in force before stays.
    Error,
}

/// One thing about a file. Shown as one line of harmless text: `path:line: key: message; remedy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The file.
    pub path: PathBuf,
    /// The line in it, from 1; absent where it concerns the file as a whole.
    pub line: Option<usize>,
    /// The key with its tables, `ledger.max_processes`; empty where none is concerned.
    pub key: String,
    /// What is wrong, on what value.
    pub message: String,
    /// What to do; empty where nothing needs to be done.
    pub remedy: String,
}

/// What is wrong with a value, before it is known where that stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

impl Wrong {
    /// Both.
    pub fn new(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            remedy: remedy.into(),
        }
    }

    /// This, as an error at a place.
    pub fn at(self, path: &Path, line: Option<usize>, key: &str) -> Finding {
        Finding {
            severity: Severity::Error,
            path: path.to_owned(),
            line,
            key: key.to_owned(),
            message: self.message,
            remedy: self.remedy,
        }
    }

    /// This, as a remark at a place.
    pub(crate) fn remark_at(self, path: &Path, line: Option<usize>, key: &str) -> Finding {
        Finding {
            severity: Severity::Remark,
            ..self.at(path, line, key)
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use std::os::unix::ffi::OsStrExt;
        f.write_str(&printable(self.path.as_os_str().as_bytes(), 4096))?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        f.write_str(": ")?;
        if !self.key.is_empty() {
            write!(f, "{}: ", printable(self.key.as_bytes(), 300))?;
        }
        f.write_str(&harmless(&self.message))?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", harmless(&self.remedy))?;
        }
        Ok(())
    }
}

/// Messages quote what stands in the file with `{:?}`, which escapes all but a few characters that
/// turn the writing direction; a second round of backslashes would only confuse.
fn harmless(text: &str) -> String {
    text.split('\\')
        .map(|part| printable(part.as_bytes(), 4096))
        .collect::<Vec<_>>()
        .join("\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_whatever_it_quotes() {
        let wrong = Wrong::new(
            format!("{:?} is not a valid size", "a\n\u{202e}b"),
            "write 512M",
        );
        let finding = wrong.at(Path::new("/etc/l\n.toml"), Some(3), "limits.\u{1b}[2J");
        assert_eq!(
            finding.to_string(),
            r#"/etc/l\n.toml:3: limits.\x1b[2J: "a\n\u{202e}b" is not a valid size; write 512M"#
        );
    }

    #[test]
    fn what_is_not_there_leaves_no_gap() {
        let finding = Wrong::new("is empty", "").at(Path::new("/x"), None, "");
        assert_eq!(finding.to_string(), "/x: is empty");
    }
}
