// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries of limits: where they stand, what they say, and how a change alters them.

use std::collections::BTreeMap;

use bursar_model::{
    BoundsSpec, EntrySpec, KillManner, Mode, Reason, Resource, RowBounds, Until, Who,
};
use serde::{Deserialize, Serialize};

/// Where an entry stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryOrigin {
    /// The file.
    pub file: String,
    /// The line in it, from 1.
    pub line: usize,
}

/// A limit as configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitEntry {
    /// The user, group or account that is limited.
    pub who: Who,
    /// As written; no limit where it has rows only.
    pub memory: BoundsSpec,
    /// It says nothing of memory: whom it concerns keeps the limit on memory that he has without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_silent: bool,
    /// Its beancounters as written.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rows: BTreeMap<Resource, RowBounds>,
    /// Whether it is enforced.
    #[serde(default, skip_serializing_if = "Mode::is_usual")]
    pub mode: Mode,
    /// How its processes are killed, where that is not at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kill: Option<KillManner>,
    /// Whom it concerns now: names or uids, at most a hundred.
    pub accounts: Vec<String>,
    /// What is wrong with it: a name nobody has, an unreachable directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// Of `default`, for root: which uids it covers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub covers: Option<String>,
    /// Where it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<EntryOrigin>,
    /// Where entries for the same WHO stand that it wins over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<EntryOrigin>,
    /// Why, in the administrator's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// When it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
    /// What holds then; absent: this WHO has no other entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Box<EntrySpec>>,
}

/// How a change is made, besides what it says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Why, in the administrator's words. Kept with the entry; a change without one takes that before away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// For whom the asker says to act: the user of sudo or doas. Only written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said_by: Option<String>,
    /// It ends then, and what was before holds again: another entry, over the one without an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
    /// Whether the entry is enforced; absent: as before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Only say what it would change ([`crate::Preview`]).
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// Of an entry taken away: only the one that ends.
    #[serde(default, skip_serializing_if = "is_false")]
    pub temporary: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

/// What a change does to an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryChange {
    /// The user, group or account that is limited.
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
    /// On which terms.
    #[serde(flatten)]
    pub terms: Terms,
}

/// What a file changed, or would change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The entries that differ, in the order of `limit show`.
    pub changes: Vec<EntryChange>,
    /// What is worth knowing.
    pub remarks: Vec<String>,
}
