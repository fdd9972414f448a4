// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers that name something.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name($inner);

        impl $name {
            /// The value as this type.
            pub const fn new(value: $inner) -> Self {
                Self(value)
            }

            /// The bare number.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A user id in the machine's own user namespace.
    Uid(u32)
}
number! {
    /// A Unix group id.
    Gid(u32)
}
number! {
    /// A process id in the machine's own pid namespace. A number only: what it names may change.
    Pid(u32)
}
number! {
    /// A span of time in nanoseconds.
    Nanos(u64)
}
/// What names an account in the kernel half: what kind it is, and a number (`bpf/include/abi.h` enum account_kind).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AccountId(u64);

/// Bits of the number.
const KIND_SHIFT: u32 = 32;
const KIND_GROUP: u64 = 1;
const KIND_NAMED: u64 = 2;

impl AccountId {
    /// As the kernel half has it.
    pub const fn new(id: u64) -> Self {
        Self(id)
    }

    /// The bare id.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The account that a user has by itself.
    pub const fn of(uid: Uid) -> Self {
        Self(uid.0 as u64)
    }

    /// The account that a Unix group's members share.
    pub const fn of_group(gid: Gid) -> Self {
        Self(KIND_GROUP << KIND_SHIFT | gid.0 as u64)
    }

    /// An account that processes enter, by a number made of its name.
    pub const fn of_name(number: u32) -> Self {
        Self(KIND_NAMED << KIND_SHIFT | number as u64)
    }

    /// The same of a kernel half from before ABI version 7, which had no kinds: numbers from 2^31 on were gids, from
    /// 2^31 + 2^30 on made of names.
    pub const fn of_former(number: u32) -> Self {
        const SHARED: u32 = 1 << 31;
        const NAMED: u32 = 1 << 30;
        if number < SHARED {
            Self::of(Uid(number))
        } else if number & NAMED == 0 {
            Self::of_group(Gid(number & !SHARED))
        } else {
            Self::of_name(number)
        }
    }

    /// The user whose own account this is; `None` for a shared one.
    pub const fn uid(self) -> Option<Uid> {
        if self.kind() == 0 {
            Some(Uid(self.number()))
        } else {
            None
        }
    }

    /// What it is of: 0 for a user's.
    pub const fn kind(self) -> u32 {
        (self.0 >> KIND_SHIFT) as u32
    }

    /// Its number among those of its kind: a uid, a gid.
    #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
    pub const fn number(self) -> u32 {
        self.0 as u32
    }
}

impl From<Uid> for AccountId {
    fn from(uid: Uid) -> Self {
        Self::of(uid)
    }
}

impl fmt::Display for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_uid_is_a_users_and_no_group_is() {
        for uid in [0, 1000, 1 << 31, 4_000_060_139, u32::MAX - 1] {
            let own = AccountId::of(Uid(uid));
            assert_eq!(own.uid(), Some(Uid(uid)));
            assert_eq!(AccountId::of_group(Gid(uid)).uid(), None);
            assert_ne!(own, AccountId::of_group(Gid(uid)));
            assert_ne!(AccountId::of_group(Gid(uid)), AccountId::of_name(uid));
        }
    }

    #[test]
    fn former_numbers_are_what_they_were() {
        assert_eq!(AccountId::of_former(1000), AccountId::of(Uid(1000)));
        assert_eq!(
            AccountId::of_former(1 << 31 | 501),
            AccountId::of_group(Gid(501))
        );
        let named = 1 << 31 | 1 << 30 | 77;
        assert_eq!(AccountId::of_former(named), AccountId::of_name(named));
    }
}
