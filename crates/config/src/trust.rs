// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a file is root's alone: nobody else owns it, a directory or a link on the way to it, or may
//! write to one of them. A file that root would be made to obey must be, and a program that users must not replace.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::ConfigError;
use crate::finding::Wrong;

/// The kernel follows as many.
const MOST_LINKS: u32 = 40;
/// Whose group may write, or everybody.
const OTHERS_WRITE: u32 = 0o022;
/// In a directory with this bit nobody removes or renames what is not his.
const STICKY: u32 = 0o1000;

/// The path without links of what `path` leads to, where all of it is root's alone or ours; `None` where
/// there is nothing. The way is walked link by link, so nobody can turn it elsewhere afterwards either.
pub(crate) fn trusted(path: &Path) -> Result<Option<PathBuf>, ConfigError> {
    walk(path, distrust)
}

/// The same of a program: root's, and in no directory to which others may add anything.
pub(crate) fn trusted_program(path: &Path) -> Result<Option<PathBuf>, ConfigError> {
    walk(path, distrust_program)
}

fn walk(
    path: &Path,
    distrust: fn(&Metadata) -> Option<Wrong>,
) -> Result<Option<PathBuf>, ConfigError> {
    let absolute = std::path::absolute(path).map_err(|error| unreadable(path, error))?;
    let mut left = parts(&absolute);
    let mut at = PathBuf::from("/");
    let mut links = 0_u32;
    while let Some(part) = left.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let found = match fs::symlink_metadata(&next) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(path, error)),
        };
        if let Some(wrong) = distrust(&found) {
            let place = if next == absolute {
                String::new()
            } else {
                format!("{next:?} on the way to it ")
            };
            let wrong = Wrong::new(format!("{place}{}", wrong.message), wrong.remedy);
            return Err(ConfigError::Invalid(vec![wrong.at(path, None, "")]));
        }
        if !found.is_symlink() {
            at = next;
            continue;
        }
        links = links.saturating_add(1);
        if links > MOST_LINKS {
            let wrong = Wrong::new(
                "is a symbolic link that leads round in a circle",
                "remove it, or link it to a file",
            );
            return Err(ConfigError::Invalid(vec![wrong.at(path, None, "")]));
        }
        let target = fs::read_link(&next).map_err(|error| unreadable(path, error))?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        for part in parts(&target).into_iter().rev() {
            left.push_front(part);
        }
    }
    Ok(Some(at))
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let named = path.components().filter_map(|it| match it {
        Component::Normal(_) | Component::ParentDir => Some(it.as_os_str().to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    named.collect()
}

/// Why this is not root's alone.
fn distrust(found: &Metadata) -> Option<Wrong> {
    let owner = found.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Some(Wrong::new(
            format!("belongs to the user {owner}, who could change limits"),
            "chown it to root",
        ));
    }
    let is_kept = found.is_dir() && found.mode() & STICKY != 0;
    (is_open(found) && !is_kept).then(|| open_to_others(found))
}

fn distrust_program(found: &Metadata) -> Option<Wrong> {
    if found.uid() != 0 {
        let message = format!("belongs to the user {}", found.uid());
        return Some(Wrong::new(message, "chown it to root, or leave it out"));
    }
    is_open(found).then(|| open_to_others(found))
}

/// A link's own mode means nothing.
fn is_open(found: &Metadata) -> bool {
    !found.is_symlink() && found.mode() & OTHERS_WRITE != 0
}

fn open_to_others(found: &Metadata) -> Wrong {
    let mode = found.mode() & 0o7777;
    let message = format!("may be written by others than root (mode {mode:04o})");
    Wrong::new(message, "chmod go-w it")
}

fn unreadable(path: &Path, source: io::Error) -> ConfigError {
    ConfigError::Unreadable {
        path: path.to_owned(),
        action: "read it",
        source,
        remedy: "see to its permissions or restore it",
    }
}
