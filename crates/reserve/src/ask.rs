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
    /// Memory to be; the reservation lasts as long as the connection.
    Reserve {
        /// How much, 1 or more.
        pages: u64,
        /// Up to where.
        bound: Bound,
    },
    /// Gives back what was reserved over this connection.
    Commit {
        /// How many pages.
        pages: u64,
    },
    /// Replaces the reservation of the process, which lasts as long as the process.
    Renew {
        /// What the process was granted and has not made resident yet.
        keep: u64,
        /// How much of that lies in memory that it has mapped, and may unmap without a word.
        untouched: u64,
        /// How much more is welcome; 0: nothing.
        pages: u64,
        /// How much more is enough, at most `pages`.
        at_least: u64,
        /// Another try follows a refusal, so it is not counted.
        is_tentative: bool,
        /// Requests that the process refused by itself since its last `Renew`.
        refused: u64,
    },
}

/// What was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Pages granted, or given back.
    pub pages: u64,
    /// No limit applies to the user, and nothing is reserved.
    pub is_unlimited: bool,
}

/// Why something was not done, with its errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There is no room below the bound: ENOMEM.
    Full {
        /// Of a renewal: pages that stay reserved, where these are fewer than [`Ask::Renew`] keeps.
        kept: Option<u64>,
    },
    /// The request makes no sense: EINVAL.
    Senseless,
    /// The daemon takes the process for ended: ESRCH.
    Gone,
    /// Not for this user: EPERM.
    NotPermitted,
    /// The daemon could not, or too many of the user's processes ask: EAGAIN.
    Busy,
    /// It answered something else than was asked: EPROTO.
    Foreign,
    /// Nobody answers: the errno of connect, send or recv; ETIMEDOUT.
    Silent(i32),
}

impl Refused {
    /// As errno.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Full { .. } => libc::ENOMEM,
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
            Self::Reserve { pages, bound } => {
                text.word("\"reserve\",\"pages\":").number(pages);
                text.word(match bound {
                    Bound::Limit => ",\"bound\":\"limit\"",
                    Bound::Barrier => ",\"bound\":\"barrier\"",
                });
            }
            Self::Commit { pages } => {
                text.word("\"commit\",\"pages\":").number(pages);
            }
            Self::Renew {
                keep,
                untouched,
                pages,
                at_least,
                is_tentative,
                refused,
            } => {
                text.word("\"renew\",\"keep\":").number(keep);
                if untouched > 0 {
                    text.word(",\"untouched\":").number(untouched);
                }
                text.word(",\"pages\":").number(pages);
                text.word(",\"at_least\":").number(at_least);
                if is_tentative {
                    text.word(",\"tentative\":true");
                }
                if refused > 0 {
                    text.word(",\"refused\":").number(refused);
                }
            }
        }
        text.word("}\n");
        text
    }
}

/// What a reply says.
pub(crate) fn read_reply(reply: &[u8]) -> Result<Grant, Refused> {
    if reply.starts_with(b"{\"granted\":") {
        let pages = number_after(reply, "\"pages\":").ok_or(Refused::Foreign)?;
        let is_unlimited = behind(reply, "\"unlimited\":true").is_some();
        return Ok(Grant {
            pages,
            is_unlimited,
        });
    }
    let Some(kind) = reply
        .starts_with(b"{\"refused\":")
        .then(|| behind(reply, "\"kind\":\""))
        .flatten()
    else {
        return Err(Refused::Foreign);
    };
    let kept = number_after(kind, "\"reserved\":");
    let table: [(&[u8], Refused); 5] = [
        (b"refused\"", Refused::Full { kept }),
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
        let renew = |refused| Ask::Renew {
            keep: 3,
            untouched: refused / 4,
            pages: 64,
            at_least: 2,
            is_tentative: refused == 0,
            refused,
        };
        let table = [
            (
                renew(0),
                "\"renew\",\"keep\":3,\"pages\":64,\"at_least\":2,\"tentative\":true",
            ),
            (
                renew(7),
                "\"renew\",\"keep\":3,\"untouched\":1,\"pages\":64,\"at_least\":2,\"refused\":7",
            ),
            (Ask::Commit { pages: 9 }, "\"commit\",\"pages\":9"),
            (
                Ask::Reserve {
                    pages: 5,
                    bound: Bound::Barrier,
                },
                "\"reserve\",\"pages\":5,\"bound\":\"barrier\"",
            ),
        ];
        for (ask, expected) in table {
            let expected = format!("{{\"version\":1,\"ask\":{expected}}}\n");
            assert_eq!(ask.to_text().as_bytes(), expected.as_bytes());
        }
        let widest = Ask::Renew {
            keep: u64::MAX,
            untouched: u64::MAX,
            pages: u64::MAX,
            at_least: u64::MAX,
            is_tentative: true,
            refused: u64::MAX,
        };
        assert!(widest.to_text().as_bytes().ends_with(b"}\n"));
    }

    #[test]
    fn replies_become_a_grant_or_a_reason() {
        let granted = b"{\"granted\":{\"pages\":12,\"reserved\":20}}";
        let grant = |pages, is_unlimited| {
            Ok(Grant {
                pages,
                is_unlimited,
            })
        };
        assert_eq!(read_reply(granted), grant(12, false));
        let free = b"{\"granted\":{\"pages\":0,\"reserved\":0,\"unlimited\":true}}";
        assert_eq!(read_reply(free), grant(0, true));
        let refused =
            |kind: &str| format!("{{\"refused\":{{\"kind\":\"{kind}\",\"message\":\"granted\"}}}}");
        for (kind, expected) in [
            ("refused", Refused::Full { kept: None }),
            ("bad_request", Refused::Senseless),
            ("failed", Refused::Busy),
            ("novel", Refused::Foreign),
        ] {
            assert_eq!(read_reply(refused(kind).as_bytes()), Err(expected));
        }
        let cut = br#"{"refused":{"kind":"refused","reserved":5,"message":"a \"reserved\":9"}}"#;
        assert_eq!(read_reply(cut), Err(Refused::Full { kept: Some(5) }));
        assert_eq!(read_reply(b"hello"), Err(Refused::Foreign));
    }
}
