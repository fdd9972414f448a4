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
number! {
    /// What names an account in the kernel half: a uid, or from [`AccountId::FIRST_SHARED`] on the
    /// number of a shared account.
    AccountId(u32)
}

impl AccountId {
    /// Shared accounts are numbered from here; uids end below (2³¹ − 1 is the largest that tools
    /// agree on).
    pub const FIRST_SHARED: u32 = 1 << 31;

    /// The account that a user has by himself.
    pub const fn of(uid: Uid) -> Self {
        Self(uid.0)
    }

    /// The user whose own account this is; `None` for a shared one.
    pub const fn uid(self) -> Option<Uid> {
        if self.0 < Self::FIRST_SHARED {
            Some(Uid(self.0))
        } else {
            None
        }
    }
}
