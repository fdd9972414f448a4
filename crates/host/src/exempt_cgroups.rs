// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Control groups (version 2) whose processes are left alone: which directories patterns mean now, and which processes
//! are in them. A directory that is not root's is none: whoever has it may move processes there.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bursar_model::{Pid, printable};

use crate::Cgroups;

/// Levels of directories, as the kernel half has it.
const MOST_LEVELS: usize = 32;
/// Directories that patterns mean; further ones are said.
const MOST_FOUND: usize = 4096;
/// The directory that systemd gives each user's own services.
const OF_USERS: &[u8] = b"user@*.service";
const OTHERS_WRITE: u32 = 0o022;

/// A pattern: names with `*` and `?`, and whether it means what is below the last one only.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    names: Vec<Vec<u8>>,
    is_below: bool,
}

/// The patterns, and where the hierarchy is mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExemptCgroups {
    patterns: Vec<Pattern>,
    mount: Option<PathBuf>,
    /// Which of the hierarchy's directories that is.
    root: PathBuf,
}

/// A directory that a pattern means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExemptCgroup {
    /// The kernel's number of it.
    pub id: u64,
    /// Only what is below it.
    pub is_below: bool,
}

/// What patterns mean now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvedCgroups {
    /// The directories.
    pub found: Vec<ExemptCgroup>,
    /// Those that are not exempt although a pattern means them, and why.
    pub remarks: Vec<String>,
    /// Directories in which others may come that a pattern means.
    pub watched: Vec<PathBuf>,
}

impl ExemptCgroups {
    /// These patterns, on the hierarchy that is mounted now.
    pub fn new(patterns: &[String]) -> Self {
        let (mount, root) = Cgroups::find().ok().and_then(|it| it.unified()).unzip();
        Self::at(patterns, mount, root.unwrap_or_default())
    }

    /// The same on a hierarchy of which all is mounted there.
    pub fn on(patterns: &[String], mount: &Path) -> Self {
        Self::at(patterns, Some(mount.to_owned()), PathBuf::from("/"))
    }

    fn at(patterns: &[String], mount: Option<PathBuf>, root: PathBuf) -> Self {
        let patterns = patterns.iter().map(|text| {
            let names = text.split('/').filter(|it| !it.is_empty());
            let mut names: Vec<Vec<u8>> = names.map(|it| it.as_bytes().to_vec()).collect();
            let is_below = names.last().is_some_and(|it| it == b"*");
            if is_below {
                names.pop();
            }
            Pattern { names, is_below }
        });
        Self {
            patterns: patterns.collect(),
            mount,
            root,
        }
    }

    /// Whether there is any pattern.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Whether a process is in such a directory, or below one, as the kernel half has it.
    pub fn has(&self, pid: Pid) -> bool {
        if self.mount.is_none() || self.is_empty() {
            return false;
        }
        let text = fs::read(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let mut lines = text.split(|&byte| byte == b'\n');
        let Some(path) = lines.find_map(|it| it.strip_prefix(b"0::")) else {
            return false;
        };
        let Ok(inside) = Path::new(OsStr::from_bytes(path)).strip_prefix(&self.root) else {
            return false;
        };
        self.covers(inside)
    }

    /// Whether that is so of who is in the group at this path within the hierarchy.
    pub fn covers(&self, inside: &Path) -> bool {
        let Some(mount) = &self.mount else {
            return false;
        };
        let names: Vec<&[u8]> = inside.iter().map(OsStrExt::as_bytes).collect();
        for count in (1..=names.len()).rev().take(MOST_LEVELS) {
            let level: &[&[u8]] = names.get(..count).unwrap_or_default();
            let directory = level
                .iter()
                .fold(mount.clone(), |at, name| at.join(OsStr::from_bytes(name)));
            if !fs::metadata(&directory).is_ok_and(|it| it.uid() == 0) {
                return false;
            }
            let is_last = count == names.len();
            let is_meant = |it: &Pattern| it.matches(level) && !(is_last && it.is_below);
            if self.patterns.iter().any(is_meant) {
                return true;
            }
        }
        false
    }

    /// Looks for the directories.
    pub fn resolve(&self) -> ResolvedCgroups {
        let mut resolved = ResolvedCgroups::default();
        if self.is_empty() {
            return resolved;
        }
        let Some(mount) = &self.mount else {
            let remark = "exempt.cgroups: no control groups of version 2 are mounted, so no process is exempt; mount \
                          cgroup2, or take the patterns out";
            resolved.remarks.push(remark.to_owned());
            return resolved;
        };
        for pattern in &self.patterns {
            pattern.resolve(mount, &mut resolved);
        }
        resolved.watched.sort();
        resolved.watched.dedup();
        resolved.found.dedup();
        if resolved.found.len() > MOST_FOUND {
            let more = resolved.found.len().saturating_sub(MOST_FOUND);
            resolved.found.truncate(MOST_FOUND);
            resolved.remarks.push(format!(
                "exempt.cgroups: {more} directories are beyond the {MOST_FOUND} that there is room for; name what is above them"
            ));
        }
        resolved
    }
}

impl Pattern {
    fn matches(&self, names: &[&[u8]]) -> bool {
        let mut both = self.names.iter().zip(names);
        self.names.len() == names.len() && both.all(|(pattern, name)| is_like(pattern, name))
    }

