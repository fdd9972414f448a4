// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The account of the self-test.

use bursar_model::{AccountId, Uid};

/// Who the child becomes, for milliseconds at a start: a uid that no directory gives out.
pub(crate) const SELFTEST_UID: Uid = Uid::new(4_294_967_291);
/// Its account, which nobody is told of.
pub(crate) const SELFTEST_ACCOUNT: AccountId = AccountId::of(SELFTEST_UID);
