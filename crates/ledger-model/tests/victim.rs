// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel half's rule of who dies (rules.h) and the user half's (policy/victim.rs) are one.

use bursar_ledger_model::rules;
use bursar_model::Bytes;
use bursar_policy::rank;
use proptest::prelude::*;

const PAGE: u64 = 4096;

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..64, 0u64..1 << 20, 0u64..1 << 40]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn of_any_two_the_same_one_dies(
        one in size(),
        other in size(),
        limit in size(),
        raised in (-1000i16..=2000, -1000i16..=2000),
        is_spared in (any::<bool>(), any::<bool>()),
    ) {
        // Whole sixteenths, so that both round alike.
        let limit = limit >> 4 << 4;
        // What its user may not go below is no wish of his: only what is above 0 counts.
        let kernel = |pages: u64, raised: i16, is_spared| {
            rules::rank(pages as i64, limit as i64, i32::from(raised), is_spared)
        };
        let user = |pages: u64, raised, is_spared| {
            rank(Bytes::new(pages * PAGE), Bytes::new(limit * PAGE), raised, is_spared)
        };
        prop_assert_eq!(
            kernel(one, raised.0, is_spared.0).cmp(&kernel(other, raised.1, is_spared.1)),
            user(one, raised.0, is_spared.0).cmp(&user(other, raised.1, is_spared.1))
        );
    }
}
