// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Control groups whose processes are left alone: which directories patterns mean now, and which processes are in them.
//! A directory that is not root's is none: whoever has it may move processes there.

mod pattern;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bursar_model::{CgroupExtent, CgroupHierarchy, ExemptCgroup, Pid, printable};

use self::pattern::{Pattern, is_like};
use crate::{Cgroups, HostError};

/// Levels of directories, as the kernel half has it.
const MOST_LEVELS: usize = 32;
/// Directories that patterns mean; further ones are said.
const MOST_FOUND: usize = 4096;
/// The directory that systemd gives each user's own services.
const OF_USERS: &[u8] = b"user@*.service";
const OTHERS_WRITE: u32 = 0o022;
/// Whoever may write to one of these moves processes there. `tasks` is version 1's.
const DOORS: [&str; 2] = ["cgroup.procs", "tasks"];

/// A hierarchy that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tree {
    hierarchy: CgroupHierarchy,
    mount: PathBuf,
    /// Which of the hierarchy's directories that is.
    root: PathBuf,
}

/// The patterns, and where the hierarchies are mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExemptCgroups {
    patterns: Vec<Pattern>,
    trees: Vec<Tree>,
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
    /// These patterns, on the hierarchies that are mounted now.
    ///
    /// # Errors
    /// When there are patterns and nobody can say what is mounted: without them nobody would be exempt.
    pub fn new(patterns: &[String]) -> Result<Self, HostError> {
        if patterns.is_empty() {
            return Ok(Self::default());
        }
        let mounted = Cgroups::find()?;
        let unified = (CgroupHierarchy::Unified, mounted.unified());
        let memory = (CgroupHierarchy::Memory, mounted.memory_v1());
        let trees = [unified, memory].into_iter().filter_map(|(hierarchy, at)| {
            let (mount, root) = at?;
            Some(Tree {
                hierarchy,
                mount,
                root,
            })
        });
        Ok(Self::on_trees(patterns, trees.collect()))
    }

    /// The same on one hierarchy, of which all is mounted there.
    pub fn on(patterns: &[String], hierarchy: CgroupHierarchy, mount: &Path) -> Self {
        let tree = Tree {
            hierarchy,
            mount: mount.to_owned(),
            root: PathBuf::from("/"),
        };
        Self::on_trees(patterns, vec![tree])
    }

    fn on_trees(patterns: &[String], trees: Vec<Tree>) -> Self {
        Self {
            patterns: patterns.iter().map(|it| Pattern::new(it)).collect(),
            trees,
        }
    }

    /// Whether there is any pattern.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Whether a process is in such a directory, or below one, as the kernel half has it. `None` when it is gone, or there
    /// is no descriptor or memory to look. A path that is too long to be shown is nobody's but a user's.
    pub fn has(&self, pid: Pid) -> Option<bool> {
        if self.is_empty() || self.trees.is_empty() {
            return Some(false);
        }
        let text = match fs::read(format!("/proc/{pid}/cgroup")) {
            Ok(text) => text,
            Err(error) => {
                let is_too_long = error.raw_os_error() == Some(libc::ENAMETOOLONG);
                return is_too_long.then_some(false);
            }
        };
        let is_in = |tree: &Tree| {
            let path = path_in(&text, tree.hierarchy)?;
            Some(self.covers(tree.hierarchy, path.strip_prefix(&tree.root).ok()?))
        };
        let mut trees = self.trees.iter();
        Some(trees.any(|tree| is_in(tree).unwrap_or(false)))
    }

    /// Whether that is so of who is in the group at this path within a hierarchy.
    pub fn covers(&self, hierarchy: CgroupHierarchy, inside: &Path) -> bool {
        let Some(tree) = self.tree(hierarchy) else {
            return false;
        };
        let names: Vec<&[u8]> = inside.iter().map(OsStrExt::as_bytes).collect();
        let mut is_open_below = false;
        for count in (1..=names.len()).rev().take(MOST_LEVELS) {
            let level: &[&[u8]] = names.get(..count).unwrap_or_default();
            let directory = level.iter().fold(tree.mount.clone(), |at, name| {
                at.join(OsStr::from_bytes(name))
            });
            if !fs::metadata(&directory).is_ok_and(|it| it.uid() == 0) {
                return false;
            }
            let is_last = count == names.len();
            let is_meant = |it: &Pattern| {
                it.hierarchy == hierarchy && it.matches(level) && !(is_last && it.is_below)
            };
            if self.patterns.iter().any(is_meant) && tree.distrust(&directory).is_none() {
                return !is_open_below;
            }
            is_open_below = tree.is_open(&directory);
        }
        false
    }

    /// Looks for the directories.
    pub fn resolve(&self) -> ResolvedCgroups {
        let mut resolved = ResolvedCgroups::default();
        for pattern in &self.patterns {
            match self.tree(pattern.hierarchy) {
                Some(tree) => tree.resolve(pattern, &mut resolved),
                None => resolved.remark(not_mounted(pattern.hierarchy).to_owned()),
            }
        }
        resolved.watched.sort();
        resolved.watched.dedup();
        resolved.found.dedup();
        if resolved.found.len() > MOST_FOUND {
            let more = resolved.found.len().saturating_sub(MOST_FOUND);
            resolved.found.truncate(MOST_FOUND);
            resolved.remark(format!(
                "exempt.cgroups: {more} directories are beyond the {MOST_FOUND} that there is room for; name what is above them"
            ));
        }
        resolved
    }

    fn tree(&self, hierarchy: CgroupHierarchy) -> Option<&Tree> {
        self.trees.iter().find(|it| it.hierarchy == hierarchy)
    }
}

