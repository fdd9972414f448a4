// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which files stand in a directory of drop-ins, in which order they are read, and what those of limits say.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::finding::Wrong;
use crate::limits::LimitsFile;
use crate::source::Source;
use crate::trust::trusted;
use crate::{ConfigError, Finding, MAX_FILE};

/// More drop-ins than this are a mistake.
const MAX_DROP_INS: usize = 256;

/// The directory of drop-ins of the file `main`: `<main>.d`.
pub(crate) fn directory_of(main: &Path) -> PathBuf {
    let mut name = OsString::from(main);
    name.push(".d");
    PathBuf::from(name)
}

/// The drop-ins of `main`, in the order of their names' bytes; `None` where there is no directory.
/// Hidden files are passed over.
pub(crate) fn drop_ins(main: &Path) -> Result<Option<Vec<PathBuf>>, ConfigError> {
    let directory = directory_of(main);
    let unreadable = |source| ConfigError::Unreadable {
        path: directory.clone(),
        action: "list it",
        source,
        remedy: "see to its permissions, or remove it",
    };
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(unreadable)?.file_name();
        if name.as_bytes().ends_with(b".toml") && !name.as_bytes().starts_with(b".") {
            found.push(directory.join(name));
        }
        if found.len() > MAX_DROP_INS {
            let message = format!("has more than {MAX_DROP_INS} drop-ins");
            let wrong = Wrong::new(message, "is it the right directory? join them");
            return Err(ConfigError::Invalid(vec![wrong.at(&directory, None, "")]));
        }
    }
    found.sort();
    Ok(Some(found))
}

/// What was read, if nothing is wrong with what it says; that is collected, so that all of it is said at once.
pub(crate) fn collect<T>(
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
pub(crate) fn read_drop_ins(
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
