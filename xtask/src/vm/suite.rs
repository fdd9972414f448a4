// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The three generations of Debian kernels that bursar is tried on.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A generation of Debian kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Suite {
    /// Debian 12: Linux 6.1.
    Bookworm,
    /// Debian 13: Linux 6.12.
    Trixie,
    /// The newest kernel that Debian has packaged, wherever it is.
    Newest,
}

impl Suite {
    /// All suites, oldest kernel first.
    pub const ALL: [Suite; 3] = [Suite::Bookworm, Suite::Trixie, Suite::Newest];

    /// The name used on the command line and in the cache.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Bookworm => "bookworm",
            Suite::Trixie => "trixie",
            Suite::Newest => "newest",
        }
    }

    /// The archive's suites to look in; the newest kernel among them wins.
    /// Testing is asked too, because unstable may lose a kernel for a while.
    pub fn archive_suites(self) -> &'static [&'static str] {
        match self {
            Suite::Bookworm => &["bookworm"],
            Suite::Trixie => &["trixie"],
            Suite::Newest => &["sid", "forky"],
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Suite {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Suite::ALL
            .into_iter()
            .find(|suite| suite.name() == name)
            .ok_or_else(|| format!("unknown suite {name:?}; known: bookworm, trixie, newest, all"))
    }
}

/// One or several suites as a user names them: `trixie`, `bookworm,newest`, `all`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suites(Vec<Suite>);

impl Suites {
    /// The suites named, in order, each once.
    pub fn as_slice(&self) -> &[Suite] {
        &self.0
    }
}

impl FromStr for Suites {
    type Err = String;

    fn from_str(names: &str) -> Result<Self, String> {
        if names == "all" {
            return Ok(Suites(Suite::ALL.to_vec()));
        }
        let mut suites = Vec::new();
        for name in names.split(',') {
            let suite = name.parse()?;
            if !suites.contains(&suite) {
                suites.push(suite);
            }
        }
        Ok(Suites(suites))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_named_singly_in_lists_and_all_at_once() {
        for (text, expected) in [
            ("trixie", vec![Suite::Trixie]),
            (
                "newest,bookworm,newest",
                vec![Suite::Newest, Suite::Bookworm],
            ),
            ("all", Suite::ALL.to_vec()),
        ] {
            assert_eq!(
                text.parse::<Suites>().unwrap().as_slice(),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn an_unknown_suite_is_refused_with_the_known_ones() {
        let error = "buster".parse::<Suites>().unwrap_err();
        assert_eq!(
            error,
            "unknown suite \"buster\"; known: bookworm, trixie, newest, all"
        );
    }
}
