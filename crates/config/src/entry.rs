// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One entry of the limits, and those of a file: with and without an end.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bursar_model::{
    BoundsSpec, EntrySpec, KillManner, Mode, Reason, Resource, RowBounds, Until, Who,
};

/// The table of entries with an end.
pub(crate) const TEMPORARY: &str = "temporary";

/// One limit as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The user, group or account that is limited.
    pub who: Who,
    /// The bounds of the `memory` row. `None`: the file says nothing of it, and another limit holds.
    pub memory: Option<BoundsSpec>,
    /// The bounds of beancounters.
    pub rows: BTreeMap<Resource, RowBounds>,
    /// Whether it is enforced, or only observed. `None`: as bursar.toml has it.
    pub mode: Option<Mode>,
    /// Whether its largest process is asked to end when it is over its notice; as a rule not.
    pub kill: Option<KillManner>,
    /// Of a shared account: the users, and members of groups, who may enter it. `None`: nobody but root,
    /// and it is one of a Unix group's members only; otherwise there need be no group of this name.
    pub granted: Option<Vec<Who>>,
    /// Why, in the administrator's words.
    pub reason: Option<Reason>,
    /// It holds until then, over the one without an end.
    pub until: Option<Until>,
    /// The file it stands in.
    pub path: Arc<Path>,
    /// The line it stands on, from 1.
    pub line: usize,
}

impl Limit {
    /// Whether it says the same as `other`, wherever the two stand.
    pub fn says_as(&self, other: &Self) -> bool {
        self.spec() == other.spec()
    }

    /// What it says.
    pub fn spec(&self) -> EntrySpec {
        EntrySpec {
            memory: self.memory,
            rows: self.rows.clone(),
            mode: self.mode,
            kill: self.kill,
            granted: self.granted.clone(),
            reason: self.reason.clone(),
            until: self.until,
        }
    }

    /// What holds while this one lasts, over another one: what it says itself, and of the rest what that says.
    pub(crate) fn over(&self, lasting: Option<&Self>) -> Self {
        let mut both = self.clone();
        if let Some(lasting) = lasting {
            both.memory = both.memory.or(lasting.memory);
            both.mode = both.mode.or(lasting.mode);
            both.kill = both.kill.or(lasting.kill);
            both.granted = both.granted.or_else(|| lasting.granted.clone());
            both.rows.clone_from(&lasting.rows);
            both.rows.extend(&self.rows);
        }
        both
    }
}

/// What a file says of whom.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Entries {
    /// What holds until it is changed.
    pub(crate) lasting: BTreeMap<Who, Limit>,
    /// What has an end, past or to come.
    pub(crate) temporary: BTreeMap<Who, Limit>,
    /// It is put in force at a reload also where that kills at once.
    pub(crate) is_forced: bool,
}

impl Entries {
    pub(crate) fn is_empty(&self) -> bool {
        self.lasting.is_empty() && self.temporary.is_empty()
    }

    /// Those of a table of the file.
    pub(crate) fn of(&self, table: &str) -> &BTreeMap<Who, Limit> {
        match table == TEMPORARY {
            true => &self.temporary,
            false => &self.lasting,
        }
    }

    pub(crate) fn of_mut(&mut self, table: &str) -> &mut BTreeMap<Who, Limit> {
        match table == TEMPORARY {
            true => &mut self.temporary,
            false => &mut self.lasting,
        }
    }
}
