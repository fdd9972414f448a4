// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which limit would have been enough for how many people.

use bursar_model::Bytes;
use serde::Serialize;

use super::Account;

/// Of people who are to be left alone.
const SHARES: [u64; 2] = [95, 99];
/// A limit's notice is here by default, of a hundred: who is left alone is not told either.
const NOTICE_PERCENT: u64 = 90;
/// Who has held so much of his limit, of a hundred, might have held more without it.
const FULL_PERCENT: u64 = 95;

/// One limit for everybody, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Suggestion {
    /// So many of a hundred users would have had no notice.
    pub(crate) percent: u64,
    pub(crate) limit: Bytes,
    /// The users who never held more than `most`, and all of them.
    pub(crate) users_within: u64,
    pub(crate) users: u64,
    pub(crate) most: Bytes,
    /// Of those within: who was at a limit, so that what they would have held is not known.
    pub(crate) users_at_limit: u64,
}

/// Rounded up to an eighth of the power of two below it: `1.13G` becomes `1.25G`.
fn rounded(bytes: Bytes) -> Bytes {
    let step = 1_u64 << bytes.get().max(8).ilog2().saturating_sub(3);
    Bytes::new(bytes.get().div_ceil(step).saturating_mul(step))
}

/// None where no user held anything. Of shared accounts the number of people is not known. Root and system accounts
/// are no people who are to be left alone, unless it is all about them.
pub(super) fn suggestions(accounts: &[Account]) -> Vec<Suggestion> {
    let mut users: Vec<&Account> = accounts.iter().filter(|it| it.uid.is_some()).collect();
    if accounts.iter().any(|it| !it.is_system) {
        users.retain(|it| !it.is_system);
    }
    users.sort_by_key(|it| it.max);
    let all = users.len();
    let is_full = |it: &&&Account| {
        let is_at = |limit: Bytes| it.max >= limit.scaled(FULL_PERCENT, 100);
        it.kills > 0 || it.refusals > 0 || it.limit.is_some_and(is_at)
    };
    let suggestion = |percent: u64| {
        let place = (all as u64).saturating_mul(percent).div_ceil(100).max(1);
        let place = usize::try_from(place).ok()?.checked_sub(1)?;
        let most = users.get(place)?.max;
        let within: Vec<&&Account> = users.iter().filter(|it| it.max <= most).collect();
        let at_limit = within.iter().copied().filter(is_full).count();
        Some(Suggestion {
            percent,
            limit: rounded(most.scaled(100, NOTICE_PERCENT)),
            users_within: within.len() as u64,
            users: all as u64,
            most,
            users_at_limit: at_limit as u64,
        })
    };
    SHARES.into_iter().filter_map(suggestion).collect()
}

#[cfg(test)]
mod tests {
    use bursar_model::Uid;

    use super::*;

    fn account(uid: u32, max: u64) -> Account {
        Account {
            uid: Some(Uid::new(uid)),
            max: Bytes::from_mib(max),
            limit: Some(Bytes::from_mib(10_000)),
            ..Account::default()
        }
    }

    #[test]
    fn so_many_of_a_hundred_would_have_been_left_alone() {
        let mut accounts: Vec<Account> = (1..=200).map(|it| account(it, u64::from(it))).collect();
        accounts[0].kills = 1;
        // A shared account's people are not counted.
        accounts.push(Account {
            uid: None,
            ..account(0, 100_000)
        });
        let found = suggestions(&accounts);
        let figures: Vec<_> = found
            .iter()
            .map(|it| {
                (
                    it.percent,
                    it.most,
                    it.users_within,
                    it.users,
                    it.users_at_limit,
                )
            })
            .collect();
        assert_eq!(
            figures,
            [
                (95, Bytes::from_mib(190), 190, 200, 1),
                (99, Bytes::from_mib(198), 198, 200, 1)
            ]
        );
        for one in found {
            assert!(one.limit.scaled(NOTICE_PERCENT, 100) >= one.most, "{one:?}");
            assert!(one.limit <= one.most.scaled(5, 4), "{one:?}");
        }
    }

    #[test]
    fn root_is_counted_among_users_only_where_it_is_about_root() {
        let root = Account {
            is_system: true,
            ..account(0, 9_000)
        };
        let found = suggestions(&[account(1001, 100), root.clone(), account(1002, 200)]);
        let figures = found.iter().map(|it| (it.users, it.most));
        assert_eq!(figures.collect::<Vec<_>>(), [(2, Bytes::from_mib(200)); 2]);
        let of_root = suggestions(&[root]);
        assert_eq!(
            (of_root[0].users, of_root[0].most),
            (1, Bytes::from_mib(9_000))
        );
    }

    #[test]
    fn few_users_and_none_are_no_problem() {
        assert_eq!(suggestions(&[]), []);
        let one = suggestions(&[account(1, 100)]);
        assert_eq!((one[0].users_within, one[1].users), (1, 1));
        assert_eq!(rounded(Bytes::ZERO), Bytes::ZERO);
        assert_eq!(rounded(Bytes::MAX), Bytes::MAX);
        assert_eq!(rounded(Bytes::from_mib(1157)), Bytes::from_mib(1280));
    }
}
