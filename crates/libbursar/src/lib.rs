// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libbursar.so: S1's system calls (sections 4.1 and 5.2) as C functions. The contract is bursar.h.
//!
//! - [`limits`] set, get, kill; [`account`] the caller's own
//! - [`transaction`] reserve and commit, over a line that the process keeps open
//! - [`watch`] a descriptor that is readable when the account is at a level
//! - [`daemon`] asking bursard, and its answers as errno
//!
//! Not for use inside an allocator, except `transaction`, which does not allocate.

pub mod account;
mod daemon;
pub mod limits;
pub mod transaction;
pub mod watch;
