// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The names in limits, looked up.

use std::collections::BTreeMap;

use bursar_model::{Gid, Uid};

/// Why a name stands for nobody at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameError {
    /// Nobody has it.
    Unknown,
    /// The directory did not answer: it may be right all the same.
    Unreachable(String),
}

/// The names that were looked up, and what came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Directory {
    /// User names.
    pub users: BTreeMap<String, Result<Uid, NameError>>,
    /// Group names: number and members.
    pub groups: BTreeMap<String, Result<(Gid, Vec<Uid>), NameError>>,
}

impl Directory {
    pub(crate) fn user(&self, name: &str) -> Result<Uid, &NameError> {
        look_up(&self.users, name).copied()
    }

    /// A group's number and members.
    pub(crate) fn group(&self, name: &str) -> Result<(Gid, &[Uid]), &NameError> {
        let (gid, members) = look_up(&self.groups, name)?;
        Ok((*gid, members))
    }
}

impl NameError {
    /// For an administrator; `what`: a user or a group.
    pub(crate) fn of(&self, what: &str) -> String {
        match self {
            Self::Unknown => format!("there is no {what} of this name; kept until there is"),
            Self::Unreachable(why) => {
                format!("the {what} cannot be looked up ({why}); asked again every few minutes")
            }
        }
    }
}

fn look_up<'a, T>(
    names: &'a BTreeMap<String, Result<T, NameError>>,
    name: &str,
) -> Result<&'a T, &'a NameError> {
    names
        .get(name)
        .map_or(Err(&NameError::Unknown), Result::as_ref)
}
