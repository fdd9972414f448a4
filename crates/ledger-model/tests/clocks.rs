// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Times that another CPU has written a moment later than one's own clock was read (rules.h `ms_since`).

use bursar_ledger_model::rules::{self, Dying, Patience};

const PAGES: i64 = 5000;

#[test]
fn what_begins_to_die_in_the_next_millisecond_is_credited() {
    for now in [5, 1000, u32::MAX] {
        let mut dying = Dying::default();
        dying.begin(5000, 0, now.wrapping_add(1));
        assert_eq!(dying.split(PAGES, 0, now), (0, PAGES), "at {now} ms");
        assert_eq!(dying.split(PAGES, 0, now.wrapping_add(600_000)), (PAGES, 0));
    }
}

#[test]
fn a_second_cpu_does_not_begin_its_credit_anew() {
    let mut dying = Dying::default();
    dying.begin(5000, 0, 1001);
    dying.begin(9000, 0, 1000);
    assert_eq!(dying.split(20_000, 0, 1002).1, 5000 + 512);
}

#[test]
fn files_are_credited_from_the_millisecond_before() {
    let patience = Patience::default();
    assert!(rules::is_files_credit(1001, &patience, 1000));
    assert!(rules::is_files_credit(1001, &patience, 1801));
    assert!(!rules::is_files_credit(1001, &patience, 1802));
}

#[test]
fn patience_does_not_end_before_it_has_begun() {
    let mut patience = Patience::default();
    assert!(!patience.keep(200, 100, 1001));
    assert!(!patience.keep(200, 100, 1000));
    assert!(patience.keep(200, 100, 1801));
}

#[test]
fn an_account_that_stays_a_little_above_its_limit_credits_again_in_time() {
    let mut patience = Patience::default();
    patience.keep(200, 100, 1000);
    assert!(patience.keep(200, 100, 2000));
    assert!(!patience.keep(101, 100, 3000));
    assert_eq!(patience.credit_from_ms, 2000);
    // Its deaths would be told from before after 25 days.
    assert!(!patience.keep(101, 100, 3000 + (1 << 30)));
    assert_eq!(patience.credit_from_ms, 0);
}
