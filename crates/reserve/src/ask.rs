// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is asked, and what comes back.

use crate::text::{Text, behind, number_after};

/// Up to which bound of the account something is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Its limit (S1 section 5.2).
    Limit,
    /// Its barrier, or its limit where it has none.
    Barrier,
}

/// One request, in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Memory to be.
    Reserve {
        /// Welcome.
        pages: u64,
        /// Enough; 1 ..= `pages`.
        at_least: u64,
        /// Given back first.
        commit: u64,
        /// Up to where.
        bound: Bound,
        /// A refusal will be followed by another try, and is not counted.
        tentative: bool,
    },
    /// Gives back.
    Commit {
        /// How much.
        pages: u64,
    },
}

/// Why something was not done, with its errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There is no room below the bound: ENOMEM.
    Full,
    /// The request makes no sense: EINVAL.
    Senseless,
    /// The daemon takes the process for ended: ESRCH.
    Gone,
    /// Not for this user: EPERM.
    NotPermitted,
    /// The daemon could not, or too many of the user's processes have asked: EAGAIN.
    Busy,
    /// It answered something else than was asked: EPROTO.
    Foreign,
    /// Nobody answers: the errno of connect, send or recv.
    Silent(i32),
}

impl Refused {
    /// As errno.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Full => libc::ENOMEM,
            Self::Senseless => libc::EINVAL,
            Self::Gone => libc::ESRCH,
            Self::NotPermitted => libc::EPERM,
            Self::Busy => libc::EAGAIN,
            Self::Foreign => libc::EPROTO,
            Self::Silent(errno) => errno,
        }
    }
}

impl Ask {
    /// As it goes over the wire.
    pub(crate) fn to_text(self) -> Text {
        let mut text = Text::new();
        text.word("{\"version\":1,\"ask\":");
        match self {
            Self::Reserve {
                pages,
                at_least,
                commit,
                bound,
                tentative,
            } => {
                text.word("\"reserve\",\"pages\":").number(pages);
                text.word(",\"at_least\":").number(at_least);
                text.word(",\"commit\":").number(commit);
                text.word(match bound {
                    Bound::Limit => ",\"bound\":\"limit\"",
                    Bound::Barrier => ",\"bound\":\"barrier\"",
                });
                if tentative {
                    text.word(",\"tentative\":true");
                }
            }
            Self::Commit { pages } => {
                text.word("\"commit\",\"pages\":").number(pages);
            }
        }
        text.word("}\n");
        text
    }
}

/// Pages granted (or given back) according to a reply.
pub(crate) fn read_reply(reply: &[u8]) -> Result<u64, Refused> {
    if reply.starts_with(b"{\"granted\":") {
        return number_after(reply, "\"pages\":").ok_or(Refused::Foreign);
    }
    let Some(kind) = reply
        .starts_with(b"{\"refused\":")
        .then(|| behind(reply, "\"kind\":\""))
        .flatten()
    else {
        return Err(Refused::Foreign);
    };
    let table: [(&[u8], Refused); 5] = [
        (b"refused\"", Refused::Full),
        (b"bad_request\"", Refused::Senseless),
        (b"not_found\"", Refused::Gone),
        (b"not_permitted\"", Refused::NotPermitted),
        (b"failed\"", Refused::Busy),
    ];
    let found = table.iter().find(|(name, _)| kind.starts_with(name));
    Err(found.map_or(Refused::Foreign, |&(_, refused)| refused))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_lines_of_the_protocol() {
        let ask = Ask::Reserve {
            pages: 64,
            at_least: 2,
            commit: 3,
            bound: Bound::Barrier,
            tentative: true,
        };
        let expected = "{\"version\":1,\"ask\":\"reserve\",\"pages\":64,\"at_least\":2,\"commit\":3,\"bound\":\"barrier\",\"tentative\":true}\n";
        assert_eq!(ask.to_text().as_bytes(), expected.as_bytes());
        let widest = Ask::Reserve {
            pages: u64::MAX,
            at_least: u64::MAX,
            commit: u64::MAX,
            bound: Bound::Barrier,
            tentative: true,
        };
        assert!(widest.to_text().as_bytes().ends_with(b"}\n"));
    }

    #[test]
    fn replies_become_pages_or_a_reason() {
        let granted = b"{\"granted\":{\"pages\":12,\"reserved\":20}}";
        assert_eq!(read_reply(granted), Ok(12));
        let refused =
            |kind: &str| format!("{{\"refused\":{{\"kind\":\"{kind}\",\"message\":\"granted\"}}}}");
        for (kind, expected) in [
            ("refused", Refused::Full),
            ("bad_request", Refused::Senseless),
            ("failed", Refused::Busy),
            ("novel", Refused::Foreign),
        ] {
            assert_eq!(read_reply(refused(kind).as_bytes()), Err(expected));
        }
        assert_eq!(read_reply(b"hello"), Err(Refused::Foreign));
    }
}
