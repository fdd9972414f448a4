// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a pagemap scan found.

use std::time::Duration;

use bursar_model::AccountId;
use bursar_policy::WHOLE_PAGE;

/// What one account has of the machine's mapped pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// Whose; `None`: of all those together for whom no account pays.
    pub account: Option<AccountId>,
    /// Its processes that map anything.
    pub processes: u32,
    /// The sum of their resident sets, pages: what several of them map counts several times.
    pub resident_pages: u64,
    /// Pages that one process of it maps and nobody else.
    pub own_pages: u64,
    /// Its part if a page of n accounts counts 1/n in each, in 1/2^24 of a page.
    pub exact_parts: u64,
    /// Its part by S5's rule of halves, in 1/2^24 of a page.
    pub shift_parts: u64,
}

impl Holding {
    /// Its exact part, in pages begun.
    pub const fn exact_pages(&self) -> u64 {
        self.exact_parts.div_ceil(WHOLE_PAGE)
    }

    /// What its exact part would be if so many pages were resident now, and shared as they were then.
    pub fn exact_of(&self, resident_pages: u64) -> u64 {
        let then = u128::from(self.resident_pages.max(1)) * u128::from(WHOLE_PAGE);
        let now = u128::from(resident_pages) * u128::from(self.exact_parts);
        // No part is larger than what it is a part of.
        u64::try_from(now.div_ceil(then)).unwrap_or(resident_pages)
    }
}

/// What could not be seen, or not in the usual way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Facts {
    /// Processes looked at.
    pub processes: u32,
    /// Processes that ended or began another program meanwhile; what was seen of them counts.
    pub vanished: u32,
    /// Processes whose page map we may not read, or that keep us waiting for it: their pages are missing, or some.
    pub refused: u32,
    /// Pages for which there was no room among the shared ones: they count whole for everybody who was
    /// met with them.
    pub crowded_pages: u64,
    /// Pages of address spaces too empty to be read to the end (before 6.7): they count whole for who
    /// made them so.
    pub unseen_pages: u64,
    /// Pages met again as somebody's alone while they were on the move; counted where they were first.
    pub moved_pages: u64,
    /// Entries that map no page of anybody's: the zero page, devices.
    pub nobodys_entries: u64,
    /// Whether those could not be told apart (no /proc/kpagecount).
    pub nobodys_unknown: bool,
}

/// What a scan of page maps found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// Who has what, by account; those without one last.
    pub holdings: Vec<Holding>,
    /// Mapped pages met, each once.
    pub mapped_pages: u64,
    /// Of these, mapped more than once.
    pub shared_pages: u64,
    /// What was not seen.
    pub facts: Facts,
    /// From beginning to end, pauses included.
    pub took: Duration,
    /// Of that, work.
    pub work: Duration,
}

impl Count {
    /// What an account has; `None`: nothing of its is mapped.
    pub fn of(&self, account: AccountId) -> Option<&Holding> {
        let order = |it: &Holding| (it.account.is_none(), it.account);
        let found = self
            .holdings
            .binary_search_by_key(&(false, Some(account)), order);
        self.holdings.get(found.ok()?)
    }

    /// Parts of all accounts together by both rules, exact first; whole pages when nothing was crowded.
    pub fn parts(&self) -> (u64, u64) {
        self.holdings.iter().fold((0, 0), |(exact, shift), it| {
            (exact + it.exact_parts, shift + it.shift_parts)
        })
    }

    /// Whether the parts of everybody are the pages met, to the page, by both rules.
    pub fn is_whole(&self) -> bool {
        let most = self.mapped_pages + self.facts.crowded_pages + self.facts.unseen_pages;
        self.parts() == (most * WHOLE_PAGE, most * WHOLE_PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_scaled_by_what_is_resident_now() {
        let holding = Holding {
            account: Some(AccountId::new(1001)),
            processes: 2,
            resident_pages: 300,
            own_pages: 100,
            // 100 of its own, and a third of 100 that two of its processes map
            exact_parts: 100 * WHOLE_PAGE + 100 * WHOLE_PAGE / 3,
            shift_parts: 150 * WHOLE_PAGE,
        };
        assert_eq!(holding.exact_pages(), 134);
        let table = [(0, 0), (300, 134), (600, 267), (3, 2), (1, 1)];
        for (resident, expected) in table {
            assert_eq!(holding.exact_of(resident), expected, "{resident}");
        }
        let nothing = Holding {
            resident_pages: 0,
            exact_parts: 0,
            ..holding
        };
        assert_eq!(nothing.exact_of(50), 0);
    }

    #[test]
    fn an_account_is_found_among_all_and_the_rest_is_nobodys() {
        let holding = |account: Option<u64>| Holding {
            account: account.map(AccountId::new),
            processes: 1,
            resident_pages: 1,
            own_pages: 1,
            exact_parts: WHOLE_PAGE,
            shift_parts: WHOLE_PAGE,
        };
        let count = Count {
            holdings: [Some(1000), Some(1003), Some(1 << 31), None]
                .map(holding)
                .to_vec(),
            mapped_pages: 4,
            shared_pages: 0,
            facts: Facts::default(),
            took: Duration::ZERO,
            work: Duration::ZERO,
        };
        let of = |account: u64| count.of(AccountId::new(account)).map(|it| it.account);
        assert_eq!(of(1003), Some(Some(AccountId::new(1003))));
        assert_eq!(of(1 << 31), Some(Some(AccountId::new(1 << 31))));
        assert_eq!(of(1001), None);
        assert!(count.is_whole());
    }
}
