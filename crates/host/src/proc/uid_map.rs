// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /proc/PID/uid_map: what uids a user namespace shows as which (user_namespaces(7)).

use bursar_model::Uid;

use crate::Malformed;
use crate::bytes::{number, words};

/// `first` and those after it are inside what `lower` and those after it are outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    first: u32,
    lower: u32,
    count: u32,
}

/// A namespace's map, down to our own namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UidMap(Vec<Extent>);

impl UidMap {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let extent = |line: &[u8]| {
            let mut numbers = words(line).map(number::<u32>);
            let extent = Extent {
                first: numbers.next()??,
                lower: numbers.next()??,
                count: numbers.next()??,
            };
            numbers.next().is_none().then_some(extent)
        };
        let lines = bytes
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty());
        let extents: Option<Vec<Extent>> = lines.map(extent).collect();
        let malformed = || Malformed::new("not three numbers a line");
        extents.map(Self).ok_or_else(malformed)
    }

    /// Whether a uid of ours is one of a range that is shown as others. One that is mapped by itself is
    /// somebody's (bubblewrap: 0 inside, himself outside).
    pub(crate) fn shifts(&self, uid: Uid) -> bool {
        let is_in = |it: &&Extent| {
            uid.get()
                .checked_sub(it.lower)
                .is_some_and(|at| at < it.count)
        };
        let extent = self.0.iter().find(is_in);
        extent.is_some_and(|it| it.count > 1 && it.first != it.lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &str) -> UidMap {
        UidMap::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_range_that_is_shown_as_others_is_shifted_and_nobody_else() {
        let table = [
            // systemd-nspawn -U
            ("         0     524288      65536\n", 524_288, true),
            ("         0     524288      65536\n", 524_288 + 65_535, true),
            (
                "         0     524288      65536\n",
                524_288 + 65_536,
                false,
            ),
            ("         0     524288      65536\n", 1000, false),
            // firejail, PrivateUsers=self
            ("0 0 1\n1000 1000 1\n", 1000, false),
            // PrivateUsers=full, unshare by root
            ("0 0 4294967295\n", 1000, false),
            // bubblewrap
            ("0 1000 1\n", 1000, false),
            // a container into which one user of the host's is let
            (
                "0 100000 1000\n1000 1000 1\n1001 101001 64535\n",
                1000,
                false,
            ),
            (
                "0 100000 1000\n1000 1000 1\n1001 101001 64535\n",
                101_001,
                true,
            ),
            ("", 1000, false),
        ];
        for (text, uid, is_shifted) in table {
            assert_eq!(
                map(text).shifts(Uid::new(uid)),
                is_shifted,
                "{text:?} {uid}"
            );
        }
    }

    #[test]
    fn what_is_no_map_is_refused() {
        for text in ["0 1\n", "0 1 2 3\n", "0 x 1\n", "0 1 4294967296\n"] {
            assert!(UidMap::parse(text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
