// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reserving and committing over bursard's control socket, for use inside an allocator: nothing here
//! allocates, panics or keeps errno as it found it.
//!
//! - [`Line`] the connection that a process keeps open: its reservation lasts as long
//! - [`Ask`], [`Refused`] what is asked and why it was not done, as errno
//! - [`uncancelled`] for who holds a lock meanwhile
//!
//! The language is crates/protocol's; it is written and read by hand here because serde_json allocates.

mod ask;
mod line;
mod text;
mod uncancelled;

pub use ask::{Ask, Bound, Refused};
pub use line::{Line, socket_path, variable};
pub use uncancelled::uncancelled;

/// errno, which Rust has no safe name for.
pub fn errno() -> i32 {
    // SAFETY: the thread's own errno; it lives as long as the thread.
    unsafe { *libc::__errno_location() }
}

/// Sets errno.
pub fn set_errno(errno: i32) {
    // SAFETY: the thread's own errno; it lives as long as the thread.
    unsafe { *libc::__errno_location() = errno };
}