    fn resolve(&self, mount: &Path, resolved: &mut ResolvedCgroups) {
        let mut here = vec![mount.to_owned()];
        for name in &self.names {
            let mut next = Vec::new();
            for directory in here {
                next.extend(children_like(&directory, name));
                resolved.watched.push(directory);
            }
            here = next;
        }
        for directory in here {
            match distrust(mount, &directory) {
                Some(why) => resolved.remarks.push(refused(mount, &directory, &why)),
                None => self.take(mount, &directory, resolved),
            }
        }
    }

    fn take(&self, mount: &Path, directory: &Path, resolved: &mut ResolvedCgroups) {
        let Ok(found) = fs::metadata(directory) else {
            return;
        };
        resolved.found.push(ExemptCgroup {
            id: found.ino(),
            is_below: self.is_below,
        });
        // What belongs to others below it the kernel half leaves out by itself.
        for child in children_like(directory, b"*") {
            if let Some(why) = distrust(mount, &child) {
                resolved.remarks.push(refused(mount, &child, &why));
            }
        }
        resolved.watched.push(directory.to_owned());
    }
}

fn children_like(directory: &Path, name: &[u8]) -> Vec<PathBuf> {
    if !name.iter().any(|it| matches!(it, b'*' | b'?')) {
        let child = directory.join(OsStr::from_bytes(name));
        return child.is_dir().then_some(child).into_iter().collect();
    }
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries
        .filter(|it| it.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter(|it| is_like(name, it.file_name().as_bytes()))
        .map(|it| it.path())
        .collect();
    all.sort();
    all
}

/// Why a user could move processes into a directory.
fn distrust(mount: &Path, directory: &Path) -> Option<String> {
    let levels = directory.ancestors().take_while(|it| *it != mount);
    for level in levels {
        let name = level.file_name().map(OsStrExt::as_bytes);
        if name.is_some_and(|it| is_like(OF_USERS, it)) {
            return Some("it is a user's own (user@.service)".to_owned());
        }
        let owner = fs::metadata(level).ok()?.uid();
        if owner != 0 {
            return Some(format!("it, or one above it, belongs to the user {owner}"));
        }
    }
    let procs = fs::metadata(directory.join("cgroup.procs")).ok()?;
    let is_open = procs.uid() != 0 || procs.mode() & OTHERS_WRITE != 0;
    is_open.then(|| "others than root may write to its cgroup.procs".to_owned())
}

fn refused(mount: &Path, directory: &Path, why: &str) -> String {
    let inside = directory.strip_prefix(mount).unwrap_or(directory);
    let shown = printable(inside.as_os_str().as_bytes(), 200);
    format!("exempt.cgroups: /{shown} is not exempt: {why}; name a directory of root's")
}

/// `*` is any number of characters, `?` is one.
fn is_like(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut of) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while of < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                retry = Some((at, of));
                at += 1;
            }
            Some(it) if *it == b'?' || Some(it) == name.get(of) => {
                at += 1;
                of += 1;
            }
            _ => {
                let Some((star, taken)) = retry else {
                    return false;
                };
                retry = Some((star, taken + 1));
                at = star + 1;
                of = taken + 1;
            }
        }
    }
    pattern.iter().skip(at).all(|it| *it == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_are_within_a_name() {
        for (pattern, name, expected) in [
            ("job_*", "job_17", true),
            ("job_*", "job", false),
            ("*", "", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b*", "xaxxbx", true),
            ("*a*b", "ab-c", false),
            ("", "a", false),
        ] {
            assert_eq!(
                is_like(pattern.as_bytes(), name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
    }
}
