// SPDX-License-Identifier: Apache-2.0 OR MIT
//! WHO: whom a limit is for (docs/reference/commands.md).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Uid;

/// Whom a limit is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Who {
    /// A user by number, whether or not anybody has that number.
    Uid(Uid),
    /// A user by name.
    User(String),
    /// `@group`: each member of a Unix group by himself.
    Group(String),
    /// `=name`: all members of the Unix group `name` together, in one account.
    Shared(String),
    /// `default`: every user from UID_MIN on who has no limit of his own.
    Default,
}

/// Why a text names nobody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WhoError {
    /// Nothing there.
    #[error("nobody is named: write a user name, a uid, @group, =name or default")]
    Empty,
    /// No such name can exist.
    #[error(
        "{0:?} is not a valid name: letters, digits, spaces and signs inside, at most 256 characters, without \
         / : ; , | = * ? < > [ ] and quotation marks, not starting with '-'"
    )]
    Malformed(String),
    /// A number no user can have.
    #[error("{0} is not a valid uid: uids are 0 to 4294967294")]
    UidTooLarge(String),
}

/// What useradd and common directories (LDAP, AD with `user@domain` and `domain users`) accept.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 256
        && !text.starts_with(['-', '@', ' '])
        && !text.ends_with(' ')
        && text
            .chars()
            .all(|c| c.is_alphanumeric() || " ._-@$\\+&'()!#%{}~^`".contains(c))
}

impl FromStr for Who {
    type Err = WhoError;

    fn from_str(text: &str) -> Result<Self, WhoError> {
        let name = |name: &str| {
            if is_name(name) {
                Ok(name.to_owned())
            } else {
                Err(WhoError::Malformed(text.to_owned()))
            }
        };
        match text.as_bytes() {
            [] => Err(WhoError::Empty),
            b"default" => Ok(Self::Default),
            [b'@', ..] => Ok(Self::Group(name(&text[1..])?)),
            [b'=', ..] => Ok(Self::Shared(name(&text[1..])?)),
            // All digits is a uid: a user whose name is a number has to be named by his.
            digits if digits.iter().all(u8::is_ascii_digit) => match text.parse::<u32>() {
                Ok(uid) if uid < u32::MAX => Ok(Self::Uid(Uid::new(uid))),
                _ => Err(WhoError::UidTooLarge(text.to_owned())),
            },
            _ => Ok(Self::User(name(text)?)),
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(uid) => uid.fmt(f),
            Self::User(name) => f.write_str(name),
            Self::Group(name) => write!(f, "@{name}"),
            Self::Shared(name) => write!(f, "={name}"),
            Self::Default => f.write_str("default"),
        }
    }
}

impl TryFrom<String> for Who {
    type Error = WhoError;

    fn try_from(text: String) -> Result<Self, WhoError> {
        text.parse()
    }
}

impl From<Who> for String {
    fn from(who: Who) -> Self {
        who.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_form_is_told_apart() {
        let table = [
            ("alice", Who::User("alice".into())),
            ("1000", Who::Uid(Uid::new(1000))),
            ("4294967294", Who::Uid(Uid::new(u32::MAX - 1))),
            ("@students", Who::Group("students".into())),
            ("=render", Who::Shared("render".into())),
            ("default", Who::Default),
            ("a.b-c@corp.example", Who::User("a.b-c@corp.example".into())),
            ("alice smith", Who::User("alice smith".into())),
            ("@R&D (Berlin)", Who::Group("R&D (Berlin)".into())),
            ("=domain users", Who::Shared("domain users".into())),
        ];
        for (text, who) in table {
            assert_eq!(text.parse(), Ok(who), "{text}");
        }
    }

    #[test]
    fn what_names_nobody_is_refused() {
        assert_eq!("".parse::<Who>(), Err(WhoError::Empty));
        for text in [
            "@", "=", "-rf", " a", "a ", "@ a", "a\nb", "a\tb", "a=b", "../x", "a:b", "@@x",
        ] {
            assert!(
                matches!(text.parse::<Who>(), Err(WhoError::Malformed(_))),
                "{text:?}"
            );
        }
        for text in ["4294967295", "4294967296", "99999999999999999999"] {
            assert!(
                matches!(text.parse::<Who>(), Err(WhoError::UidTooLarge(_))),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_was_read_shows_as_it_was_written(text in "\\PC{0,20}") {
            if let Ok(who) = text.parse::<Who>() {
                let again: Who = who.to_string().parse().unwrap();
                prop_assert_eq!(again, who);
            }
        }
    }
}
