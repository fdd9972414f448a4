// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries of limits: where they stand, what they say, and how a change alters them.

use std::collections::BTreeMap;

use bursar_model::{BoundsSpec, KillManner, Resource, RowBounds, Who};
use serde::{Deserialize, Serialize};

/// Where an entry stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryOrigin {
    /// The file.
    pub file: String,
    /// The line in it, from 1.
    pub line: usize,
}

/// What an entry says, as written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntrySpec {
    /// The bounds on memory; absent: it says nothing of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<BoundsSpec>,
    /// The bounds of beancounters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rows: BTreeMap<Resource, RowBounds>,
    /// Whether its largest process is asked to end when it is over its notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kill: Option<KillManner>,
    /// Of a shared account: who may enter it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted: Option<Vec<Who>>,
}

/// What a change does to an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryChange {
    /// Whose.
    pub who: Who,
    /// What was written before; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<EntrySpec>,
    /// What is written then; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<EntrySpec>,
}

impl EntryChange {
    /// Whether it changes anything.
    pub fn is_change(&self) -> bool {
        self.old != self.new
    }
}

/// A file of limits that is to be the whole of `limits.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Apply {
    /// What it is called in messages.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Only say what it would change.
    #[serde(default)]
    pub check: bool,
    /// Also when somebody is killed at once.
    #[serde(default)]
    pub force: bool,
}

/// What a file changed, or would change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The entries that differ, in the order of `limit show`.
    pub changes: Vec<EntryChange>,
    /// What is worth knowing.
    pub remarks: Vec<String>,
}
