// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeping pthread_cancel(3) away: open, read, connect and the like are cancellation points, malloc and
//! our own functions are not. A thread that ended in the middle would leave locks behind.

use std::ffi::c_int;

unsafe extern "C" {
    // POSIX; the libc crate has neither on Linux.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}
/// pthread.h of glibc.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Acts; who cancels the thread meanwhile does so from its next cancellation point on.
pub fn uncancelled<T>(act: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: a live local.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
    let result = act();
    // SAFETY: as it was; NULL is allowed (glibc).
    unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    result
}
