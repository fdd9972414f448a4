// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Debian kernels that bursar is tried on. A new one is a line in [`Suite`] and in `entry`.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;

/// A generation and flavour of Debian kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// Debian 12: Linux 6.1
    Bookworm,
    /// Debian 13: Linux 6.12
    Trixie,
    /// The newest kernel that Debian has packaged, wherever it is
    Newest,
    /// Debian 13 with a newer kernel
    TrixieBackports,
    /// Debian 12, PREEMPT_RT
    BookwormRt,
    /// Debian 13, PREEMPT_RT
    TrixieRt,
    /// The newest kernel, PREEMPT_RT
    NewestRt,
    /// Debian 13, arm64
    TrixieArm64,
    /// Debian 13, arm64, pages of 16 KiB
    #[value(name = "trixie-arm64-16k")]
    TrixieArm64Large,
    /// The newest kernel, arm64
    NewestArm64,
}

/// The small flavour where there is one: it boots with fewer drivers and is a quarter of the download.
const STANDARD: &str = "linux-image-cloud-amd64";
const REAL_TIME: &str = "linux-image-rt-amd64";
const ARM64: &str = "linux-image-cloud-arm64";

impl Suite {
    /// What `all` means, oldest kernel first.
    pub const ALL: [Suite; 3] = [Suite::Bookworm, Suite::Trixie, Suite::Newest];

    /// The archive's suites to look in, of which the newest kernel wins, and the metapackage. Testing is
    /// asked beside unstable, which may lose a kernel for a while. Backports are taken only by who asks for them.
    fn entry(self) -> (&'static str, &'static str) {
        match self {
            Suite::Bookworm => ("bookworm", STANDARD),
            Suite::Trixie => ("trixie", STANDARD),
            Suite::Newest => ("sid,forky", STANDARD),
            Suite::TrixieBackports => (
                "trixie-backports,trixie",
                "linux-image-cloud-amd64/trixie-backports",
            ),
            Suite::BookwormRt => ("bookworm", REAL_TIME),
            Suite::TrixieRt => ("trixie", REAL_TIME),
            Suite::NewestRt => ("sid,forky", REAL_TIME),
            Suite::TrixieArm64 => ("trixie", ARM64),
            Suite::TrixieArm64Large => ("trixie", "linux-image-arm64-16k"),
            Suite::NewestArm64 => ("sid,forky", ARM64),
        }
    }

    /// Of another machine than the others: its programs are cross-built (xtask/arm64).
    pub(crate) fn is_arm64(self) -> bool {
        self.metapackage().contains("-arm64")
    }

    /// With commas.
    pub(crate) fn archive_suites(self) -> &'static str {
        self.entry().0
    }

    pub(crate) fn metapackage(self) -> &'static str {
        self.entry().1
    }

    /// The name used on the command line and in the cache.
    pub fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name())
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
            let suite = Suite::from_str(name, false).map_err(|_| {
                let known: Vec<String> = Suite::value_variants().iter().map(|s| s.name()).collect();
                format!("unknown suite {name:?}; known: {}, all", known.join(", "))
            })?;
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
    fn names_of_suites_say_what_is_arm64() {
        for suite in Suite::value_variants() {
            assert_eq!(suite.is_arm64(), suite.name().contains("arm64"), "{suite}");
        }
    }

    #[test]
    fn suites_are_named_singly_in_lists_and_all_at_once() {
        for (text, expected) in [
            ("trixie", vec![Suite::Trixie]),
            (
                "newest,bookworm,newest",
                vec![Suite::Newest, Suite::Bookworm],
            ),
            (
                "trixie-rt,trixie-backports",
                vec![Suite::TrixieRt, Suite::TrixieBackports],
            ),
            ("trixie-arm64-16k", vec![Suite::TrixieArm64Large]),
            ("all", Suite::ALL.to_vec()),
        ] {
            assert_eq!(
                text.parse::<Suites>().unwrap().as_slice(),
                expected,
                "{text}"
            );
        }
        let error = "buster".parse::<Suites>().unwrap_err();
        assert!(
            error.contains("\"buster\"") && error.contains("newest-arm64, all"),
            "{error}"
        );
    }
}
