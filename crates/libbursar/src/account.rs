// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The caller's own account.

use std::ffi::c_int;

use bursar_model::{Bytes, Resource};
use bursar_protocol::{Operation, Reply};

use crate::daemon::{Errno, ask, to_c};

/// See bursar.h; bytes.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "bursar.h is the contract, and says it field by field"
)]
pub struct Account {
    pub held: u64,
    pub maxheld: u64,
    pub reserved: u64,
    pub notice: u64,
    pub barrier: u64,
    pub limit: u64,
    pub failcnt: u64,
    pub kills: u64,
}

/// The account that the caller pays into; see bursar.h.
///
/// # Safety
/// `account` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_account(account: *mut Account) -> c_int {
    to_c(|| {
        if account.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        let Reply::Quota(quota) = ask(Operation::Quota)? else {
            return Err(Errno(libc::EPROTO));
        };
        let status = quota.account.ok_or(Errno(libc::ESRCH))?;
        let row = status.resources.get(&Resource::Memory);
        let row = row.copied().ok_or(Errno(libc::EPROTO))?;
        let bound = |bound: Option<Bytes>| bound.map_or(u64::MAX, Bytes::get);
        let found = Account {
            held: row.held.get(),
            maxheld: row.maxheld.get(),
            reserved: row.reserved.get(),
            notice: bound(row.notice),
            barrier: bound(row.barrier),
            limit: bound(row.limit),
            failcnt: row.failcnt,
            kills: status.kills,
        };
        // SAFETY: not NULL, and the caller's word.
        unsafe { account.write(found) };
        Ok(0)
    })
}
