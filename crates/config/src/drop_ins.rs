// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which files stand in a directory of drop-ins, and in which order they are read.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::ConfigError;
use crate::finding::Wrong;

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
