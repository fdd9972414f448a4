// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why an administrator set a limit, in his words.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::printable;

/// A longer reason is refused, bytes.
pub const MAX_REASON: usize = 200;

/// One line that users and terminals may be shown.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Reason(String);

/// Why a text is no reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReasonError {
    /// Nothing is said.
    #[error("the reason is empty: write why in a few words")]
    Empty,
    /// It is a text.
    #[error("the reason has {0} bytes: write one line of at most {MAX_REASON}")]
    TooLong(usize),
    /// It could make what stands around it look like something else.
    #[error(
        "the reason has characters that are not printable, or a backslash: write one line without them"
    )]
    Unprintable,
}

impl Reason {
    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Reason {
    type Err = ReasonError;

    fn from_str(text: &str) -> Result<Self, ReasonError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(ReasonError::Empty);
        }
        if text.len() > MAX_REASON {
            return Err(ReasonError::TooLong(text.len()));
        }
        // Escapes are made longer, never shorter.
        if printable(text.as_bytes(), MAX_REASON.saturating_mul(8)) != text {
            return Err(ReasonError::Unprintable);
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Reason {
    type Error = ReasonError;

    fn try_from(text: String) -> Result<Self, ReasonError> {
        text.parse()
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> Self {
        reason.0
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_short_printable_line() {
        let long = "x".repeat(MAX_REASON);
        for text in ["thesis, Prof. Ångström", &long] {
            assert_eq!(text.parse::<Reason>().unwrap().as_str(), text);
        }
        assert_eq!(" thesis ".parse::<Reason>().unwrap().as_str(), "thesis");
        let longer = "é".repeat(MAX_REASON / 2 + 1);
        for (text, error) in [
            ("", ReasonError::Empty),
            (" \n", ReasonError::Empty),
            (&*longer, ReasonError::TooLong(MAX_REASON + 2)),
            ("a\nb", ReasonError::Unprintable),
            ("a\u{1b}[2Jb", ReasonError::Unprintable),
            ("a\u{202e}b", ReasonError::Unprintable),
            ("a\0b", ReasonError::Unprintable),
            ("a\\b", ReasonError::Unprintable),
        ] {
            assert_eq!(text.parse::<Reason>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn what_comes_over_the_socket_is_held_to_the_same() {
        let read = serde_json::from_str::<Reason>;
        assert_eq!(read("\"thesis\"").unwrap().as_str(), "thesis");
        assert!(read("\"a\\u001b[2J\"").is_err());
        let reason: Reason = "thesis".parse().unwrap();
        assert_eq!(serde_json::to_string(&reason).unwrap(), "\"thesis\"");
    }
}