impl ResolvedCgroups {
    fn remark(&mut self, remark: String) {
        if !self.remarks.contains(&remark) {
            self.remarks.push(remark);
        }
    }
}

impl Tree {
    fn resolve(&self, pattern: &Pattern, resolved: &mut ResolvedCgroups) {
        let mut here = vec![self.mount.clone()];
        for name in &pattern.names {
            let mut next = Vec::new();
            for directory in here {
                // What a user makes in a directory of his is not even looked at.
                match owner_other_than_root(&directory) {
                    Some(owner) => resolved.remark(self.refused(&directory, &is_owned_by(owner))),
                    None => {
                        next.extend(children_like(&directory, name));
                        resolved.watched.push(directory);
                    }
                }
            }
            here = next;
        }
        for directory in here {
            match self.distrust(&directory) {
                Some(why) => resolved.remark(self.refused(&directory, &why)),
                None => self.take(pattern, &directory, resolved),
            }
        }
    }

    fn take(&self, pattern: &Pattern, directory: &Path, resolved: &mut ResolvedCgroups) {
        let extent = if pattern.is_below {
            CgroupExtent::Below
        } else {
            CgroupExtent::SelfAndBelow
        };
        let Some(group) = self.group(directory, extent) else {
            return;
        };
        resolved.found.push(group);
        // A directory that is another's the kernel half leaves out by itself; it does not see the files in it.
        for child in children_like(directory, b"*") {
            if let Some(why) = self.distrust(&child) {
                resolved.remark(self.refused(&child, &why));
                let group = self.group(&child, CgroupExtent::Nothing);
                resolved.found.extend(group);
            } else if self.hierarchy == CgroupHierarchy::Memory {
                // Whoever is given the files in it gets in at once.
                resolved.watched.push(child);
            }
        }
        resolved.watched.push(directory.to_owned());
    }

    fn group(&self, directory: &Path, extent: CgroupExtent) -> Option<ExemptCgroup> {
        Some(ExemptCgroup {
            id: fs::metadata(directory).ok()?.ino(),
            hierarchy: self.hierarchy,
            extent,
        })
    }

    /// Why a user could move processes into a directory.
    fn distrust(&self, directory: &Path) -> Option<String> {
        let levels = directory.ancestors().take_while(|it| *it != self.mount);
        for level in levels {
            let name = level.file_name().map(OsStrExt::as_bytes);
            if name.is_some_and(|it| is_like(OF_USERS, it)) {
                return Some("it is a user's own (user@.service)".to_owned());
            }
            if let Some(owner) = owner_other_than_root(level) {
                return Some(is_owned_by(owner));
            }
        }
        let is_open = self.is_open(directory);
        is_open.then(|| {
            format!(
                "others than root may write to its {}",
                self.doors().join(" or ")
            )
        })
    }

    /// Whether others than root move processes there although the directory is root's.
    fn is_open(&self, directory: &Path) -> bool {
        self.doors().iter().any(|door| {
            let door = fs::metadata(directory.join(door));
            door.is_ok_and(|it| it.uid() != 0 || it.mode() & OTHERS_WRITE != 0)
        })
    }

    fn doors(&self) -> &'static [&'static str] {
        match self.hierarchy {
            CgroupHierarchy::Unified => DOORS.get(..1).unwrap_or_default(),
            CgroupHierarchy::Memory => &DOORS,
        }
    }

    fn refused(&self, directory: &Path, why: &str) -> String {
        let inside = directory.strip_prefix(&self.mount).unwrap_or(directory);
        let shown = printable(inside.as_os_str().as_bytes(), 200);
        let prefix = self.hierarchy.prefix();
        format!("exempt.cgroups: {prefix}/{shown} is not exempt: {why}; name a directory of root's")
    }
}

fn owner_other_than_root(directory: &Path) -> Option<u32> {
    let owner = fs::metadata(directory).ok()?.uid();
    (owner != 0).then_some(owner)
}

fn is_owned_by(owner: u32) -> String {
    format!("it, or one above it, belongs to the user {owner}")
}

const fn not_mounted(hierarchy: CgroupHierarchy) -> &'static str {
    match hierarchy {
        CgroupHierarchy::Unified => {
            "exempt.cgroups: no control groups of version 2 are mounted, so no process is exempt by them; mount cgroup2, \
             or take the patterns out"
        }
        CgroupHierarchy::Memory => {
            "exempt.cgroups: the memory controller of version 1 is not mounted, so no process is exempt by it; write the \
             group of version 2, without memory:, or take the pattern out"
        }
    }
}

/// Where a process is in a hierarchy, of the content of its /proc/PID/cgroup (cgroups(7)).
fn path_in(text: &[u8], hierarchy: CgroupHierarchy) -> Option<&Path> {
    text.split(|&byte| byte == b'\n').find_map(|line| {
        let mut fields = line.splitn(3, |&byte| byte == b':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let is_it = match hierarchy {
            CgroupHierarchy::Unified => controllers.is_empty(),
            CgroupHierarchy::Memory => controllers
                .split(|&byte| byte == b',')
                .any(|it| it == b"memory"),
        };
        is_it.then(|| Path::new(OsStr::from_bytes(path)))
    })
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
