// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A control group that exempt.cgroups is about.

/// Hierarchies in which groups can be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CgroupHierarchy {
    /// Version 2.
    Unified,
    /// The memory controller's of version 1.
    Memory,
}

/// What a pattern of version 1 begins with.
const OF_MEMORY: &str = "memory:";

impl CgroupHierarchy {
    /// A pattern's hierarchy, and its path there.
    pub fn of_pattern(pattern: &str) -> (Self, &str) {
        match pattern.strip_prefix(OF_MEMORY) {
            Some(path) => (Self::Memory, path),
            None => (Self::Unified, pattern),
        }
    }

    /// What a pattern of it begins with.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Unified => "",
            Self::Memory => OF_MEMORY,
        }
    }
}

/// Whose processes are nobody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupExtent {
    /// Those in the group and below it.
    SelfAndBelow,
    /// Those below it.
    Below,
    /// None, although it lies below one whose are: others may move processes there.
    Nothing,
}

/// A directory of a hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExemptCgroup {
    /// The kernel's number of it in its hierarchy.
    pub id: u64,
    /// Which one that is.
    pub hierarchy: CgroupHierarchy,
    /// What it means.
    pub extent: CgroupExtent,
}
