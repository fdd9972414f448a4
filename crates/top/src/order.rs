// SPDX-License-Identifier: Apache-2.0 OR MIT
//! In which order accounts are shown.

use std::cmp::{Ordering, Reverse};

use crate::Account;

/// What comes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// Who is nearest to his limit, or furthest over it.
    #[default]
    Fullest,
    /// Who holds most.
    Held,
    /// Who grows fastest.
    Growth,
    /// By name.
    Name,
    /// Who had most kills, those since the start before older ones.
    Kills,
}

impl Order {
    /// The order that a key asks for.
    pub const fn of(key: char) -> Option<Self> {
        match key {
            'f' => Some(Self::Fullest),
            'm' => Some(Self::Held),
            'g' => Some(Self::Growth),
            'n' => Some(Self::Name),
            'k' => Some(Self::Kills),
            _ => None,
        }
    }

    /// `fullest first`.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Fullest => "fullest first",
            Self::Held => "most held first",
            Self::Growth => "fastest growth first",
            Self::Name => "by name",
            Self::Kills => "most kills first",
        }
    }

    /// Which of two comes first; never equal for two names, so that lines do not swap places by themselves.
    pub(crate) fn compare(self, one: &Account, other: &Account) -> Ordering {
        let key = |account: &Account| {
            Reverse(match self {
                Self::Fullest => (account.fullness(), 0),
                Self::Held => (
                    (
                        false,
                        account.memory().held.get().into(),
                        Default::default(),
                    ),
                    0,
                ),
                Self::Growth => (Default::default(), account.pace.rate().unwrap_or(i64::MIN)),
                Self::Name => Default::default(),
                Self::Kills => (
                    (
                        account.new_kills() > 0,
                        u128::from(account.new_kills()) << 64 | u128::from(account.status.kills),
                        Default::default(),
                    ),
                    0,
                ),
            })
        };
        let name = |account: &Account| (account.name().to_owned(), account.status.uid);
        key(one)
            .cmp(&key(other))
            .then_with(|| name(one).cmp(&name(other)))
    }
}
