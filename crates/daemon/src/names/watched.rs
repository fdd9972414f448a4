// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names in limits, what they stood for, and whether that is so still.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use bursar_host::{Lookup, Members, User};
use bursar_model::{Uid, Who};

use super::Source;

/// A name in a limit whose answer may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Watched {
    /// A user or a group.
    pub(crate) who: Who,
    pub(crate) answer: LastAnswer,
    /// Numbers that it stands for and that nobody has: the limit ends when somebody has them.
    pub(crate) nobodys: BTreeSet<Uid>,
}

/// What was answered last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastAnswer {
    /// It stands for these users: alike numbers are alike users.
    Is(u64),
    /// Nobody has it.
    Nobody,
    /// Nothing: a source of names did not answer.
    Nothing,
}

impl LastAnswer {
    pub(crate) fn of_user(found: &Lookup<User>) -> Self {
        Self::of(found.clone().map(|user| user.uid.get()))
    }

    /// Of a group of which some members could not be looked up it is not known who is in it.
    pub(crate) fn of_group(found: &Lookup<Members>) -> Self {
        match found {
            Lookup::Found(members) if members.incomplete.is_some() => Self::Nothing,
            Lookup::Found(members) => Self::of(Lookup::Found((members.gid.get(), &members.uids))),
            Lookup::Absent => Self::Nobody,
            Lookup::Unavailable(_) => Self::Nothing,
        }
    }

    fn of(found: Lookup<impl Hash>) -> Self {
        match found {
            Lookup::Found(numbers) => {
                let mut hasher = DefaultHasher::new();
                numbers.hash(&mut hasher);
                Self::Is(hasher.finish())
            }
            Lookup::Absent => Self::Nobody,
            Lookup::Unavailable(_) => Self::Nothing,
        }
    }
}

impl Watched {
    /// Whether another answer is to be had now. None is none: a directory that is down changes nothing.
    pub(super) fn has_news(&self, source: &mut impl Source) -> bool {
        let now = match &self.who {
            Who::User(name) => LastAnswer::of_user(&source.user(name)),
            Who::Group(name) | Who::Shared(name) => source.group(name),
            Who::Uid(_) | Who::Default => return false,
        };
        let mut nobodys = self.nobodys.iter();
        (now != LastAnswer::Nothing && now != self.answer)
            || nobodys.any(|uid| matches!(source.name_of(*uid), Lookup::Found(_)))
    }
}
